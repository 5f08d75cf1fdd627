"""What becomes of items, carried out in the ledger: core/life.py decides it for each of them."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import orjson

from bottomless.errors import InvalidRequest, NotServed
from bottomless.model.queue import LeaveReason, QueueConfig, parse_queue_config
from bottomless_server.core.not_found import queue_not_found
from bottomless_server.queues.core.life import Destination, Fate, Life
from bottomless_server.queues.core.origin import Origin, encode_origin
from bottomless_server.queues.core.states import ItemState, QueueState
from bottomless_server.queues.ledger.base import Item, QueueRow, Stored, Totals
from bottomless_server.queues.rounds.work import Work

_CONFIG_COUNT: Final = 1_000


def live_queue(work: Work, queue_id: bytes) -> QueueRow:
    """The row of a queue.

    Raises:
        NotFound: it is deleted, or never was.
    """
    row = work.ledger.queue(queue_id)
    if row is None or row.state is not QueueState.LIVE:
        raise queue_not_found()
    return row


@lru_cache(_CONFIG_COUNT)
def config_of(text: str) -> QueueConfig:
    """A configuration as the ledger has it.

    Raises:
        NotServed: a later release wrote it. Nobody guesses what is meant: its queue alone waits.
    """
    try:
        return parse_queue_config(orjson.loads(text))
    except (InvalidRequest, orjson.JSONDecodeError) as error:
        raise NotServed(
            "a later release has configured this queue in a way that this one does not know; "
            "go back to that release, or delete the queue"
        ) from error


def life_of(item: Item) -> Life:
    return Life(item.state, item.due_at, item.expires_at, item.deliveries)


def with_life(item: Item, life: Life) -> Item:
    """An item after an event."""
    # Not `_replace`, which is slower, and every message that is received comes by here.
    inside, sequence, _, priority, _, expires_at, published_at, _, origin = item
    return Item(
        inside, sequence, life.state, priority, life.due_at, expires_at, published_at,
        life.deliveries, origin,
    )  # fmt: skip


def carry_out(work: Work, row: QueueRow, fates: Sequence[tuple[Stored, Fate]]) -> None:
    """Give items of a queue, as they were just read, what was decided, and count it."""
    changes: list[tuple[Stored, Item]] = []
    gone: list[Stored] = []
    leaving: dict[Destination, list[tuple[Stored, bytes]]] = defaultdict(list)
    counts = dict.fromkeys(("acked", "expired", "dead_lettered", "dropped", "rejected"), 0)
    for stored, fate in fates:
        item = stored.item
        if isinstance(fate, Life):
            changes.append((stored, with_life(item, fate)))
            if fate.state is ItemState.READY and item.state is not ItemState.READY:
                work.wake(row.queue_id, 1)
            continue
        if fate.to is None:
            gone.append(stored)
            if fate.reason is LeaveReason.ACKNOWLEDGED:
                counts["acked"] += 1
                continue
        else:
            origin = Origin(row.name, fate.reason, item.deliveries, work.now)
            leaving[fate.to].append((stored, encode_origin(origin)))
        counts["acked"] += fate.reason is LeaveReason.ACKNOWLEDGED
        counts["expired"] += fate.reason is LeaveReason.EXPIRED
        counts["dropped"] += fate.reason is LeaveReason.MAX_LENGTH
        counts["rejected"] += fate.reason is LeaveReason.REJECTED
        if fate.reason is not LeaveReason.ACKNOWLEDGED and fate.to is not None:
            counts["dead_lettered"] += 1
            work.dead_lettered[fate.reason] += 1
    work.ledger.change_items(changes)
    work.ledger.remove_items(gone)
    for to, items in leaving.items():
        target = work.ledger.target(row.tenant, to.kind, to.name)
        work.ledger.send_out(target.id, items)
        work.sent_out.add(target.id)
    if any(counts.values()):
        work.count(row.queue_id, Totals(**counts))
