"""Replicas by the pure cores alone: what was shown is on all that are in sync, whatever comes.

BOTTOMLESS_REPLICA_STEPS (3,000 where it is not set) says how many steps.
"""

import os
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from model.replica_checks import check
from model.replicas import Replicas

nodes = st.integers(0, 4)
yes_or_no = st.booleans()
WAYS = {
    "a dirty stream changed its home",
    "a disk came back older",
    "a log was cut",
    "a segment was freed",
    "a stream was transferred",
    "admit: a set changed",
    "evict: a set changed",
    "something was acknowledged",
}
"""A model that never comes there proves nothing; rarer ways are in `test_replica_stories.py`."""
FURTHER_STEPS = 15_000
"""Taken where a way was not come to yet: any change of the model makes other stories of a seed."""
EXAMPLE_COUNT = 3
STEP_COUNT = 100


class ReplicasInAnyOrder(RuleBasedStateMachine):
    events: ClassVar[Counter[str]] = Counter()

    @initialize(count=st.integers(3, 5))
    def begin(self, count: int) -> None:
        self.world = Replicas(count)
        self.world.claim(0)
        for number in range(1, count):
            self.world.send(0, number)
        self.world.deliver_all()
        for number in range(1, count):
            self.world.admit(0, number)

    def owner(self) -> int:
        """The node of the newest owner that runs, or any."""
        found = [node for node in self.world.nodes.values() if node.owner is not None]
        newest = max(found, key=lambda node: node.owner.epoch, default=None)  # type: ignore[union-attr]
        return 0 if newest is None else self.world.names.index(newest.name)

    @rule(number=nodes)
    def claim(self, number: int) -> None:
        self.world.claim(number)

    @rule(records=st.integers(0, 2), roll=yes_or_no, whoever=yes_or_no, number=nodes)
    def append(self, records: int, roll: bool, whoever: bool, number: int) -> None:
        self.world.append(number if whoever else self.owner(), records, roll=roll)

    @rule(records=st.integers(0, 2), roll=yes_or_no)
    def round(self, records: int, roll: bool) -> None:
        """As it goes where nothing is lost."""
        number, world = self.owner(), self.world
        world.append(number, records, roll=roll)
        world.sync(number)
        for other in range(len(world.names)):
            world.send(number, other)
        world.deliver_all()
        world.commit(number)

    @rule(number=nodes, cut_off=nodes, rounds=st.integers(1, 3), roll=yes_or_no)
    def go_on(self, number: int, cut_off: int, rounds: int, roll: bool) -> None:
        """A node becomes the owner if it may, and all but maybe one are with it soon."""
        world = self.world
        for other in range(len(world.names)):
            if other != cut_off:
                world.start(other)
        world.read_record(self.owner())
        world.claim(number)
        mine = self.owner()
        for _ in range(rounds + 2):
            for other in range(len(world.names)):
                if other % len(world.names) != cut_off % len(world.names):
                    world.send(mine, other, 9)
                    world.deliver_all()
                    world.admit(mine, other)
            world.append(mine, rounds, roll=roll)
            world.sync(mine)
        world.evict(mine, cut_off)
        world.commit(mine)

    @rule(number=nodes, settled=yes_or_no)
    def fail_over(self, number: int, settled: bool) -> None:
        """The owner dies, maybe after all were told what is committed, and another one claims."""
        mine, world = self.owner(), self.world
        if settled:
            self.tell_all(mine)
        world.crash(mine, 1)
        world.claim(number)

    @rule(number=nodes, records=st.integers(1, 2))
    def age(self, number: int, records: int) -> None:
        """A disk misses what is acknowledged and told to all others, and comes back without it."""
        world = self.world
        world.keep_copy(number)
        self.round(records, roll=False)
        self.round(records, roll=True)
        self.tell_all(self.owner())
        self.come_back_older(number)

    def tell_all(self, number: int) -> None:
        for other in range(len(self.world.names)):
            self.world.send(number, other, 9)
        self.world.deliver_all()

    @rule(number=nodes, at=nodes)
    def roll_publish_and_free(self, number: int, at: int) -> None:
        """The segments of one node go, and others may keep theirs."""
        self.round(1, roll=True)
        self.world.publish(self.owner())
        self.round(1, roll=True)
        self.tell_all(self.owner())
        self.world.free(number)
        self.world.free(at)

    @rule(number=nodes)
    def sync(self, number: int) -> None:
        self.world.sync(number)

    @rule(to=nodes, number=nodes, whoever=yes_or_no)
    def send(self, to: int, number: int, whoever: bool) -> None:
        self.world.send(number if whoever else self.owner(), to)

    @rule(number=nodes)
    def commit(self, number: int) -> None:
        self.world.commit(number)

    @rule(which=st.integers(0, 29), again=yes_or_no)
    def deliver(self, which: int, again: bool) -> None:
        self.world.deliver(which, again=again)

    @rule(which=st.integers(0, 29))
    def lose(self, which: int) -> None:
        self.world.lose(which)

    @rule(who=nodes, lost=yes_or_no)
    def admit(self, who: int, lost: bool) -> None:
        self.world.admit(self.owner(), who, lost=lost)

    @rule(who=nodes, lost=yes_or_no)
    def evict(self, who: int, lost: bool) -> None:
        self.world.evict(self.owner(), who, lost=lost)

    @rule(number=nodes)
    def read_record(self, number: int) -> None:
        self.world.read_record(number)

    @rule(to=nodes, heard=yes_or_no)
    def transfer(self, to: int, heard: bool) -> None:
        (self.world.transfer if heard else self.world.transfer_asked)(self.owner(), to)

    @rule(number=nodes)
    def publish(self, number: int) -> None:
        self.world.publish(number)

    @rule(number=nodes)
    def leave_clean(self, number: int) -> None:
        self.world.leave_clean(number)

    @rule(to=nodes)
    def take_over(self, to: int) -> None:
        self.world.take_over(to)

    @rule(number=nodes, lost=st.integers(0, 3))
    def crash(self, number: int, lost: int) -> None:
        self.world.crash(number, lost)
        if lost:
            self.world.start(number)

    @rule(number=nodes)
    def start(self, number: int) -> None:
        self.world.start(number)

    @rule(number=nodes)
    def lapse(self, number: int) -> None:
        self.world.lapse(number)

    @rule(number=nodes)
    def keep_copy(self, number: int) -> None:
        self.world.keep_copy(number)

    @rule(number=nodes)
    def come_back_older(self, number: int) -> None:
        node = self.world.nodes[self.world.names[number % len(self.world.names)]]
        if node.copy in (None, node.disk):
            return
        self.world.crash(number)
        self.world.come_back_older(number)
        self.world.start(number)

    @rule(number=nodes)
    def free(self, number: int) -> None:
        self.world.free(number)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            check(self.world)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            ReplicasInAnyOrder.events.update(self.world.events)


def run_seed(number: int) -> None:
    run_state_machine_as_test(
        seed(number)(ReplicasInAnyOrder),
        settings=settings(
            max_examples=EXAMPLE_COUNT,
            stateful_step_count=STEP_COUNT,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(24 * 3600)
def test_what_was_shown_is_on_all_that_are_in_sync() -> None:
    wanted = int(os.environ.get("BOTTOMLESS_REPLICA_STEPS", "3000"))
    taken = 0
    while taken < wanted or (missing_ways() and taken < wanted + FURTHER_STEPS):
        run_seed(taken + 1)
        taken += EXAMPLE_COUNT * STEP_COUNT
    events = ReplicasInAnyOrder.events
    print("; ".join(f"{name}: {count}" for name, count in sorted(events.items())))
    assert not missing_ways()


def missing_ways() -> set[str]:
    return {name for name in WAYS if not ReplicasInAnyOrder.events[name]}
