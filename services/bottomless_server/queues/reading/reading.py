"""Messages are read after their round, at the places that it named and under its pins, in threads.

A disk may refuse to give one place of a file and give all others, for ever or for a moment. So a
message that is not read holds up no other, and is not taken for damaged before its bytes were seen.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Final

import structlog

from bottomless.errors import Corrupt
from bottomless.formats.envelope import decode_envelope
from bottomless.model.queue import QueueMessage
from bottomless_server.queues.ledger.base import Message
from bottomless_server.queues.store.bodies import Bodies, BodyPlace

log = structlog.get_logger(__name__)

RUN_SIZE_MAX: Final = 2**20
"""Bytes that are read at once; they stay in memory as long as one of their messages."""


class Unread(Enum):
    """Why a message was not read."""

    DAMAGED = "damaged"
    """Its bytes, or its file, are not what they should be."""
    REFUSED = "refused"
    """The disk did not give them: nobody knows what they are."""


class Reading:
    """Reads messages for the event loop."""

    def __init__(self, bodies: Bodies, threads: ThreadPoolExecutor) -> None:
        self._bodies = bodies
        self._threads = threads
        self.damaged_count = 0
        """Messages that were not what they should be, since the start."""

    async def read(self, messages: Sequence[Message]) -> list[QueueMessage | Unread]:
        """Messages in the order in which they were asked for; in the place of one that was not read, why.

        The pins of their files are held by whoever asks, until this returns or raises; also if it is
        cancelled the threads are done then.
        """
        if not messages:
            return []
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self._threads, self._read_all, messages)
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            # The thread reads on: its pins must not be released before it is done.
            await asyncio.wait([asked])
            if not asked.cancelled():
                asked.exception()
            raise

    def _read_all(self, messages: Sequence[Message]) -> list[QueueMessage | Unread]:
        return [read for run in runs_of(messages) for read in self._read_run(run)]

    def _read_run(self, messages: Sequence[Message]) -> list[QueueMessage | Unread]:
        if len(messages) > 1:
            try:
                stored = self._bodies.read_run([_place(message) for message in messages])
                return [decode_envelope(each.body) for each in stored]
            except (Corrupt, OSError):
                # One of them is to blame, or a few: each is read by itself.
                pass
        return [self._read_one(message) for message in messages]

    def _read_one(self, message: Message) -> QueueMessage | Unread:
        place = _place(message)
        try:
            return decode_envelope(self._bodies.read(place).body)
        except (Corrupt, FileNotFoundError) as error:
            why = str(error)
        except OSError as error:
            log.warning("a message file cannot be read", file=message.file, error=str(error))
            return Unread.REFUSED
        self.damaged_count += 1
        log.error(
            "a message of a queue is damaged",
            message_id=message.msg_id.hex(),
            file=message.file,
            position=message.position,
            error=why,
        )
        return Unread.DAMAGED


def runs_of(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Messages that follow each other in one file, together: what was published together mostly does."""
    first = 0
    for number in range(1, len(messages) + 1):
        before = messages[number - 1]
        if number < len(messages):
            start, message = messages[first], messages[number]
            end = message.position + message.size
            follows = message.position == before.position + before.size
            if message.file == start.file and follows and end - start.position <= RUN_SIZE_MAX:
                continue
        yield messages[first:number]
        first = number


def _place(message: Message) -> BodyPlace:
    return BodyPlace(message.msg_id, message.file, message.position, message.size)
