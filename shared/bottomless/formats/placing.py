"""Placing: chunks of a WAL object get their offset, timestamp and epoch when they are committed.

Until then they are *unplaced*: their headers have timestamp 0 and epoch 0, and `first_offset` counts
from 0 at the start of the piece that they are in. Placing verifies a chunk and gives it a new header;
its body never changes. Reader, uploader and rebuild make the same bytes of the same piece.

A tail entry may be several pieces that lie beside each other: the first chunk of each has offset 0,
and no other has, so the directory of the object is not needed.

Byte tables: docs/formats.md, "Unplaced chunks".
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from bottomless.formats.checks import check
from bottomless.formats.chunk import HEADER_SIZE, encode_header, split_chunks
from bottomless.model.chunk import ChunkFlags, ChunkHeader, ChunkKind

_WHAT: Final = "unplaced chunk"
_CUT: Final = "a piece ends inside an append"


class Placed(NamedTuple):
    """A chunk as it will stand in a fragment, in two parts that are not joined."""

    header: ChunkHeader
    front: bytes
    """The new header's bytes."""
    body: memoryview
    """All bytes of the chunk after its header, where they were before."""


def place(
    data: bytes | memoryview, *, first_offset: int, record_count: int, timestamp: int, epoch: int
) -> list[Placed]:
    """Place the chunks of an entry: whole pieces that were committed beside each other.

    The first record gets `first_offset`; `timestamp` is in ms since 1970.

    Raises:
        Corrupt: a chunk is damaged or not an unplaced one, or the pieces do not hold exactly
            `record_count` records.
    """
    return _placed(unplaced_chunks(data), first_offset, record_count, timestamp, epoch)


def place_part(
    data: bytes | memoryview, *, first_offset: int, record_count: int, timestamp: int, epoch: int
) -> list[Placed]:
    """Place whole chunks from within an entry, whose headers an `EntryWalk` has seen: its pieces
    need not be whole.

    Raises:
        Corrupt: as `place`.
    """

    def chunks() -> Iterator[tuple[ChunkHeader, memoryview]]:
        for header, chunk in split_chunks(data):
            _check_unplaced(header)
            yield header, chunk

    return _placed(chunks(), first_offset, record_count, timestamp, epoch)


def _placed(
    chunks: Iterator[tuple[ChunkHeader, memoryview]],
    first_offset: int,
    record_count: int,
    timestamp: int,
    epoch: int,
) -> list[Placed]:
    placed = []
    end = first_offset + record_count
    for header, chunk in chunks:
        place_of = header._replace(first_offset=first_offset, timestamp=timestamp, epoch=epoch)
        placed.append(Placed(place_of, encode_header(place_of), chunk[HEADER_SIZE:]))
        first_offset += header.record_count
    check("entry", first_offset == end, f"its records end {end - first_offset} before its own end")
    return placed


def unplaced_chunks(data: bytes | memoryview) -> Iterator[tuple[ChunkHeader, memoryview]]:
    """Walk through the unplaced chunks of whole pieces, and verify each.

    Raises:
        Corrupt: at the first chunk that is damaged, or that no writer of WAL objects makes.
    """
    walk = EntryWalk()
    for header, chunk in split_chunks(data):
        walk.step(header)
        yield header, chunk
    walk.end()


class EntryWalk:
    """The headers of an entry's chunks, looked at one after the other: no writer of WAL objects makes
    what it refuses."""

    def __init__(self) -> None:
        self._count = 0
        """Records of the piece so far."""
        self._flags = ChunkFlags.NONE

    def step(self, header: ChunkHeader) -> None:
        """Look at the next header.

        Raises:
            Corrupt: no writer makes such a chunk, or not here.
        """
        _check_unplaced(header)
        if header.first_offset == 0:
            # A piece begins, so what was before it is whole.
            check(_WHAT, ChunkFlags.MORE_FOLLOWS not in self._flags, _CUT)
            self._count = 0
        check(_WHAT, header.first_offset == self._count, f"first_offset={header.first_offset}")
        self._count, self._flags = self._count + header.record_count, header.flags

    def end(self) -> None:
        """Look whether an entry may end here.

        Raises:
            Corrupt: it has no chunk, or ends inside an append.
        """
        check(_WHAT, self._count > 0, "there is none")
        check(_WHAT, ChunkFlags.MORE_FOLLOWS not in self._flags, _CUT)


def _check_unplaced(header: ChunkHeader) -> None:
    check(_WHAT, header.kind is ChunkKind.DATA, "it holds no records")
    check(_WHAT, (header.timestamp, header.epoch) == (0, 0), "it has a place already")
