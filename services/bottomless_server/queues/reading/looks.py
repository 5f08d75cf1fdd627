"""What is said of queues between two rounds: descriptions, lists, what lies in a queue and on the disk."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bottomless.errors import Code, NotServed
from bottomless.model.queue import QueueConfig, QueueMessage
from bottomless.model.record import Content
from bottomless_server.core.not_found import queue_not_found
from bottomless_server.queues.calls import (
    OutgoingFigures,
    PeekAnswer,
    PeekedMessage,
    QueueDescription,
    QueuePage,
    StateFilter,
    StorageFigures,
)
from bottomless_server.queues.changes.fates import config_of
from bottomless_server.queues.core.life import Destination, acked, dead_letters_of
from bottomless_server.queues.core.origin import decode_origin
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.figures import Gauges
from bottomless_server.queues.ledger.base import Ledger, QueueRow, Stored
from bottomless_server.queues.ports import Pin
from bottomless_server.queues.reading.reading import Unread
from bottomless_server.queues.rounds.work import Look

_STATES: Final[dict[StateFilter, ItemState]] = {
    "ready": ItemState.READY,
    "in-flight": ItemState.IN_FLIGHT,
    "delayed": ItemState.DELAYED,
    "damaged": ItemState.DAMAGED,
}
_NAMES: Final = {state: name for name, state in _STATES.items()}
_PAGE: Final = 1_000
_LOOK_COUNT_MAX: Final = 20_000
"""Messages that one peek looks at; with a filter the page may be short of some, or empty."""
_AFTER_ALL: Final = "\x7f"
"""Sorts after every character of a name."""


def queue_there(ledger: Ledger, tenant: str, name: str) -> QueueRow:
    """The row of a queue.

    Raises:
        NotFound: there is none of this name.
    """
    row = ledger.queue_named(tenant, name)
    if row is None:
        raise queue_not_found()
    return row


class Way(NamedTuple):
    """What is on its way to one target."""

    message_count: int
    waiting_for: str | None
    oldest_at: int | None


def described(
    look: Look, tenant: str, name: str, waiting_for: Mapping[int, str]
) -> QueueDescription:
    """A queue and what is in it; `waiting_for` says what targets wait for, by their numbers."""
    row = queue_there(look.ledger, tenant, name)
    return _describe(look.ledger, row, _on_their_way(look.ledger, tenant, waiting_for))


def listed(
    look: Look, tenant: str, prefix: str, after: str, limit: int, waiting_for: Mapping[int, str]
) -> QueuePage:
    """A page of queues whose names begin with `prefix`."""
    # What sorts before the prefix does not begin with it, and nothing is between it and its own.
    start = max(after, prefix[:-1] + chr(ord(prefix[-1]) - 1) + _AFTER_ALL) if prefix else after
    rows = look.ledger.queues(tenant, start, limit + 1)
    found = [row for row in rows if row.name.startswith(prefix)]
    page = found[:limit]
    counts = _on_their_way(look.ledger, tenant, waiting_for)
    after_page = page[-1].name if len(found) > limit else None
    queues, not_served = [], []
    for row in page:
        try:
            queues.append(_describe(look.ledger, row, counts))
        except NotServed:
            not_served.append(row.name)
    return QueuePage(queues, after_page, not_served)


def _on_their_way(
    ledger: Ledger, tenant: str, waiting_for: Mapping[int, str]
) -> dict[Destination, Way]:
    """What of a tenant is on its way, by where it goes."""
    counts = ledger.outgoing_counts()
    if not counts:
        return {}
    return {
        Destination(target.kind, target.name): Way(
            counts[target.id],
            waiting_for.get(target.id),
            min(
                (decode_origin(row.origin).at for row in ledger.outgoing(target.id, 1)),
                default=None,
            ),
        )
        for target in ledger.targets()
        if target.tenant == tenant and target.id in counts
    }


def _describe(ledger: Ledger, row: QueueRow, counts: Mapping[Destination, Way]) -> QueueDescription:
    config = config_of(row.config)
    oldest = ledger.page(row.inside, 0, 1)
    ways = [
        counts[to]
        for to in dict.fromkeys((dead_letters_of(config), acked(config).to))
        if to is not None and to in counts
    ]
    return QueueDescription(
        row.queue_id,
        row.name,
        config,
        row.version,
        row.sums,
        row.totals,
        row.next_sequence,
        oldest[0].item.published_at if oldest else None,
        sum(way.message_count for way in ways),
        _waits_for(ledger, row, config, ways),
        min((way.oldest_at for way in ways if way.oldest_at is not None), default=None),
    )


def _waits_for(
    ledger: Ledger, row: QueueRow, config: QueueConfig, ways: Sequence[Way]
) -> str | None:
    """The code of what messages that leave a queue wait for, or would."""
    waiting = next((way.waiting_for for way in ways if way.waiting_for is not None), None)
    target = None if config.dead_letter is None else config.dead_letter.queue
    if waiting is None and target is not None and not ledger.queue_named(row.tenant, target):
        return Code.QUEUE_NOT_FOUND
    return waiting


# Peek


class Wanted(NamedTuple):
    """What a peek is asked for."""

    tenant: str
    name: str
    after: int | None
    limit: int
    state: StateFilter | None
    bytes_max: int


class Seen(NamedTuple):
    """What a peek has found. Whoever has it releases the pins once the messages are read."""

    stored: Sequence[Stored]
    after: int | None
    pins: Sequence[Pin]

    def release(self) -> None:
        """Let go of the files."""
        for pin in self.pins:
            pin.release()


def peeked(look: Look, wanted: Wanted) -> Seen:
    """Messages of a queue by their sequences, with pins on their files."""
    row = queue_there(look.ledger, wanted.tenant, wanted.name)
    state = None if wanted.state is None else _STATES[wanted.state]
    following = 0 if wanted.after is None else wanted.after + 1
    found: list[Stored] = []
    size = looked = 0
    after: int | None = None
    is_full = False
    while not is_full:
        there = look.ledger.page(row.inside, following, _PAGE)
        for stored in there:
            if state is None or stored.item.state is state:
                size += stored.message.size
                is_full = len(found) == wanted.limit or (bool(found) and size > wanted.bytes_max)
                if is_full:
                    after = following - 1
                    break
                found.append(stored)
            following = stored.item.sequence + 1
        looked += len(there)
        if len(there) < _PAGE:
            break
        if looked >= _LOOK_COUNT_MAX and not is_full:
            after = following - 1
            break
    files = sorted({stored.message.file for stored in found})
    return Seen(found, after, [look.pin(file) for file in files])


def shown(seen: Seen, messages: Sequence[QueueMessage | Unread]) -> PeekAnswer:
    """What a peek answers, with the messages that were read."""
    read = [each if isinstance(each, QueueMessage) else None for each in messages]
    return PeekAnswer([_shown(*each) for each in zip(seen.stored, read, strict=True)], seen.after)


def _shown(stored: Stored, message: QueueMessage | None) -> PeekedMessage:
    item = stored.item
    return PeekedMessage(
        stored.message.msg_id,
        item.sequence,
        _NAMES[item.state],
        item.deliveries,
        item.published_at,
        item.priority,
        item.due_at,
        item.expires_at,
        None if item.origin is None else decode_origin(item.origin),
        Content.BYTES if message is None else message.content,
        () if message is None else message.headers,
        None if message is None else message.value,
    )


# Storage


def gauges(look: Look) -> Gauges:
    """What is there, of all queues together; what the ledger does not know is 0."""
    ledger = look.ledger
    files = ledger.files()
    counts = ledger.outgoing_counts()
    first = [row for target in counts for row in ledger.outgoing(target, 1)]
    return Gauges(
        ledger.sums(),
        sum(counts.values()),
        min((decode_origin(row.origin).at for row in first), default=None),
        sum(row.size for row in files),
        sum(row.valid for row in files),
        0,
        ledger.log_size,
    )


def storage(look: Look, waiting_for: Mapping[int, str]) -> StorageFigures:
    """What the ledger says of the disk; what it does not know is 0."""
    ledger = look.ledger
    files = ledger.files()
    store = ledger.store()
    counts = ledger.outgoing_counts()
    return StorageFigures(
        store_id=store.store_id,
        round=store.round,
        files=files,
        disk_bytes=sum(row.size for row in files),
        live_bytes=sum(row.valid for row in files),
        ledger_bytes=0,
        log_bytes=ledger.log_size,
        damaged_files=sum(row.state is FileState.DAMAGED for row in files),
        last_v1_file=store.last_v1_file,
        outgoing=[
            OutgoingFigures(
                target.tenant,
                target.kind,
                target.name,
                counts[target.id],
                waiting_for.get(target.id),
            )
            for target in ledger.targets()
            if target.id in counts
        ],
        pins=0,
        compactions={},
        moved_bytes=0,
    )
