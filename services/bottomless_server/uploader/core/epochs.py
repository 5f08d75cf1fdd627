"""Divide fetched chunks into what may stand in one fragment: a fragment never spans epochs.

Only headers are read here; bodies are verified when the fragment is packed.

On the record's path: after services/bottomless_server/uploader/core/cutter.py, before
shared/bottomless/formats/fragment.py.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bottomless.formats.checks import check
from bottomless.formats.chunk import decode_header
from bottomless.model.chunk import ChunkFlags
from bottomless.model.limits import FRAGMENT_CHUNK_COUNT_MAX

CHUNK_COUNT_MAX: Final = FRAGMENT_CHUNK_COUNT_MAX // 2
"""Half of what a fragment may hold, so that an append that is under way still fits whole."""


class Piece(NamedTuple):
    """A piece of a log: whole chunks of one epoch that follow each other, ready to be packed."""

    epoch: int
    first_offset: int
    next_offset: int
    size: int
    data: list[memoryview]


def divide(data: Sequence[bytes | memoryview], first_offset: int) -> list[Piece]:
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
        view, position, start = memoryview(run), 0, 0
        while position < len(view):
            header = decode_header(view, position)
            check("chunk feed", header.first_offset == next_offset, "it leaves out offsets")
            if header.epoch != epoch or (whole and chunk_count >= CHUNK_COUNT_MAX):
                _extend(pieces, view[start:position], next_offset)
                pieces.append(Piece(header.epoch, next_offset, next_offset, 0, []))
                epoch, chunk_count, start = header.epoch, 0, position
            next_offset, chunk_count = header.next_offset, chunk_count + 1
            whole = ChunkFlags.MORE_FOLLOWS not in header.flags
            position += header.total_size
        check("chunk feed", position == len(view), "it ends inside a chunk")
        _extend(pieces, view[start:], next_offset)
    return [piece for piece in pieces if piece.next_offset > piece.first_offset]


def _extend(pieces: list[Piece], view: memoryview, next_offset: int) -> None:
    if len(view):
        last = pieces[-1]
        pieces[-1] = last._replace(
            next_offset=next_offset, size=last.size + len(view), data=[*last.data, view]
        )
