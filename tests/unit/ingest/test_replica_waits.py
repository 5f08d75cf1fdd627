"""What an owner does while a round is not on all disks: whom it waits for, and what it does first."""

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless.model.names import NodeId
from bottomless_server.node.core.replica_waits import (
    JOIN_MS_MAX,
    Do,
    Holders,
    Said,
    Step,
    WaitBounds,
    Waited,
    heard_from,
    is_late,
    join_wait,
    joiner,
    let_go,
    next_step,
    refuses,
    unheard,
)
from bottomless_server.protocol.replica import Place

A, B, C, D = (NodeId(letter * 32) for letter in "abcd")
BOUNDS: Final = WaitBounds(wait_ms=1_000, commit_ms=10_000, join_ms=3_000)
BEFORE, END = Place(0, 100), Place(0, 200)
THREE: Final = Holders(A, (A, B, C), (A, B, C), least=2)
TWO: Final = replace(THREE, in_sync=(A, B))
ROUND: Final = Waited(END, since=50_000)
HAS_IT, LACKS_IT = Said(END, at=50_100), Said(BEFORE, at=49_000)


def step(holders: Holders, now: int, ahead: tuple[NodeId, ...] = (), **said: Said) -> Step:
    """What A does; `said` by the letters of nodes."""
    heard = {NodeId(letter * 32): one for letter, one in said.items()}
    return next_step(holders, heard, ROUND, now, BOUNDS, ahead)


def test_a_round_is_shown_when_all_in_sync_have_it_and_not_before() -> None:
    assert step(THREE, 50_100, b=HAS_IT, c=HAS_IT) == Step(Do.SHOW)
    assert step(THREE, 50_100, b=HAS_IT, c=LACKS_IT) == Step(Do.WAIT, again_at=51_000)
    assert step(THREE, 50_100, b=HAS_IT).do is Do.WAIT
    # A member that is not in sync is not waited for.
    assert step(TWO, 50_100, b=HAS_IT, c=LACKS_IT) == Step(Do.SHOW)


def test_without_waiting_for_all_it_is_shown_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "waiting for all that are in sync", lambda *_: True)
    assert step(THREE, 50_100, b=HAS_IT, c=LACKS_IT) == Step(Do.SHOW)


def test_who_says_nothing_for_too_long_is_evicted_before_the_round_goes_on() -> None:
    assert step(THREE, 50_999, b=HAS_IT, c=LACKS_IT).do is Do.WAIT
    assert step(THREE, 51_000, b=HAS_IT, c=LACKS_IT) == Step(Do.EVICT, C)
    assert step(THREE, 51_000, b=HAS_IT) == Step(Do.EVICT, C)
    # The record says so then.
    assert step(TWO, 51_001, b=HAS_IT, c=LACKS_IT) == Step(Do.SHOW)


def test_who_fails_is_evicted_at_once_and_who_makes_progress_is_not() -> None:
    assert step(THREE, 50_001, b=HAS_IT, c=replace(LACKS_IT, failed=True)) == Step(Do.EVICT, C)
    slow = replace(LACKS_IT, at=58_000)
    assert step(THREE, 58_500, b=HAS_IT, c=slow) == Step(Do.WAIT, again_at=59_000)


def test_a_round_is_held_where_too_few_would_be_left() -> None:
    assert step(TWO, 99_000, b=LACKS_IT) == Step(Do.WAIT)
    assert step(TWO, 99_000, b=HAS_IT) == Step(Do.SHOW)


def test_a_held_round_goes_on_with_a_member_that_has_caught_up() -> None:
    """It is admitted first, and the dead one is evicted after that."""
    assert step(TWO, 99_000, b=LACKS_IT, c=HAS_IT) == Step(Do.ADMIT, C)
    assert step(THREE, 99_000, b=LACKS_IT, c=HAS_IT) == Step(Do.EVICT, B)
    assert step(replace(TWO, in_sync=(A, C)), 99_000, b=LACKS_IT, c=HAS_IT) == Step(Do.SHOW)
    # Nobody is admitted for a round that others may still answer.
    assert step(TWO, 50_001, b=LACKS_IT, c=HAS_IT).do is Do.WAIT


def test_a_node_of_which_nobody_knows_whether_it_is_in_sync_is_waited_for() -> None:
    lost = replace(TWO, doubted=frozenset([C]))
    assert step(lost, 50_100, b=HAS_IT, c=LACKS_IT).do is Do.WAIT
    # Asked for once more, although it may have been done: then somebody knows.
    assert step(lost, 51_000, b=HAS_IT, c=LACKS_IT) == Step(Do.EVICT, C)


def test_a_held_round_does_not_wait_for_a_reply_that_was_lost() -> None:
    """Who was perhaps admitted is not admitted again before somebody knows."""
    lost = replace(TWO, doubted=frozenset([C]))
    assert step(lost, 99_000, b=LACKS_IT, c=HAS_IT) == Step(Do.SETTLE)
    assert step(TWO, 99_000, b=LACKS_IT, c=HAS_IT) == Step(Do.ADMIT, C)


def test_as_long_as_a_node_in_sync_has_more_nothing_is_shown_and_nobody_let_go() -> None:
    assert step(THREE, 99_000, (B,), b=LACKS_IT, c=HAS_IT) == Step(Do.WAIT)
    assert step(THREE, 99_000, (B,), b=HAS_IT, c=HAS_IT) == Step(Do.WAIT)


def test_a_node_that_has_more_is_taken_back_before_a_round_is_shown_without_it() -> None:
    """Its eviction was done, or had no reply, when it said so."""
    assert step(TWO, 50_100, (C,), b=HAS_IT) == Step(Do.TAKE_BACK, C)
    doubted = replace(THREE, doubted=frozenset([C]))
    assert step(doubted, 50_100, (C,), b=HAS_IT) == Step(Do.TAKE_BACK, C)
    assert step(THREE, 50_100, (C,), b=HAS_IT) == Step(Do.WAIT)


def test_without_its_guard_a_node_that_has_more_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """And could not be given the stream."""
    remove(
        monkeypatch, "a node that has more, back in sync before anything is shown", lambda *_: []
    )
    assert step(TWO, 50_100, (C,), b=HAS_IT) == Step(Do.WAIT)


def test_a_member_joins_when_it_has_everything_that_was_written() -> None:
    assert joiner(TWO, {C: HAS_IT}, END, 60_000, BOUNDS) == C
    assert joiner(TWO, {C: LACKS_IT}, END, 60_000, BOUNDS) is None
    assert joiner(TWO, {C: Said()}, END, 60_000, BOUNDS) is None
    assert joiner(TWO, {D: HAS_IT}, END, 60_000, BOUNDS) is None
    assert joiner(THREE, {C: HAS_IT}, END, 60_000, BOUNDS) is None
    # Of an empty log an opened one has everything.
    assert joiner(TWO, {C: replace(LACKS_IT, end=Place(0, 0))}, None, 60_000, BOUNDS) == C


def test_who_was_evicted_waits_longer_each_time_before_it_joins_again() -> None:
    waits = [join_wait(count, BOUNDS) for count in range(7)]
    assert waits == [0, 3_000, 6_000, 12_000, 24_000, 48_000, JOIN_MS_MAX]
    assert join_wait(10**6, BOUNDS) == JOIN_MS_MAX
    again = replace(HAS_IT, evictions=1, caught_up_at=60_000)
    assert joiner(TWO, {C: again}, END, 62_999, BOUNDS) is None
    assert joiner(TWO, {C: again}, END, 63_000, BOUNDS) == C


def test_callers_are_answered_when_a_round_is_held_for_long() -> None:
    assert not is_late(ROUND, 59_999, BOUNDS)
    assert is_late(ROUND, 60_000, BOUNDS)


def test_appends_wait_after_a_claim_and_are_refused_later_where_too_few_are_in_sync() -> None:
    alone = replace(THREE, in_sync=(A,))
    assert not refuses(alone, 0, 9_999, BOUNDS)
    assert refuses(alone, 0, 10_000, BOUNDS)
    assert not refuses(TWO, 0, 10_000, BOUNDS)
    assert refuses(replace(TWO, doubted=frozenset([B])), 0, 10_000, BOUNDS)


HEARD = st.builds(
    Said,
    end=st.sampled_from([None, BEFORE, END]),
    at=st.integers(48_000, 56_000),
    failed=st.booleans(),
    evictions=st.integers(0, 2),
    caught_up_at=st.integers(48_000, 56_000),
)
OTHERS = st.sets(st.sampled_from([B, C, D]))


@given(
    OTHERS,
    OTHERS,
    st.integers(1, 4),
    st.dictionaries(st.sampled_from([B, C, D]), HEARD),
)
def test_whatever_was_heard_a_round_is_shown_only_where_all_have_it_and_never_forgotten(
    in_sync: set[NodeId], doubted: set[NodeId], least: int, said: dict[NodeId, Said]
) -> None:
    holders = Holders(A, (A, B, C, D), (A, *sorted(in_sync)), least, frozenset(doubted))
    now = 52_000
    found = next_step(holders, said, ROUND, now, BOUNDS)

    lacking = {n for n in in_sync | doubted if said.get(n, Said()).end != END}
    assert (found.do is Do.SHOW) == (not lacking)
    if found.do is Do.EVICT:
        assert found.node in lacking
        assert len(holders.in_sync) > least or found.node in doubted
    if found.do is Do.ADMIT:
        assert found.node is not None
        assert said[found.node].end == END
        assert found.node not in holders.counted
    if found.do is Do.WAIT and found.again_at is not None:
        assert found.again_at > now


def test_who_has_everything_when_its_eviction_returns_waits_from_then_on() -> None:
    """It answered while the eviction was under way, and is not let in at once: it would flap."""
    one = let_go(heard_from(LACKS_IT, END, END, 51_100), END, 51_200)
    assert joiner(TWO, {C: one}, END, 51_200, BOUNDS) is None
    assert joiner(TWO, {C: one}, END, 54_199, BOUNDS) is None
    assert joiner(TWO, {C: one}, END, 54_200, BOUNDS) == C


def test_who_lacks_something_when_it_is_evicted_waits_from_when_it_has_everything() -> None:
    one = let_go(LACKS_IT, END, 51_200)
    later = heard_from(one, END, END, 60_000)
    assert joiner(TWO, {C: later}, END, 62_999, BOUNDS) is None
    # To have had everything once is enough: more is written all the time.
    more = heard_from(later, END, Place(0, 300), 62_000)
    assert (
        joiner(
            TWO, {C: heard_from(more, Place(0, 300), Place(0, 300), 63_000)}, None, 63_000, BOUNDS
        )
        == C
    )


def test_of_whom_nothing_is_known_any_more_the_wait_begins_anew() -> None:
    one = unheard(heard_from(let_go(LACKS_IT, END, 51_200), END, END, 52_000))
    assert joiner(TWO, {C: one}, END, 60_000, BOUNDS) is None
    again = heard_from(one, END, END, 60_000)
    assert joiner(TWO, {C: again}, END, 62_999, BOUNDS) is None
    assert joiner(TWO, {C: again}, END, 63_000, BOUNDS) == C


def test_each_eviction_doubles_the_wait_also_of_one_that_flaps() -> None:
    one, now, waits = HAS_IT, 50_200, list[int]()
    for _ in range(4):
        one = let_go(one, END, now)
        waits.append(
            next(ms for ms in range(0, 60_001, 500) if joiner(TWO, {C: one}, END, now + ms, BOUNDS))
        )
    assert waits == [3_000, 6_000, 12_000, 24_000]
