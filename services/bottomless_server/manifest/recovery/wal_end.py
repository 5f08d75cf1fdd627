"""Put what was noted of a leaderless stream into fragments, after the end of its manifest.

Pieces are placed as readers and uploaders place them, so the fragments have the bytes that those of a
round of compaction would have. Each is put under a new uid. After a crash they are objects that no
manifest names; the next attempt finds those that go on from the manifest's end, adopts them, and begins
after them.
"""

from typing import Final, NamedTuple

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt, StoreError
from bottomless.formats.checks import check
from bottomless.formats.fragment import pack_fragment
from bottomless.formats.keys import fragment_place, wal_key
from bottomless.formats.placing import Placed, place
from bottomless.model.chunk import ChunkHeader
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.manifest import GapReason, Node
from bottomless.model.stream import StreamRecord
from bottomless_server.core.filter_making import make_filters
from bottomless_server.leaderless.noted import NotedEntry, end_of
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.recovery.reads_ahead import AheadBounds, reads_ahead
from bottomless_server.manifest.recovery.wal_scan import FoundWal
from bottomless_server.manifest.tree.core.planning import gap_at_end
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.read_again import read_again
from bottomless_server.tree.append import append_entries, append_fragments

log = structlog.get_logger(__name__)

_AHEAD_SIZE_MAX: Final = 64 * MIB
"""Bytes of pieces that are read before their turn comes."""


class RestoredEnd(NamedTuple):
    """A manifest with all that was noted after it."""

    root: Node
    fragment_count: int
    """Fragments that were made of WAL objects."""
    damaged: bool
    """Whether something that was noted could not be brought back."""


async def restored_end(
    context: Context, record: StreamRecord, root: Node, found: FoundWal
) -> RestoredEnd:
    """Bring back what was noted after the end of a root.

    Raises:
        DriveUnavailable, DriveRefused, DriveAmbiguous: the same again is right.
    """
    stream_id = record.stream_id
    end = end_of(
        root.next_offset,
        found.noted.get(stream_id, ()),
        undecided=found.may_have_more(stream_id),
    )
    if end.differs_at is not None:
        log.critical("notes differ", stream_id=stream_id, offset=end.differs_at)
    packing = _Packing(context, record, root)
    bounds = AheadBounds(context.settings.manifest_rebuild_wal_reads, _AHEAD_SIZE_MAX)
    async with reads_ahead(packing.read, end.entries, bounds, lambda one: one.size) as read:
        for entry in end.entries:
            await packing.add(entry, await anext(read))
    await packing.close(end.goes_on_at, GapReason.TAKEOVER)
    damaged = packing.damaged or end.differs_at is not None
    return RestoredEnd(packing.root, packing.fragment_count, damaged)


class _Packing:
    """Entries that become fragments, one after the other; at most one fragment is in memory."""

    def __init__(self, context: Context, record: StreamRecord, root: Node) -> None:
        self.root = root
        self.fragment_count = 0
        self.damaged = False
        self._context = context
        self._record = record
        self._run: list[bytes | memoryview] = []
        self._size = 0
        self._last: ChunkHeader | None = None

    @property
    def _next_offset(self) -> int:
        """After what is in the root and in the run."""
        if self._last is None:
            return self.root.next_offset
        return self._last.first_offset + self._last.record_count

    async def read(self, entry: NotedEntry) -> list[Placed] | StoreError:
        """All chunks of an entry; what is wrong with it is for `add`, in its turn."""
        try:
            return await read_again(lambda: self._placed(entry))
        except (ObjectMissing, Corrupt) as error:
            return error

    async def add(self, entry: NotedEntry, read: list[Placed] | StoreError) -> None:
        """Take what was read of an entry; what lies before it and was not noted becomes a gap."""
        if entry.first_offset > self._next_offset:
            await self.close(entry.first_offset, GapReason.TAKEOVER)
        try:
            placed = self._left(read)
        except (ObjectMissing, Corrupt):
            log.exception(
                "what was committed is lost",
                stream_id=self._record.stream_id,
                first_offset=self._next_offset,
                next_offset=entry.next_offset,
                wal=wal_key(entry.instance, entry.sequence),
            )
            self.damaged = True
            await self.close(entry.next_offset, GapReason.DAMAGED)
            return
        if self._last is not None and self._last.epoch != entry.epoch:
            await self._put()
        for one in placed:
            self._run += [one.front, one.body]
            self._size += one.header.total_size
            self._last = one.header
        if self._size >= self._record.config.fragment.target_bytes:
            await self._put()

    async def _placed(self, entry: NotedEntry) -> list[Placed]:
        data = await self._context.drive.get(
            wal_key(entry.instance, entry.sequence), entry.position, entry.size
        )
        return place(
            data,
            first_offset=entry.first_offset,
            record_count=entry.record_count,
            timestamp=entry.timestamp,
            epoch=entry.epoch,
        )

    def _left(self, read: list[Placed] | StoreError) -> list[Placed]:
        """The chunks of an entry that the manifest does not have."""
        if isinstance(read, StoreError):
            raise read
        # A fragment may end at any chunk of an entry.
        left = [one for one in read if one.header.first_offset >= self._next_offset]
        goes_on = bool(left) and left[0].header.first_offset == self._next_offset
        check("entry", goes_on, "no chunk begins where the manifest ends")
        return left

    async def close(self, next_offset: int, reason: GapReason) -> None:
        """Put what waits, and then a gap up to an offset, if it is beyond."""
        await self._put()
        gap = gap_at_end(self.root, next_offset, self._record.epoch, reason)
        self.root = append_entries(self.root, gap)

    async def _put(self) -> None:
        if not self._run:
            return
        record, uid = self._record, self._context.new_uid()
        data = b"".join(self._run)
        tables = make_filters([data], len(data), record.config.filter)
        packed = pack_fragment(record.stream_id, uid, [data], tables)
        place = fragment_place(record.stream_id, packed.info, record.tenant)
        await put_object(
            self._context.drives.of(place.drive),
            place.object_key,
            packed.parts,
            packed.info.crc,
            deadline_seconds=self._context.settings.manifest_put_seconds,
        )
        self.root = append_fragments(self.root, [packed.info])
        self.fragment_count += 1
        self._run, self._size, self._last = [], 0, None


def with_run(root: Node, run: tuple[FragmentInfo, ...]) -> Node:
    """A root with fragments at its end."""
    if not run:
        return root
    return append_fragments(root, run)
