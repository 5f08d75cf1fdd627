"""Retention and trim as operations: asked for over HTTP, done in the stream's task.

Both are one step, and idempotent: a floor that is where it should be is left there. So after
a crash at any moment the operation is done again and finds its own work.
"""

from typing import Final

from bottomless.model.names import StreamId
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Done
from bottomless_server.stores.operations import Operation

TRIM: Final = "trim"
RETENTION: Final = "retention"


def register_retention(operations: Operations, mutators: Mutators) -> None:
    """Say who carries out trims and evaluations of retention."""

    async def run_trim(_: Context, operation: Operation) -> Done:
        before, empty = (operation.arguments[name] for name in ("before_offset", "allow_empty"))
        mutator = mutators.of(_stream_of(operation))
        first_offset = await mutator.trim(int(before), allow_empty=bool(empty))
        return Done({"before_offset": int(before), "first_offset": first_offset})

    async def run_retention(_: Context, operation: Operation) -> Done:
        described = (await mutators.of(_stream_of(operation)).evaluate()).described()
        return Done({"deleted": described.pop("would_delete"), **described})

    operations.register(TRIM, run_trim)
    operations.register(RETENTION, run_retention)


def _stream_of(operation: Operation) -> StreamId:
    assert operation.stream_id is not None
    return operation.stream_id
