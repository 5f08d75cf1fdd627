"""What lies in the bucket, as the last collection of garbage that looked at all of it has found.

bottomless:stored    when, and objects and bytes of each kind, JSON

It is for people alone: nothing is decided by it, so after a crash, or a loss of coordination, it is
older or not there, until the next collection.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from bottomless_server.coordination.base import Changes, Coordination

STORED_KEY: Final = "bottomless:stored"


class StoredOfKind(NamedTuple):
    """Objects of one kind."""

    object_count: int
    size: int


class StoredSizes(NamedTuple):
    """What a collection has found."""

    at: int
    """When it ended, in ms since 1970."""
    kinds: Mapping[str, StoredOfKind]


async def note_stored(coordination: Coordination, found: StoredSizes) -> None:
    """Note what was found, whatever was noted before.

    Raises:
        CoordinationUnavailable, CoordinationUnknown
    """
    kinds = {kind: list(counts) for kind, counts in found.kinds.items()}
    value = orjson.dumps({"at": found.at, "kinds": kinds})
    await coordination.transact([STORED_KEY], lambda _: (Changes({STORED_KEY: value}), None))


async def load_stored(coordination: Coordination) -> StoredSizes | None:
    """Load what was noted last; None where nothing was, or nothing that can be read.

    Raises:
        CoordinationUnavailable
    """
    value = await coordination.get(STORED_KEY)
    if value is None:
        return None
    try:
        told = orjson.loads(value)
        kinds = {str(kind): StoredOfKind(*map(int, found)) for kind, found in told["kinds"].items()}
        return StoredSizes(int(told["at"]), kinds)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
