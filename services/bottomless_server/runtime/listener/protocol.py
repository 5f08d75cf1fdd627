"""The HTTP/1.1 protocol of our listeners: uvicorn's, with bounds and with problems.

Uvicorn's own has no bound on the bytes or the time of a request, waits for ever for a client
that takes nothing, and answers what is not HTTP in plain text. Decision 29 has the reasons and figures;
tests/unit/runtime/test_runtime_uvicorn.py lists all that is used of uvicorn here.

Who is refused while bytes of its request are still on their way would lose the answer to a
reset connection. So such a connection lingers: it is closed for writing, and what still comes
is read and dropped, for some seconds and some bytes.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from bottomless.errors import Overloaded, StoreError
from bottomless.model.limits import KIB, MIB
from bottomless_server.runtime.listener.connections import Connections
from bottomless_server.runtime.listener.declined_upgrade import body_parser, framing_of
from bottomless_server.runtime.listener.gathered import GATHERS, Gathered
from bottomless_server.runtime.listener.http_1_0 import is_old, without_chunks
from bottomless_server.runtime.listener.hung_up import has_hung_up
from bottomless_server.runtime.listener.pipelining import (
    PIPELINE_COUNT_MAX,
    HeldFlow,
    head_size,
    piece_size,
)
from bottomless_server.runtime.listener.protocol_refusals import (
    headers_too_large,
    not_http,
    refusal_bytes,
    too_slow,
    unknown_framing,
    url_too_long,
)
from bottomless_server.runtime.listener.reading import ClientTime, Reading
from bottomless_server.runtime.listener.same_user import SAME_USER, is_same_user
from bottomless_server.runtime.listener.sending import Sending

CUT_SECONDS: Final = 2.0
"""How long a client that was cut off may still take what waits for it."""
LINGER_BYTES: Final = 16 * MIB
"""Bytes: as many as a body may have, so that a client that sends all before it reads is answered."""
HELD_SIZE_MAX: Final = 256 * KIB
"""Bytes of a body that the application has not taken, beyond which nothing is read until it does."""
_REFUSED_COUNT_MAX: Final = 100
"""Connections beyond the bound that are told so; more are dropped without a word."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        watched: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._watched = watched
        self._bounds = watched.bounds
        self._time = ClientTime(watched.bounds)
        self._answering: RequestResponseCycle | None = None
        """The request that the application has; `cycle` is the one that was read last."""
        self._head_size = self._header_count = 0
        self._fed = 0
        """Bytes since something of a request was understood."""
        self._body_sizes: deque[int] = deque()
        """Body sizes of the requests that have no answer yet, the oldest first."""
        self._declined: list[tuple[bytes, bytes]] = []
        """The framing of a body that the parser takes for another protocol."""
        self._body_left = 0
        """What the request that is being read said of its body and has not sent yet."""
        self._held = b""
        """What has come and is not read yet, since too many requests wait."""
        self._dropped = 0
        self._refusal: StoreError | None = None
        self._outgoing = _Outgoing(self)

    # What the transport says

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: HeldFlow = HeldFlow(transport)
        self._sending = Sending(transport, self._watched.note_written, self.loop.time)
        self._same_user = is_same_user(transport)
        over = len(self._watched) - self._bounds.connection_count_max
        self._watched.add(self)
        if over >= _REFUSED_COUNT_MAX:
            self.cut_off("connections")
        elif over >= 0:
            self._refuse(Overloaded("too many clients are connected", retry_after_seconds=1))

    def connection_lost(self, exc: Exception | None) -> None:
        self._watched.remove(self)
        self._let_bodies_go()
        self._held = b""
        left = {self._answering, self.cycle, *(cycle for cycle, _ in self.pipeline)}
        self.pipeline.clear()
        super().connection_lost(exc)
        for cycle in left:
            if cycle is None:
                continue
            # It refers to this connection and this to it, until the collector of cycles comes
            # by; the application is told that the client has gone, and gets no more of the body.
            # Uvicorn tells only who was read last.
            cycle.body = b""  # type: ignore[assignment]
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()

    def data_received(self, data: bytes | memoryview) -> None:
        """`data` is read only before this returns."""
        if self._time.reading is Reading.REST:
            self._drop(len(data))
            return
        if self._held:
            # It was on its way when reading stopped.
            self._held += data
            return
        self._take(data)

    def _take(self, data: bytes | memoryview) -> None:
        self._unset_keepalive_if_required()
        self._fed += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or not_http())
            return
        # A value without an end would be gathered in the parser, which tells only of whole ones.
        if (
            self._fed > 2 * self._bounds.head_bytes_max
            and self._time.reading is not Reading.NOTHING
        ):
            self._refuse(headers_too_large())

    def _feed(self, data: bytes | memoryview) -> None:
        head = 0 if self._time.reading is Reading.BODY else head_size(data)
        size = head or self._size_to_feed(data)
        while data:
            if self._must_hold(data):
                self._held = bytes(data)
                self.flow.hold()
                return
            piece = data[:size]
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                # No other protocol is spoken here: what follows is the body, or the next request.
                data = data[upgrade.args[0] :]
                if self._declined:
                    framing, self._declined = self._declined, []
                    self.parser = body_parser(self, framing)
            else:
                data = data[len(piece) :]
            if head:
                head, size = 0, self._size_to_feed(data)

    def _size_to_feed(self, data: bytes | memoryview) -> int:
        return len(data) if self._is_body(data) else piece_size(data, self._waiting_count())

    def _is_body(self, data: bytes | memoryview) -> bool:
        """Whether nothing of this can be a request: it is of a body with a length."""
        return self._body_left >= len(data)

    def _waiting_count(self) -> int:
        """How many requests wait for those before them."""
        return len(self.pipeline)

    def _must_hold(self, _data: bytes | memoryview) -> bool:
        """Whether nothing of what has come is read now, since too many wait."""
        return self._waiting_count() >= PIPELINE_COUNT_MAX

    def _read_on(self) -> None:
        """Go on with what was held, once half of those that waited are answered."""
        if not self._held or self._waiting_count() > PIPELINE_COUNT_MAX // 2:
            return
        held, self._held = self._held, b""
        if self.transport.is_closing() or self._time.reading is Reading.REST:
            return
        self.flow.let_go()
        self._take(held)
        if not self._held and not self.pipeline:
            self.flow.resume_reading()

    # What the parser says

    def on_message_begin(self) -> None:
        self._enter(Reading.HEAD)
        self._head_size = self._header_count = self._fed = 0
        super().on_message_begin()
        # ASGI has no word for it: a server can only wait for a client that takes nothing.
        self.scope["bottomless.cut"] = self.cut  # type: ignore[typeddict-unknown-key]
        self.scope[GATHERS] = True  # type: ignore[typeddict-unknown-key]
        self.scope[SAME_USER] = self._same_user  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        self._count(len(url), url_too_long)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._count(len(name) + len(value), headers_too_large)
        if self._time.reading is Reading.HEAD:
            super().on_header(name, value)
        # Else it is a trailer: nothing after a body changes by what its request is judged.

    def on_headers_complete(self) -> None:
        self._refusal = unknown_framing(self.headers, self.parser.get_http_version())
        if self._refusal is not None:
            raise httptools.HttpParserError
        super().on_headers_complete()
        if is_old(self.scope):
            bare = partial(self.cut, chunked=False)
            self.scope["bottomless.cut"] = bare  # type: ignore[typeddict-unknown-key]
        self._enter(Reading.BODY)
        self._body_sizes.append(0)
        self._body_left = declared_size(self.headers)
        if self.parser.should_upgrade():
            self._declined = framing_of(self.headers)
        self.cycle.transport = self._outgoing  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._fed = 0
        self._time.came()
        self._body_left -= len(body)
        if self.cycle.response_complete:
            self._drop(len(body))
            return
        self._body_sizes[-1] += len(body)
        self._watched.body_bytes += len(body)
        if self._watched.body_bytes > self._bounds.body_bytes_max:
            self._refusal = Overloaded(
                "the server is receiving too many bodies at once", retry_after_seconds=1
            )
            raise httptools.HttpParserError
        # Not uvicorn's own way, which copies every byte into a bytearray and out of it again.
        cycle = self.cycle
        if not cycle.body:
            cycle.body = body  # type: ignore[assignment]
        else:
            # It may come in pieces of a byte: what is there is not copied for each.
            if not isinstance(cycle.body, bytearray):
                cycle.body = bytearray(cycle.body)
            cycle.body += body
        if len(cycle.body) >= HELD_SIZE_MAX:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._declined:
            return
        self._enter(Reading.NOTHING)
        super().on_message_complete()

    # What the application does

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        answering: Any = without_chunks(app, cycle) if is_old(cycle.scope) else app
        super()._start_asgi_task(cycle, answering)

    def on_response_complete(self) -> None:
        if self._body_sizes:
            self._watched.body_bytes -= self._body_sizes.popleft()
        if self._time.reading is Reading.BODY:
            # What is left of the body may still come, within the bounds of lingering.
            self._time.enter(Reading.BODY)
            self._dropped = 0
        super().on_response_complete()
        if self._held:
            # Not here: it is called from within the answer of the request before.
            self.loop.call_soon(self._read_on)

    def write(self, data: bytes | Gathered) -> None:
        """Send; what waits to be taken is counted."""
        self._sending.write(data)

    def end(self) -> None:
        """Close when all is sent, so that the client can read all of it. Requests that wait are never
        begun: who was told that the connection ends may send them again elsewhere."""
        if self._time.reading is Reading.BODY:
            for cycle, _ in self.pipeline:
                cycle.disconnected = True
            self.pipeline.clear()
            self._linger()
        else:
            self.transport.close()

    def cut(self, last: bytes | None, *, chunked: bool = True) -> None:
        """End an answer without a length whose client takes nothing: its last bytes stand after
        what waits already, and some seconds later the connection is gone, with whatever is left.
        An answer of which not even the head was sent has no last bytes."""
        if self.transport.is_closing():
            return
        if last is None:
            self.transport.abort()
            return
        self.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last) if chunked else last)
        self.transport.close()
        self.loop.call_later(CUT_SECONDS, self.transport.abort)

    def cut_off(self, why: str) -> None:
        """Drop the connection, with all that waits."""
        self._watched.ended[why] += 1
        self.transport.abort()

    # What time does

    def look(self, seconds: float) -> int:
        """Count the time, end what is over its bounds; returns the bytes that wait to be sent."""
        waiting = self._sending.look(seconds)
        if self._sending.stuck_seconds >= self._bounds.send_stall_seconds:
            self.cut_off("send_stall")
            return 0
        if self.transport.is_closing():
            return waiting
        if self.flow.read_paused and has_hung_up(self.transport):
            self.transport.close()
        else:
            self._spend(seconds)
        return waiting

    @property
    def took_at(self) -> float:
        """When its client last took something, or nothing waited for it."""
        return self._sending.took_at

    def _spend(self, seconds: float) -> None:
        cycle, answered = self.cycle, self._is_answered()
        is_read = not (self._held or self.flow.read_paused)
        if self._time.reading is Reading.BODY and cycle and cycle.waiting_for_100_continue:
            # It is the application's turn.
            is_read = False
        over = self._time.is_over(
            seconds, asked=self._was_asked(), answered=answered, is_read=is_read
        )
        if over is Reading.HEAD:
            self._refuse(too_slow("the head of the request did not arrive in time"))
        elif over is Reading.BODY and not answered:
            self._refuse(too_slow("the body of the request did not arrive in time"))
        elif over is not None:
            if over is Reading.NOTHING:
                self._watched.ended["idle"] += 1
            self.transport.close()

    def _is_answered(self) -> bool:
        """Whether no request waits for its answer."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.disconnected

    def _was_asked(self) -> bool:
        """Whether a request ever came."""
        return self.cycle is not None

    # Refusals

    def _refuse(self, error: StoreError) -> None:
        """Answer for a request that is not read to its end, and end the connection."""
        if self.transport.is_closing() or self._time.reading is Reading.REST:
            return
        self._watched.ended[error.code.replace("-", "_")] += 1
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._time.reading is not Reading.BODY:
                # Those before it are answered; bytes of a refusal must not stand among theirs.
                cycle.keep_alive = False
                self._enter(Reading.REST)
                return
            if cycle.response_started or self.pipeline:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        elif self._time.reading is Reading.BODY:
            self._linger()
            return
        self._let_bodies_go()
        self.write(refusal_bytes(error, self.server_state.default_headers))
        self._linger()

    def _linger(self) -> None:
        if self.transport.is_closing():
            return
        self._enter(Reading.REST)
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self._dropped > LINGER_BYTES and not self.transport.is_closing():
            self.transport.close()

    def _enter(self, reading: Reading) -> None:
        self._time.enter(reading)
        self._fed = self._dropped = 0

    def _let_bodies_go(self) -> None:
        self._watched.body_bytes -= sum(self._body_sizes)
        self._body_sizes.clear()

    def _count(self, size: int, refusal: Callable[[], StoreError]) -> None:
        self._head_size += size
        bounds = self._bounds
        if self._head_size > bounds.head_bytes_max or self._header_count > bounds.header_count_max:
            self._refusal = refusal()
            raise httptools.HttpParserError


def declared_size(headers: list[tuple[bytes, bytes]]) -> int:
    """What the parser, which has checked it, knows of a body that has a length."""
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


class _Outgoing:
    """The transport as one request's answer sees it."""

    def __init__(self, connection: BoundedProtocol) -> None:
        self.write = connection.write
        self.close = connection.end
        self._connection = connection

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()
