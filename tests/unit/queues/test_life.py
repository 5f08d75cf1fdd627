"""The life of an item beside plain lists, in any order of events."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.model.queue import LeaveReason, QueueConfig, parse_queue_config
from bottomless_server.queues.core import life
from bottomless_server.queues.core.life import Destination, Leaves, Life
from bottomless_server.queues.core.order import delivery_order
from bottomless_server.queues.core.states import ItemState

NOW = 1_000
READY = Life(ItemState.READY, None, None, 0)
FLYING = Life(ItemState.IN_FLIGHT, NOW + 10, None, 1)
PLAIN = QueueConfig()
STRICT = parse_queue_config({"max_deliveries": 2, "dead_letter": {"queue": "dead"}})
DEAD = Destination("queue", "dead")


def test_a_new_item_is_ready_or_waits_for_its_delay() -> None:
    assert life.published(PLAIN, NOW) == READY
    assert life.published(PLAIN, NOW, delay_ms=5) == Life(ItemState.DELAYED, NOW + 5, None, 0)
    late = parse_queue_config({"delay_ms": 7})
    assert life.published(late, NOW).due_at == NOW + 7
    assert life.published(late, NOW, delay_ms=0) == READY


@pytest.mark.parametrize(
    ("own", "queue", "end"), [(None, None, None), (5, None, 5), (9, 7, 7), (5, 7, 5)]
)
def test_of_two_ends_the_first_counts(own: int | None, queue: int | None, end: int | None) -> None:
    config = parse_queue_config({"message_ttl_ms": queue})
    expected = None if end is None else NOW + end
    assert life.published(config, NOW, ttl_ms=own).expires_at == expected


def test_a_receive_counts_and_hides_for_as_long_as_it_says() -> None:
    taken = Life(ItemState.IN_FLIGHT, NOW + 30_000, None, 1)
    assert life.received(PLAIN, READY, NOW) == taken
    assert life.received(PLAIN, READY, NOW, 0) == taken._replace(due_at=NOW)


def test_what_expired_is_delivered_to_nobody_and_what_is_in_flight_does_not_expire() -> None:
    over = READY._replace(expires_at=NOW)
    assert life.received(STRICT, over, NOW) == Leaves(LeaveReason.EXPIRED, DEAD)
    assert not life.is_expired(over._replace(state=ItemState.IN_FLIGHT), NOW)
    assert not life.is_expired(over._replace(state=ItemState.DAMAGED), NOW)
    back = FLYING._replace(expires_at=NOW, due_at=NOW)
    assert life.fallen_due(STRICT, back, NOW) == Leaves(LeaveReason.EXPIRED, DEAD)
    assert life.nacked(STRICT, back, NOW) == Leaves(LeaveReason.EXPIRED, DEAD)


def test_an_item_comes_back_until_it_was_delivered_too_often() -> None:
    first, last = FLYING._replace(due_at=NOW), FLYING._replace(due_at=NOW, deliveries=2)
    assert life.fallen_due(STRICT, first, NOW) == READY._replace(deliveries=1)
    assert life.nacked(STRICT, first, NOW, delay_ms=5) == Life(ItemState.DELAYED, NOW + 5, None, 1)
    for event in (life.fallen_due(STRICT, last, NOW), life.nacked(STRICT, last, NOW)):
        assert event == Leaves(LeaveReason.MAX_DELIVERIES, DEAD)


def test_what_leaves_goes_where_the_configuration_says_or_for_good() -> None:
    archive = parse_queue_config({"archive": {"stream": "done"}, "dead_letter": {"stream": "bad"}})
    assert life.acked(PLAIN) == Leaves(LeaveReason.ACKNOWLEDGED, None)
    assert life.acked(archive) == Leaves(LeaveReason.ACKNOWLEDGED, Destination("stream", "done"))
    assert life.dropped(archive) == Leaves(LeaveReason.MAX_LENGTH, Destination("stream", "bad"))
    assert life.nacked(PLAIN, FLYING, NOW, dead_letter=True) == Leaves(LeaveReason.REJECTED, None)


def test_what_is_damaged_stays_for_an_operator_whoever_has_it() -> None:
    bad = life.damaged(FLYING)
    assert bad == Life(ItemState.DAMAGED, None, None, 1)
    assert life.nacked(STRICT, bad, NOW) == bad
    assert life.extended(bad, NOW, 5) == bad


def test_extending_takes_an_item_again_whose_visibility_was_over() -> None:
    assert life.extended(READY._replace(deliveries=1), NOW, 5) == FLYING._replace(due_at=NOW + 5)


@dataclass
class Decided:
    """A queue that does what the functions say."""

    config: QueueConfig
    items: dict[int, tuple[int, Life]] = field(default_factory=dict)
    left: list[tuple[int, LeaveReason]] = field(default_factory=list)
    published: int = 0

    def publish(self, now: int, priority: int, delay: int, ttl: int | None) -> None:
        fresh = life.published(self.config, now, delay_ms=delay, ttl_ms=ttl)
        self.items[self.published] = (priority, fresh)
        self.published += 1

    def settle(self, now: int) -> None:
        for sequence, (_, one) in sorted(self.items.items()):
            if one.due_at is not None and one.due_at <= now:
                self.become(sequence, life.fallen_due(self.config, one, now))
            elif life.is_expired(one, now):
                self.become(sequence, life.expired(self.config))

    def become(self, sequence: int, fate: Life | Leaves) -> None:
        if isinstance(fate, Leaves):
            del self.items[sequence]
            self.left.append((sequence, fate.reason))
        else:
            self.items[sequence] = (self.items[sequence][0], fate)

    def receive(self, now: int, visibility: int) -> int | None:
        ready = [
            (delivery_order(priority, sequence), sequence)
            for sequence, (priority, one) in self.items.items()
            if one.state is ItemState.READY
        ]
        if not ready:
            return None
        _, sequence = min(ready)
        self.become(sequence, life.received(self.config, self.items[sequence][1], now, visibility))
        return sequence

    def nack(self, now: int, sequence: int, delay: int, *, dead: bool) -> None:
        one = self.items[sequence][1]
        self.become(sequence, life.nacked(self.config, one, now, delay_ms=delay, dead_letter=dead))

    def extend(self, now: int, sequence: int, visibility: int) -> None:
        self.become(sequence, life.extended(self.items[sequence][1], now, visibility))

    def ack(self, sequence: int) -> None:
        self.become(sequence, life.acked(self.config))

    def shown(self) -> tuple[list[int], ...]:
        of = {state: list[int]() for state in ItemState}
        for sequence, (_, one) in sorted(self.items.items()):
            of[one.state].append(sequence)
        return of[ItemState.READY], of[ItemState.DELAYED], of[ItemState.IN_FLIGHT]


@dataclass
class Plain:
    """The queue as three lists of what waits, what is delayed and what is out; nothing shared with above."""

    most: int | None
    waiting: list[int] = field(default_factory=list)
    delayed: list[tuple[int, int]] = field(default_factory=list)
    out: list[tuple[int, int]] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    left: list[tuple[int, LeaveReason]] = field(default_factory=list)

    def publish(self, now: int, priority: int, delay: int, ttl: int | None) -> None:
        number = len(self.priority)
        self.priority.append(priority)
        self.ends.append(float("inf") if ttl is None else now + ttl)
        self.taken.append(0)
        if delay:
            self.delayed.append((now + delay, number))
        else:
            self.waiting.append(number)

    def settle(self, now: int) -> None:
        # In the order of their numbers, as the other one looks at them.
        for number in range(len(self.priority)):
            if any(one == number and end <= now for end, one in self.out):
                self.out = [pair for pair in self.out if pair[1] != number]
                self.back(now, number, 0)
            elif any(one == number for _, one in self.delayed) or number in self.waiting:
                due = [pair for pair in self.delayed if pair[1] == number and pair[0] <= now]
                if self.ends[number] <= now:
                    self.take_out(number)
                    self.left.append((number, LeaveReason.EXPIRED))
                elif due:
                    self.take_out(number)
                    self.waiting.append(number)

    def back(self, now: int, number: int, delay: int) -> None:
        if self.most is not None and self.taken[number] >= self.most:
            self.left.append((number, LeaveReason.MAX_DELIVERIES))
        elif self.ends[number] <= now:
            self.left.append((number, LeaveReason.EXPIRED))
        elif delay:
            self.delayed.append((now + delay, number))
        else:
            self.waiting.append(number)

    def take_out(self, number: int) -> None:
        self.waiting = [one for one in self.waiting if one != number]
        self.delayed = [pair for pair in self.delayed if pair[1] != number]
        self.out = [pair for pair in self.out if pair[1] != number]

    def receive(self, now: int, visibility: int) -> int | None:
        for priority in range(9, -1, -1):
            for number in sorted(self.waiting):
                if self.priority[number] == priority:
                    self.take_out(number)
                    self.taken[number] += 1
                    self.out.append((now + visibility, number))
                    return number
        return None

    def nack(self, now: int, number: int, delay: int, *, dead: bool) -> None:
        self.take_out(number)
        if dead:
            self.left.append((number, LeaveReason.REJECTED))
        else:
            self.back(now, number, delay)

    def extend(self, now: int, number: int, visibility: int) -> None:
        self.take_out(number)
        self.out.append((now + visibility, number))

    def ack(self, number: int) -> None:
        self.take_out(number)
        self.left.append((number, LeaveReason.ACKNOWLEDGED))

    def shown(self) -> tuple[list[int], ...]:
        lists = [self.waiting, [one for _, one in self.delayed], [one for _, one in self.out]]
        return tuple(sorted(numbers) for numbers in lists)


small = st.integers(0, 6)
events = st.lists(
    st.tuples(st.just("publish"), small, small, st.none() | st.integers(1, 9))
    | st.tuples(st.just("receive"), small, small, st.none())
    | st.tuples(st.sampled_from(["ack", "nack", "reject", "extend"]), small, small, st.none())
    | st.tuples(st.just("time"), small, small, st.none()),
    max_size=40,
)


@given(events=events, most=st.none() | st.integers(1, 3))
def test_in_any_history_items_are_where_plain_lists_have_them(
    events: list[tuple[str, int, int, int | None]], most: int | None
) -> None:
    config = parse_queue_config({"max_deliveries": most, "dead_letter": {"queue": "dead"}})
    decided, plain = Decided(config), Plain(most)
    now, held = NOW, list[int]()
    for what, first, second, ttl in events:
        there = [one for one in held if one in decided.items]
        for queue in (decided, plain):
            queue.settle(now)
        there = [one for one in there if one in decided.items]
        chosen = there[first % len(there)] if there else None
        if what == "publish":
            decided.publish(now, first, second, ttl)
            plain.publish(now, first, second, ttl)
        elif what == "receive":
            got = decided.receive(now, first)
            assert got == plain.receive(now, first)
            held += [] if got is None else [got]
        elif what == "time":
            now += first
        elif chosen is not None:
            for queue in (decided, plain):
                if what == "ack":
                    queue.ack(chosen)
                elif what == "extend":
                    queue.extend(now, chosen, second)
                else:
                    queue.nack(now, chosen, second, dead=what == "reject")
        assert decided.shown() == plain.shown()
        assert decided.left == plain.left
