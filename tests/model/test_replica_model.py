"""Replicas by the pure cores alone: what was shown is on all that are in sync, whatever comes.

BOTTOMLESS_REPLICA_STEPS (10,000 where it is not set) says how many steps.
"""

import os
from collections import Counter

import pytest

from model.replica_checks import check
from model.replica_record import Fate
from model.replica_walk import LIFE_STEPS, shortened, walk
from model.replicas import Replicas
from model.test_replica_stories import begun, round_of

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
