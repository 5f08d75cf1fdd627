"""The streams that a bucket shows, one after the other, and whether this release can read all of them.

A rebuild discards what coordination has, and what it does not bring back is gone there: the name of
such a stream is free, and whoever takes it is the younger stream of that name, for whose sake the
next rebuild deletes the older one. So a release that cannot read a stream's registry object must not
begin, as after a roll-back. Every stream is looked at before anything is discarded. Nothing is
written meanwhile but how far it came, so after a crash it goes on there.
"""

import asyncio
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from bottomless.drives.base import Drive
from bottomless.errors import InvalidRequest
from bottomless.formats.keys import stream_prefix
from bottomless.guards import guard
from bottomless.model.names import StreamId, parse_stream_id
from bottomless_server.manifest.recovery.found_supers import read_supers
from bottomless_server.manifest.recovery.rebuilt_registry import read_registry

_AT_ONCE: Final = 16
"""Streams that one step looks at: each is a listing, and an object or two."""


class StreamPrefix(NamedTuple):
    tenant: str
    stream_id: StreamId

    def __str__(self) -> str:
        return stream_prefix(self.stream_id, self.tenant)

    @property
    def end(self) -> str:
        """What all keys below it come before. "0" is the byte after "/"."""
        return str(self)[:-1] + "0"


async def next_prefix(drive: Drive, after: str) -> StreamPrefix | None:
    """The first prefix of a stream after a key; None if there is no more.

    Raises:
        DriveUnavailable, DriveRefused
    """
    async for facts in drive.list("", after):
        tenant, _, rest = facts.object_key.partition("/")
        try:
            return StreamPrefix(tenant, parse_stream_id(rest.partition("/")[0]))
        except InvalidRequest:
            # Not a stream's: the generation, and what is nobody's.
            continue
    return None


@guard("a look at every registry object before a rebuild discards anything")
async def look_at_some(drive: Drive, served: AbstractSet[str], progress: dict[str, Any]) -> bool:
    """Look at some streams, and note in `progress` where to go on; whether there may be more.

    Raises:
        NotServed: this release cannot read a registry object, or a super object, of one of them.
        DriveUnavailable, DriveRefused
    """
    if progress.get("_looked"):
        return False
    page: list[StreamPrefix] = []
    after = str(progress.get("_after_looked", ""))
    while len(page) < _AT_ONCE and (prefix := await next_prefix(drive, after)) is not None:
        page.append(prefix)
        after = prefix.end
    await asyncio.gather(
        *(read_registry(drive, str(prefix), served) for prefix in page),
        *(read_supers(drive, str(prefix), served) for prefix in page),
    )
    progress["_after_looked"] = after
    progress["_looked"] = len(page) < _AT_ONCE
    return True
