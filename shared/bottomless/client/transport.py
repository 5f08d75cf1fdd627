"""Transport: what a request and its answer are, whichever library carries them.

Two carry them: `control.py` short questions, `bulk.py` the bytes of records. Both answer
with the same values and fail with the same errors, so that nothing above knows which.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from bottomless.client.credential import Credential
from bottomless.errors import Outcome, Unavailable
from bottomless.model.limits import MIB

ANSWER_SIZE_MAX: Final = 256 * MIB
"""More than any page can be as JSON; no answer makes this program hold more."""

USER_AGENT: Final = "bottomless-python"


class Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, int | str] = {}
    headers: Mapping[str, str] = {}
    body: bytes | None = None

    @property
    def changes(self) -> bool:
        """Whether something may be changed although its answer is lost."""
        return self.method not in ("GET", "HEAD")


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in any case."""
    body: bytes


class OpenAnswer(NamedTuple):
    """An answer whose body comes piece by piece."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]
    """Ends where the body ends; raises `Unavailable` where the connection does first."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long things are waited for, in seconds."""

    connect: float = 10.0
    answer: float = 60.0
    """From the first byte of a request to the last of its answer."""
    silence: float = 60.0
    """Between two pieces of an answer that stays open; a heartbeat comes every 15."""


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a transport talks to, and on whose behalf."""

    url: str
    credential: Credential = field(default_factory=Credential)
    timeouts: Timeouts = field(default_factory=Timeouts)
    tls: ssl.SSLContext | None = None
    """Whom to trust, of a url with https."""

    def headers(self) -> dict[str, str]:
        return {"User-Agent": USER_AGENT, **self.credential.headers()}


class Transport(Protocol):
    """Raises `Unavailable` alone; a status is for the caller to judge."""

    async def send(self, request: Request) -> Answer: ...

    async def close(self) -> None: ...


class OpenTransport(Transport, Protocol):
    def open(self, request: Request) -> AbstractAsyncContextManager[OpenAnswer]:
        """GET what may be longer than memory, or never end; leaving the block closes it."""
        ...


class OnFirstUse:
    """An `OpenTransport` that is made when something is first sent by it.

    Its library takes longer to load than a short question takes, and many programs ask
    nothing else.
    """

    def __init__(self, make: Callable[[], OpenTransport]) -> None:
        self._make = make
        self._made: OpenTransport | None = None
        self._closed = False

    async def send(self, request: Request) -> Answer:
        return await self._transport().send(request)

    def open(self, request: Request) -> AbstractAsyncContextManager[OpenAnswer]:
        return self._transport().open(request)

    async def close(self) -> None:
        self._closed = True
        if self._made is not None:
            await self._made.close()

    def _transport(self) -> OpenTransport:
        # Also for what is tried again: it would open connections that nobody closes.
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._made is None:
            self._made = self._make()
        return self._made


def no_answer(request: Request, *, sent: bool) -> Unavailable:
    """The error where no whole answer came."""
    return Unavailable("the server does not answer", outcome=outcome_of(request, sent=sent))


def broken_off(request: Request) -> Unavailable:
    """The error where an answer ended before its end."""
    return Unavailable("the answer broke off", outcome=outcome_of(request, sent=True))


def too_long(request: Request) -> Unavailable:
    return Unavailable(
        "the answer is longer than any of ours",
        retryable=False,
        outcome=outcome_of(request, sent=True),
    )


def outcome_of(request: Request, *, sent: bool) -> Outcome:
    """What is known of a request that got no answer that says it."""
    return Outcome.UNKNOWN if sent and request.changes else Outcome.NONE
