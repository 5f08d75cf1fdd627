"""Streams that a rebuild could not restore yet, since a store that they need does not answer.

A rebuild goes on with all others, and comes back to these after the last one. Which they are stands in
the progress of the operation, so a crash forgets none of them: one that was restored and is still on the
list is restored once more, as after any crash.
"""

from collections.abc import Mapping
from typing import Any, Final

from bottomless.errors import StoreError
from bottomless.model.names import parse_stream_id
from bottomless_server.manifest.operations.steps import described
from bottomless_server.manifest.recovery.bucket_streams import StreamPrefix

WAITING_COUNT_MAX: Final = 1_000
"""Streams that may wait at once; with more the rebuild stops at the next one that would have to."""
LOOK_AGAIN_MS: Final = 10_000
"""How long a rebuild of which only waiting streams are left does nothing."""
_LIST: Final = "waiting"
_COUNT: Final = "waiting_streams"
_WHY: Final = "_waiting_for"


def waiting(progress: Mapping[str, Any]) -> list[StreamPrefix]:
    """The streams that wait, who waits longest first."""
    rows = [str(row).split("/") for row in progress.get(_LIST, [])]
    return [StreamPrefix(tenant, parse_stream_id(stream_id)) for tenant, stream_id in rows]


def put_off(progress: dict[str, Any], prefix: StreamPrefix, error: StoreError) -> None:
    """Note that a stream waits, as the last one, and what for.

    Raises:
        StoreError: the given one: too many wait.
    """
    restored(progress, prefix)
    rows = [*progress.get(_LIST, []), _row(prefix)]
    if len(rows) > WAITING_COUNT_MAX:
        raise error
    progress |= {_LIST: rows, _COUNT: len(rows), _WHY: described(error)}


def restored(progress: dict[str, Any], prefix: StreamPrefix) -> None:
    """Note that a stream does not wait any more; nothing changes if it did not."""
    rows = [row for row in progress.get(_LIST, []) if row != _row(prefix)]
    if len(rows) < len(progress.get(_LIST, [])):
        progress |= {_LIST: rows, _COUNT: len(rows)}


def waits_for(progress: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Why a stream was put off last, as people are told of it."""
    why: Mapping[str, Any] | None = progress.get(_WHY)
    return why


def _row(prefix: StreamPrefix) -> str:
    return f"{prefix.tenant}/{prefix.stream_id}"
