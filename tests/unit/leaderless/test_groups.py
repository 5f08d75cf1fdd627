"""A flush of any shape is divided into groups that one EXEC each can commit, and nothing is lost."""

from hypothesis import given
from hypothesis import strategies as st

from bottomless.model.names import stream_id_from_bytes
from bottomless_server.leaderless.groups import (
    GROUP_KEY_COUNT_MAX,
    GROUP_STREAM_COUNT_MAX,
    Wanted,
    groups,
)

STREAMS = [stream_id_from_bytes(bytes(14) + n.to_bytes(2, "big")) for n in range(600)]


def flush_of(streams: list[tuple[int, int]]) -> list[Wanted]:
    """For each stream so many pieces, each with so many names of its own."""
    return [
        Wanted(STREAMS[number], [f"{number}-{piece}-{name}" for name in range(names)])
        for number, (pieces, names) in enumerate(streams)
        for piece in range(pieces)
    ]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 400)), max_size=9))
def test_every_group_fits_and_all_pieces_are_there_in_their_order(
    streams: list[tuple[int, int]],
) -> None:
    flush = flush_of(streams)
    made = groups(flush)
    assert [place for group in made for part in group for place in part.pieces] == [
        *range(len(flush))
    ]
    for group in made:
        ids = [part.stream_id for part in group]
        assert len(set(ids)) == len(ids), "pieces of a stream belong together"
        names = {name for part in group for place in part.pieces for name in flush[place].names}
        assert len(ids) + len(names) <= GROUP_KEY_COUNT_MAX
    for group in made:
        for part in group:
            assert {flush[place].stream_id for place in part.pieces} == {part.stream_id}


def test_streams_fill_a_group_and_one_with_too_many_names_takes_several() -> None:
    """More than 1,022 names of one stream in a flush were an assertion that nobody could mend."""
    assert [len(group) for group in groups(flush_of([(1, 0)] * 600))] == [256, 256, 88]
    assert GROUP_STREAM_COUNT_MAX == 256
    [first, second] = groups(flush_of([(1_100, 1)]))
    assert [len(first[0].pieces), len(second[0].pieces)] == [1_021, 79]
    assert groups([]) == []


def test_names_that_pieces_share_are_watched_once() -> None:
    flush = [Wanted(STREAMS[0], ["loader-7"])] * 5_000
    assert [len(group) for group in groups(flush)] == [1]
