"""Retention and trim as operations: asked for over HTTP, done in the stream's task.

Both are one step, and idempotent: a floor that is where it should be is left there. So after
a crash at any moment the operation is done again and finds its own work.
"""

from typing import Final

from bottomless.model.names import StreamId
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operations import Done, Operations
from bottomless_server.manifest.removal.retention import evaluate, trim
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.retention_decision import RetentionDecision
from bottomless_server.manifest.tree.mutator import Mutators
from bottomless_server.stores.operations import Operation

TRIM: Final = "trim"
RETENTION: Final = "retention"


def register_retention(operations: Operations, mutators: Mutators) -> None:
    async def run_trim(context: Context, operation: Operation) -> Done:
        arguments = operation.arguments
        before, empty = int(arguments["before_offset"]), bool(arguments["allow_empty"])

        async def work(committer: Committer) -> int:
            return await trim(context, committer, before, allow_empty=empty)

        first_offset = await mutators.at(_stream_of(operation)).ask(work)
        return Done({"before_offset": before, "first_offset": first_offset})

    async def run_retention(context: Context, operation: Operation) -> Done:
        async def work(committer: Committer) -> RetentionDecision:
            return await evaluate(context, committer)

        decision = await mutators.at(_stream_of(operation)).ask(work)
        described = decision.described()
        return Done({"deleted": described.pop("would_delete"), **described})

    operations.register(TRIM, run_trim)
    operations.register(RETENTION, run_retention)


def _stream_of(operation: Operation) -> StreamId:
    assert operation.stream_id is not None
    return operation.stream_id
