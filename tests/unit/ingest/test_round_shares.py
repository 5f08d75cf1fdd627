"""How rounds that wait are dealt out among threads, and how each share is synced."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless_server.ingest.log.core.round_shares import (
    ALL_FROM,
    GATHERED_MAX,
    GATHERING_COUNT,
    LARGE,
    PAUSE_SECONDS_MAX,
    SLOW_SECONDS,
    RoundShares,
    Share,
    holds_for_all,
)

SMALL: Final = 10_000


def dealt(shares: RoundShares, sizes: list[int], now: float = 0.0) -> list[int]:
    return [share.count for share in shares.deal(sizes, now)]


def syncing_all(thread_count: int = 8) -> RoundShares:
    shares = RoundShares(thread_count)
    shares.may_sync_all = True
    return shares


def test_each_round_goes_by_itself_while_threads_are_free() -> None:
    shares = RoundShares(4)

    assert dealt(shares, [SMALL]) == [1]
    assert dealt(shares, [SMALL, SMALL]) == [1, 1]
    assert dealt(shares, [SMALL]) == [1]
    assert shares.is_full
    assert dealt(shares, [SMALL]) == []


def test_what_came_meanwhile_is_dealt_out_evenly() -> None:
    assert dealt(RoundShares(4), [SMALL] * 10) == [3, 3, 3, 1]


def test_a_thread_that_becomes_free_leaves_something_to_the_others() -> None:
    shares = RoundShares(4)
    first, *_ = shares.deal([SMALL] * 4, 0)
    shares.end(first, 1)

    assert dealt(shares, [SMALL] * 8) == [2]


def test_no_round_waits_for_the_sync_of_a_large_one_before_it() -> None:
    assert dealt(RoundShares(2), [SMALL, LARGE, SMALL, SMALL, SMALL, SMALL]) == [2, 3]


def test_files_are_synced_by_themselves_unless_all_may_be_synced() -> None:
    assert not any(share.syncs_all for share in RoundShares(2).deal([SMALL] * 100, 0))


def test_few_rounds_go_by_themselves_and_many_by_one_sync() -> None:
    shares = syncing_all()

    few = shares.deal([SMALL] * (ALL_FROM - 1), 0)
    assert [(share.count, share.syncs_all) for share in few] == [(1, False)] * len(few)
    shares = syncing_all()
    (many,) = shares.deal([SMALL] * 64, 0)
    assert (many.count, many.syncs_all) == (64, True)


def test_rounds_gather_while_two_shares_are_under_way() -> None:
    shares = syncing_all()
    first, _ = shares.deal([SMALL], 0) + shares.deal([SMALL], 0)

    assert dealt(shares, [SMALL] * 10) == []
    shares.end(first, 0.001)
    assert dealt(shares, [SMALL] * 10, 0.001) == [10]


def test_rounds_go_beside_shares_that_take_longer_than_usual() -> None:
    shares = syncing_all(4)
    for _ in range(GATHERING_COUNT):
        shares.deal([SMALL] * 5, 0)
    assert dealt(shares, [SMALL] * 5, 0.001) == []

    later = shares.deal_again_at(0.001)
    assert later is not None
    assert later < SLOW_SECONDS
    assert dealt(shares, [SMALL] * 5, later + 0.001) == [5]


def test_what_is_usual_is_learnt_of_slower_disks() -> None:
    shares = syncing_all()
    for number in range(50):
        (share,) = shares.deal([SMALL] * 5, number)
        shares.end(share, number + 0.04)
    for _ in range(GATHERING_COUNT):
        shares.deal([SMALL] * 5, 100)

    assert dealt(shares, [SMALL] * 5, 100.07) == []
    assert dealt(shares, [SMALL] * 5, 100.09) == [5]


def test_while_a_sync_of_everything_is_slow_files_are_synced_by_themselves() -> None:
    """Not only after it: another one would wait with all its rounds until the slow one has ended."""
    shares = syncing_all()
    (slow,) = shares.deal([SMALL] * 5, 0)
    (beside,) = shares.deal([SMALL] * 5, SLOW_SECONDS / 2)
    assert beside.syncs_all

    alone = shares.deal([SMALL] * 5, SLOW_SECONDS * 1.1)

    assert [share.syncs_all for share in alone] == [False] * 5
    shares.end(slow, 30)
    assert not shares.syncs_all(30)


def test_a_share_that_hung_once_has_nobody_wait_for_long_the_next_time() -> None:
    shares = syncing_all()
    (hung,) = shares.deal([SMALL] * 5, 0)
    shares.end(hung, 30)
    for _ in range(GATHERING_COUNT):
        shares.deal([SMALL] * 5, 100)
    assert dealt(shares, [SMALL] * 5, 100.01) == []

    later = shares.deal_again_at(100.01)

    assert later is not None
    assert later <= 100 + SLOW_SECONDS
    assert dealt(shares, [SMALL] * 5, later)


def test_one_thread_does_not_take_the_files_of_all_streams() -> None:
    """It begins their segments too, one after the other."""
    shares = syncing_all()

    assert dealt(shares, [SMALL] * 1_000) == [GATHERED_MAX] * GATHERING_COUNT


def pause_after(shares: RoundShares, now: float, seconds: float, *, failed: bool = False) -> int:
    """For how many seconds nothing is synced as a whole after a sync that took so long."""
    (share,) = shares.deal([SMALL] * 5, now)
    assert share.syncs_all
    shares.end(share, now + seconds, failed=failed)
    pause = 0
    while not shares.syncs_all(now + seconds + pause):
        pause += 1
    return pause


@pytest.mark.parametrize("failed", [False, True])
def test_after_a_slow_or_failed_sync_of_everything_files_are_synced_alone_for_ever_longer(
    failed: bool,
) -> None:
    shares = syncing_all()
    seconds = 0.0 if failed else 0.25
    assert seconds > SLOW_SECONDS or failed

    pauses = [pause_after(shares, 100.0 * number, seconds, failed=failed) for number in range(10)]

    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses[-1] == PAUSE_SECONDS_MAX
    assert not any(share.syncs_all for share in shares.deal([SMALL] * 64, 900.5))


def test_a_quick_sync_of_everything_ends_the_growth_of_pauses() -> None:
    shares = syncing_all()
    seconds = [1, 1, 1, 0.0625, 1]

    pauses = [pause_after(shares, 100 * number, one) for number, one in enumerate(seconds)]

    assert pauses == [1, 2, 4, 0, 1]


@given(
    st.integers(1, 20),
    st.booleans(),
    st.lists(
        st.tuples(st.floats(0, 0.3), st.one_of(st.booleans(), st.lists(st.integers(1, 2 * LARGE))))
    ),
)
def test_every_round_is_in_one_share_and_what_waits_has_a_reason_and_an_end(
    thread_count: int, may_sync_all: bool, steps: list[tuple[float, bool | list[int]]]
) -> None:
    """A step is some time, then an arrival of rounds, or the end of a share, which may have failed."""
    shares = RoundShares(thread_count)
    shares.may_sync_all = may_sync_all
    waiting: list[int] = []
    under_way: list[Share] = []
    now = 0.0
    for seconds, step in steps:
        now += seconds
        if isinstance(step, list):
            waiting += step
        elif under_way:
            shares.end(under_way.pop(0), now, failed=step)
        slow = [one for one in under_way if one.syncs_all and now - one.began > SLOW_SECONDS]
        dealt = shares.deal(waiting, now)
        for share in dealt:
            assert 0 < share.count <= len(waiting)
            assert may_sync_all or not share.syncs_all
            assert not share.syncs_all or share.count <= GATHERED_MAX
            assert not share.syncs_all or not slow
            assert share.syncs_all or all(one < LARGE for one in waiting[: share.count - 1])
            del waiting[: share.count]
        under_way += dealt
        assert len(under_way) <= thread_count
        assert shares.is_full == (len(under_way) == thread_count)
        if waiting and not shares.is_full:
            later = shares.deal_again_at(now)
            assert later is not None
            assert now < later <= now + SLOW_SECONDS
        else:
            assert not waiting or shares.deal_again_at(now) is None


def test_an_error_of_everything_is_believed_to_be_anybodys() -> None:
    assert holds_for_all(None)
    assert not holds_for_all(OSError())
