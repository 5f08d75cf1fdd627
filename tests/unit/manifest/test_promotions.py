"""Which offsets the policy leaves alone for a while."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Overloaded
from bottomless.model.limits import PROMOTION_COUNT_MAX
from bottomless.model.tiers import Promotion, check_promotions
from bottomless_server.manifest.tree.core.promotions import with_promotion

NOW = 100


def test_neighbours_that_end_at_the_same_moment_become_one() -> None:
    found = with_promotion([Promotion(0, 10, 500)], Promotion(10, 20, 500), NOW, 0)

    assert found == [Promotion(0, 20, 500)]


def test_neighbours_that_end_at_other_moments_stay_apart() -> None:
    promoted = [Promotion(0, 10, 400)]

    assert with_promotion(promoted, Promotion(10, 20, 500), NOW, 0) == [
        Promotion(0, 10, 400),
        Promotion(10, 20, 500),
    ]


def test_those_that_have_ended_are_left_out() -> None:
    promoted = [Promotion(0, 10, NOW), Promotion(50, 60, NOW + 1)]

    assert with_promotion(promoted, Promotion(20, 30, 500), NOW, 0) == [
        Promotion(50, 60, NOW + 1),
        Promotion(20, 30, 500),
    ]


def test_those_below_the_floor_take_no_place() -> None:
    promoted = [Promotion(20 * at, 20 * at + 10, 500 + at) for at in range(PROMOTION_COUNT_MAX)]

    found = with_promotion(promoted, Promotion(1_000, 1_010, 500), NOW, 30)

    assert found == [*promoted[2:], Promotion(1_000, 1_010, 500)]


def test_one_that_is_covered_for_longer_is_replaced() -> None:
    promoted = [Promotion(0, 10, 400), Promotion(12, 14, 900)]

    assert with_promotion(promoted, Promotion(0, 20, 500), NOW, 0) == [
        Promotion(12, 14, 900),
        Promotion(0, 20, 500),
    ]


def test_one_more_than_there_may_be_is_refused() -> None:
    promoted = [Promotion(20 * at, 20 * at + 10, 500) for at in range(PROMOTION_COUNT_MAX)]

    with pytest.raises(Overloaded):
        with_promotion(promoted, Promotion(1_000, 1_010, 500), NOW, 0)
    assert len(with_promotion(promoted, Promotion(10, 20, 500), NOW, 0)) < PROMOTION_COUNT_MAX


one = st.builds(
    lambda first, size, until: Promotion(first, first + size, until),
    st.integers(0, 60),
    st.integers(1, 20),
    st.sampled_from([NOW - 1, NOW + 1, NOW + 2]),
)


@given(st.lists(one, max_size=PROMOTION_COUNT_MAX))
def test_each_offset_stays_promoted_for_as_long_as_somebody_asked(asked: list[Promotion]) -> None:
    promoted: list[Promotion] = []
    for each in asked:
        promoted = with_promotion(promoted, each, NOW, 0)
    check_promotions(promoted)

    def until(these: list[Promotion], offset: int) -> int:
        ends = [one.until for one in these if one.first_offset <= offset < one.next_offset]
        return max([end for end in ends if end > NOW], default=0)

    assert all(until(asked, offset) == until(promoted, offset) for offset in range(90))
    assert all(a != b for a, b in pairwise(sorted(promoted)))
