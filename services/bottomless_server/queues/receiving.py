"""Receives: what a round has taken is read after it, and what cannot be read or handed out goes back.

A message whose bytes are wrong is marked in a round of its own, and the others are delivered. A
caller that leaves while its messages are read takes nothing.
"""

import asyncio
from collections.abc import Callable, Sequence

from bottomless.model.queue import QueueMessage
from bottomless_server.queues.calls import ReceivedMessage
from bottomless_server.queues.changes.damage import MarkDamaged
from bottomless_server.queues.changes.receive import Delivery, GiveBack, Receive, Received
from bottomless_server.queues.core.origin import decode_origin
from bottomless_server.queues.core.receipt import read_receipt
from bottomless_server.queues.ledger.base import Stored
from bottomless_server.queues.reading import Reading
from bottomless_server.queues.rounds import Rounds


class Receiving:
    """Hands out messages."""

    def __init__(self, rounds: Rounds, reading: Reading) -> None:
        self._rounds = rounds
        self._reading = reading

    async def receive(
        self,
        queue_id: bytes,
        limit: int,
        bytes_max: int,
        visibility_ms: int | None,
        wait_ms: int,
        allowed: Callable[[], bool] | None,
    ) -> list[ReceivedMessage]:
        """Take messages, and wait for some."""
        change = Receive(queue_id, limit, bytes_max, visibility_ms)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            left = max(deadline - loop.time(), 0)
            received: Received = await self._rounds.take(change, left)
            if not received.deliveries:
                return []
            try:
                found = await self._read(queue_id, received)
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
        bad = [Stored(each.item, each.message) for each, message in pairs if message is None]
        if bad:
            await self._rounds.do(MarkDamaged(queue_id, bad))
        return [_message(each, message) for each, message in pairs if message is not None]

    def give_back(self, queue_id: bytes, messages: Sequence[ReceivedMessage]) -> None:
        """Let others have at once what could not be sent to whoever asked."""
        read = [read_receipt(message.receipt) for message in messages]
        items = [(one.inside, one.sequence, one.deliveries) for one in read if one is not None]
        if items:
            self._rounds.put_back(GiveBack(queue_id, items))


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
