"""Read what a stream remembers of its producers out of its newest segment.

A segment starts with a tracking chunk that says everything known before it, so the newest
one that holds a chunk is enough: older ones may be deleted once they are published. From
there on trailers are read, one after the other; bodies only of chunks that name producers
or keys, whose checksums are verified before they are believed. That is a read of at most
one segment when a stream is opened.

A stream that was left clean has the same in coordination, for its next owner, whose log begins
with it (left_producers.py). Nothing is written here, so after a crash the same is read again. A disk
that is lost takes this state with it.

On the record's path: beside recovery.py, after a restart.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bottomless.formats.checks import corrupt
from bottomless.formats.chunk import (
    HEADER_SIZE,
    decode_header,
    decode_trailer,
    trailer_of,
    verify_body,
)
from bottomless.formats.tracking import decode_tracking
from bottomless.model.chunk import AppendMode, ChunkFlags, ChunkHeader, ChunkKind, ChunkPlace
from bottomless_server.core.tracking.known_producers import TrackingBounds
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.log.layout import segment_path
from bottomless_server.ingest.log.segments import Segment
from bottomless_server.node.file_calls import FileCalls, read_exactly

_WINDOW_SIZE: Final = 64 * 1024
"""Read at once, so that a run of small chunks costs few calls."""


def read_tracking(
    files: FileCalls, directory: Path, segments: Sequence[Segment], bounds: TrackingBounds
) -> Tracking:
    """The state after the last chunk of a recovered log; in a worker thread.

    Raises:
        Corrupt: a chunk is not what its header or its checksum says.
        OSError
    """
    tracking = Tracking(bounds)
    newest = next((segment for segment in reversed(segments) if len(segment.index)), None)
    if newest is None:
        return tracking
    fd = files.open(segment_path(directory, newest.first_offset))
    try:
        window = _Window(files, fd)
        for number in range(len(newest.index)):
            place = newest.index.place(number)
            try:
                _take(tracking, window, place)
            except (AssertionError, LookupError) as error:
                why = f"its trailer at offset {place.first_offset} makes no sense"
                raise corrupt("log", why) from error
    finally:
        files.close(fd)
    return tracking


class _Window:
    """The part of a file that was read last."""

    def __init__(self, files: FileCalls, fd: int) -> None:
        self._files = files
        self._fd = fd
        self._start = 0
        self._data = b""

    def read(self, position: int, size: int) -> memoryview:
        start = position - self._start
        if start < 0 or start + size > len(self._data):
            wanted = max(size, _WINDOW_SIZE)
            self._data = read_exactly(self._files, self._fd, wanted, position)
            self._start, start = position, 0
        return memoryview(self._data)[start : start + size]


def _take(tracking: Tracking, window: _Window, place: ChunkPlace) -> None:
    header = decode_header(window.read(place.position, HEADER_SIZE))
    if (header.total_size, header.first_offset) != (place.size, place.first_offset):
        raise corrupt("log", f"its index names another chunk at offset {place.first_offset}")
    if header.kind is ChunkKind.HOLE:
        return
    if header.kind is ChunkKind.TRACKING:
        chunk = _verified(window, header, place)
        tracking.take_tracked(decode_tracking(trailer_of(header, chunk)))
        return
    start = HEADER_SIZE + header.filter_size + header.batches_size
    entries = decode_trailer(window.read(place.position + start, header.trailer_size))
    if all(entry.mode is AppendMode.PLAIN for entry in entries):
        return
    entries = decode_trailer(trailer_of(header, _verified(window, header, place)))
    more_follows = ChunkFlags.MORE_FOLLOWS in header.flags
    tracking.take_chunk(header.first_offset, header.timestamp, entries, more_follows=more_follows)


def _verified(window: _Window, header: ChunkHeader, place: ChunkPlace) -> memoryview:
    chunk = window.read(place.position, place.size)
    verify_body(header, chunk)
    return chunk
