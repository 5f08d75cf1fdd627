"""Pass a request on to the node that owns what it is about, and answer what that node answers.

Any node takes requests for any stream or queue, so a load balancer need not know which node owns
which. The request goes to the owner's internal listener with the path, query, headers and bytes
that it came with. Headers of our own name the principal that sent it: the credential was checked
here and stays here. A request that was passed on is never passed on again, so two nodes that each
take the other for the owner answer 503 `not-owner` and form no loop.

No change is repeated here; whoever keeps a body may ask the next owner where the first one has done
nothing (ingest/front/routes.py). Where no connection came about nothing was sent, so the outcome is none;
where the connection ended without an answer a write may have happened, and that is said. What only
looks is asked once more where the connection that was kept turns out to be closed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import aiohttp
import orjson
import structlog
from starlette.types import Receive, Scope, Send

from bottomless.client.problems import error_from_problem
from bottomless.errors import Code, Outcome, Unavailable
from bottomless.guards import guard
from bottomless.model.limits import MIB
from bottomless_server.core.principal import Principal
from bottomless_server.core.restated import restated
from bottomless_server.node.core.ownership import STREAM, not_owner
from bottomless_server.protocol.forwarding import (
    FORWARDED_HEADERS,
    ForwardedFor,
    decode_forwarded,
    encode_forwarded,
)
from bottomless_server.protocol.secret import headers_to
from bottomless_server.runtime.base.principal import note_principal, principal_of
from bottomless_server.runtime.http.app import ClientGone
from bottomless_server.runtime.http.problems import STATUS
from bottomless_server.runtime.http.tracing import passed_on

log = structlog.get_logger(__name__)

_ANSWER_SIZE_MAX: Final = 16 * MIB
"""The largest answer of an owner is a page of a thousand producers."""
_CONNECTION_COUNT_MAX: Final = 256
"""Requests on their way to one owner, unless many of them wait there."""
_CONNECT_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 15
"""Shorter than listeners keep an idle connection, so that no request meets its closing."""
_DISOWNED: Final = (Code.NOT_OWNER, Code.DRAINING)
_UNAVAILABLE: Final = STATUS[Code.NOT_OWNER]
_UNAUTHENTICATED: Final = STATUS[Code.UNAUTHENTICATED]
_READS: Final = ("GET", "HEAD")
_TAKEN: Final = "bottomless.passed-on"
_HOP: Final = frozenset(
    {
        b"authorization",
        b"connection",
        b"cookie",
        b"expect",
        b"host",
        b"keep-alive",
        # Whether that page may was decided where it asked.
        b"origin",
        b"proxy-authorization",
        b"proxy-connection",
        b"referer",
        b"request-id",
        b"te",
        b"traceparent",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        *FORWARDED_HEADERS,
    }
)
"""Headers of a request that end here, or are set anew."""
_ANSWER_HOP: Final = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "request-id",
        "server",
        "traceparent",
        "transfer-encoding",
        "x-content-type-options",
    }
)
"""Headers of an answer that the shell around every application says itself."""


@guard("nothing done before a request goes to the next owner")
def is_undone(outcome: object) -> bool:
    """Whether nothing came of a request, so that it may be sent to another node as well."""
    return outcome is Outcome.NONE or outcome == Outcome.NONE.value


class Answer(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def disowned(self) -> bool:
        """Whether the owner says that it is none, or will soon not be."""
        return self._said("code") in _DISOWNED

    @property
    def undone(self) -> bool:
        """Whether the owner is none, and says that it has done nothing of what was asked."""
        return self.disowned and is_undone(self._said("outcome"))

    @property
    def draining(self) -> bool:
        """Whether the owner is about to stop, so that another node may soon own what it has."""
        return bool(self._said("code") == Code.DRAINING)

    def _said(self, member: str) -> Any:
        if self.status != _UNAVAILABLE:
            return None
        try:
            return orjson.loads(self.body).get(member)
        except (orjson.JSONDecodeError, AttributeError):
            return None


def is_forwarded(scope: Scope) -> bool:
    return decode_forwarded(dict(scope["headers"])) is not None


def take_forwarded(scope: Scope) -> None:
    """Take the principal of a request that another node passed on from its headers.

    Only the internal listener may call this: its callers are believed. What the credential allows was
    decided where it was shown, so nothing more is allowed here.
    """
    asked = decode_forwarded(dict(scope["headers"]))
    assert asked is not None, "a request that was not passed on is that of nobody"
    scope[_TAKEN] = True
    note_principal(
        scope,
        Principal(
            tenant=asked.tenant,
            actor="local" if asked.actor is None else asked.actor,
            scopes=(),
            authenticated=asked.actor is not None,
        ),
    )


def was_taken(scope: Scope) -> bool:
    """Whether another node has passed this request on, and checked what its credential allows.

    The headers alone do not say so: anybody may send them to the public listener.
    """
    return scope.get(_TAKEN) is True


class Forwarding:
    """Connections to the other nodes, by their internal address."""

    def __init__(
        self,
        answer_seconds: float,
        secret: str | None = None,
        *,
        service: str = "ingest",
        owned: str = STREAM,
        answer_size_max: int = _ANSWER_SIZE_MAX,
        connection_count_max: int = _CONNECTION_COUNT_MAX,
    ) -> None:
        """`answer_seconds`: how long an owner may be silent once it has the request; `secret` is
        shown to owners over TCP. Errors say `service` of the other nodes, and `owned` of what they
        own. An answer has at most `answer_size_max` bytes; `connection_count_max` requests are on
        their way to one owner, and more wait for a connection, for seconds."""
        self._answer_size_max = answer_size_max
        self._connection_count_max = connection_count_max
        self._secret = secret
        self._service = service
        self._owned = owned
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=_CONNECT_SECONDS, sock_read=answer_seconds
        )
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._closed = False

    async def ask(
        self,
        owner_url: str,
        scope: Scope,
        receive: Receive,
        hold: Callable[[int], Awaitable[None]] | None = None,
    ) -> Answer:
        """Send a request on, its body as it comes, and read the answer whole. `hold` is awaited with
        the bytes of the answer before they are read; what it raises is raised, and they are not read.

        Raises:
            ClientGone: before the whole body was here; the owner stored nothing.
            Unavailable: `not-owner`, outcome none: the owner cannot be reached;
                `peer-unavailable`, outcome unknown: it has the request and does not answer.
        """
        target = _base_of(owner_url) + scope["raw_path"].decode("ascii")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("ascii")
        body = _ForwardedBody(receive)

        async def asked() -> Answer:
            async with self._session(owner_url).request(
                scope["method"],
                target,
                headers=_headers(scope),
                data=body.parts() if _has_body(scope) else None,
                allow_redirects=False,
                timeout=self._timeout,
            ) as answer:
                if hold is not None:
                    size = 0 if answer.status == 204 else answer.content_length
                    await hold(self._answer_size_max if size is None else size)
                return await self._whole(answer, owner_url)

        try:
            return await _with_a_repeat(asked, scope["method"] in _READS)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise not_owner(owned=self._owned) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if body.client_gone:
                raise ClientGone from error
            raise self._unanswered(
                Outcome.NONE if scope["method"] in _READS else Outcome.UNKNOWN
            ) from error

    async def send(
        self, owner_url: str, method: str, target: str, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        """Send an owner a request of our own, and read the answer whole; `target` is a path with
        its query.

        Raises:
            Unavailable: `not-owner`, outcome none: the owner cannot be reached;
                `peer-unavailable`, outcome unknown: it may have the request, and does not answer.
        """

        async def asked() -> Answer:
            async with self._session(owner_url).request(
                method,
                _base_of(owner_url) + target,
                headers={**passed_on(), **headers},
                data=body,
                allow_redirects=False,
                timeout=self._timeout,
            ) as answer:
                return await self._whole(answer, owner_url)

        try:
            return await _with_a_repeat(asked, method in _READS)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise not_owner(owned=self._owned) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unanswered(Outcome.UNKNOWN) from error

    async def aclose(self) -> None:
        self._closed = True
        for session in self._sessions.values():
            await session.close()

    def _session(self, owner_url: str) -> aiohttp.ClientSession:
        if self._closed:
            raise not_owner(owned=self._owned)
        session = self._sessions.get(owner_url)
        if session is None:
            scheme, _, rest = owner_url.partition("://")
            connector: aiohttp.BaseConnector = (
                aiohttp.UnixConnector(
                    rest, limit=self._connection_count_max, keepalive_timeout=_IDLE_SECONDS
                )
                if scheme == "unix"
                else aiohttp.TCPConnector(
                    limit=self._connection_count_max, keepalive_timeout=_IDLE_SECONDS
                )
            )
            session = self._sessions[owner_url] = aiohttp.ClientSession(
                connector=connector,
                headers=headers_to(owner_url, self._secret),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            )
            send_once(session)
        return session

    async def _whole(self, answer: aiohttp.ClientResponse, owner_url: str) -> Answer:
        """An answer with all of its body.

        Raises:
            Unavailable: the owner does not take our secret.
        """
        if answer.status == _UNAUTHENTICATED:
            # Of the client's credential the owner knows nothing: it is about ours.
            log.error("the internal secret is not taken", service=self._service, url=owner_url)
            raise Unavailable(
                f"the {self._service} service does not take the internal secret of this one",
                code=Code.PEER_UNAVAILABLE,
            )
        return Answer(answer.status, _kept(answer), await _read(answer, self._answer_size_max))

    def _unanswered(self, outcome: Outcome) -> Unavailable:
        return Unavailable(
            f"the owner of {self._owned} does not answer",
            code=Code.PEER_UNAVAILABLE,
            outcome=outcome,
            retry_after_seconds=1,
        )


def said_in(answer: Answer) -> Any:
    """What an owner answered to a request of our own, as JSON.

    Raises:
        StoreError: what it refused, as it said it.
    """
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        value = None
    if answer.status == 200 and value is not None:
        return value
    retry_after = dict(answer.headers).get(b"retry-after", b"").decode("latin-1")
    error = error_from_problem(answer.status, value, retry_after=retry_after)
    # An answer that says nothing of the outcome came from no owner that we know.
    says = isinstance(value, dict) and "outcome" in value
    raise error if says else restated(error, Outcome.UNKNOWN)


@guard("a change is passed on once")
def send_once(session: aiohttp.ClientSession) -> None:
    """Let a session send each request once.

    aiohttp sends a PUT or a DELETE again, unasked, when the kept connection that it took breaks before
    the answer. The first may have been done: then the second deletes what was created since, or finds
    nobody there, and it would be said that nothing was done.
    """
    # aiohttp has no public name for it; the test of this guard sees whether it still works.
    session._retry_connection = False  # noqa: SLF001


async def _with_a_repeat(ask: Callable[[], Awaitable[Answer]], is_read: bool) -> Answer:
    try:
        return await ask()
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
        if not is_read:
            raise
    return await ask()


async def send_forwarded(send: Send, answer: Answer) -> None:
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    if answer.status == 204:
        headers.pop()
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class _ForwardedBody:
    """The body of a request while it is being sent on."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.client_gone = False

    async def parts(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.client_gone = True
                raise ClientGone
            part = message.get("body", b"")
            if part:
                yield part
            if not message.get("more_body", False):
                return


def _headers(scope: Scope) -> list[tuple[str, str]]:
    principal = principal_of(scope)
    sent = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name not in _HOP
    ]
    sent += passed_on().items()
    actor = principal.actor if principal.authenticated else None
    return sent + encode_forwarded(ForwardedFor(principal.tenant, actor))


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


def _kept(answer: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    return [
        (name.lower(), value)
        for name, value in answer.raw_headers
        if name.decode("latin-1").lower() not in _ANSWER_HOP
    ]


async def _read(answer: aiohttp.ClientResponse, size_max: int) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > size_max:
            raise aiohttp.ClientPayloadError("the answer is too large")
        parts.append(part)
    return b"".join(parts)


def _base_of(owner_url: str) -> str:
    scheme, _, rest = owner_url.partition("://")
    return "http://owner" if scheme == "unix" else f"http://{rest.rstrip('/')}"
