"""Calls from one service to another, over HTTP: always, also within one process.

A problem that a peer answers is raised here as the error that it was there: same class,
code, facts, outcome. So a service reads like one that calls functions, and knows from
every failure whether a write may have happened. Nothing is retried here; the library asks once
more only where a method allows it and a connection that was kept turns out to be closed.

Calls go by aiohttp, of which one costs a fifth of what httpx takes; bytes are fetched and sent by
`get_in_place.py`, which copies nothing on their way.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode, urlsplit

import aiohttp
import orjson
import structlog

from bottomless.client.problems import error_from_problem
from bottomless.errors import Code, Outcome, StoreError, Unavailable
from bottomless_server.fetch.get_in_place import BrokenOff, InPlaceClient, NoConnection
from bottomless_server.protocol.peer import Params, PeerAnswer, PeerBytes
from bottomless_server.protocol.secret import headers_to
from bottomless_server.runtime.http.bodies import JSON
from bottomless_server.runtime.http.problems import STATUS
from bottomless_server.runtime.http.tracing import passed_on

log = structlog.get_logger(__name__)

_UNAUTHENTICATED: Final = STATUS[Code.UNAUTHENTICATED]
_IDLE_SECONDS: Final = 15
"""Shorter than servers keep an idle connection, so that no request meets its closing."""
_CONNECTION_COUNT_MAX: Final = 256
_CONNECT_SECONDS: Final = 5.0


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    data: bytes


class Peer:
    """One service at one url: `http://host:port` or `unix:///path.sock`."""

    def __init__(
        self,
        base_url: str,
        *,
        name: str,
        timeout_seconds: float = 10,
        connection_count_max: int = _CONNECTION_COUNT_MAX,
        secret: str | None = None,
    ) -> None:
        """`secret` is shown over TCP, and nowhere else."""
        self.name = name
        self.base_url = base_url
        self._timeout_seconds = timeout_seconds
        self._connection_count_max = connection_count_max
        scheme, _, rest = base_url.partition("://")
        if scheme not in ("http", "unix") or not rest:
            raise ValueError(f"a peer's url starts with http:// or unix:///: {name}")
        self._own_headers = headers_to(base_url, secret)
        self._socket_path = rest if scheme == "unix" else None
        self._host_url = f"http://{name}" if scheme == "unix" else base_url.rstrip("/")
        self._closed = False
        # Made at the first call, in the loop that makes it.
        self._session: aiohttp.ClientSession | None = None
        self._in_place: InPlaceClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all connections. A call that comes later meets a peer that is away: were a client
        opened for it, nobody would close that one."""
        self._closed = True
        if self._in_place is not None:
            self._in_place.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerAnswer:
        """Send a small request and read its JSON answer, a 304 included.

        Raises:
            StoreError: what the peer answered, as the class of its code.
            Unavailable: `peer-unavailable`; the outcome is unknown if a write was on its way.
        """
        content = None
        sent = {**passed_on(), **(headers or {})}
        if body is not None:
            content, sent["content-type"] = orjson.dumps(body), JSON
        answer = await self._ask(method, path, params, sent, content, timeout_seconds)
        try:
            value = orjson.loads(answer.data) if answer.data else None
        except orjson.JSONDecodeError as error:
            raise self._unavailable(_outcome_of(method)) from error
        return PeerAnswer(answer.status, answer.headers, value)

    async def post(
        self,
        path: str,
        parts: Sequence[bytes | memoryview],
        content_type: str,
        timeout_seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send bytes, which may lie in parts, and read the bytes of the answer.

        Raises:
            StoreError: what the peer answered, as the class of its code.
            Unavailable: `peer-unavailable`; the outcome is unknown if they were on their way.
        """
        sent = {**passed_on(), **(headers or {}), "content-type": content_type}
        in_place = self._open_in_place()
        try:
            answer = await in_place.post(path, sent, parts, timeout_seconds)
        except NoConnection as error:
            raise self._unavailable(Outcome.NONE) from error
        except (BrokenOff, TimeoutError) as error:
            raise self._unavailable(Outcome.UNKNOWN) from error
        data = bytes(answer.data)
        if answer.status >= 400:
            raise self._error("POST", answer.status, answer.headers, data)
        return data

    async def fetch(
        self,
        path: str,
        *,
        params: Params | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerBytes:
        """Read the bytes at a path, all of them or none.

        Raises:
            StoreError: what the peer answered, as the class of its code.
            Unavailable: `peer-unavailable`.
        """
        target = f"{path}?{urlencode(params)}" if params else path
        try:
            answer = await self._open_in_place().get(
                target, passed_on(), timeout_seconds or self._timeout_seconds
            )
        except (NoConnection, BrokenOff, TimeoutError) as error:
            raise self._unavailable(Outcome.NONE) from error
        if answer.status >= 400:
            raise self._error("GET", answer.status, answer.headers, bytes(answer.data))
        return PeerBytes(answer.headers, answer.data)

    async def _ask(
        self,
        method: str,
        path: str,
        params: Params | None,
        headers: Mapping[str, str],
        content: bytes | None,
        timeout_seconds: float | None,
    ) -> "_Answer":
        timeout = aiohttp.ClientTimeout(
            total=timeout_seconds or self._timeout_seconds, connect=_CONNECT_SECONDS
        )
        try:
            async with self._open().request(
                method,
                self._host_url + path,
                params=params,
                data=content,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                data = await answer.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise self._unavailable(Outcome.NONE) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(_outcome_of(method)) from error
        if answer.status >= 400:
            raise self._error(method, answer.status, answer.headers, data)
        return _Answer(answer.status, answer.headers, data)

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise self._unavailable(Outcome.NONE)
        if self._session is None:
            connector = (
                aiohttp.UnixConnector(
                    self._socket_path,
                    limit=self._connection_count_max,
                    keepalive_timeout=_IDLE_SECONDS,
                )
                if self._socket_path is not None
                else aiohttp.TCPConnector(
                    limit=self._connection_count_max, keepalive_timeout=_IDLE_SECONDS
                )
            )
            # A proxy from the environment has no business between our services.
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self._own_headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=2**20,
                trust_env=False,
            )
        return self._session

    def _open_in_place(self) -> InPlaceClient:
        if self._closed:
            raise self._unavailable(Outcome.NONE)
        if self._in_place is None:
            loop = asyncio.get_running_loop()
            url = urlsplit(self._host_url)
            port = url.port or 80

            def connect(protocol: Callable[[], asyncio.BufferedProtocol]) -> Any:
                if self._socket_path is not None:
                    return loop.create_unix_connection(protocol, self._socket_path)
                return loop.create_connection(protocol, url.hostname or "", port)

            self._in_place = InPlaceClient(
                connect,
                {"host": url.netloc, **self._own_headers},
                connection_count_max=self._connection_count_max,
                connect_seconds=_CONNECT_SECONDS,
                idle_seconds=_IDLE_SECONDS,
            )
        return self._in_place

    def _unavailable(self, outcome: Outcome) -> Unavailable:
        return Unavailable(
            f"the {self.name} service does not answer", code=Code.PEER_UNAVAILABLE, outcome=outcome
        )

    def _error(
        self, method: str, status: int, headers: Mapping[str, str], content: bytes
    ) -> StoreError:
        if status == _UNAUTHENTICATED and self._socket_path is None:
            # Nobody who asked us is at fault: the two of us have different secrets.
            log.error("the internal secret is not taken", service=self.name, url=self.base_url)
            return Unavailable(
                f"the {self.name} service does not take the internal secret of this one",
                code=Code.PEER_UNAVAILABLE,
            )
        try:
            problem = orjson.loads(content)
            Code(problem["code"])
        except (ValueError, KeyError, TypeError):
            # Not one of our problems: something else answers there.
            return Unavailable(
                f"the {self.name} service answered out of turn: status={status}",
                code=Code.PEER_UNAVAILABLE,
                outcome=_outcome_of(method),
            )
        return error_from_problem(status, problem, retry_after=headers.get("retry-after"))


class Peers:
    """Peers of one kind by url, each opened once."""

    def __init__(
        self,
        *,
        name: str,
        timeout_seconds: float = 10,
        connection_count_max: int = _CONNECTION_COUNT_MAX,
        secret: str | None = None,
    ) -> None:
        self._name = name
        self._secret = secret
        self._timeout_seconds = timeout_seconds
        self._connection_count_max = connection_count_max
        self._peers: dict[str, Peer] = {}

    def at(self, url: str) -> Peer:
        """The peer at a url.

        Raises:
            ValueError: it is not the url of a peer.
        """
        peer = self._peers.get(url)
        if peer is None:
            peer = Peer(
                url,
                name=self._name,
                timeout_seconds=self._timeout_seconds,
                connection_count_max=self._connection_count_max,
                secret=self._secret,
            )
            self._peers[url] = peer
        return peer

    async def aclose(self) -> None:
        for peer in self._peers.values():
            await peer.aclose()


def _outcome_of(method: str) -> Outcome:
    return Outcome.NONE if method in ("GET", "HEAD") else Outcome.UNKNOWN
