"""How messages get into queues: a record each, however many queues it is in, and an item in each of them."""

from collections.abc import Sequence
from typing import NamedTuple

from bottomless.formats.envelope import FIXED_SIZE, QUEUE_SIZE, encode_envelope
from bottomless.formats.message_file import encode_record, record_size, size_of_parts
from bottomless.guards import guard
from bottomless.model.queue import QueueMessage, QueuePlace
from bottomless.model.record import Content
from bottomless_server.queues.core.life import Life
from bottomless_server.queues.core.reserving import reserved_below
from bottomless_server.queues.core.states import ItemState
from bottomless_server.queues.ledger.base import Item, NewMessage, QueueRow, Totals
from bottomless_server.queues.rounds.work import Work

_HEADER_OVERHEAD = 6
"""Bytes of a header beside its name and its value."""


class Copy(NamedTuple):
    """What a message becomes in one queue."""

    row: QueueRow
    life: Life
    origin: bytes | None = None


class Fresh(NamedTuple):
    """A message that is about to be stored."""

    msg_id: bytes
    content: Content
    priority: int
    expires_at: int | None
    """Its own end, wherever it is."""
    headers: tuple[tuple[str, bytes], ...]
    value: bytes | memoryview
    copies: Sequence[Copy]
    due_at: int | None = None
    """When it becomes ready, where that was asked of it; else each queue says."""


def stored_size(
    headers: Sequence[tuple[str, bytes]], value_size: int, queue_count: int, *, checksum: bool
) -> int:
    """Bytes of the record of a message."""
    named = 0
    for name, value in headers:
        named += len(name.encode()) + len(value) + _HEADER_OVERHEAD
    body = FIXED_SIZE + QUEUE_SIZE * queue_count + named + value_size
    return record_size(body, checksum=checksum)


def store_messages(
    work: Work, messages: Sequence[Fresh], *, checksum: bool
) -> list[dict[bytes, int]]:
    """Store messages; returns the sequence of each in each queue, by the queue's id.

    Rows are as they were just read. Their registry objects are written.

    Raises:
        StoreError: no record can be stored at present.
    """
    rows = {copy.row.queue_id: copy.row for message in messages for copy in message.copies}
    following = {queue_id: row.next_sequence for queue_id, row in rows.items()}
    ready = dict.fromkeys(rows, 0)
    told: list[dict[bytes, int]] = []
    fresh: list[NewMessage] = []
    for message in messages:
        sequences: dict[bytes, int] = {}
        for copy in message.copies:
            queue_id = copy.row.queue_id
            sequences[queue_id] = following[queue_id]
            following[queue_id] += 1
            ready[queue_id] += copy.life.state is ItemState.READY
        fresh.append(_new(work, message, sequences, checksum=checksum))
        told.append(sequences)
    work.ledger.add_messages(fresh)
    for queue_id, row in rows.items():
        _count(work, row, following[queue_id])
        work.wake(queue_id, ready[queue_id])
    return told


@guard("the own record of a moved message")
def places_in_record(sequences: dict[bytes, int]) -> tuple[QueuePlace, ...]:
    """The queues that a record names: those in which its message is now, wherever it was before."""
    return tuple(map(QueuePlace._make, sequences.items()))


def _new(work: Work, message: Fresh, sequences: dict[bytes, int], *, checksum: bool) -> NewMessage:
    envelope = encode_envelope(
        QueueMessage(
            message.content,
            message.priority,
            work.now,
            message.expires_at,
            places_in_record(sequences),
            message.headers,
            message.value,
            message.due_at,
        )
    )
    record = encode_record(message.msg_id, envelope, checksum=checksum)
    place = work.add_record(record)
    size = size_of_parts(record)
    items = [
        Item(
            copy.row.inside,
            sequences[copy.row.queue_id],
            copy.life.state,
            message.priority,
            copy.life.due_at,
            copy.life.expires_at,
            work.now,
            0,
            copy.origin,
        )
        for copy in message.copies
    ]
    return NewMessage(message.msg_id, place.file, place.position, size, items)


def _count(work: Work, row: QueueRow, following: int) -> None:
    below = reserved_below(following, row.reserved_below)
    if below is not None:
        work.ledger.reserve(row.queue_id, below)
    work.count(row.queue_id, Totals(published=following - row.next_sequence))
