"""Walk the chunks of a segment with their checksums, and tell tearing from damage.

A power cut tears the end of a segment, and what is torn is cut: nothing of it was answered. What is
damaged is never cut. The index helps to tell one from the other, since its records are written
after the sync of their round: a chunk that has an index record was acknowledged, so it is damaged
if it is bad. It then keeps the place that its record says: the others stay readable, and a reader
of this one finds that it is bad.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Corrupt
from bottomless.formats.checks import corrupt
from bottomless.formats.chunk import HEADER_SIZE, MAGIC, decode_header, verify_body
from bottomless.guards import guard
from bottomless.model.chunk import ChunkFlags, ChunkHeader, ChunkPlace
from bottomless_server.node.file_calls import FileCalls, read_exactly

log = structlog.get_logger(__name__)

_MAGIC: Final = MAGIC.to_bytes(4, "little")
_SEARCH_SIZE: Final = 256 * 1024 * 1024
"""Bytes after a bad chunk that are searched for a good one: more than any round has."""
_WINDOW_SIZE: Final = 1024 * 1024
"""Bytes of them that are in memory at a time."""


class Place(NamedTuple):
    """Where the next chunk must start, and what it must not go below."""

    position: int
    offset: int
    timestamp: int
    epoch: int


def walk(
    files: FileCalls,
    fd: int,
    size: int,
    synced: int,
    start: Place,
    indexed: Callable[[Place], ChunkPlace | None] = lambda _: None,
) -> Iterator[ChunkPlace]:
    """Chunks of whole rounds from `start` to the last good one.

    `indexed` is what the index says of the chunk that must start at a place.

    Raises:
        Corrupt: a chunk below `synced` is damaged, or a later round follows it, and no
            index record says where it ends.
    """
    expected, group = start, list[ChunkPlace]()
    while expected.position < size:
        try:
            place, more_follows = _read_chunk(files, fd, size, expected)
        except Corrupt as error:
            known = indexed(expected)
            if known is not None and known.position + known.size <= size:
                log.error("a synced chunk is damaged", offset=expected.offset, cause=str(error))  # noqa: TRY400
                # Its round was synced, so all of a group is there.
                place, more_follows = known, False
            elif expected.position < synced or has_later_round(files, fd, size, expected):
                raise corrupt("log", f"damage at offset {expected.offset}") from error
            else:
                break
        group.append(place)
        end = place.position + place.size
        expected = Place(end, place.next_offset, place.timestamp, place.epoch)
        if not more_follows:
            yield from group
            group.clear()
    if group and group[-1].position < synced:
        raise corrupt("log", "a group below the synced position is not whole")


def _read_chunk(files: FileCalls, fd: int, size: int, expected: Place) -> tuple[ChunkPlace, bool]:
    header = _whole_chunk(files, fd, size, expected.position)
    follows = (
        header.first_offset == expected.offset
        and header.timestamp >= expected.timestamp
        and header.epoch >= expected.epoch
    )
    if not follows:
        raise corrupt("chunk", "it does not follow the one before")
    place = ChunkPlace(
        header.first_offset,
        header.timestamp,
        expected.position,
        header.epoch,
        header.total_size,
        header.record_count,
    )
    return place, is_more_to_come(header)


@guard("the flag that an append goes on")
def is_more_to_come(header: ChunkHeader) -> bool:
    """Whether the next chunk belongs to the same append, so that neither counts without the other."""
    return ChunkFlags.MORE_FOLLOWS in header.flags


def _whole_chunk(files: FileCalls, fd: int, size: int, position: int) -> ChunkHeader:
    """The header of the chunk at `position` in a file of `size` bytes; its body is verified."""
    raw = read_exactly(files, fd, HEADER_SIZE, position)
    header = decode_header(raw)
    # Before it is read: a header whose body was torn off still says how large that was.
    if position + header.total_size > size:
        raise corrupt("chunk", "it is cut short")
    body = read_exactly(files, fd, header.total_size - HEADER_SIZE, position + HEADER_SIZE)
    verify_body(header, raw + body)
    return header


@guard("a later round after a bad chunk")
def has_later_round(files: FileCalls, fd: int, size: int, bad: Place) -> bool:
    """Whether a whole chunk after the bad one was written after it was synced.

    Chunks of one group are written together, so a good chunk proves a later round only
    if a round ends before it: at the bad chunk, where its header can still be read, or
    at another good chunk.
    """
    end = min(size, bad.position + _SEARCH_SIZE)
    try:
        header = decode_header(read_exactly(files, fd, HEADER_SIZE, bad.position))
        # Not inside it: a record may hold anything, a chunk too.
        ended, size_known = ChunkFlags.MORE_FOLLOWS not in header.flags, header.total_size
    except Corrupt:
        ended, size_known = False, 8
    next_position = bad.position + size_known
    for position in _magics(files, fd, next_position, end):
        if position < next_position:
            continue
        try:
            good = _whole_chunk(files, fd, end, position)
        except Corrupt:
            continue
        # Not only above: a chunk without records takes no offset.
        if good.first_offset < bad.offset:
            continue
        if ended:
            return True
        ended = ChunkFlags.MORE_FOLLOWS not in good.flags
        next_position = position + good.total_size
    return False


def _magics(files: FileCalls, fd: int, start: int, end: int) -> Iterator[int]:
    """Where a chunk may begin between two positions of a file."""
    while start < end:
        # The windows overlap, so that a magic on their border is seen.
        data = read_exactly(files, fd, min(_WINDOW_SIZE + len(_MAGIC) - 1, end - start), start)
        found = data.find(_MAGIC)
        while found >= 0:
            yield start + found
            found = data.find(_MAGIC, found + 1)
        start += _WINDOW_SIZE
