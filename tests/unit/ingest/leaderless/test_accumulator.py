"""What gathers for a WAL object, and when it goes."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bottomless_server.ingest.leaderless.core.accumulator import (
    Accumulator,
    FlushBounds,
    FlushCause,
    Gathered,
    Late,
)
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend
from bottomless_server.ingest.leaderless.core.sealing import seal_pieces
from unit.ingest.leaderless.making import CHUNK_SIZE_MAX, IDS, an_append, waiting

LINGER_MS = 250
BOUNDS = FlushBounds(size_max=1_000, linger_ms=LINGER_MS, stream_count_max=65_535)


def add(line: Accumulator, stream: int, size: int, now: int = 0) -> WaitingAppend:
    append, _ = waiting(replace(an_append(), size=size))
    line.add(IDS[stream], append, now)
    return append


def appends_in(gathered: Gathered | None) -> list[WaitingAppend]:
    assert gathered is not None
    return [one.append for share in gathered.shares.values() for one in share.appends]


def test_nothing_is_due_where_nothing_waits() -> None:
    line = Accumulator(BOUNDS)

    assert line.due_at() is None
    assert line.take(10**9) is None


def test_what_waits_goes_when_the_first_of_it_has_lingered() -> None:
    line = Accumulator(BOUNDS)
    first = add(line, 0, 10, now=100)
    second = add(line, 1, 10, now=300)

    assert line.due_at() == 100 + LINGER_MS
    assert line.take(100 + LINGER_MS - 1) is None
    gathered = line.take(100 + LINGER_MS)
    assert appends_in(gathered) == [first, second]
    assert gathered is not None
    assert (gathered.cause, gathered.since) == (FlushCause.LINGER, 100)
    assert (len(line), line.size, line.due_at()) == (0, 0, None)


def test_as_many_bytes_as_an_object_should_have_go_at_once() -> None:
    line = Accumulator(BOUNDS)
    add(line, 0, 600)
    assert line.take(0) is None
    add(line, 1, 600)

    gathered = line.take(0)
    assert gathered is not None
    assert (gathered.cause, list(gathered.shares)) == (FlushCause.SIZE, [IDS[0]])


def test_what_is_left_lingers_from_when_it_came() -> None:
    line = Accumulator(BOUNDS)
    add(line, 0, 600, now=10)
    add(line, 1, 600, now=90)

    assert line.take(90) is not None
    assert line.due_at() == 90 + LINGER_MS


def test_a_stream_with_more_than_fits_leaves_the_rest_for_after_the_others() -> None:
    line = Accumulator(BOUNDS)
    for _ in range(5):
        add(line, 0, 500)
    other = add(line, 1, 10)

    assert len(appends_in(line.take(0))) == 2
    assert appends_in(line.take(0))[0] is other


def test_what_is_larger_than_an_object_should_be_goes_alone() -> None:
    line = Accumulator(BOUNDS)
    add(line, 0, 5_000)
    add(line, 0, 10)

    assert len(appends_in(line.take(0))) == 1
    assert line.size == 10


def test_each_stream_has_an_object_of_its_own_where_that_is_asked_for() -> None:
    line = Accumulator(BOUNDS._replace(stream_count_max=1))
    for stream in range(3):
        add(line, stream, 10)

    found = [line.take(LINGER_MS) for _ in range(3)]
    assert [list(one.shares) for one in found if one] == [[IDS[0]], [IDS[1]], [IDS[2]]]


def test_pieces_that_come_again_go_at_once_and_before_the_appends_of_their_stream() -> None:
    line = Accumulator(BOUNDS)
    later = add(line, 0, 10)
    earlier, _ = waiting()
    pieces = seal_pieces(IDS[0], [earlier], CHUNK_SIZE_MAX)
    line.add_again(pieces, 0)

    gathered = line.take(0)
    assert gathered is not None
    assert gathered.cause is FlushCause.AGAIN
    assert gathered.shares[IDS[0]].pieces == pieces
    assert [one.append for one in gathered.shares[IDS[0]].appends] == [later]


def test_what_came_again_can_be_taken_out_and_the_appends_stay() -> None:
    line = Accumulator(BOUNDS)
    later = add(line, 0, 10, now=7)
    earlier, _ = waiting()
    pieces = seal_pieces(IDS[0], [earlier], CHUNK_SIZE_MAX)
    line.add_again(pieces, 9)

    assert line.take_pieces() == pieces
    assert line.due_at() == 7 + LINGER_MS
    assert appends_in(line.take(7 + LINGER_MS)) == [later]


def test_nothing_lingers_when_the_process_ends() -> None:
    line = Accumulator(BOUNDS)
    line.end()
    append = add(line, 0, 10)

    gathered = line.take(0)
    assert appends_in(gathered) == [append]
    assert gathered is not None
    assert gathered.cause is FlushCause.DRAIN


def test_who_has_waited_for_too_long_is_taken_out() -> None:
    line = Accumulator(BOUNDS)
    early, late = add(line, 0, 10, now=5), add(line, 0, 10, now=50)
    other = add(line, 1, 10, now=7)

    again, _ = waiting()
    pieces = seal_pieces(IDS[2], [again], CHUNK_SIZE_MAX)
    line.add_again(pieces, 49)

    assert line.expire(50) == Late(pieces, [early, other])
    assert (len(line), line.size, line.due_at()) == (1, 10, 50 + LINGER_MS)
    assert appends_in(line.take(50 + LINGER_MS)) == [late]


def test_everything_is_taken_out_to_be_refused() -> None:
    line = Accumulator(BOUNDS)
    later = add(line, 0, 10)
    earlier, _ = waiting()
    line.add_again(seal_pieces(IDS[0], [earlier], CHUNK_SIZE_MAX), 0)

    assert list(line.clear()) == [earlier, later]
    assert (len(line), line.size, line.due_at()) == (0, 0, None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 4), st.integers(1, 700)),
        st.tuples(st.just("take"), st.integers(0, 400), st.just(0)),
        st.tuples(st.just("expire"), st.integers(0, 900), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 3))
def test_each_append_is_taken_once_and_in_the_order_of_its_stream(
    steps: list[tuple[str, Any, Any]], stream_count_max: int
) -> None:
    line = Accumulator(BOUNDS._replace(stream_count_max=stream_count_max))
    given_in, taken_out = dict[int, list[WaitingAppend]](), dict[int, list[WaitingAppend]]()
    now = 0

    def take() -> None:
        gathered = line.take(now)
        if gathered is None:
            return
        assert len(gathered.shares) <= stream_count_max
        sizes = [share.size for share in gathered.shares.values()]
        assert sum(sizes) <= 1_000 or len(sizes) == 1
        for stream_id, share in gathered.shares.items():
            ours = [one.append for one in share.appends]
            taken_out.setdefault(IDS.index(stream_id), []).extend(ours)

    for kind, first, second in steps:
        if kind == "add":
            given_in.setdefault(first, []).append(add(line, first, second, now))
        elif kind == "take":
            now += first
            take()
        else:
            for gone in line.expire(now - first).appends:
                ours = next(one for one in given_in.values() if gone in one)
                ours.remove(gone)
    line.end()
    while len(line):
        take()
    assert taken_out == {stream: ours for stream, ours in given_in.items() if ours}
    assert line.size == 0
