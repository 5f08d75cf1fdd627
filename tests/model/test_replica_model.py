"""Replicas by the pure cores alone: what was shown is on all that are in sync, whatever comes.

BOTTOMLESS_REPLICA_STEPS (10,000 where it is not set) says how many steps.
"""

import os
from collections import Counter

import pytest
from support.guards import remove

from bottomless_server.node.core.replica_waits import Holders
from model.replica_checks import check
from model.replica_record import Fate
from model.replica_walk import LIFE_STEPS, Failed, shortened, walk
from model.replicas import Replicas
from model.test_replica_stories import STORIES, begun, round_of

WAYS = {
    "a damaged log was put aside",
    "a dirty stream changed its home",
    "a disk came back older",
    "a doubt was settled",
    "a late EXEC landed",
    "a log was cut",
    "a log was dropped",
    "a log was set aside",
    "a segment was freed",
    "a stream was left clean",
    "a stream was transferred",
    "admit: a set changed",
    "all lost power, and a disk came back older",
    "an EXEC had no reply",
    "an owner decided to admit",
    "an owner decided to evict",
    "an owner decided to settle",
    "an owner decided to show",
    "evict: a set changed",
    "members: a set changed",
    "something was acknowledged",
}
"""A model that never comes there proves nothing; rarer ways are in `test_replica_stories.py`."""
FURTHER_LIVES = 1_000
"""Lived where a way was not come to yet: any change of the model makes other lives of a seed."""

GUARD_LIVES = 700
"""So many are searched where the known one does not miss a rule any more."""
KNOWN = {
    "the in-sync set in a claim": 18,
    "the floor of the in-sync set": 44,
    "no takeover while a node in sync lives": 3,
    "the home in the EXECs of an owner with replicas": 4,
    "waiting for all that are in sync": 1,
    "admission after all rounds": 37,
    "a follower that has all of its owner's log, and more": 5,
    "an opening since a node owned a stream": 91,
    "all that was found, shown before a stream is left": 1_268,
    "what is published stays out of a cut": 545,
    "the cut at an opening": 9,
    "the beginning of an empty log": 9,
    "the place of what is sent, and not its offset": 3,
    "the end of the segment before": 333,
}
"""The life that breaks without a rule, and holds with it. No life is known that breaks without the rule of
who was told of more: it is for logs of which neither has all of the other, and has a story. So has the epoch
that a follower has seen: what goes beyond a late opening is not cut in sync."""


@pytest.mark.timeout(24 * 3600)
def test_what_was_shown_is_on_all_that_are_in_sync() -> None:
    wanted = int(os.environ.get("BOTTOMLESS_REPLICA_STEPS", "10000")) // LIFE_STEPS + 1
    events = Counter[str]()
    seed = 0
    while seed < wanted or (missing_ways(events) and seed < wanted + FURTHER_LIVES):
        seed += 1
        failed = walk(seed, events)
        assert failed is None, f"seed {seed}: {shortened(failed)}"
    told = "; ".join(f"{name}: {count}" for name, count in sorted(events.items()))
    print(f"{seed * LIFE_STEPS} steps: {told}")
    assert not missing_ways(events)


def missing_ways(events: Counter[str]) -> set[str]:
    return {name for name in WAYS if not events[name]}


def first_that_fails(known: int) -> tuple[int, Failed]:
    for seed in (known, *range(1, GUARD_LIVES)):
        if (failed := walk(seed)) is not None:
            return seed, failed
    raise AssertionError("no life breaks")


@pytest.mark.parametrize("name", KNOWN)
def test_without_its_rule_some_life_breaks_what_must_hold(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        remove(patch, name, STORIES[name][1])
        seed, failed = first_that_fails(KNOWN[name])
    print(f"seed {seed}: {failed.what}")
    assert walk(seed) is None


def test_without_counting_whom_it_doubts_an_owner_does_not_wait_for_who_was_admitted_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Holders, "counted", property(lambda holders: frozenset(holders.in_sync)))
    assert "does not wait for a node in sync" in first_that_fails(17)[1].what


def with_a_late_admission() -> Replicas:
    """Node 2 has everything; it was asked to be counted in, and nobody heard what became of that."""
    world = begun()
    world.evict(0, 2)
    round_of(world, 0, (1, 2))
    world.admit(0, 2, Fate.LATE)
    return world


def test_a_late_admission_is_waited_for_until_the_record_was_written() -> None:
    world = with_a_late_admission()
    world.append(0, 1, roll=False)
    world.sync(0)
    world.send(0, 1)
    world.deliver_all()
    world.commit(0)
    assert len(world.acknowledged) == 1
    world.settle(0)
    world.land(0)
    assert world.names[2] not in world.record.in_sync
    world.commit(0)
    assert len(world.acknowledged) == 2


def a_log_is_put_aside(world: Replicas) -> None:
    """It is found damaged, and the record does not count on it yet."""
    world.damage(2)
    world.append(0, 1, roll=False)
    for _ in range(2):
        world.send(0, 2)
        world.deliver_all()
    assert world.events["a damaged log was put aside"]
    world.land(0)


def test_nobody_is_counted_on_whose_log_was_put_aside_before_an_exec_landed() -> None:
    world = with_a_late_admission()
    a_log_is_put_aside(world)
    check(world)


def test_by_a_read_alone_a_node_finds_out_too_little_before_it_throws_its_log_away() -> None:
    world = with_a_late_admission()
    world.asks_by_writing = False
    a_log_is_put_aside(world)
    with pytest.raises(AssertionError, match="a node in sync lacks"):
        check(world)
