"""Wire: one request, one answer, and every failure as a `StoreError`.

What every part of the client stands on. It neither batches nor retries, and follows no
redirect: what was sent once was sent once.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import httpx
import orjson

from bottomless.client.problems import error_from_problem
from bottomless.errors import Outcome, Unavailable

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
NDJSON: Final = "application/x-ndjson"
OCTETS: Final = "application/octet-stream"

LIST_PAGE_SIZE: Final = 1000
"""What a page of any list holds at most, so that a long list costs few requests."""


class OpenAnswer(NamedTuple):
    """An answer whose body comes piece by piece."""

    headers: Mapping[str, str]
    pieces: Iterator[bytes]
    """Ends where the body ends; raises `Unavailable` where the connection does first."""


class Wire:
    """Talks to one server, or to the proxy in front of several."""

    def __init__(self, url: str, *, timeout_seconds: float = 60) -> None:
        # No proxy from the environment: a stream server is named, never found.
        self._http = httpx.Client(
            base_url=url.rstrip("/"), timeout=timeout_seconds, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, int | str] | None = None,
        *,
        content: bytes | None = None,
        type_sent: str | None = None,
        type_wanted: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        named = {"Accept": _accepted(type_wanted), **(headers or {})}
        if type_sent:
            named["Content-Type"] = type_sent
        try:
            answer = self._http.request(method, path, params=query, content=content, headers=named)
        except httpx.RequestError as error:
            sent = method != "GET" and not isinstance(error, httpx.ConnectError)
            raise Unavailable(
                "the server does not answer", outcome=Outcome.UNKNOWN if sent else Outcome.NONE
            ) from error
        # An answer and its stream name each other: with that its bytes would stay until a full
        # collection, and a long read by pages would grow with the stream.
        answer.stream = httpx.ByteStream(b"")
        _check(answer)
        return answer

    def _send_json(
        self,
        method: str,
        path: str,
        value: object = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a value as JSON, or nothing for None, and return the members of the answer."""
        content = None if value is None else orjson.dumps(value)
        sent = None if value is None else JSON
        return members(self._send(method, path, content=content, type_sent=sent, headers=headers))

    @contextmanager
    def _open(
        self, path: str, query: Mapping[str, int | str], type_wanted: str
    ) -> Iterator[OpenAnswer]:
        """GET what may be longer than memory, or never end; leaving the block closes it."""
        request = self._http.build_request(
            "GET", path, params=query, headers={"Accept": _accepted(type_wanted)}
        )
        try:
            answer = self._http.send(request, stream=True)
        except httpx.RequestError as error:
            raise Unavailable("the server does not answer") from error
        try:
            if not answer.is_success:
                _read_all(answer)
            _check(answer)
            yield OpenAnswer(answer.headers, _pieces(answer))
        finally:
            answer.close()

    def _list(
        self, path: str, query: Mapping[str, int | str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Every item of a list, page by page."""
        asked = {"limit": LIST_PAGE_SIZE, **(query or {})}
        while True:
            value = members(self._send("GET", path, asked))
            yield from value["items"]
            if not value["next_page_token"]:
                return
            asked["page_token"] = value["next_page_token"]


def stream_path(name: str) -> str:
    return f"/v1/streams/{segment(name)}"


def segment(text: str) -> str:
    """One segment of a path, whatever is in it."""
    return quote(text, safe="")


def members(answer: httpx.Response) -> dict[str, Any]:
    value = _json_or_none(answer)
    if not isinstance(value, dict) or "Request-Id" not in answer.headers:
        # Something answered, but not one of our services: a proxy's page, another port.
        raise Unavailable("the answer is not that of a Bottomless server")
    return value


def _accepted(type_wanted: str) -> str:
    return f"{type_wanted}, application/problem+json"


def _check(answer: httpx.Response) -> None:
    if not answer.is_success:
        raise error_from_problem(
            answer.status_code,
            _json_or_none(answer),
            retry_after=answer.headers.get("Retry-After"),
        )


def _json_or_none(answer: httpx.Response) -> Any:
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return None


def _read_all(answer: httpx.Response) -> None:
    try:
        answer.read()
    except httpx.RequestError as error:
        raise Unavailable("the answer broke off") from error


def _pieces(answer: httpx.Response) -> Iterator[bytes]:
    try:
        yield from answer.iter_bytes()
    except httpx.RequestError as error:
        raise Unavailable("the answer broke off") from error
