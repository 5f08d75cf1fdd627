"""The life of an item: what each event makes of a message in one queue.

    published ──▶ ready ◀──────────── visibility over, nack ──┐
        │           ▲ └──── receive ──▶ in flight ────────────┤
        └─ delay ─▶ delayed ◀── nack with delay ──────────────┘
                                          │
    ack: it leaves, to the archive where there is one. Delivered too often, rejected, expired or dropped
    by a bound: it leaves, to the dead letters where there are any.

Functions say what becomes of an item, and change nothing. Times are those of the commit clock, in ms.
An item in flight does not expire, since somebody works on it; a damaged one does not either, since it
waits for an operator.
"""

from typing import Final, NamedTuple

from bottomless.model.queue import LeaveReason, QueueConfig
from bottomless_server.queues.core.states import ItemState


class Life(NamedTuple):
    """What changes of an item from event to event."""

    state: ItemState
    due_at: int | None
    """When it becomes ready, of a delayed one and of one in flight; None of others."""
    expires_at: int | None
    deliveries: int


class Destination(NamedTuple):
    """Where messages go that leave a queue."""

    kind: str
    """`queue` or `stream`."""
    name: str


class Leaves(NamedTuple):
    """An item leaves its queue: to a destination, or for good."""

    reason: LeaveReason
    to: Destination | None


Fate = Life | Leaves
DELIVERIES_MAX: Final = 2**32 - 1
"""Deliveries of one item that are counted; further ones are not told apart."""
_DUE: Final = frozenset({ItemState.IN_FLIGHT, ItemState.DELAYED})


def published(
    config: QueueConfig, now: int, *, delay_ms: int | None = None, ttl_ms: int | None = None
) -> Life:
    """A new item. It ends after the shorter one of its own life and that which the queue allows."""
    delay = config.delay_ms if delay_ms is None else delay_ms
    lives = [ms for ms in (ttl_ms, config.message_ttl_ms) if ms is not None]
    expires_at = now + min(lives) if lives else None
    if delay == 0:
        return Life(ItemState.READY, None, expires_at, 0)
    return Life(ItemState.DELAYED, now + delay, expires_at, 0)


def is_expired(life: Life, now: int) -> bool:
    """Whether the time of an item is over that nobody works on."""
    waits = life.state in (ItemState.READY, ItemState.DELAYED)
    return waits and life.expires_at is not None and life.expires_at <= now


def received(config: QueueConfig, life: Life, now: int, visibility_ms: int | None = None) -> Fate:
    """A consumer takes a ready item, for as long as it says, or else as the queue does.

    One that expired meanwhile leaves instead.
    """
    assert life.state is ItemState.READY
    if is_expired(life, now):
        return expired(config)
    visibility = config.visibility_ms if visibility_ms is None else visibility_ms
    # Nobody comes there but who has nothing better to do; receipts have no room for more.
    deliveries = min(life.deliveries + 1, DELIVERIES_MAX)
    return Life(ItemState.IN_FLIGHT, now + visibility, life.expires_at, deliveries)


def fallen_due(config: QueueConfig, life: Life, now: int) -> Fate:
    """The delay or the visibility of an item is over."""
    assert life.state in _DUE
    assert life.due_at is not None
    assert life.due_at <= now
    if life.state is ItemState.IN_FLIGHT:
        return _returned(config, life, now, 0)
    back = life._replace(state=ItemState.READY, due_at=None)
    return expired(config) if is_expired(back, now) else back


def nacked(
    config: QueueConfig, life: Life, now: int, *, delay_ms: int = 0, dead_letter: bool = False
) -> Fate:
    """A consumer gives an item back, or rejects it.

    Its visibility may be over already: then it is back, and only its delay is another one.
    """
    if dead_letter:
        return Leaves(LeaveReason.REJECTED, dead_letters_of(config))
    if life.state is ItemState.DAMAGED:
        return life
    return _returned(config, life, now, delay_ms)


def _returned(config: QueueConfig, life: Life, now: int, delay_ms: int) -> Fate:
    if config.max_deliveries is not None and life.deliveries >= config.max_deliveries:
        return Leaves(LeaveReason.MAX_DELIVERIES, dead_letters_of(config))
    back = life._replace(state=ItemState.READY, due_at=None)
    if is_expired(back, now):
        return expired(config)
    if delay_ms:
        return back._replace(state=ItemState.DELAYED, due_at=now + delay_ms)
    return back


def extended(life: Life, now: int, visibility_ms: int) -> Life:
    """A consumer wants an item for longer, or again although its visibility was over."""
    if life.state is ItemState.DAMAGED:
        return life
    return life._replace(state=ItemState.IN_FLIGHT, due_at=now + visibility_ms)


def acked(config: QueueConfig) -> Leaves:
    """A consumer is done with an item."""
    archive = config.archive
    to = None if archive is None else Destination("stream", archive.stream)
    return Leaves(LeaveReason.ACKNOWLEDGED, to)


def expired(config: QueueConfig) -> Leaves:
    """The time of an item is over that nobody works on."""
    return Leaves(LeaveReason.EXPIRED, dead_letters_of(config))


def dropped(config: QueueConfig) -> Leaves:
    """An item makes room for new ones."""
    return Leaves(LeaveReason.MAX_LENGTH, dead_letters_of(config))


def damaged(life: Life) -> Life:
    """The bytes of its message are wrong: it waits for an operator, whoever has it."""
    return life._replace(state=ItemState.DAMAGED, due_at=None)


def dead_letters_of(config: QueueConfig) -> Destination | None:
    """Where dead letters of a queue go; None where they are gone for good."""
    target = config.dead_letter
    if target is None:
        return None
    if target.queue is not None:
        return Destination("queue", target.queue)
    assert target.stream is not None
    return Destination("stream", target.stream)
