"""The times of an open loop."""

import pytest

from bench.loadtest.arrivals import arrivals


def test_arrivals_are_in_order_within_the_time_and_of_all_producers() -> None:
    found = list(arrivals(100, 20, 7, seed=1))
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert found[0].at >= 0
    assert found[-1].at < 20
    assert {one.producer for one in found} == set(range(7))


def test_a_seed_gives_the_same_arrivals_again() -> None:
    assert list(arrivals(50, 5, 3, 1)) == list(arrivals(50, 5, 3, 1)) != list(arrivals(50, 5, 3, 2))


def test_there_are_as_many_as_the_rate_says() -> None:
    # 10,000 on average, with a deviation of 100; the seed makes it the same in every run.
    assert len(list(arrivals(1_000, 10, 3, 1))) == pytest.approx(10_000, abs=300)
