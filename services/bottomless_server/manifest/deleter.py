"""Delete objects that the manifest gave up, when their time has come.

A key gets into the queue in the EXEC that makes its object unreachable, with the time
from which it may go. Before anything is deleted the live record is asked once more, since
a bug elsewhere must cost disk space and not data. Crash windows:

1. Deleted, not settled: deleted again by the next pass; an absent object counts as deleted.
2. Settled before its uid left the quarantine: cannot be, the quarantine is first.
"""

import asyncio
import re
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from bottomless.coordination.base import Due
from bottomless.errors import NotFound, StoreError
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord
from bottomless.stores.streams import DELETES_KEY
from bottomless_server.manifest.context import Context
from bottomless_server.manifest.lookup import names
from bottomless_server.manifest.resolver import load_root

log = structlog.get_logger(__name__)

_PASS_COUNT_MAX: Final = 256
"""Keys of one pass; what remains is due in the next one, at once."""

_KEY = re.compile(
    r"[^/]+/(?P<stream>[0-9a-f-]{36})/(?:"
    r"data/(?P<first>[0-9]{20})\.(?P<fragment>[0-9a-f]{32})\.fragment"
    r"|metadata/root\.[0-9]{10}\.[0-9]{20}\.[0-9]{20}\.(?P<root>[0-9a-f]{32})\.manifest"
    r"|metadata/(?P<start>[0-9]{20})\.(?P<group>[0-9a-f]{32})\.g[0-9]+)",
    re.ASCII,
)


class _Place(NamedTuple):
    """What an object key says of its object."""

    stream_id: StreamId
    uid: Uid
    first_offset: int | None
    """None of a root, which no entry names."""


class Deleter:
    def __init__(self, context: Context) -> None:
        self._context = context
        self.deleted_count = 0
        self.refused_count = 0
        """Keys that were due and reachable: each one is a bug somewhere."""

    async def run(self) -> None:
        """Make passes for ever."""
        while True:
            more = False
            try:
                more = await self.make_pass() == _PASS_COUNT_MAX
            except StoreError as error:
                log.warning("a pass of the deleter failed", error=str(error))
            except Exception:
                # Deleting less is no harm; the next pass begins anew.
                log.exception("a pass of the deleter met a bug")
            await asyncio.sleep(
                0 if more else self._context.settings.manifest_delete_interval_ms / 1000
            )

    async def make_pass(self) -> int:
        """Delete what is due now; returns how many keys were settled.

        Raises:
            CoordinationUnavailable, CoordinationUnknown, DriveUnavailable, DriveRefused
        """
        context = self._context
        dues = await context.coordination.due(DELETES_KEY, context.clock(), _PASS_COUNT_MAX)
        settled: list[Due] = []
        for due in dues:
            try:
                if await self._settle(due.member.decode("ascii")):
                    settled.append(due)
            except StoreError as error:
                log.warning("an object was not deleted", error=str(error))
        await context.coordination.settle(settled)
        return len(settled)

    async def _settle(self, object_key: str) -> bool:
        """Delete one object, or refuse to; whether its place in the queue is used up."""
        place = _parse(object_key)
        if place is None:
            log.error("the delete queue holds a key that is not known")
            return True
        record = await self._record(place.stream_id)
        if record is not None and await self._reachable(record, place):
            self.refused_count += 1
            log.critical(
                "a live object was to be deleted", stream_id=place.stream_id, uid=place.uid
            )
            return True
        failed = await self._context.drive.delete([object_key])
        if failed:
            log.warning("an object was not deleted", errors=[str(e) for e in failed.values()])
            return False
        self.deleted_count += 1
        if record is not None and any(place.uid == intent.uid for intent in record.quarantine):
            await self._release(place)
        return True

    async def _record(self, stream_id: StreamId) -> StreamRecord | None:
        try:
            return await self._context.streams.load(stream_id)
        except NotFound:
            return None

    async def _reachable(self, record: StreamRecord, place: _Place) -> bool:
        if record.root is not None and record.root.uid == place.uid:
            return True
        if any(place.uid == intent.uid for intent in record.intents):
            return True
        if place.first_offset is None:
            return False
        _, root = await load_root(self._context, record)
        return await names(self._context.drive, root, place.first_offset, place.uid)

    async def _release(self, place: _Place) -> None:
        """Take a uid whose object is gone out of quarantine, which is bounded."""

        def release(record: StreamRecord) -> StreamRecord:
            left = tuple(intent for intent in record.quarantine if intent.uid != place.uid)
            return replace(record, quarantine=left)

        await self._context.streams.update(place.stream_id, release)


def _parse(object_key: str) -> _Place | None:
    match = _KEY.fullmatch(object_key)
    if match is None:
        return None
    first = match["first"] or match["start"]
    uid = match["fragment"] or match["root"] or match["group"]
    return _Place(StreamId(match["stream"]), Uid(uid), None if first is None else int(first))
