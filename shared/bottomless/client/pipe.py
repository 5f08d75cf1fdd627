"""Pipe: one connection of HTTP/1.1 to a server, with any number of requests under way on it.

Answers come in the order of the requests. When the connection ends, each request that has no whole
answer fails, and its error says whether an answer of it had begun; whether the server did what it
was asked to is for the caller to find out.
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable
from typing import Final

from bottomless.client.answer_parser import AnswerParser, NotHttp
from bottomless.client.transport import Answer
from bottomless.client.unreachable import HungUp

_PIECE_SIZE: Final = 256 * 1024
"""Bytes of a body that are given to the event loop at once; it copies what the kernel does not
take."""
_TOGETHER_SIZE: Final = 64 * 1024
"""A body up to here is copied after its head, so that both leave in one packet or two."""


class BrokenOff(ConnectionError):
    """The connection ended in the midst of an answer."""


class Pipe(asyncio.Protocol):
    """A protocol of the event loop: `write` sends a request, and returns a future of its answer."""

    def __init__(self, lost: "Callable[[Pipe], None]") -> None:
        """Make one; `lost` is called when its connection has ended."""
        self._lost = lost
        self._parser = AnswerParser()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[Answer]] = deque()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._unfinished = False
        """A request was cut off while it was written: nothing can be sent after it."""
        self._why: Exception | None = None
        self.idle_since = 0.0
        """When the last request was answered, by the clock of the loop."""

    @property
    def usable(self) -> bool:
        """Whether another request may be sent: it is open, and the server did not say its end."""
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and not self._parser.last
            and not self._unfinished
            and self._why is None
        )

    @property
    def has_news(self) -> bool:
        """Whether something came that the event loop has not seen: mostly the end of what is idle."""
        assert self._transport is not None
        found = self._transport.get_extra_info("socket")
        if found is None or not hasattr(select, "poll"):
            return False
        looking = select.poll()
        looking.register(found.fileno(), select.POLLIN)
        return bool(looking.poll(0))

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._waiting)

    async def write(self, head: bytes, body: bytes | None) -> "asyncio.Future[Answer]":
        """Send a request after those before it, and return the future of its answer.

        One at a time may write, and only while the connection is `usable`. If it is cancelled, or
        the answer comes, before the whole body is written, it is not usable any more.
        """
        assert self.usable
        assert self._transport is not None
        answer = asyncio.get_running_loop().create_future()
        # Its error is the caller's, who may be gone.
        answer.add_done_callback(_looked_at)
        self._waiting.append(answer)
        if body is None or len(body) <= _TOGETHER_SIZE:
            self._transport.write(head if body is None else head + body)
        else:
            await self._write_long(self._transport, head, memoryview(body), answer)
        return answer

    async def _write_long(
        self,
        transport: asyncio.Transport,
        head: bytes,
        body: memoryview,
        answer: "asyncio.Future[Answer]",
    ) -> None:
        self._unfinished = True
        transport.write(head)
        for start in range(0, len(body), _PIECE_SIZE):
            await self._may_write.wait()
            if answer.done():
                # Refused, such as for its size, or the connection is gone: nobody reads the rest.
                return
            transport.write(body[start : start + _PIECE_SIZE])
        self._unfinished = False

    def abort(self) -> None:
        """Close the connection at once; every answer that is awaited fails."""
        self._why = self._why or HungUp()
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection, which nobody uses."""
        if self._transport is None:
            return
        if self._unfinished or self._transport.get_write_buffer_size():
            # A polite end would wait until the server has read what is left of a body.
            self.abort()
        else:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection; the event loop calls it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read answers; the event loop calls it."""
        try:
            for answer in self._parser.feed(data):
                self._give(answer)
                if self._parser.last:
                    self._end_of_answers()
                    return
        except NotHttp as error:
            self._end(error)

    def eof_received(self) -> bool:
        """Close: who sends no more answers is not asked any more; the event loop calls it."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all that are waiting; the event loop calls it."""
        # Only a polite end says that a body without a length is whole.
        polite = error is None and self._why is None
        if polite and self._waiting and (last := self._parser.end()) is not None:
            self._give(last)
        broken_off = isinstance(self._why, HungUp | None) and self._parser.begun
        first = BrokenOff() if broken_off else self._why or error or HungUp()
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(first)
            # Only the first can have been answered in part.
            first = error or HungUp()
        self._why = self._why or HungUp()
        self._may_write.set()
        self._lost(self)

    def pause_writing(self) -> None:
        """Let bodies wait; the event loop calls it."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let bodies be written; the event loop calls it."""
        self._may_write.set()

    def _end(self, error: NotHttp) -> None:
        self._why = error
        self.abort()

    def _end_of_answers(self) -> None:
        # Whatever comes after this answer is none, and who waits for one would wait in vain.
        if self._waiting:
            self.abort()
        else:
            self.close()

    def _give(self, answer: Answer) -> None:
        if not self._waiting:
            # Nobody asked: it must not be taken for the answer to the next request.
            self._end(NotHttp())
            return
        waiting = self._waiting.popleft()
        if not self._waiting:
            self.idle_since = asyncio.get_running_loop().time()
        # Done where its caller was cancelled.
        if not waiting.done():
            waiting.set_result(answer)


def _looked_at(answer: "asyncio.Future[Answer]") -> None:
    if not answer.cancelled():
        answer.exception()
