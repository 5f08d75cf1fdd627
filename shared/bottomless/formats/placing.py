"""Placing: chunks of a WAL object get their offset, timestamp and epoch when they are committed.

Until then they are *unplaced*: their headers have timestamp 0 and epoch 0, and `first_offset` counts
from 0 at the start of the piece that they are in. Placing verifies a chunk and gives it a new header;
its body never changes. Reader, uploader and rebuild make the same bytes of the same piece.

A tail entry may be several pieces that lie beside each other: the first chunk of each has offset 0,
and no other has, so the directory of the object is not needed.

Byte tables: docs/formats.md, "Unplaced chunks".
"""

from collections.abc import Iterator
from typing import NamedTuple

from bottomless.formats.checks import check
from bottomless.formats.chunk import HEADER_SIZE, encode_header, split_chunks
from bottomless.model.chunk import ChunkFlags, ChunkHeader, ChunkKind


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
    placed = []
    end = first_offset + record_count
    for header, chunk in unplaced_chunks(data):
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
    what, count = "unplaced chunk", 0
    flags = ChunkFlags.NONE
    for header, chunk in split_chunks(data):
        check(what, header.kind is ChunkKind.DATA, "it holds no records")
        check(what, (header.timestamp, header.epoch) == (0, 0), "it has a place already")
        if header.first_offset == 0:
            # A piece begins, so what was before it is whole.
            check(what, ChunkFlags.MORE_FOLLOWS not in flags, "a piece ends inside an append")
            count = 0
        check(what, header.first_offset == count, f"first_offset={header.first_offset}")
        count, flags = count + header.record_count, header.flags
        yield header, chunk
    check(what, count > 0, "there is none")
    check(what, ChunkFlags.MORE_FOLLOWS not in flags, "a piece ends inside an append")
