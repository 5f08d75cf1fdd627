"""HTTP between simulated processes: requests go to the real applications, without sockets.

A request that arrived is worked on in the process that serves it, whatever becomes of whoever
sent it; if that process dies, the connection ends without an answer. Answers are taken whole;
those that stay open (events, `follow=true`) stand in open_answers.py.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, NamedTuple

import aiohttp
import httpx
from starlette.datastructures import Headers as StarletteHeaders
from starlette.types import ASGIApp, Message, Scope
from support.wire import Mishap, Weather

from bottomless.errors import Outcome
from bottomless_server.fetch import get_in_place
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.forwarding import Forwarding
from bottomless_server.runtime.http.app import ClientGone, wrap
from bottomless_server.runtime.peers.peers import Peer
from simulation.loop import Process

Headers = Sequence[tuple[bytes, bytes]]
_CONNECT_SECONDS = 5.0


class NoConnection(Exception):
    """Nothing was sent."""


class NoAnswer(Exception):
    """The connection ended, or stayed silent, after the request was sent."""


class Reply(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Request(NamedTuple):
    method: str
    path: str
    """As sent: escaped, without the query."""
    query: bytes = b""
    headers: Headers = ()
    body: bytes = b""
    body_seconds: float = 0.0
    """How long after the first half of the body the rest arrives."""


class Network:
    """Which application answers at which address, and what befalls requests on their way."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self._served: dict[str, tuple[Process, ASGIApp]] = {}
        self.apart: set[frozenset[str]] = set()
        """Pairs of names that cannot reach each other."""
        self.is_blind: Callable[[], bool] = lambda: False
        """Whether a node may be an owner of the past without a way to know."""

    def serve(self, process: Process, url: str, app: ASGIApp) -> None:
        self._served[url] = (process, wrap(app))

    async def ask(self, source: str, url: str, request: Request, seconds: float) -> Reply:
        """Send a request and wait for its answer, so many seconds.

        Raises:
            NoConnection, NoAnswer
        """
        try:
            process, app = self.served_at(url)
        except NoConnection:
            await asyncio.sleep(0.001)
            raise
        passage = self.weather.passage(f"network.{process.name}")
        if frozenset((source, process.name)) in self.apart:
            await asyncio.sleep(min(_CONNECT_SECONDS, seconds))
            raise NoConnection
        if passage.mishap is Mishap.LOSE_REQUEST:
            await asyncio.sleep(passage.silence_seconds)
            raise NoAnswer
        late = passage.silence_seconds if passage.mishap is Mishap.LATE_REQUEST else 0.0
        exchange = Exchange(process, app, request, lambda: self.is_apart(source, process))
        timer = asyncio.get_running_loop().call_later(
            passage.there_seconds + late, exchange.begin, context=Context()
        )
        exchange.began_by(timer)
        try:
            if passage.mishap is not Mishap.NONE:
                await asyncio.sleep(min(passage.silence_seconds, seconds))
                raise NoAnswer
            try:
                async with asyncio.timeout(seconds):
                    reply = await exchange.reply
                    await asyncio.sleep(passage.back_seconds)
                    return reply
            except TimeoutError:
                raise NoAnswer from None
        finally:
            if passage.mishap is not Mishap.LATE_REQUEST:
                exchange.leave()

    def served_at(self, url: str) -> tuple[Process, ASGIApp]:
        """The process that lives there, and its application.

        Raises:
            NoConnection: none does.
        """
        process, app = self._served.get(url, (None, None))
        if process is None or not process.alive or app is None:
            raise NoConnection
        return process, app

    def is_apart(self, source: str, process: Process) -> bool:
        return frozenset((source, process.name)) in self.apart


class Exchange:
    """One request at the process that serves it."""

    def __init__(
        self, process: Process, app: ASGIApp, request: Request, is_cut: Callable[[], bool]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.reply: asyncio.Future[Reply] = loop.create_future()
        self._process = process
        self._app = app
        self._request = request
        self._is_cut = is_cut
        self._left: asyncio.Future[None] = loop.create_future()
        self._taken_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []

    def began_by(self, timer: asyncio.TimerHandle) -> None:
        self._timer = timer

    def begin(self) -> None:
        if not self._process.alive:
            self._break()
            return
        self._process.on_death.append(self._break)
        task = self._process.spawn(self._serve())
        task.add_done_callback(self._served, context=Context())

    def leave(self) -> None:
        """The caller is not there any more."""
        if self._timer is not None and self._timer.when() > asyncio.get_running_loop().time():
            self._timer.cancel()
        if not self._left.done():
            self._left.set_result(None)

    async def _serve(self) -> None:
        await self._app(scope_of(self._request), self._receive, self._send)

    async def _receive(self) -> Message:
        body, self._taken_count = self._request.body, self._taken_count + 1
        if self._request.body_seconds and self._taken_count <= 2:
            half = len(body) // 2
            if self._taken_count == 1:
                return {"type": "http.request", "body": body[:half], "more_body": True}
            await asyncio.sleep(self._request.body_seconds)
            return {"type": "http.request", "body": body[half:], "more_body": False}
        if self._taken_count == 1:
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.shield(self._left)
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = list(message["headers"])
        else:
            self._parts.append(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                self._answer(Reply(self._status, self._headers, b"".join(self._parts)))

    def _served(self, task: "asyncio.Task[None]") -> None:
        if self._break in self._process.on_death:
            self._process.on_death.remove(self._break)
        if not task.cancelled():
            task.exception()
        self._break()

    def _answer(self, reply: Reply) -> None:
        if not self.reply.done() and not self._is_cut():
            self.reply.set_result(reply)

    def _break(self) -> None:
        if not self.reply.done():
            self.reply.set_exception(NoAnswer())
            self.reply.exception()


def scope_of(request: Request) -> Scope:
    headers = [(name.lower(), value) for name, value in request.headers]
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        headers = [pair for pair in headers if pair[0] != b"content-length"]
        headers.append((b"content-length", b"%d" % len(request.body)))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": request.method,
        "path": httpx.URL(f"http://x{request.path}").path,
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


class SimulatedPeer(Peer):
    """A peer over this network: the real one, down to its session."""

    def __init__(self, network: Network, source: str, url: str, name: str) -> None:
        super().__init__(url, name=name)
        self._network = network
        self._source = source

    def _open(self) -> Any:
        if self._closed:
            raise self._unavailable(Outcome.NONE)
        return _Session(self._network, self._source, self.base_url, self._timeout_seconds)

    def _open_in_place(self) -> Any:
        if self._closed:
            raise self._unavailable(Outcome.NONE)
        return _InPlace(self._network, self._source, self.base_url)


class SimulatedPeers:
    """Peers of one kind by url."""

    def __init__(self, network: Network, source: str, name: str) -> None:
        self._network = network
        self._source = source
        self._name = name
        self._peers: dict[str, SimulatedPeer] = {}

    def at(self, url: str) -> SimulatedPeer:
        if url not in self._peers:
            self._peers[url] = SimulatedPeer(self._network, self._source, url, self._name)
        return self._peers[url]

    async def aclose(self) -> None:
        for peer in self._peers.values():
            await peer.aclose()


class SimulatedForwarding(Forwarding):
    """Passing on over this network: what is sent and what an outcome is are the real one's."""

    def __init__(
        self, network: Network, source: str, answer_seconds: float, *, service: str = "ingest"
    ) -> None:
        super().__init__(answer_seconds, service=service)
        self._network = network
        self._source = source
        self._answer_seconds = answer_seconds

    def _session(self, owner_url: str) -> Any:
        if self._closed:
            raise not_owner()
        return _Session(self._network, self._source, owner_url, self._answer_seconds)


class _Session(NamedTuple):
    """As much of an aiohttp session as services use: one request, its answer taken whole."""

    network: Network
    source: str
    url: str
    answer_seconds: float

    @asynccontextmanager
    async def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | Sequence[tuple[str, str]],
        data: AsyncIterator[bytes] | bytes | None,
        timeout: aiohttp.ClientTimeout,
        params: Mapping[str, str | int] | None = None,
        **_: Any,
    ) -> AsyncIterator["_Answer"]:
        url = httpx.URL(target)
        path, __, after = url.raw_path.partition(b"?")
        if params:
            after = str(httpx.QueryParams(params)).encode()
        try:
            body = await _whole(data)
        except ClientGone as error:
            raise aiohttp.ClientPayloadError from error
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
        sent = Request(method, path.decode(), after, raw, body)
        seconds = timeout.total or self.answer_seconds
        try:
            reply = await self.network.ask(self.source, self.url, sent, seconds)
        except NoConnection as error:
            raise aiohttp.ConnectionTimeoutError from error
        except NoAnswer as error:
            raise aiohttp.ServerDisconnectedError from error
        yield _Answer(reply.status, reply.headers, _Content(reply.body))


class _InPlace(NamedTuple):
    """As `InPlaceClient`."""

    network: Network
    source: str
    url: str

    async def get(
        self, target: str, headers: Mapping[str, str], seconds: float
    ) -> get_in_place.InPlaceAnswer:
        return await self._asked("GET", target, headers, seconds)

    async def _asked(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        seconds: float,
        body: bytes = b"",
    ) -> get_in_place.InPlaceAnswer:
        path, _, query = target.partition("?")
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        sent = Request(method, path, query.encode(), raw, body)
        try:
            reply = await self.network.ask(self.source, self.url, sent, seconds)
        except NoConnection as error:
            raise get_in_place.NoConnection from error
        except NoAnswer as error:
            raise get_in_place.BrokenOff from error
        answered = StarletteHeaders(raw=reply.headers)
        return get_in_place.InPlaceAnswer(reply.status, answered, memoryview(reply.body))

    async def post(
        self,
        target: str,
        headers: Mapping[str, str],
        parts: Sequence[bytes | memoryview],
        seconds: float,
    ) -> get_in_place.InPlaceAnswer:
        return await self._asked("POST", target, headers, seconds, b"".join(parts))

    def close(self) -> None:
        """Nothing is kept open."""


async def _whole(data: AsyncIterator[bytes] | bytes | None) -> bytes:
    if data is None or isinstance(data, bytes):
        return data or b""
    return b"".join([part async for part in data])


class _Content(NamedTuple):
    data: bytes

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self.data


class _Answer(NamedTuple):
    status: int
    raw_headers: Headers
    content: _Content

    @property
    def headers(self) -> httpx.Headers:
        return httpx.Headers(list(self.raw_headers))

    @property
    def content_length(self) -> int | None:
        return len(self.content.data)

    async def read(self) -> bytes:
        return self.content.data
