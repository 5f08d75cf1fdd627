"""The two counters of a limit: what they count, and when there is room."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless_server.runtime.process.sliding_window import SlidingWindow

QUOTAS = st.integers(1, 50)


@given(
    quota=QUOTAS,
    cost=st.integers(1, 50),
    before=st.integers(0, 50),
    now=st.integers(0, 50),
    passed=st.floats(0, 9.99),
)
def test_after_the_wait_there_is_room_and_before_it_there_is_none(
    quota: int, cost: int, before: int, now: int, passed: float
) -> None:
    cost, before, now = min(cost, quota), min(before, quota), min(now, quota)

    def room_at(seconds: float) -> bool:
        window = SlidingWindow(10, 0.0, before, now)
        left = window.move(seconds)
        return window.seconds_until_room(quota, left, cost) == 0

    window = SlidingWindow(10, 0.0, before, now)
    wait = window.seconds_until_room(quota, window.move(passed), cost)
    assert room_at(passed + wait + 1e-6)
    if wait > 0.01:
        assert not room_at(passed + wait - 0.005)


@given(quota=QUOTAS, times=st.lists(st.floats(0, 60), min_size=1, max_size=200))
def test_no_stretch_of_a_windows_length_has_more_than_twice_the_quota(
    quota: int, times: list[float]
) -> None:
    """Twice is the worst that even spacing can hide: a full quota at the end of a window, and what
    fits beside what is left of it. Windows that lie as the counters do hold the quota itself."""
    window = SlidingWindow(10, 0.0)
    taken = []
    for now in sorted(times):
        if window.seconds_until_room(quota, window.move(now), 1) == 0:
            window.now += 1
            taken.append(now)
    for start in taken:
        assert sum(start <= now < start + 10 for now in taken) <= 2 * quota
    for number in range(7):
        assert sum(10 * number <= now < 10 * (number + 1) for now in taken) <= quota


@pytest.mark.parametrize(
    ("later", "counts"),
    [(5, (0, 4, 5.0)), (10, (4, 0, 10.0)), (15, (4, 0, 5.0)), (20, (0, 0, 10.0))],
)
def test_a_window_is_the_one_before_for_one_windows_length(
    later: float, counts: tuple[int, int, float]
) -> None:
    window = SlidingWindow(10, began_at=100.0, now=4)
    left = window.move(100.0 + later)
    assert (window.before, window.now, left) == counts


@given(before=st.integers(0, 50), left=st.floats(0, 10))
def test_the_window_before_counts_for_the_part_that_is_not_over(before: int, left: float) -> None:
    assert math.isclose(SlidingWindow(10, 0.0, before, 3).counted(left), before * left / 10 + 3)
