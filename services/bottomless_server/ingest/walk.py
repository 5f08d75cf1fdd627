"""Walk the chunks of a segment with their checksums, and tell tearing from damage.

The index tells it too: its records are written after the sync of their round. A chunk that
has one was acknowledged, so a bad one is damage, and takes the place that its record says:
the others stay readable, and whoever reads this one finds that it is bad.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Corrupt
from bottomless.formats.checks import corrupt
from bottomless.formats.chunk import HEADER_SIZE, MAGIC, decode_header, verify_body
from bottomless.model.chunk import ChunkFlags, ChunkHeader, ChunkPlace
from bottomless_server.ingest.file_calls import FileCalls, read_exactly

log = structlog.get_logger(__name__)

_MAGIC: Final = MAGIC.to_bytes(4, "little")
_SEARCH_SIZE: Final = 256 * 1024 * 1024
"""Bytes behind a bad chunk that are searched for a good one: more than any round has."""


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
        Corrupt: a chunk below `synced` is damaged, or a later round stands behind it, and no
            index record says where it ends.
    """
    expected, group = start, list[ChunkPlace]()
    while expected.position < size:
        try:
            place, more_follows = _read_chunk(files, fd, expected)
        except Corrupt as error:
            known = indexed(expected)
            if known is not None and known.position + known.size <= size:
                log.error("a synced chunk is damaged", offset=expected.offset, cause=str(error))  # noqa: TRY400
                # Its round was synced, so all of a group is there.
                place, more_follows = known, False
            elif expected.position < synced or _later_round(files, fd, size, expected):
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


def _read_chunk(files: FileCalls, fd: int, expected: Place) -> tuple[ChunkPlace, bool]:
    raw = read_exactly(files, fd, HEADER_SIZE, expected.position)
    header = decode_header(raw)
    body = read_exactly(files, fd, header.total_size - HEADER_SIZE, expected.position + HEADER_SIZE)
    verify_body(header, raw + body)
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
    return place, ChunkFlags.MORE_FOLLOWS in header.flags


def _later_round(files: FileCalls, fd: int, size: int, bad: Place) -> bool:
    """Whether a whole chunk behind the bad one was written after it was synced.

    Chunks of one group are written together, so a good chunk proves a later round only
    if a round ends before it: at the bad chunk, where its header can still be read, or
    at another good chunk.
    """
    data = read_exactly(files, fd, min(size - bad.position, _SEARCH_SIZE), bad.position)
    try:
        header = decode_header(data[:HEADER_SIZE])
        # Not inside it: a record may hold anything, a chunk too.
        ended, behind = ChunkFlags.MORE_FOLLOWS not in header.flags, header.total_size
    except Corrupt:
        ended, behind = False, 8
    position = data.find(_MAGIC, behind)
    while position >= 0:
        good = _good_chunk(data, position, bad.offset)
        if good is None:
            position = data.find(_MAGIC, position + 1)
            continue
        if ended:
            return True
        ended = ChunkFlags.MORE_FOLLOWS not in good.flags
        position = data.find(_MAGIC, position + good.total_size)
    return False


def _good_chunk(data: bytes, position: int, above: int) -> ChunkHeader | None:
    view = memoryview(data)
    try:
        header = decode_header(view, position)
        verify_body(header, view[position : position + header.total_size])
    except Corrupt:
        return None
    # Not only above: a chunk without records takes no offset.
    return header if header.first_offset >= above else None
