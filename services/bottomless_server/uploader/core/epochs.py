"""Divide fetched chunks into what may stand in one fragment: a fragment never spans epochs.

Only headers are read here; bodies are verified when the fragment is packed, or on their way to the
object store where they are not in memory.

On the record's path: after services/bottomless_server/uploader/core/cutter.py, before
shared/bottomless/formats/fragment.py.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from bottomless.formats.checks import check
from bottomless.formats.chunk import HEADER_SIZE, ChunkHead, decode_header
from bottomless.model.chunk import ChunkFlags, ChunkHeader
from bottomless.model.limits import FRAGMENT_CHUNK_COUNT_MAX
from bottomless_server.protocol.tail import HeadsRun, RunBytes

CHUNK_COUNT_MAX: Final = FRAGMENT_CHUNK_COUNT_MAX // 2
"""Half of what a fragment may hold, so that an append that is under way still fits whole."""


class Stretch(NamedTuple):
    """Whole chunks of a run that are not in memory."""

    heads: tuple[ChunkHead, ...]
    start: int
    """Where the first of them begins in the run."""
    size: int
    bytes: RunBytes
    """The bytes of the whole run."""


Chunks: TypeAlias = memoryview | Stretch


class Piece(NamedTuple):
    """A piece of a log: whole chunks of one epoch that follow each other, ready to be packed."""

    epoch: int
    first_offset: int
    next_offset: int
    size: int
    data: list[Chunks]


def divide(data: Sequence[bytes | memoryview | HeadsRun], first_offset: int) -> list[Piece]:
    """Divide runs of whole chunks; the bytes are viewed, not copied.

    Chunks without a record at an epoch's end belong to no fragment: they say nothing
    that the log does not say elsewhere, and a fragment always holds a record.

    Raises:
        Corrupt: a header is damaged, or the chunks are not one dense run from `first_offset`.
    """
    pieces: list[Piece] = []
    next_offset = first_offset
    epoch, chunk_count, whole = -1, 0, True
    for run in data:
        there = _HeadsOnly(run) if isinstance(run, HeadsRun) else _InMemory(memoryview(run))
        start = here = _Place(0, 0)
        for header in there.headers():
            check("chunk feed", header.first_offset == next_offset, "it leaves out offsets")
            if header.epoch != epoch or (whole and chunk_count >= CHUNK_COUNT_MAX):
                _extend(
                    pieces, there.between(start, here), here.position - start.position, next_offset
                )
                pieces.append(Piece(header.epoch, next_offset, next_offset, 0, []))
                epoch, chunk_count, start = header.epoch, 0, here
            next_offset, chunk_count = header.next_offset, chunk_count + 1
            whole = ChunkFlags.MORE_FOLLOWS not in header.flags
            here = _Place(here.number + 1, here.position + header.total_size)
        check("chunk feed", here.position == there.size, "it ends inside a chunk")
        _extend(pieces, there.between(start, here), here.position - start.position, next_offset)
    return [piece for piece in pieces if piece.next_offset > piece.first_offset]


def heads_of(chunks: Chunks) -> Sequence[ChunkHead]:
    """The headers of whole chunks.

    Raises:
        Corrupt: one is damaged.
    """
    if isinstance(chunks, Stretch):
        return chunks.heads
    heads, position = [], 0
    for header in _InMemory(chunks).headers():
        raw = bytes(chunks[position : position + HEADER_SIZE])
        heads.append(ChunkHead(header, raw))
        position += header.total_size
    return heads


class _Place(NamedTuple):
    """Where a chunk begins in a run."""

    number: int
    position: int


class _InMemory:
    def __init__(self, view: memoryview) -> None:
        self._view = view
        self.size = len(view)

    def headers(self) -> Iterator[ChunkHeader]:
        position = 0
        while position < self.size:
            header = decode_header(self._view, position)
            yield header
            position += header.total_size

    def between(self, start: _Place, end: _Place) -> Chunks:
        return self._view[start.position : end.position]


class _HeadsOnly:
    def __init__(self, run: HeadsRun) -> None:
        self._run = run
        self.size = run.size

    def headers(self) -> Iterator[ChunkHeader]:
        return (head.header for head in self._run.heads)

    def between(self, start: _Place, end: _Place) -> Chunks:
        heads = self._run.heads[start.number : end.number]
        return Stretch(heads, start.position, end.position - start.position, self._run.bytes)


def _extend(pieces: list[Piece], chunks: Chunks, size: int, next_offset: int) -> None:
    if size:
        last = pieces[-1]
        pieces[-1] = last._replace(
            next_offset=next_offset, size=last.size + size, data=[*last.data, chunks]
        )
