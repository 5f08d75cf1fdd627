"""The checker of linearizability: it takes what can have happened, and nothing else."""

import pytest

from linearizability.checker import check, check_group
from linearizability.history import (
    UNKNOWN,
    Append,
    Bounds,
    End,
    Event,
    Mismatch,
    Page,
    Read,
    Stored,
)
from linearizability.simulated import (
    GROUP_MUTATIONS,
    MUTATIONS,
    Mutation,
    honest,
    honest_group,
)


def an_append(value: str, at: int | None, invoked: float, returned: float) -> Event:
    result = UNKNOWN if at is None else Stored(at)
    return Event("c", Append((value,)), result, invoked, returned)


def a_look(values: tuple[str, ...], invoked: float, returned: float) -> Event:
    return Event("r", Read(0), Page(values, up_to_date=True), invoked, returned)


@pytest.mark.parametrize("seed", range(10))
def test_what_a_perfect_stream_tells_is_linearizable(seed: int) -> None:
    verdict = check(honest(seed))
    assert verdict.order is not None, verdict


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__)
def test_what_a_faulty_stream_tells_is_not(mutation: Mutation, seed: int) -> None:
    verdict = check(mutation(honest(seed)))
    assert verdict.order is None
    assert verdict.stuck_at


@pytest.mark.parametrize("seed", range(10))
def test_what_members_of_a_group_ought_to_see_is_linearizable(seed: int) -> None:
    verdict = check_group(honest_group(seed))
    assert verdict.order is not None, verdict


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mutation", GROUP_MUTATIONS, ids=lambda each: each.__name__)
def test_what_members_see_of_a_group_without_a_fence_is_not(mutation: Mutation, seed: int) -> None:
    assert check_group(mutation(honest_group(seed))).order is None


def test_many_answers_that_were_lost_do_not_make_it_slow() -> None:
    """Each of them may have happened at every moment: tried one by one, that is without end."""
    lost = [an_append(f"lost {number}", None, 0, float("inf")) for number in range(60)]
    kept = [an_append(f"kept {number}", number, number, number + 1) for number in range(60)]
    values = tuple(f"kept {number}" for number in range(60))
    assert check([*lost, *kept, a_look(values, 100, 101)]).order is not None
    # Of those that are shown, each has its place.
    shown = tuple(f"lost {number}" for number in range(60))
    assert check([*lost, *kept, a_look(values + shown, 300, 301)]).order is not None
    assert check([*lost, *kept, a_look(shown + values, 300, 301)]).order is None


def test_of_two_at_once_either_may_be_first() -> None:
    first, second = an_append("a", 1, 0, 10), an_append("b", 0, 1, 9)
    order = check([first, second, a_look(("b", "a"), 11, 12)]).order
    assert order is not None
    assert order[0] == second


def test_of_two_in_a_row_only_one_was_first() -> None:
    assert check([an_append("a", 1, 0, 1), an_append("b", 0, 2, 3)]).order is None


def test_an_unknown_outcome_may_be_either_and_late() -> None:
    lost = an_append("a", None, 0, float("inf"))
    unseen, seen = a_look((), 5, 6), a_look(("a",), 7, 8)
    assert check([lost, unseen]).order is not None
    assert check([lost, seen]).order is not None
    assert check([lost, unseen, seen]).order is not None
    assert check([lost, seen, a_look((), 9, 10)]).order is None


def test_an_unknown_outcome_does_not_happen_before_it_was_asked_for() -> None:
    lost = an_append("a", None, 5, float("inf"))
    assert check([lost, a_look(("a",), 1, 2)]).order is None


def test_a_condition_that_failed_had_to() -> None:
    failed = Event("c", Append(("a",), 3), Mismatch(1), 2, 3)
    assert check([an_append("b", 0, 0, 1), failed]).order is not None
    assert check([failed]).order is None
    assert (
        check([an_append("b", 0, 0, 1), Event("c", Append(("a",), 1), Mismatch(1), 2, 3)]).order
        is None
    )


def test_the_end_may_be_told_from_the_middle_of_an_append() -> None:
    appended = an_append("a", 0, 0, 10)
    looks = [Event("r", Bounds(), End(end), at, at + 1) for at, end in ((1, 0), (3, 1))]
    assert check([appended, *looks]).order is not None
    turned = [Event("r", Bounds(), End(end), at, at + 1) for at, end in ((1, 1), (3, 0))]
    assert check([appended, *turned]).order is None
