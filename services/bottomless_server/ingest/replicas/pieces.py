"""Pieces of an owner's log, for a node whose log follows it and ends at a place.

A piece lies in one segment and holds whole appends: of one that has several chunks a follower takes
all at once or nothing, as recovery does. Only what is synced here is read, committed or not. Nothing
is written.
"""

from pathlib import Path
from typing import Final, NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.chunk import decode_header, split_chunks
from bottomless.formats.segment import HEADER_SIZE
from bottomless.model.chunk import ChunkFlags
from bottomless.model.limits import MIB
from bottomless_server.ingest.log.layout import segment_path
from bottomless_server.ingest.log.segments import Segment, SegmentLog
from bottomless_server.ingest.replicas.followed_log import held_of
from bottomless_server.node.core.sends import Piece
from bottomless_server.node.file_calls import FileCalls, read_exactly
from bottomless_server.protocol.replica import EpochEnd, Opening, Place

PIECE_SIZE: Final = 4 * MIB
"""Bytes of a piece, unless one append has more."""


class Ask(NamedTuple):
    """Where a piece lies; it may be read in a thread while the log grows."""

    path: Path
    place: Place
    begins: bool
    before: int
    limit: int
    """Bytes of the segment that are synced."""
    size: int
    """Bytes after the place in which whole chunks lie, or one chunk that has more than a piece."""


class Freed(Exception):
    """The log does not go on from a place: what follows it was freed, or was never there."""


def opening_of(
    local: SegmentLog,
    epoch: int,
    ends: tuple[EpochEnd, ...],
    published: tuple[int, int],
    *,
    shown: bool,
) -> Opening:
    """What is said of a log when it opens another one; `ends` are those of its claim. `published`: how
    far it is published, and the version of the record that says so. `shown`: whether what was found at
    the claim is shown."""
    first = min(local.first_offset, published[0])
    return Opening(epoch, ends, first, *published, shown=shown)


def ends_of(local: SegmentLog) -> tuple[EpochEnd, ...]:
    """Where the chunks of each epoch end in a log; asked at a claim, before anything is written."""
    ends: dict[int, EpochEnd] = {}
    for segment in held_of(local.segments, 0, 0).segments:
        for run in segment.runs:
            ends[run.epoch] = EpochEnd(run.epoch, run.end, run.next_offset)
    return tuple(ends.values())


def ask_after(
    local: SegmentLog, end: Place | None, published_next: int, size_max: int = PIECE_SIZE
) -> Ask | None:
    """What comes after a place in a log, so many bytes at most or one whole append that has more; after
    None, what an empty log begins with. None if that is all; in the event loop.

    Raises:
        Freed: the follower has to be opened anew.
    """
    segments = local.segments
    if end is None:
        begun = [n for n, one in enumerate(segments) if one.first_offset <= published_next]
        return _beginning(local, begun[-1] if begun else 0, size_max) if segments else None
    for number, segment in enumerate(segments):
        if segment.first_offset != end.segment_first:
            continue
        if end.position > segment.size:
            raise Freed
        if end.position < segment.size:
            return _ask(local, segment, end, size_max)
        return _beginning(local, number + 1, size_max) if number + 1 < len(segments) else None
    raise Freed


def read_piece(files: FileCalls, ask: Ask) -> Piece:
    """Read a piece, or one whole append that has more than is asked for; in a worker thread.

    Raises:
        Corrupt: what lies there is damaged.
        OSError: it cannot be read, as of a segment that was freed meanwhile.
    """
    fd = files.open(ask.path)
    try:
        size = ask.size
        while True:
            wanted = min(size, ask.limit - ask.place.position)
            data = read_exactly(files, fd, wanted, ask.place.position)
            whole = _whole_size(data, ask.size)
            if whole:
                # Nothing is copied where it ends with a chunk that ends an append, as mostly.
                data = data[:whole]
                # Damaged, it would be refused there with all that is in the same body.
                for _ in split_chunks(data):
                    pass
                return Piece(ask.place, ask.begins, ask.before, data)
            if wanted < size or len(data) < wanted:
                raise Corrupt("log is corrupt: an append is cut short")
            size *= 2
    finally:
        files.close(fd)


def _beginning(local: SegmentLog, number: int, size_max: int) -> Ask | None:
    segment = local.segments[number]
    if segment.size <= HEADER_SIZE:
        return None
    before = local.segments[number - 1].size if number else 0
    return _ask(
        local,
        segment,
        Place(segment.first_offset, HEADER_SIZE),
        size_max,
        begins=True,
        before=before,
    )


def _ask(
    local: SegmentLog,
    segment: Segment,
    place: Place,
    size_max: int,
    *,
    begins: bool = False,
    before: int = 0,
) -> Ask:
    size = segment.size - place.position
    if size > size_max:
        # Not a part of a chunk, which would be read in vain.
        last = segment.index.place(segment.index.before(place.position + size_max))
        size = last.position + last.size - place.position
        if size > size_max and last.position > place.position:
            size = last.position - place.position
    path = segment_path(local.directory, segment.first_offset)
    return Ask(path, place, begins, before, segment.size, size)


def _whole_size(data: bytes, size_max: int) -> int:
    """Bytes of the whole appends that stand at the beginning: as many as `size_max` has room for, and
    one at least. A body may be no larger than one of them and what is gathered."""
    position = whole = 0
    while position + CHUNK_HEADER_SIZE <= len(data):
        header = decode_header(data, position)
        position += header.total_size
        if position <= len(data) and ChunkFlags.MORE_FOLLOWS not in header.flags:
            if whole and position > size_max:
                break
            whole = position
    return whole
