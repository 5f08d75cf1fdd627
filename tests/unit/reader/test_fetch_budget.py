"""What one answer takes of many partitions: bounds hold, one record always comes, it ends."""

from hypothesis import given
from hypothesis import strategies as st

from bottomless_server.reader.core.fetch_budget import NOTHING, FetchBudget

sizes = st.lists(st.integers(0, 50), max_size=30)


@given(sizes, st.integers(1, 60), st.integers(1, 6))
def test_an_answer_is_never_larger_than_its_bounds_but_for_its_first_record(
    pages: list[int], size_max: int, count_max: int
) -> None:
    budget = FetchBudget(size_max, count_max)
    taken = [size for size in pages if budget.take(1, size)]

    assert (budget.count, budget.size) == (len(taken), sum(taken))
    assert len(taken) <= count_max
    assert sum(taken) <= size_max or len(taken) == 1
    # The first that there is comes, however large.
    assert taken[:1] == pages[:1]


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 9), st.integers(0, 200))
def test_those_who_are_read_together_share_what_is_left(
    size_max: int, count_max: int, together: int, wanted: int
) -> None:
    budget = FetchBudget(size_max, count_max)
    share = budget.share(wanted, together)

    if not wanted:
        assert share == NOTHING
        return
    # One record is asked for at least, and it may not fit.
    assert share.size == 1 or share.size * together <= size_max
    assert share.size <= max(wanted, 1)
    assert share.record_count == 1 or share.record_count * together <= count_max


def test_nothing_is_read_for_an_answer_that_is_full() -> None:
    budget = FetchBudget(10, 100)
    assert not budget.full
    assert budget.take(1, 10)
    assert budget.full
    assert budget.share(5, 1) == NOTHING
    assert not budget.take(1, 1)
    assert budget.take(0, 0)


def test_it_is_enough_by_bytes_or_when_nothing_fits_any_more() -> None:
    budget = FetchBudget(100, 3, size_min=20)
    assert not budget.enough
    budget.take(1, 19)
    assert not budget.enough
    budget.take(1, 1)
    assert budget.enough
    few = FetchBudget(100, 2, size_min=20)
    few.take(2, 2)
    assert few.enough
    assert FetchBudget(100, 2, size_min=0).enough
