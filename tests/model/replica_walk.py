"""Lives of nodes with replicas, made up from a seed: events in any order, and what failed made short.

A life is a list of events, each a name of `EVENTS` and numbers that say whom it befalls; so it is
played again without its seed, and without the events that it does not need.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from model.replica_checks import check
from model.replica_record import Fate
from model.replicas import Replicas

LIFE_STEPS: Final = 120
SHRINK_TRIES: Final = 600


class Event(NamedTuple):
    name: str
    numbers: tuple[int, ...]


class Life:
    """One world, to which events happen."""

    def __init__(self, count: int, spare: int) -> None:
        world = self.world = Replicas(count, spare=spare)
        world.claim(0)
        for number in range(1, count):
            world.send(0, number)
        world.deliver_all()
        for number in range(1, count):
            world.admit(0, number)

    def take(self, event: Event) -> None:
        """Let it happen.

        Raises:
            AssertionError: what must hold does not.
        """
        EVENTS[event.name](self, *event.numbers)
        check(self.world)

    def owner(self) -> int:
        """The newest owner that runs, or any node."""
        found = [node for node in self.world.nodes.values() if node.owner is not None]
        newest = max(found, key=lambda node: node.owner.epoch, default=None)  # type: ignore[union-attr]
        return 0 if newest is None else self.world.names.index(newest.name)

    def others(self, *without: int) -> Iterator[int]:
        count = len(self.world.names)
        gone = {number % count for number in without}
        return (number for number in range(count) if number not in gone)

    # Events that are more than one call.

    def round(self, records: int, roll: int) -> None:
        """As it goes where nothing is lost."""
        number, world = self.owner(), self.world
        world.append(number, records % 3, roll=bool(roll % 2))
        world.sync(number)
        for other in self.others():
            world.send(number, other)
        world.deliver_all()
        world.decide(number)

    def go_on(self, number: int, cut_off: int, rounds: int, roll: int) -> None:
        """A node becomes the owner if it may, and all but maybe one are with it soon."""
        world = self.world
        for other in self.others(cut_off):
            world.start(other)
        world.read_record(self.owner())
        world.claim(number)
        for _ in range(rounds % 3 + 2):
            self.catch_up(cut_off)
            world.append(self.owner(), 1, roll=bool(roll % 2))
            world.sync(self.owner())
        world.pass_time(1_100)
        world.decide(self.owner())
        world.decide(self.owner())

    def catch_up(self, cut_off: int) -> None:
        """All but one are sent what they lack, and may join."""
        mine, world = self.owner(), self.world
        for other in self.others(cut_off):
            for _ in range(2):
                world.send(mine, other, 9)
                world.deliver_all()
        world.decide(mine)
        for _ in world.names:
            world.join(mine)

    def fail_over(self, number: int, settled: int) -> None:
        """The owner dies, maybe after all were told what is committed, and another one claims."""
        mine, world = self.owner(), self.world
        if settled % 2:
            self.tell_all(mine)
        world.crash(mine, 1)
        world.claim(number)

    def age(self, number: int, records: int) -> None:
        """A disk misses what is acknowledged and told to all others, and comes back without it."""
        world = self.world
        world.keep_copy(number)
        self.round(records % 2 + 1, 0)
        self.round(records % 2 + 1, 1)
        self.tell_all(self.owner())
        self.come_back_older(number)

    def all_lose_power(self, number: int, records: int) -> None:
        """Often the owner's disk is the one that lacks something, and its node goes on first."""
        world = self.world
        older = self.owner() if number % 2 else number
        world.keep_copy(older)
        for _ in range(records % 3):
            self.round(1, records)
        world.all_lose_power(older)
        home = world.record.home
        world.claim(0 if home is None else world.names.index(home))
        self.catch_up(number)

    def pass_on(self, number: int, records: int) -> None:
        """A stream is given away with a round that its owner has not shown. The next owner shows it, and its
        disk comes back without it before anybody hears of that."""
        world, mine = self.world, self.owner()
        other = number if number % len(world.names) != mine else number + 1
        for third in self.others(mine, other):
            world.evict(mine, third)
        world.keep_copy(other)
        world.append(mine, records % 3, roll=False)
        world.sync(mine)
        for _ in range(2):
            world.send(mine, other, 9)
            world.deliver_all()
        if records % 2:
            world.decide(mine)
        world.transfer(mine, other)
        if records % 5:
            world.claim(other)
            world.send(other, mine)
            world.deliver_all()
            world.decide(other)
        self.come_back_older(other)
        world.claim(other)
        world.send(other, mine)
        world.deliver_all()

    def come_back_older(self, number: int) -> None:
        world = self.world
        node = world.node(number)
        if node.copy not in (None, node.disk):
            world.crash(number)
            world.come_back_older(number)
            world.start(number)

    def tell_all(self, number: int) -> None:
        for other in self.others():
            self.world.send(number, other, 9)
        self.world.deliver_all()

    def roll_publish_and_free(self, number: int, at: int) -> None:
        """The segments of one node go, and others may keep theirs."""
        self.round(1, 1)
        self.world.publish(self.owner())
        self.round(1, 1)
        self.tell_all(self.owner())
        self.world.free(number)
        self.world.free(at)

    def crash(self, number: int, lost: int) -> None:
        self.world.crash(number, lost % 4)
        if lost % 4:
            self.world.start(number)

    def doubt(self, cut_off: int, how: int) -> None:
        """Nobody knows whether a node was counted in again, and all others are silent."""
        world, mine = self.world, self.owner()
        world.evict(mine, cut_off)
        self.round(1, 0)
        world.send(mine, cut_off, 9)
        world.send(mine, cut_off, 9)
        world.deliver_all()
        world.admit(mine, cut_off, Fate(how % 3 + 1))
        world.append(mine, 1, roll=False)
        world.sync(mine)
        world.send(mine, cut_off)
        world.deliver_all()
        world.pass_time(1_100)

    def miss(self, number: int, which: int, roll: int) -> None:
        """A node lacks a few rounds, or everything, and the first of what it is sent is lost."""
        world, mine = self.world, self.owner()
        world.evict(mine, number)
        if which % 2:
            world.set_members(mine, number)
            world.drop(number)
            world.set_members(mine, number)
        self.round_without(number, which % 3, roll)
        self.round_without(number, 1, roll // 2)
        if mine != number % len(world.names):
            if which % 2:
                world.send(mine, number)
                world.deliver_all()
            world.send(mine, number, 9)
            world.lose(0)
            world.deliver_all()
            world.pass_time(3_100)
            world.join(mine)

    def round_without(self, cut_off: int, records: int, roll: int) -> None:
        """A round of which a node is sent nothing."""
        mine, world = self.owner(), self.world
        world.append(mine, records, roll=bool(roll % 2))
        world.sync(mine)
        for other in self.others(cut_off):
            world.send(mine, other, 9)
        world.deliver_all()
        world.decide(mine)

    def leave(self, records: int, how: int) -> None:
        """All is published, and the owner stops."""
        self.round(records % 2, 0)
        mine = self.owner()
        self.world.publish(mine)
        self.world.leave_clean(mine, fate(how))

    def restart_members(self, number: int, back: int) -> None:
        """A node goes from the members, loses what it has, and comes again."""
        world = self.world
        world.evict(self.owner(), number)
        world.set_members(self.owner(), number)
        if back % 2:
            world.drop(number)
        world.set_members(self.owner(), number)


def fate(number: int) -> Fate:
    """Mostly it is done."""
    return Fate(max(number % 8 - 4, 0))


Take = Callable[..., None]
EVENTS: Final[dict[str, Take]] = {
    "claim": lambda life, a, b: life.world.claim(a, fate(b)),
    "append": lambda life, a, b, c: life.world.append(
        life.owner() if b % 2 else a, c % 3, roll=bool(c % 2), fate=fate(b)
    ),
    "round": Life.round,
    "go_on": Life.go_on,
    "catch_up": Life.catch_up,
    "fail_over": Life.fail_over,
    "age": Life.age,
    "all_lose_power": Life.all_lose_power,
    "pass_on": Life.pass_on,
    "roll_publish_and_free": Life.roll_publish_and_free,
    "doubt": Life.doubt,
    "leave": Life.leave,
    "miss": Life.miss,
    "restart_members": Life.restart_members,
    "sync": lambda life, a: life.world.sync(a),
    "send": lambda life, a, b: life.world.send(life.owner(), a, b % 3 + 1),
    "send_of_anybody": lambda life, a, b: life.world.send(b, a),
    "deliver": lambda life, a: life.world.deliver(a),
    "deliver_again": lambda life, a: life.world.deliver(a, again=True),
    "deliver_all": lambda life: life.world.deliver_all(),
    "lose": lambda life, a: life.world.lose(a),
    "land": lambda life, a: life.world.land(a),
    "decide": lambda life, a: life.world.decide(life.owner(), fate(a)),
    "decide_of_anybody": lambda life, a, b: life.world.decide(a, fate(b)),
    "join": lambda life, a: life.world.join(life.owner(), fate(a)),
    "evict": lambda life, a, b: life.world.evict(life.owner(), a, fate(b)),
    "set_members": lambda life, a, b: life.world.set_members(life.owner(), a, fate(b)),
    "pass_time": lambda life, a: life.world.pass_time((a % 5 + 1) * 400),
    "read_record": lambda life, a: life.world.read_record(a),
    "transfer": lambda life, a, b: life.world.transfer(life.owner(), a, fate(b)),
    "transfer_asked": lambda life, a, b: life.world.transfer_asked(life.owner(), a, fate(b)),
    "publish": lambda life, a, b: life.world.publish(a, fate(b)),
    "leave_clean": lambda life, a, b: life.world.leave_clean(a, fate(b)),
    "take_over": lambda life, a, b: life.world.take_over(a, fate(b)),
    "crash": Life.crash,
    "start": lambda life, a: life.world.start(a),
    "lapse": lambda life, a: life.world.lapse(a),
    "keep_copy": lambda life, a: life.world.keep_copy(a),
    "come_back_older": Life.come_back_older,
    "damage": lambda life, a: life.world.damage(a),
    "free": lambda life, a: life.world.free(a),
    "drop": lambda life, a: life.world.drop(a),
}
"""Each with the numbers that it takes; any will do."""
WEIGHTS: Final[dict[str, int]] = {
    "round": 4,
    "go_on": 2,
    "catch_up": 3,
    "deliver": 6,
    "deliver_all": 2,
    "send": 5,
    "decide": 6,
    "join": 4,
    "append": 3,
    "sync": 2,
    "start": 3,
    "claim": 3,
    "land": 4,
    "pass_time": 3,
}
"""How often beside the others."""
_ARGUMENT_COUNTS: Final = {name: take.__code__.co_argcount - 1 for name, take in EVENTS.items()}
_RARE: Final = {0: "all_lose_power", 1: "pass_on"}
"""Events of every fifth life alone, by the rest of its seed."""
_NAMES: Final = [name for name in EVENTS if name not in _RARE.values()]
RARE: Final = 0.04
"""Before so many steps of such a life."""
_CHANCES: Final = [WEIGHTS.get(name, 1) for name in _NAMES]


class Failed(NamedTuple):
    """What did not hold, and the shortest life found in which it does not."""

    what: str
    replicas: int
    spare: int
    events: list[Event]

    def __str__(self) -> str:
        told = "\n".join(f"  {one.name}{one.numbers}" for one in self.events)
        return f"{self.what}, of {self.replicas} replicas and {self.spare} more nodes:\n{told}"


def walk(seed: int, events: Counter[str] | None = None, steps: int = LIFE_STEPS) -> Failed | None:
    """Live one life; what it came to is added to `events`."""
    chance, rare = random.Random(seed), random.Random(-seed - 1)
    count, spare = chance.choice(((3, 0), (3, 1), (3, 2), (4, 0), (5, 0)))
    life, taken = Life(count, spare), list[Event]()
    try:
        for name in chance.choices(_NAMES, _CHANCES, k=steps):
            if seed % 5 in _RARE and rare.random() < RARE:
                told = (rare.randrange(60), rare.randrange(60))
                taken.append(Event(_RARE[seed % 5], told))
                life.take(taken[-1])
            numbers = tuple(chance.randrange(60) for _ in range(_ARGUMENT_COUNTS[name]))
            taken.append(Event(name, numbers))
            life.take(taken[-1])
    except AssertionError as error:
        return Failed(str(error), count, spare, taken)
    finally:
        if events is not None:
            events.update(life.world.events)
    return None


def shortened(failed: Failed) -> Failed:
    """Leave out what it fails without."""
    size, tries = len(failed.events) // 2, 0
    while size:
        start = 0
        while start < len(failed.events) and tries < SHRINK_TRIES:
            tries += 1
            fewer = failed.events[:start] + failed.events[start + size :]
            found = _played(failed, fewer)
            failed, start = (found, start) if found else (failed, start + size)
        size //= 2
    return failed


def _played(failed: Failed, events: list[Event]) -> Failed | None:
    life = Life(failed.replicas, failed.spare)
    for number, one in enumerate(events, 1):
        try:
            life.take(one)
        except AssertionError as error:
            return failed._replace(what=str(error), events=events[:number])
    return None
