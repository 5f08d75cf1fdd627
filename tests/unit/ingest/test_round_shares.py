"""How rounds that wait are dealt out among threads."""

from hypothesis import given
from hypothesis import strategies as st

from bottomless_server.ingest.log.core.round_shares import LARGE, RoundShares

SMALL = 10_000


def test_each_round_goes_by_itself_while_threads_are_free() -> None:
    shares = RoundShares(4)

    assert shares.deal([SMALL]) == [1]
    assert shares.deal([SMALL, SMALL]) == [1, 1]
    assert shares.deal([SMALL]) == [1]
    assert shares.is_full
    assert shares.deal([SMALL]) == []


def test_what_came_meanwhile_is_dealt_out_evenly() -> None:
    shares = RoundShares(4)

    assert shares.deal([SMALL] * 10) == [3, 3, 3, 1]


def test_a_thread_that_becomes_free_leaves_something_to_the_others() -> None:
    shares = RoundShares(4)
    shares.deal([SMALL] * 4)
    shares.end()

    assert shares.deal([SMALL] * 8) == [2]


def test_no_round_waits_for_the_sync_of_a_large_one_before_it() -> None:
    shares = RoundShares(2)

    assert shares.deal([SMALL, LARGE, SMALL, SMALL, SMALL, SMALL]) == [2, 3]


@given(st.integers(1, 20), st.lists(st.one_of(st.none(), st.lists(st.integers(1, 2 * LARGE)))))
def test_every_round_is_in_one_share_and_waits_only_while_all_threads_are_busy(
    thread_count: int, steps: list[list[int] | None]
) -> None:
    """A step is an arrival of rounds, or the end of a share."""
    shares = RoundShares(thread_count)
    waiting: list[int] = []
    busy = 0
    for step in steps:
        if step is not None:
            waiting += step
        elif busy:
            shares.end()
            busy -= 1
        counts = shares.deal(waiting)
        assert all(count > 0 for count in counts)
        for count in counts:
            assert all(size < LARGE for size in waiting[: count - 1])
            del waiting[:count]
        busy += len(counts)
        assert busy <= thread_count
        assert not waiting or busy == thread_count
        assert shares.is_full == (busy == thread_count)
