"""The requests of one connection that the lane has taken: received, in line, answered in order.

Answers go out in the order of their requests, whatever the order in which they come; those that
come in one turn of the loop go out in one write. A request that is not for the lane waits until
all before it are answered, and the lane takes none while one is answered the usual way: the
connection (`protocol.py`) sees to both.
"""

import asyncio
from collections.abc import Hashable, Sequence
from typing import Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from bottomless.guards import guard
from bottomless_server.runtime.http.lane import LaneRequest
from bottomless_server.runtime.http.whole_answer import WholeAnswer
from bottomless_server.runtime.listener.connections import Connections

_CLOSE: Final = b"connection: close\r\n"


class LaneConnection(Protocol):
    """What requests on the lane need of their connection."""

    def write(self, data: bytes) -> None: ...

    def default_headers(self) -> Sequence[tuple[bytes, bytes]]: ...

    def lane_emptied(self) -> None:
        """All requests on the lane are answered."""
        ...


class OnLane:
    """The requests of one connection that are on the lane."""

    __slots__ = (
        "_closing",
        "_connection",
        "_in_line",
        "_loop",
        "_lost",
        "_parts",
        "_ready",
        "_receiving",
        "_size",
        "_turn",
        "_watched",
        "used",
    )

    def __init__(
        self, connection: LaneConnection, watched: Connections, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._connection = connection
        self._watched = watched
        self._loop = loop
        self._receiving: LaneRequest | None = None
        self._parts: list[bytes] = []
        self._size = 0
        """Bytes that have come of the body that is being received."""
        self._in_line: list[_InLine] = []
        """Requests without an answer, and those with one that have such a request before them."""
        self._turn: Hashable = None
        """The turn of all requests that are in line."""
        self._ready: list[bytes] = []
        """Answers that go out with the next write."""
        self._closing = self._lost = False
        self.used = False
        """Whether a request of this connection ever took the lane."""

    @property
    def receiving(self) -> bool:
        """Whether the body of a request is being received."""
        return self._receiving is not None

    @property
    def waiting_count(self) -> int:
        """How many requests have all of their body here, and no answer that went out."""
        return len(self._in_line)

    def begin(self, request: LaneRequest) -> None:
        """Receive the body of a request."""
        self._receiving = request
        self.used = True

    def receive(self, part: bytes) -> bool:
        """Take so much more of the body; False if the request cannot stay on the lane."""
        assert self._receiving is not None
        size = len(part)
        watched = self._watched
        if watched.body_bytes + size > watched.bounds.body_bytes_max:
            return False
        if not self._receiving.receive(size):
            return False
        self._parts.append(part)
        self._size += size
        watched.body_bytes += size
        return True

    def complete(self) -> bool:
        """Do what is asked, now that the whole body is here; False if the request cannot stay."""
        assert self._receiving is not None
        turn = self._receiving.turn
        if not self.may_follow(turn):
            return False
        parts = self._parts
        waiting = _InLine(self, self._size)
        if not self._receiving.take(parts[0] if len(parts) == 1 else b"".join(parts), waiting.note):
            return False
        self._in_line.append(waiting)
        self._turn = turn
        self._receiving, self._parts, self._size = None, [], 0
        return True

    @guard("the order of requests of one connection")
    def may_follow(self, turn: Hashable) -> bool:
        """Whether a request of this turn is done after all that are in line."""
        return not self._in_line or self._turn == turn

    def leave(self) -> list[bytes]:
        """Let the request go whose body is being received; returns what has come of it."""
        assert self._receiving is not None
        self._receiving.leave()
        return self._let_go()

    def close_at_end(self) -> None:
        """Say with the last answer that the connection ends."""
        self._closing = True

    def lose(self) -> None:
        """The client has gone. What is in line stays there, and nobody takes the answers."""
        if self._receiving is not None:
            self._receiving.lose()
            self._let_go()
        self._lost = True
        self._watched.body_bytes -= sum(
            waiting.size for waiting in self._in_line if waiting.answer is None
        )
        self._in_line.clear()
        self._ready.clear()

    def answered(self, waiting: "_InLine") -> None:
        """One of those in line has its answer."""
        if self._lost:
            return
        self._watched.body_bytes -= waiting.size
        in_line = self._in_line
        if in_line[0] is not waiting:
            return
        scheduled = bool(self._ready)
        count = next((n for n, one in enumerate(in_line) if one.answer is None), len(in_line))
        done, self._in_line = in_line[:count], in_line[count:]
        for one in done:
            assert one.answer is not None
            last = one is done[-1] and not self._in_line
            self._ready.append(self._encode(one.answer, last=last))
        if not self._in_line:
            self._flush()
        elif not scheduled:
            self._loop.call_soon(self._flush)

    def _encode(self, answer: WholeAnswer, *, last: bool) -> bytes:
        head = [
            b"%b: %b\r\n" % pair for pair in (*self._connection.default_headers(), *answer.headers)
        ]
        if last and self._closing:
            head.append(_CLOSE)
        return b"".join([STATUS_LINE[answer.status], *head, b"\r\n", answer.body])

    def _flush(self) -> None:
        if self._ready:
            ready, self._ready = self._ready, []
            self._connection.write(ready[0] if len(ready) == 1 else b"".join(ready))
            if not self._in_line:
                self._connection.lane_emptied()

    def _let_go(self) -> list[bytes]:
        self._watched.body_bytes -= self._size
        parts, self._receiving, self._parts, self._size = self._parts, None, [], 0
        return parts


class _InLine:
    """One request whose body is here."""

    __slots__ = ("_of", "answer", "size")

    def __init__(self, of: OnLane, size: int) -> None:
        self._of = of
        self.size = size
        self.answer: WholeAnswer | None = None

    def note(self, answer: WholeAnswer) -> None:
        self.answer = answer
        self._of.answered(self)
