"""Wire: one call, one answer, and every failure as a `StoreError`.

Every part of the client is built on it. A call is sent again only where that cannot do anything
twice (`retry.py`), and never past its deadline; no redirect is followed.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Final, Self

import orjson

from bottomless.client.belonging import Belonging
from bottomless.client.encoding import JSON
from bottomless.client.problems import error_from_problem
from bottomless.client.retry import retried
from bottomless.client.transport import (
    Answer,
    OpenAnswer,
    OpenTransport,
    QueryValue,
    Request,
    Transport,
    outcome_of,
)
from bottomless.errors import Code, Outcome, StoreError, Unavailable
from bottomless.model.limits import MIB

LIST_PAGE_SIZE: Final = 1000
"""Items that a page of a list holds at most, so that a long list costs few requests."""

_PROBLEM_SIZE_MAX: Final = MIB
_CALLS_OF_SUPER_STREAMS: Final = (
    "read_super, follow_super and super_consumer read all of them, super_producer and append_super"
    " write to them"
)
"""What to call instead, where a call about a stream names a super stream."""


class Wire:
    """Talks to one server, or to the proxy in front of several."""

    def __init__(
        self,
        control: Transport,
        bulk: OpenTransport,
        appends: Transport | None = None,
        *,
        retry_seconds: float,
        on_retry: Callable[[StoreError], None] | None = None,
    ) -> None:
        """Appends go by the transport for bulk bytes unless they have one of their own."""
        self._on_retry = on_retry
        self._control = control
        self._bulk = bulk
        self._appends: Transport = bulk if appends is None else appends
        self._retry_seconds = retry_seconds
        self._belonging = Belonging()

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
        """Close every connection; calls that are in flight fail."""
        self._belonging.require()
        try:
            await self._control.close()
        finally:
            try:
                await self._appends.close()
            finally:
                await self._bulk.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, QueryValue] | None = None,
        *,
        content: bytes | None = None,
        type_sent: str | None = None,
        type_wanted: str = JSON,
        headers: Mapping[str, str] | None = None,
        bulk: bool = False,
        waits: bool = False,
        repeatable: bool = False,
        retry_seconds: float | None = None,
        line: str | None = None,
    ) -> Answer:
        """One call, until it is answered or refused.

        `bulk` says that it carries records, `waits` that the answer may come when there is something
        to say, `repeatable` that the same again is the same, `line` after which calls it comes.
        """
        self._belonging.require()
        named = {"Accept": _accepted(type_wanted), **(headers or {})}
        if type_sent:
            named["Content-Type"] = type_sent
        request = Request(method, path, query or {}, named, content, line)
        transport = self._control
        if bulk:
            transport = self._bulk if content is None else self._appends
        if waits:
            # Not where others would wait for a connection until it is answered.
            transport = self._bulk

        async def attempt() -> Answer:
            answer = await transport.send(request)
            _check(request, answer)
            return answer

        return await retried(
            attempt,
            self._retry_seconds if retry_seconds is None else retry_seconds,
            repeatable=repeatable or not request.changes,
            on_retry=self._on_retry,
        )

    async def _send_json(
        self,
        method: str,
        path: str,
        value: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Send a value as JSON, or nothing for None, and return the members of the answer."""
        content = None if value is None else orjson.dumps(value)
        sent = None if value is None else JSON
        answer = await self._send(
            method, path, content=content, type_sent=sent, headers=headers, repeatable=repeatable
        )
        return members(answer, changes=method != "GET")

    @asynccontextmanager
    async def _open(
        self,
        path: str,
        query: Mapping[str, QueryValue],
        type_wanted: str,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[OpenAnswer]:
        """GET what may be longer than memory, or never end; leaving the block closes it."""
        self._belonging.require()
        named = {"Accept": _accepted(type_wanted), **(headers or {})}
        request = Request("GET", path, query, named)
        async with self._bulk.open(request) as answer:
            if not _is_success(answer.status):
                body = await _beginning(answer.pieces)
                _check(request, Answer(answer.status, answer.headers, body))
            yield answer

    async def _list(
        self,
        path: str,
        query: Mapping[str, QueryValue] | None = None,
        *,
        items: str = "items",
        unreadable: Callable[[dict[str, Any]], object] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Every item of a list, page by page; `unreadable` is told what stands beside them."""
        asked = {"limit": LIST_PAGE_SIZE, **(query or {})}
        while True:
            value = members(await self._send("GET", path, asked))
            with understood():
                listed = list(value[items])
            for item in listed:
                yield item
            if unreadable is not None:
                for item in value.get("unreadable", ()):
                    unreadable(item)
            if not value.get("next_page_token"):
                return
            asked["page_token"] = value["next_page_token"]


def members(answer: Answer, *, changes: bool = False) -> dict[str, Any]:
    """Read the members of a JSON object that a server of ours answered.

    Raises:
        Unavailable: the answer is not that of one of our services but a proxy's page, or that of
            another port. If the call `changes` something, nobody knows then whether it did.
    """
    value = _json_or_none(answer)
    if not isinstance(value, dict) or "Request-Id" not in answer.headers:
        raise stranger(Outcome.UNKNOWN if changes else Outcome.NONE)
    return value


@contextmanager
def understood(outcome: Outcome = Outcome.NONE) -> Iterator[None]:
    """Take what is needed out of an answer, inside of the block.

    Raises:
        Unavailable: it is not there, or another thing stands there.
    """
    try:
        yield
    except (StoreError, KeyError, TypeError, ValueError) as error:
        raise stranger(outcome) from error


def number_in(value: Mapping[str, Any], name: str) -> int:
    """Take a number out of an answer that is read inside of `understood`.

    Raises:
        KeyError, TypeError: there is none.
    """
    found = value[name]
    if not isinstance(found, int):
        raise TypeError(name)
    return found


def stranger(outcome: Outcome = Outcome.NONE) -> Unavailable:
    """Make the error for an answer that is not that of a server of ours. It is not raised here."""
    sentence = "the answer is not that of a Bottomless server"
    return Unavailable(sentence, retryable=False, outcome=outcome)


def _accepted(type_wanted: str) -> str:
    return f"{type_wanted}, application/problem+json"


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _is_strange(status: int) -> bool:
    """Whether only another program says so without a problem; the other statuses proxies use too."""
    return status < 400 or status in (404, 405, 501)


def _check(request: Request, answer: Answer) -> None:
    """Raise what an answer says, unless it says success.

    Raises:
        StoreError: as the answer says.
    """
    if _is_success(answer.status):
        return
    problem = _json_or_none(answer)
    if _is_strange(answer.status) and not (isinstance(problem, dict) and "code" in problem):
        raise stranger(outcome_of(request, sent=True))
    error: StoreError = error_from_problem(
        answer.status, problem, retry_after=answer.headers.get("Retry-After")
    )
    # A page of a proxy's own. What it stands before may have done the work and been slow.
    told = isinstance(problem, dict) and "outcome" in problem
    if not told and answer.status >= 500:
        error.outcome = outcome_of(request, sent=True)
    if error.code is Code.STREAM_NOT_FOUND and "super_id" in error.facts:
        error.message = f"{error.message}; {_CALLS_OF_SUPER_STREAMS}"
    raise error


def _json_or_none(answer: Answer) -> Any:
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return None


async def _beginning(pieces: AsyncIterator[bytes]) -> bytes:
    parts, size = [], 0
    async for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > _PROBLEM_SIZE_MAX:
            break
    return b"".join(parts)
