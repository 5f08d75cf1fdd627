"""Receives: what a round has taken is read after it, and what cannot be read or handed out goes back.

A message whose bytes are wrong is marked in a round of its own, and the others are delivered. One that
the disk does not give steps aside for a while, so that what comes after it is delivered, and is tried
again. A caller that leaves while its messages are read takes nothing. Messages are read once there is
room for them in memory; where there is none in time they go back.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from bottomless.model.queue import QueueMessage
from bottomless_server.queues.calls import ReceivedMessage
from bottomless_server.queues.changes.damage import MarkDamaged
from bottomless_server.queues.changes.receive import (
    Delivery,
    GiveBack,
    GiveBackByName,
    Receive,
    Received,
)
from bottomless_server.queues.core.origin import decode_origin
from bottomless_server.queues.ledger.base import Stored
from bottomless_server.queues.reading.reading import Reading, Unread
from bottomless_server.queues.rounds.rounds import Rounds
from bottomless_server.queues.rounds.work import not_stored

ASIDE_MS: Final = 10_000
"""How long a message steps aside that the disk does not give."""


class AnswerRoom(Protocol):
    """Memory for one answer, which whoever asks gives back once the answer is sent."""

    async def take(self, size: int) -> None:
        """Hold so many bytes more.

        Raises:
            Overloaded: there was no room in time.
        """
        ...

    def give_back(self) -> None:
        """Hold nothing any more."""
        ...


class Receiving:
    """Hands out messages."""

    def __init__(self, rounds: Rounds, reading: Reading) -> None:
        self._rounds = rounds
        self._reading = reading

    async def receive(
        self,
        change: Receive,
        deadline: float,
        allowed: Callable[[], bool] | None,
        room: AnswerRoom | None,
    ) -> list[ReceivedMessage]:
        """Take messages, and wait for some until `deadline`, on the loop's clock.

        Raises:
            Overloaded: there was no room for the answer.
            Unavailable: `storage-failed`: the disk gives none of those that were taken.
        """
        loop = asyncio.get_running_loop()
        while True:
            if room is not None:
                # Who finds others before it waits for its turn with nothing in its hand.
                room.give_back()
                await room.take(0)
            left = max(deadline - loop.time(), 0)
            received: Received = await self._rounds.take(change, left)
            if not received.deliveries:
                return []
            try:
                if room is not None:
                    await room.take(sum(each.message.size for each in received.deliveries))
                found = await self._read(change.queue_id, received)
            except BaseException:
                self._rounds.give_back(change, received)
                raise
            if allowed is not None and not allowed():
                self._rounds.give_back(change, received)
                return []
            if found:
                return found

    async def _read(self, queue_id: bytes, received: Received) -> list[ReceivedMessage]:
        messages = await self._reading.read([each.message for each in received.deliveries])
        received.release()
        pairs = list(zip(received.deliveries, messages, strict=True))
        bad = [Stored(each.item, each.message) for each, read in pairs if read is Unread.DAMAGED]
        if bad:
            await self._rounds.do(MarkDamaged(queue_id, bad))
        refused = [each.receipt for each, read in pairs if read is Unread.REFUSED]
        if refused:
            # Where this is cut off all goes back once more: those that stand aside are not taken from there.
            await self._rounds.do(GiveBack(queue_id, refused, ASIDE_MS))
        found = [_message(each, read) for each, read in pairs if isinstance(read, QueueMessage)]
        if refused and not found:
            raise not_stored()
        return found

    def give_back(self, tenant: str, name: str, receipts: Sequence[str]) -> None:
        """Let others have at once what could not be sent to whoever asked."""
        if receipts:
            self._rounds.put_back(GiveBackByName(tenant, name, receipts))


def _message(delivery: Delivery, message: QueueMessage) -> ReceivedMessage:
    item = delivery.item
    return ReceivedMessage(
        delivery.receipt,
        delivery.message.msg_id,
        item.sequence,
        item.deliveries,
        item.published_at,
        item.priority,
        message.content,
        message.headers,
        message.value,
        None if item.origin is None else decode_origin(item.origin),
    )
