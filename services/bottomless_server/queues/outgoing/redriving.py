"""Redrive: dead letters go back to where they were. They are looked for between rounds, read under pins, and
moved in a round, some at a time; what is not ready any more by then stays.

Each of these rounds is durable by itself. So once one has moved something, a later refusal that left
nothing does not refuse the request: the answer says what was moved, and whoever asks again hears why
the rest was not.
"""

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from bottomless.errors import NotFound, Outcome, StoreError
from bottomless.model.queue import QueueMessage
from bottomless_server.core.not_found import queue_not_found
from bottomless_server.queues.calls import RedriveAnswer
from bottomless_server.queues.changes.damage import MarkDamaged
from bottomless_server.queues.changes.moving import Redrive, Redriven, Redriving
from bottomless_server.queues.core.message_ids import RANDOM_SIZE
from bottomless_server.queues.core.origin import decode_origin
from bottomless_server.queues.core.states import ItemState, QueueState
from bottomless_server.queues.ledger.base import QueueRow, Stored
from bottomless_server.queues.ports import Pin
from bottomless_server.queues.reading.reading import Reading, Unread
from bottomless_server.queues.rounds.rounds import Rounds
from bottomless_server.queues.rounds.work import Look

_PAGE: Final = 1_000
_COUNT_MAX: Final = 100
_BYTES_MAX: Final = 4 * 2**20
"""Messages and bytes that are held in memory together."""


class _Found(NamedTuple):
    stored: Sequence[tuple[Stored, str]]
    """Items, each with the queue where it goes."""
    pins: Sequence[Pin]
    after: int
    """Sequence after which the next look begins."""
    is_end: bool
    missing: str | None
    """A queue that is not there, where something would go."""
    ready: int
    """Ready messages of the queue, those that were found among them."""


async def redrive(
    rounds: Rounds,
    reading: Reading,
    queue_id: bytes,
    *,
    limit: int,
    to: str | None,
    checksum: bool,
) -> RedriveAnswer:
    """Move up to `limit` ready messages, the oldest first.

    Raises:
        NotFound: the queue is not there; or nothing moves, and where it would go is no queue.
        StoreError: nothing moves; or with the outcome unknown, some may have moved.
    """
    moved, after, missing, left = 0, -1, None, 0
    try:
        while moved < limit:
            count = min(limit - moved, _COUNT_MAX)
            found = await rounds.look(lambda look: _find(look, queue_id, to, after, count))  # noqa: B023 it is awaited here
            redriven = await _move(rounds, reading, queue_id, found, checksum=checksum)
            missing = missing or found.missing or redriven.missing
            moved += redriven.moved
            left = found.ready - redriven.moved
            after = found.after
            if found.is_end:
                break
        if not moved and missing is not None:
            raise queue_not_found(missing)
        row = await rounds.look(lambda look: _row(look, queue_id))
    except StoreError as error:
        if not moved or error.outcome is not Outcome.NONE:
            raise
        # The queue itself may be gone by now, and with it all that was left.
        return RedriveAnswer(moved, 0 if isinstance(error, NotFound) else left)
    return RedriveAnswer(moved, row.sums.ready)


async def _move(
    rounds: Rounds, reading: Reading, queue_id: bytes, found: _Found, *, checksum: bool
) -> Redriven:
    try:
        messages = await reading.read([stored.message for stored, _ in found.stored])
    finally:
        for pin in found.pins:
            pin.release()
    pairs = list(zip(found.stored, messages, strict=True))
    bad = [stored for (stored, _), read in pairs if read is Unread.DAMAGED]
    if bad:
        await rounds.do(MarkDamaged(queue_id, bad))
    good = [
        Redriving(stored, read, name)
        for (stored, name), read in pairs
        if isinstance(read, QueueMessage)
    ]
    if not good:
        return Redriven(0, None)
    change = Redrive(queue_id, good, os.urandom(RANDOM_SIZE), checksum)
    redriven: Redriven = await rounds.do(change)
    return redriven


def _row(look: Look, queue_id: bytes) -> QueueRow:
    row = look.ledger.queue(queue_id)
    if row is None or row.state is not QueueState.LIVE:
        raise queue_not_found()
    return row


def _find(look: Look, queue_id: bytes, to: str | None, after: int, count: int) -> _Found:
    """The next ready messages that can move; of those whose queue is not there, nothing."""
    row = _row(look, queue_id)
    there = look.ledger.page(row.inside, after + 1, _PAGE)
    found: list[tuple[Stored, str]] = []
    # Also where nothing would move: who names a queue hears that there is none of that name.
    missing = to if to is not None and not look.ledger.queue_named(row.tenant, to) else None
    size = 0
    for stored in there:
        name = to if to is not None else _origin(stored)
        if stored.item.state is ItemState.READY and name is not None:
            if look.ledger.queue_named(row.tenant, name) is None:
                missing = missing or name
            else:
                size += stored.message.size
                if len(found) == count or (found and size > _BYTES_MAX):
                    return _pinned(look, row, found, after, missing, is_end=False)
                found.append((stored, name))
        after = stored.item.sequence
    return _pinned(look, row, found, after, missing, is_end=len(there) < _PAGE)


def _pinned(
    look: Look,
    row: QueueRow,
    found: Sequence[tuple[Stored, str]],
    after: int,
    missing: str | None,
    *,
    is_end: bool,
) -> _Found:
    files = sorted({stored.message.file for stored, _ in found})
    pins = [look.pin(file) for file in files]
    return _Found(found, pins, after, is_end, missing, row.sums.ready)


def _origin(stored: Stored) -> str | None:
    origin = stored.item.origin
    return None if origin is None else decode_origin(origin).queue
