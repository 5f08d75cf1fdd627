"""Read runs of whole chunks out of a segment, as they lie there: of a log that is owned, or followed.

Only what is visible is read: who asks says how many chunks of the segment are. Nothing is written.

On the record's path: between the log and whoever is answered with its chunks (local/feed.py).
"""

from pathlib import Path
from typing import NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.chunk import decode_header
from bottomless.formats.segment import HEADER_SIZE, decode_segment_header
from bottomless.model.chunk import ChunkFlags, ChunkPlace
from bottomless_server.ingest.log.core.chunk_index import ChunkIndex
from bottomless_server.ingest.log.layout import segment_path
from bottomless_server.ingest.log.segments import Segment, SegmentLog
from bottomless_server.node.file_calls import FileCalls, read_exactly
from bottomless_server.protocol.tail import BY_FILE_SIZE_MIN, SegmentPart


class Wanted(NamedTuple):
    """What is to be read of a segment: from the chunk that holds an offset on, about so many bytes."""

    first_offset: int
    size_max: int
    visible_count: int
    """Chunks of the segment that are visible."""
    by_file: bool
    """Not to be read, if there is enough of it, but to be told where it lies."""


class FoundRun(NamedTuple):
    """What was read of a file: the rest of a `ChunkRun`, after its bounds."""

    first_offset: int
    next_offset: int
    log_end: int
    data: bytes
    part: SegmentPart | None


def read_found(files: FileCalls, local: SegmentLog, segment: Segment, wanted: Wanted) -> FoundRun:
    """Read the chunks that are wanted; in a worker thread. They may be freed meanwhile.

    Raises:
        FileNotFoundError: they were.
        Corrupt: the file does not hold what was written.
    """
    index = segment.index
    number = index.holding(wanted.first_offset)
    first = index.place(number)
    last = max(
        min(index.before(first.position + wanted.size_max), wanted.visible_count - 1), number
    )
    place = index.place(last)
    if last > number and place.position + place.size > first.position + wanted.size_max:
        last -= 1
    # Nor does a run end with chunks that hold no record: whoever asked has no use for them.
    while last > number and not index.place(last).record_count:
        last -= 1
    path = segment_path(local.directory, segment.first_offset)
    fd = files.open(path)
    try:
        place = index.place(last)
        run = place.position + place.size - first.position
        part = None
        if wanted.by_file and run >= BY_FILE_SIZE_MIN:
            part, data = _part(files, fd, path, index, number, last), b""
        if part is None:
            data = _read_run(files, fd, index, number, last)
    finally:
        files.close(fd)
    size = len(data) if part is None else part.size
    end = first.position + size
    place = index.place(index.before(end))
    log_end = segment.log_start + end - HEADER_SIZE
    return FoundRun(first.first_offset, place.next_offset, log_end, data, part)


def _read_run(files: FileCalls, fd: int, index: ChunkIndex, number: int, last: int) -> bytes:
    """The chunks from `number` to `last`, and those with which the last one makes a group."""
    place = index.place(last)
    data = _read_places(files, fd, index.place(number).position, place.position + place.size)
    parts = [data]
    # A group is committed as a whole, so its end is there.
    while _more_follows(parts[-1], place.size):
        last += 1
        place = index.place(last)
        parts.append(_read_places(files, fd, place.position, place.position + place.size))
    return data if len(parts) == 1 else b"".join(parts)


def _part(
    files: FileCalls, fd: int, path: Path, index: ChunkIndex, number: int, last: int
) -> SegmentPart | None:
    """Where the same chunks lie; only headers are read."""
    try:
        header = decode_segment_header(_read_places(files, fd, 0, HEADER_SIZE))
    except Corrupt:
        # Its chunks may be good, but nobody could see that it is the file meant.
        return None
    place = index.place(last)
    while _more_follows(_read_header(files, fd, place), CHUNK_HEADER_SIZE):
        last += 1
        place = index.place(last)
    position = index.place(number).position
    size = place.position + place.size - position
    return SegmentPart(str(path.absolute()), position, size, header.first_offset, header.epoch)


def _read_header(files: FileCalls, fd: int, place: ChunkPlace) -> bytes:
    return _read_places(files, fd, place.position, place.position + CHUNK_HEADER_SIZE)


def _read_places(files: FileCalls, fd: int, start: int, end: int) -> bytes:
    data = read_exactly(files, fd, end - start, start)
    if len(data) != end - start:
        raise Corrupt("the log is shorter than what was written")
    return data


def _more_follows(data: bytes, last_size: int) -> bool:
    """Whether the chunk that begins so many bytes before the end of the data belongs to the next."""
    try:
        header = decode_header(data, len(data) - last_size)
    except Corrupt:
        # Whoever takes the run verifies each chunk that he needs: those before it are good.
        return False
    return ChunkFlags.MORE_FOLLOWS in header.flags
