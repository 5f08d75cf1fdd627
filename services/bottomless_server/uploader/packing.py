"""Make a fragment of a piece of the log: of bytes that are here, or of bytes that are read when they
are sent.

What lies in a segment of this machine is not read to be held: the headers of its chunks say what a
fragment of them is, its checksum among it. Its bytes go from the segment to the object store some
MiB at a time, once for each attempt to put it, and are compared with that checksum there.

On the record's path: after services/bottomless_server/uploader/core/epochs.py, before
shared/bottomless/formats/fragment.py.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from bottomless.drives.base import Body
from bottomless.formats.chunk import split_chunks
from bottomless.formats.fragment import frame_fragment, pack_fragment
from bottomless.formats.fragment_filters import FilterTable
from bottomless.model.config import FilterConfig
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId, Uid
from bottomless_server.core.filter_making import FilterMaking, indexed_columns
from bottomless_server.protocol.tail import RunBytes, RunGone
from bottomless_server.uploader.core.epochs import Piece, Stretch, heads_of

READ_SIZE: Final = 2 * MIB
"""What a drive has in memory at once of a fragment that it reads; more where S3 gets it in parts."""


class Packed(NamedTuple):
    """A fragment that is ready to be put."""

    info: FragmentInfo
    body: "Body | FragmentSource"
    held_size: int
    """Bytes that it takes in memory until it is there."""


class _Range(NamedTuple):
    start: int
    bytes: RunBytes


class FragmentSource:
    """The bytes of a fragment that are not all in memory."""

    def __init__(self, parts: "list[tuple[int, bytes | memoryview | _Range]]") -> None:
        """`parts` come with their sizes."""
        self._parts = [part for _, part in parts]
        self._ends = list(accumulate(size for size, _ in parts))
        self.size = self._ends[-1]
        self.gone: RunGone | None = None
        """Why it cannot be read any more."""

    async def read_into(self, position: int, buffer: memoryview) -> None:
        while buffer:
            number = bisect_right(self._ends, position)
            part, end = self._parts[number], self._ends[number]
            within = position - (self._ends[number - 1] if number else 0)
            count = min(len(buffer), end - position)
            if isinstance(part, _Range):
                await self._read_range(part, within, buffer[:count])
            else:
                buffer[:count] = part[within : within + count]
            position, buffer = position + count, buffer[count:]

    async def _read_range(self, part: _Range, within: int, buffer: memoryview) -> None:
        try:
            await part.bytes.read_into(part.start + within, buffer)
        except RunGone as error:
            self.gone = error
            raise


async def filters_of_piece(piece: Piece, config: FilterConfig) -> tuple[FilterTable, ...]:
    """Make the filters of a piece, of which one chunk is held at a time where it is in no memory.

    Raises:
        RunGone: what it is read from is gone.
        Corrupt: a chunk is damaged.
    """
    making = FilterMaking(config, piece.size)
    if not making.wanted:
        return ()
    for chunks in piece.data:
        if isinstance(chunks, Stretch):
            position = chunks.start
            for head in chunks.heads:
                chunk = memoryview(bytearray(head.header.total_size))
                await chunks.bytes.read_into(position, chunk)
                await asyncio.to_thread(_take, making, chunk)
                position += head.header.total_size
        else:
            await asyncio.to_thread(_take, making, chunks)
    return await asyncio.to_thread(making.tables)


def read_at_once(piece: Piece, config: FilterConfig) -> int:
    """Tell how many bytes `filters_of_piece` has in memory at once beside what is there."""
    if not indexed_columns(config):
        return 0
    stretches = [chunks for chunks in piece.data if isinstance(chunks, Stretch)]
    return max((head.header.total_size for one in stretches for head in one.heads), default=0)


def _take(making: FilterMaking, chunks: memoryview) -> None:
    for header, chunk in split_chunks(chunks):
        making.take(header, chunk)


def pack_piece(
    stream_id: StreamId, uid: Uid, piece: Piece, tables: Sequence[FilterTable] = ()
) -> Packed:
    """Make the fragment of a piece. Long enough for a thread: headers are read, and what is in memory
    is verified where all of it is.

    Raises:
        Corrupt: a chunk is damaged; of those that are not in memory that is seen when they are put.
    """
    here = [chunks for chunks in piece.data if isinstance(chunks, memoryview)]
    if len(here) == len(piece.data):
        packed = pack_fragment(stream_id, uid, here, tables)
        return Packed(packed.info, packed.parts, packed.info.size)
    heads = [head for chunks in piece.data for head in heads_of(chunks)]
    frame = frame_fragment(stream_id, uid, heads, tables)
    parts: list[tuple[int, bytes | memoryview | _Range]] = [(len(frame.head), frame.head)]
    for chunks in piece.data:
        if isinstance(chunks, Stretch):
            parts.append((chunks.size, _Range(chunks.start, chunks.bytes)))
        else:
            parts.append((len(chunks), chunks))
    tail = frame.filters + frame.chunk_index + frame.footer
    parts.append((len(tail), tail))
    held_size = READ_SIZE + len(tail) + sum(map(len, here))
    return Packed(frame.info, FragmentSource(parts), held_size)
