"""Rows of the ledger's SQLite file as values, and the sums that rounds change."""

from typing import Any, Final

from bottomless_server.queues.core.states import FileState, ItemState, QueueState
from bottomless_server.queues.ledger.base import (
    FileRow,
    Item,
    Message,
    Outgoing,
    QueueRow,
    Stored,
    Sums,
    Totals,
)

ITEM_STATES: Final = tuple(ItemState)
_ITEM_SIZE: Final = len(Item._fields)
BYTES: Final = len(ITEM_STATES)
"""Place of the bytes in a change of sums, after a count for each state."""


class Deltas:
    """What sums change by, of each `inside`: a count for each state, then bytes."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[int, list[int]] = {}

    def add(self, inside: int, state: ItemState, size: int, count: int = 1) -> None:
        of = self.of.get(inside)
        if of is None:
            of = self.of[inside] = [0] * (BYTES + 1)
        of[state] += count
        of[BYTES] += count * size


def file_of(row: Any) -> FileRow:
    number, size, valid, state = row
    return FileRow(number, size, valid, FileState(state))


def queue_or_none(row: Any) -> QueueRow | None:
    return None if row is None else queue_of(row)


def queue_of(row: Any) -> QueueRow:
    queue_id, tenant, name, config, version, state, *numbers = row
    inside, next_sequence, reserved_below, purged_below, remembered, *counts = numbers
    return QueueRow(
        queue_id=queue_id,
        tenant=tenant,
        name=name,
        config=config,
        version=version,
        state=QueueState(state),
        inside=inside,
        next_sequence=next_sequence,
        reserved_below=reserved_below,
        purged_below=purged_below,
        remembered=remembered,
        sums=Sums(*counts[: len(Sums._fields)]),
        totals=Totals(*counts[len(Sums._fields) :]),
    )


def stored_of(row: Any) -> Stored:
    # A row has the columns of an item without its message, and then those of the message.
    item = Item(row[0], row[1], ITEM_STATES[row[2]], *row[3:_ITEM_SIZE])
    return Stored(item, Message(*row[_ITEM_SIZE:]))


def outgoing_of(row: Any) -> Outgoing:
    target, number, origin, *message = row
    return Outgoing(target, number, origin, Message(*message))
