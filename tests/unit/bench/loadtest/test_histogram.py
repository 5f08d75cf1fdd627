"""Latencies in ranges."""

from hypothesis import given
from hypothesis import strategies as st

from bench.figures import quantile
from bench.loadtest.histogram import Histogram


def histogram(values: list[float]) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(value)
    return made


@given(
    st.lists(st.floats(0.01, 1e7), min_size=1, max_size=60), st.sampled_from([0.01, 0.5, 0.99, 1])
)
def test_a_quantile_is_never_too_low_and_at_most_two_percent_too_high(
    values: list[float], part: float
) -> None:
    exact = quantile(sorted(values), part)
    found = histogram(values).quantile(part)
    assert exact * (1 - 1e-9) <= found <= max(exact * 1.02, 0.0102) * (1 + 1e-9)


@given(st.lists(st.floats(0, 1e5), max_size=30), st.lists(st.floats(0, 1e5), max_size=30))
def test_two_that_are_merged_are_one_of_all(one: list[float], two: list[float]) -> None:
    merged = histogram(one)
    merged.merge(histogram(two))
    assert merged.told() == histogram(one + two).told()


def test_of_nothing_everything_is_0() -> None:
    assert set(Histogram().told().values()) == {0}


def test_memory_is_bounded_whatever_comes() -> None:
    made = histogram([10 ** (place / 100) for place in range(-500, 2_000)])
    assert len(made.counts) <= 1_201
    assert made.max_ms == 10 ** (1_999 / 100)
