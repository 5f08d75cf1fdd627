"""Transport: requests and their answers, whichever library carries them.

`exchange.py` carries short questions and appends, `bulk.py` the bytes that are read, `control.py`
questions over a transport that a program passes in. All answer with the same values and fail with the same errors, so that nothing above knows which.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn, Protocol, TypeAlias

from bottomless.client.credential import Credential
from bottomless.client.unreachable import trouble_of
from bottomless.errors import Outcome, Unavailable
from bottomless.model.limits import MIB

ANSWER_SIZE_MAX: Final = 256 * MIB
"""More bytes than any page can have as JSON; no answer makes this program hold more."""

USER_AGENT: Final = "bottomless-python"


QueryValue: TypeAlias = int | str | tuple[str, ...]
"""A parameter of a request; it stands in the query as often as it has texts."""


class Request(NamedTuple):
    """One HTTP request, before the url of the server and the credential are added."""

    method: str
    path: str
    query: Mapping[str, QueryValue] = {}
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    line: str | None = None
    """Requests of one line may go over one connection, in the order in which they were handed over,
    before those before them are answered. Each must be one that may be sent twice."""

    @property
    def changes(self) -> bool:
        """Whether something may have changed although the answer was lost."""
        return self.method not in ("GET", "HEAD")


class Answer(NamedTuple):
    """A whole answer: status, headers and body."""

    status: int
    headers: Mapping[str, str]
    """Looked up by names in upper or lower case."""
    body: bytes


class OpenAnswer(NamedTuple):
    """An answer whose body comes piece by piece."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]
    """Ends where the body ends; raises `Unavailable` if the connection ends first."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a client waits, in seconds."""

    connect: float = 10.0
    """What making a connection may take."""
    answer: float = 60.0
    """For one attempt of a call in all, however its bytes come: from the wait for a free connection to
    the last byte of the answer."""
    silence: float = 60.0
    """Between two pieces of an answer that stays open; a heartbeat comes every 15 seconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server that a transport talks to, and the credential that it shows."""

    url: str
    credential: Credential = field(default_factory=Credential)
    timeouts: Timeouts = field(default_factory=Timeouts)
    tls: ssl.SSLContext | None = None
    """Which certificates to trust, for a url with https."""

    def headers(self) -> dict[str, str]:
        """Make the headers that every request has: program name and credential."""
        return {"User-Agent": USER_AGENT, **self.credential.headers()}


class Transport(Protocol):
    """Sends requests to one server. It leaves it to the caller to judge the status of an answer."""

    async def send(self, request: Request) -> Answer:
        """Send a request, and return the whole answer.

        Raises:
            Unavailable: there was no whole answer; its outcome says what may have happened.
        """

    async def close(self) -> None:
        """Close every connection."""


class OpenTransport(Transport, Protocol):
    """A transport that can also leave an answer open and give its body piece by piece."""

    def open(self, request: Request) -> AbstractAsyncContextManager[OpenAnswer]:
        """GET an answer that may be longer than memory, or never end.

        Leaving the block closes it.

        Raises:
            Unavailable: no answer began.
        """
        ...


class OnFirstUse:
    """An `OpenTransport` that is made when something is first sent by it.

    Loading its library takes longer than a short question, and many programs ask nothing else.
    """

    def __init__(self, make: Callable[[], OpenTransport]) -> None:
        self._make = make
        self._made: OpenTransport | None = None
        self._closed = False

    async def send(self, request: Request) -> Answer:
        """Send a request, and return the whole answer.

        Raises:
            Unavailable: there was no whole answer; its outcome says what may have happened.
        """
        return await self._transport().send(request)

    def open(self, request: Request) -> AbstractAsyncContextManager[OpenAnswer]:
        """GET an answer that may be longer than memory, or never end.

        Leaving the block closes it.

        Raises:
            Unavailable: no answer began.
        """
        return self._transport().open(request)

    async def close(self) -> None:
        """Close every connection, if any was made."""
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


def fail_without_answer(url: str, request: Request, error: Exception, *, sent: bool) -> NoReturn:
    """Raise the error for a request to `url` that has no whole answer.

    `error` is what the library raised. Where the sentence tells its reason, a traceback does not
    show it once more; it stays the context of what is raised.

    Raises:
        Unavailable: its outcome says what may have happened.
    """
    trouble = trouble_of(error, url)
    outcome = outcome_of(request, sent=sent)
    if trouble is not None:
        raise Unavailable(trouble.sentence, outcome=outcome) from None
    raise Unavailable(f"{url} does not answer", outcome=outcome) from error


def broken_off(request: Request) -> Unavailable:
    """Make the error for an answer that ended too early. It is not raised here."""
    return Unavailable("the answer broke off", outcome=outcome_of(request, sent=True))


def too_long(request: Request) -> Unavailable:
    """Make the error for an answer that is longer than any of ours. It is not raised here."""
    return Unavailable(
        "the answer is longer than any that a Bottomless server sends",
        retryable=False,
        outcome=outcome_of(request, sent=True),
    )


def outcome_of(request: Request, *, sent: bool) -> Outcome:
    """Tell what is known about a request without an answer that says it.

    `sent` is false where the request surely never reached the server.
    """
    return Outcome.UNKNOWN if sent and request.changes else Outcome.NONE
