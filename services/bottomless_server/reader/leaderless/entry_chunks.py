"""Chunks of tail entries: fetched from where they are, verified, and placed.

Bytes come from blocks that are here already, else from the node that put the object, else from the
store by way of the same blocks, which all streams of an object share. Of what is damaged a node's
bytes are not believed, and a block is fetched once more.

On the record's path: in the place of fragments.py, as long as no fragment holds the records.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import structlog

from bottomless.errors import Code, Corrupt
from bottomless.formats.checks import check
from bottomless.formats.chunk import HEADER_SIZE, decode_header
from bottomless.formats.keys import wal_key
from bottomless.formats.placing import EntryWalk, Placed, place, place_part
from bottomless.model.chunk import ChunkFlags, ChunkHeader
from bottomless.model.limits import KIB, MIB
from bottomless_server.leaderless.tail import TailEntry
from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.leaderless.wal_nodes import WalNodes
from bottomless_server.reader.verified import Events, off_loop, verified

log = structlog.get_logger(__name__)

T = TypeVar("T")

WHOLE_SIZE_MAX: Final = MIB
"""An entry of so many bytes is read whole; of a larger one the headers say what is wanted of it."""
NODE_SIZE_MAX: Final = 8 * MIB
"""More is not asked of a node: it would take longer than a node is waited for, which then seems to fail."""
_WINDOW_SIZE: Final = 64 * KIB
"""Bytes in which headers are looked for at a time."""
_EVENTS: Final = Events("wal_object_reread", "wal_object_corrupt")


class EntryPart(NamedTuple):
    """What a reader wants of an entry."""

    entry: TailEntry
    epoch: int
    """The epoch of the stream's tail."""
    offset: int
    """The first offset that is wanted."""
    wanted_size: int
    end: int
    """Nothing at or beyond this offset is wanted."""
    is_new: bool
    """It was committed a little while ago: its node may still have it."""

    @property
    def size(self) -> int:
        """Bytes that it will take, by a guess."""
        return min(self.entry.size, max(self.wanted_size, WHOLE_SIZE_MAX))


class PlacedRun(NamedTuple):
    """Chunks with their offsets, one after the other; none of them ends a group too early."""

    data: bytes
    first_offset: int
    next_offset: int


class _Span(NamedTuple):
    """Whole chunks within an entry."""

    start: int
    """Byte of the object."""
    size: int
    first_offset: int
    record_count: int


class EntryChunks:
    def __init__(self, blocks: Blocks, nodes: WalNodes) -> None:
        self._blocks = blocks
        self._nodes = nodes
        self.held_count = self.store_count = 0
        """Ranges that were here already, and those that came from the store."""

    async def read(self, part: EntryPart) -> PlacedRun:
        """Chunks from the one that holds the offset on, some bytes of them, at least one.

        Raises:
            ObjectMissing: the object is gone, as it may be once fragments have replaced its entries.
            Corrupt: `data-corrupt`: it is damaged at rest.
            DriveUnavailable, DriveRefused
        """
        entry = part.entry
        assert entry.first_offset <= part.offset < entry.next_offset
        if entry.size <= max(WHOLE_SIZE_MAX, part.wanted_size):
            return await self._whole(part)
        span = await self._span_of(part)

        def place_span(data: memoryview) -> PlacedRun:
            placed = place_part(
                data,
                first_offset=span.first_offset,
                record_count=span.record_count,
                timestamp=entry.timestamp,
                epoch=part.epoch,
            )
            return run_of(placed, part)

        return await self._verified(part, span.start, span.size, place_span)

    async def _whole(self, part: EntryPart) -> PlacedRun:
        entry = part.entry

        def place_all(data: memoryview) -> PlacedRun:
            check("entry", len(data) == entry.size, "it is cut short")
            placed = place(
                data,
                first_offset=entry.first_offset,
                record_count=entry.record_count,
                timestamp=entry.timestamp,
                epoch=part.epoch,
            )
            return run_of(placed, part)

        return await self._verified(part, entry.position, entry.size, place_all)

    async def _span_of(self, part: EntryPart) -> _Span:
        """Look through the headers of an entry: the chunks that are wanted of it."""
        entry = part.entry
        walk, position, offset = EntryWalk(), entry.position, entry.first_offset
        end = entry.position + entry.size
        first: tuple[int, int] | None = None
        while position < end:
            for header in await self._headers(part, position, end):
                walk.step(header)
                next_offset = offset + header.record_count
                if first is None and next_offset > part.offset:
                    first = (position, offset)
                position, offset = position + header.total_size, next_offset
                if first is None:
                    continue
                if _is_enough(part, position - first[0], offset, header):
                    start, begins = first
                    return _Span(start, position - start, begins, offset - begins)
        walk.end()
        check("entry", (position, offset) == (end, entry.next_offset), "its chunks do not fill it")
        assert first is not None
        return _Span(first[0], end - first[0], first[1], offset - first[1])

    async def _headers(self, part: EntryPart, position: int, end: int) -> list[ChunkHeader]:
        """The headers of chunks that follow each other from a position on, at least one."""

        def decode(data: memoryview) -> list[ChunkHeader]:
            found: list[ChunkHeader] = []
            at = 0
            while at + HEADER_SIZE <= len(data):
                found.append(decode_header(data, at))
                at += found[-1].total_size
            check("entry", bool(found), "it is cut short")
            return found

        return await self._verified(part, position, min(_WINDOW_SIZE, end - position), decode)

    async def _verified(
        self, part: EntryPart, start: int, size: int, decode: Callable[[memoryview], T]
    ) -> T:
        """What `decode` makes of a range of an entry's object."""
        entry = part.entry
        key = wal_key(entry.instance, entry.sequence)
        held = self._blocks.holds(key, start, size)
        if part.is_new and not held and size <= NODE_SIZE_MAX:
            data = await self._nodes.read(entry.instance, entry.sequence, start, size)
            if data is not None:
                try:
                    return await off_loop(size, decode, memoryview(data))
                except Corrupt:
                    self._nodes.distrust(entry.instance)
                    log.warning(
                        "wal_node_distrusted", instance=entry.instance, sequence=entry.sequence
                    )
        self.held_count += held
        self.store_count += not held
        try:
            return await verified(
                lambda: self._blocks.read(key, start, size),
                decode,
                lambda: self._blocks.drop(key, start, size),
                size,
                events=_EVENTS,
                instance=entry.instance,
                sequence=entry.sequence,
            )
        except Corrupt as error:
            raise Corrupt(
                "records that are in no fragment yet are damaged",
                code=Code.DATA_CORRUPT,
                facts={"first_offset": entry.first_offset, "next_offset": entry.next_offset},
            ) from error


def run_of(placed: list[Placed], part: EntryPart) -> PlacedRun:
    """Copy what is wanted of chunks, so that the blocks that hold them may go."""
    views: list[bytes | memoryview] = []
    taken, first, end = 0, part.offset, part.offset
    for header, front, body in placed:
        if header.next_offset <= part.offset:
            continue
        if not views:
            first = header.first_offset
        views += (front, body)
        taken, end = taken + header.total_size, header.next_offset
        if _is_enough(part, taken, end, header):
            break
    return PlacedRun(b"".join(views), first, end)


def _is_enough(part: EntryPart, taken: int, next_offset: int, last: ChunkHeader) -> bool:
    """Whether a run may end after this chunk; within a group it never does."""
    reached = taken >= part.wanted_size or next_offset >= part.end
    return reached and ChunkFlags.MORE_FOLLOWS not in last.flags
