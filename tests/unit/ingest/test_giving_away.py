"""How often a stream is given away that cannot go on here."""

import pytest
from support.guards import remove

from bottomless_server.node.core.giving_away import (
    FAILED_MS,
    FAILED_MS_MAX,
    REST_MS,
    REST_MS_MAX,
    GivingAway,
    rest_after,
)
from unit.ingest.harness import STREAM

DAY_MS = 86_400_000
WAITS_MS = 15_000
"""A round waits for so long before its stream is given away."""


def passes_in_a_day(*, one_has_more: bool = False) -> tuple[int, int]:
    """How often two nodes give a stream to each other; and for how long one of them has it that, if so, has
    more than the other."""
    nodes, mine, now, count, with_it = (GivingAway(), GivingAway()), 0, 0, 0, 0
    while now < DAY_MS:
        has_more = one_has_more and mine == 0
        now, before = now + (1_000 if has_more else WAITS_MS), now
        while not nodes[mine].may_give(STREAM, now):
            now += 1_000
        nodes[mine].given(STREAM, now, has_more=has_more)
        with_it += now - before if mine == 1 else 0
        mine, count = 1 - mine, count + 1
    return count, with_it


def test_a_stream_that_comes_back_stays_twice_as_long_up_to_an_hour() -> None:
    assert [rest_after(times) for times in range(3)] == [REST_MS, 2 * REST_MS, 4 * REST_MS]
    assert rest_after(10**6) == REST_MS_MAX
    giving = GivingAway()
    assert giving.may_give(STREAM, 0)
    giving.given(STREAM, 0, has_more=False)
    assert not giving.may_give(STREAM, REST_MS - 1)
    assert giving.may_give(STREAM, REST_MS)
    giving.given(STREAM, REST_MS, has_more=False)
    assert not giving.may_give(STREAM, 3 * REST_MS - 1)
    assert giving.may_give(STREAM, 3 * REST_MS)


def test_two_nodes_that_cannot_go_on_give_a_stream_to_each_other_some_times_a_day() -> None:
    assert passes_in_a_day()[0] < 70


def test_a_stream_comes_to_rest_with_the_node_that_has_more() -> None:
    count, with_it = passes_in_a_day(one_has_more=True)
    assert count < 70
    assert with_it > 0.9 * DAY_MS


def test_without_its_guard_two_nodes_give_a_stream_to_each_other_all_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "a longer stay each time that a stream comes back", lambda _: REST_MS)
    assert passes_in_a_day()[0] > 1_000


def test_what_could_not_be_given_is_tried_again_soon_and_then_more_rarely() -> None:
    giving, now, rests = GivingAway(), 0, list[int]()
    for _ in range(6):
        giving.failed(STREAM, now)
        rests.append(
            next(ms for ms in range(0, 60_001, 1_000) if giving.may_give(STREAM, now + ms))
        )
        now += rests[-1]
    assert rests == [FAILED_MS, 10_000, 20_000, 40_000, FAILED_MS_MAX, FAILED_MS_MAX]
    # What was given away is known all the same.
    giving.given(STREAM, now, has_more=False)
    giving.failed(STREAM, now + REST_MS)
    giving.given(STREAM, now + 2 * REST_MS, has_more=False)
    assert not giving.may_give(STREAM, now + 4 * REST_MS - 1)


def test_what_was_not_given_away_for_long_is_forgotten() -> None:
    giving = GivingAway()
    giving.given(STREAM, 0, has_more=False)
    giving.forget_old(REST_MS + REST_MS_MAX - 1)
    assert len(giving) == 1
    giving.forget_old(REST_MS + REST_MS_MAX)
    assert len(giving) == 0
