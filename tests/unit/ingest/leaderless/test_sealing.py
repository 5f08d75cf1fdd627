"""Appends of one stream become pieces: unplaced chunks that are accepted or refused together."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of
from bottomless.formats.placing import unplaced_chunks
from bottomless.model.chunk import AppendMode
from bottomless_server.ingest.leaderless.core.pieces import WaitingPiece
from bottomless_server.ingest.leaderless.core.sealing import seal_again, seal_pieces
from bottomless_server.ingest.records.conditions import Conditions, FromProducer
from bottomless_server.ingest.records.intake import Append
from unit.ingest.leaderless.making import (
    CHUNK_SIZE_MAX,
    IDS,
    an_append,
    expecting,
    of_producer,
    waiting,
)


def sealed(*appends: Append) -> list[WaitingPiece]:
    return seal_pieces(IDS[0], [waiting(one)[0] for one in appends], CHUNK_SIZE_MAX)


def appends_of(pieces: list[WaitingPiece]) -> list[list[Append]]:
    return [[one.append for one in piece.appends] for piece in pieces]


def values_of(piece: WaitingPiece) -> list[Any]:
    data = b"".join(piece.sealed.parts)
    return [
        value
        for header, chunk in unplaced_chunks(data)
        for batch in decode_frames(batches_of(header, chunk))
        for value in batch.column("value").to_pylist()
    ]


def test_neighbours_without_a_promise_share_a_chunk() -> None:
    first, second = an_append(b"a"), an_append(b"b", b"c")
    [piece] = sealed(first, second)

    assert appends_of([piece]) == [[first, second]]
    assert values_of(piece) == [b"a", b"b", b"c"]
    assert (piece.sealed.append_count, piece.sealed.chunk_count) == (2, 1)


def test_each_append_with_a_promise_is_a_piece_of_its_own() -> None:
    first, last = an_append(b"a"), an_append(b"d")
    promised = [an_append(b"b", conditions=of_producer("p", one)) for one in range(2)]

    assert appends_of(sealed(first, *promised, last)) == [
        [first],
        [promised[0]],
        [promised[1]],
        [last],
    ]


def test_one_larger_than_a_chunk_is_a_group_and_a_piece() -> None:
    small, large = an_append(b"a"), an_append(*[bytes([one]) * 1_500 for one in range(9)])
    first, second, third = sealed(small, large, small)

    assert appends_of([first, second, third]) == [[small], [large], [small]]
    assert second.sealed.chunk_count > 1
    assert values_of(second) == [bytes([one]) * 1_500 for one in range(9)]


def test_those_that_expect_an_offset_come_first() -> None:
    plain, early, late = (
        an_append(b"a"),
        an_append(b"b", conditions=expecting(0)),
        an_append(b"c", conditions=expecting(1)),
    )

    assert appends_of(sealed(plain, early, late)) == [[early], [late], [plain]]


def test_none_comes_before_an_earlier_one_of_its_producer() -> None:
    before = an_append(b"a", conditions=of_producer("p", 0))
    after = an_append(b"b", conditions=of_producer("p", 1, expected_offset=1))
    other = an_append(b"c", conditions=of_producer("q", 0, expected_offset=0))

    assert appends_of(sealed(before, after, other)) == [[other], [before], [after]]


def test_a_piece_is_sealed_again_without_what_is_stored() -> None:
    conditions = Conditions(FromProducer("p", 0, AppendMode.STRICT, 0))
    [piece] = sealed(an_append(b"a", b"b", b"c", conditions=conditions))
    [waiting_one] = piece.appends
    waiting_one.append = numbered(waiting_one.append)

    again = seal_again(piece, 2, CHUNK_SIZE_MAX)
    assert values_of(again) == [b"c"]
    assert (again.duplicates, again.trim_count, again.appends) == (2, 1, piece.appends)
    assert values_of(seal_again(again, 1, CHUNK_SIZE_MAX)) == [b"b", b"c"]


def numbered(append: Append) -> Append:
    """The same with a number for each record, from 1 on."""
    return replace(append, ids=np.arange(1, append.record_count + 1))


SIZES = st.lists(st.integers(1, 3_000), min_size=1, max_size=12)


@given(SIZES, st.lists(st.booleans(), min_size=12, max_size=12))
def test_each_append_is_in_one_piece_and_no_chunk_is_larger_than_it_may_be(
    sizes: list[int], promised: list[bool]
) -> None:
    appends = [
        an_append(size=size, conditions=of_producer("p", number))
        if promised[number]
        else an_append(size=size)
        for number, size in enumerate(sizes)
    ]
    pieces = sealed(*appends)

    assert [one for piece in appends_of(pieces) for one in piece] == appends
    for piece in pieces:
        assert sum(one.append.size for one in piece.appends) <= CHUNK_SIZE_MAX
        assert piece.sealed.record_count == sum(one.append.record_count for one in piece.appends)
        assert piece.last_chunk == 0
