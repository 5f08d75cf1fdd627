"""Placing: an unplaced chunk becomes the chunk that ingest would have sealed, and no other is taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.chunk import decode_header, split_chunks
from bottomless.formats.placing import EntryWalk, place, place_part, unplaced_chunks
from bottomless.model.chunk import ChunkFlags, ChunkKind
from unit.formats.examples import (
    TIMESTAMP,
    a_bare_chunk,
    a_chunk,
    a_piece,
    assert_refuses_damage,
)

MORE = ChunkFlags.MORE_FOLLOWS


def unplaced(first: int = 0, flags: ChunkFlags = ChunkFlags.NONE) -> bytes:
    return a_chunk(first, timestamp=0, epoch=0, flags=flags)


def placed(data: bytes, record_count: int, first_offset: int = 0) -> bytes:
    found = place(
        data, first_offset=first_offset, record_count=record_count, timestamp=TIMESTAMP, epoch=3
    )
    return b"".join(part for one in found for part in (one.front, one.body))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 2**53 - 100))
def test_placed_chunks_are_those_that_would_have_been_sealed(
    counts: list[int], first_offset: int
) -> None:
    """Pieces beside each other are one entry: their chunks count on."""
    data = b"".join(bytes(part) for n in counts for part in a_piece(count=n).parts)
    total = sum(counts)
    wanted = b"".join(a_chunk(first_offset + 2 * n) for n in range(total))
    assert placed(data, 2 * total, first_offset) == wanted


def test_bodies_are_views_of_what_was_read() -> None:
    data = unplaced()
    [one] = place(data, first_offset=9, record_count=2, timestamp=1, epoch=1)
    assert one.body.obj is data
    assert (one.header.first_offset, one.header.next_offset) == (9, 11)


def test_every_damage_is_refused() -> None:
    assert_refuses_damage(lambda data: placed(data, 2), unplaced())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "there is none"),
        (a_chunk(0), "it has a place already"),
        (a_chunk(0, timestamp=0), "it has a place already"),
        (unplaced(2), "first_offset=2"),
        (unplaced() + unplaced(1), "first_offset=1"),
        (unplaced() + unplaced(4), "first_offset=4"),
        (unplaced(flags=MORE), "ends inside an append"),
        (unplaced(flags=MORE) + unplaced(), "ends inside an append"),
        (a_bare_chunk(ChunkKind.TRACKING), "it holds no records"),
        (a_bare_chunk(ChunkKind.HOLE, 0, 2), "it holds no records"),
    ],
)
def test_what_no_writer_of_wal_objects_made_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        list(unplaced_chunks(data))


@pytest.mark.parametrize("record_count", [1, 3])
def test_an_entry_has_exactly_the_records_that_it_says(record_count: int) -> None:
    with pytest.raises(Corrupt, match="before its own end"):
        placed(unplaced(), record_count)


def test_a_group_of_chunks_stays_a_group() -> None:
    found = place(
        unplaced(flags=MORE) + unplaced(2), first_offset=5, record_count=4, timestamp=1, epoch=1
    )
    assert [one.header.flags for one in found] == [MORE, ChunkFlags.NONE]
    assert [one.header.first_offset for one in found] == [5, 7]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_any_chunks_of_an_entry_are_placed_as_in_the_whole(
    counts: list[int], draw: st.DataObject
) -> None:
    chunks = [bytes(part) for n in counts for part in a_piece(count=n).parts]
    first = draw.draw(st.integers(0, len(chunks) - 1))
    end = draw.draw(st.integers(first + 1, len(chunks)))
    walk = EntryWalk()
    for chunk in chunks:
        walk.step(decode_header(chunk))
    walk.end()
    found = place_part(
        b"".join(chunks[first:end]),
        first_offset=9 + 2 * first,
        record_count=2 * (end - first),
        timestamp=TIMESTAMP,
        epoch=3,
    )
    whole = [chunk for _, chunk in split_chunks(placed(b"".join(chunks), 2 * len(chunks), 9))]
    assert [one.front + bytes(one.body) for one in found] == whole[first:end]


def test_every_damage_of_a_part_is_refused() -> None:
    def part(data: bytes) -> object:
        return place_part(data, first_offset=2, record_count=2, timestamp=1, epoch=1)

    assert_refuses_damage(part, unplaced(2))
    with pytest.raises(Corrupt, match="it has a place already"):
        part(a_chunk(0))
