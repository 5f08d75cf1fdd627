"""`POST /v1/streams/{name}/records`, spoken as raw ASGI.

FastAPI costs four times as much as the rest of a small append, so it stands beside this
one and serves everything else.

On the record's path: after openapi/ingest.yaml, before core/intake.py. What is refused is
refused in this order: the request's form, the stream, room for it, its body.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import orjson
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import (
    Code,
    Fault,
    InvalidRequest,
    Outcome,
    Overloaded,
    StoreError,
    Unavailable,
)
from bottomless.model.limits import BINARY_BODY_SIZE_MAX, JSON_BODY_SIZE_MAX, KIB
from bottomless.model.names import StreamId, parse_stream_name
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.ingest.appender import Appended
from bottomless_server.ingest.core.admission import Admission
from bottomless_server.ingest.core.intake import Append, take_arrow, take_json, take_raw
from bottomless_server.ingest.names import StreamNames
from bottomless_server.ingest.owner import Clocks
from bottomless_server.ingest.pulse import Pulse, wait_for
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.ingest.streams import OwnedStreams
from bottomless_server.ingest.upkeep import DiskUse
from bottomless_server.runtime.http import (
    ClientGone,
    content_encoding,
    content_type,
    encode_json,
    header,
    parse_json,
    parse_query,
    read_body,
    request_id_of,
    send_problem,
)

log = structlog.get_logger(__name__)
_T = TypeVar("_T")

JSON: Final = "application/json"
RAW: Final = "application/octet-stream"
ARROW: Final = "application/vnd.apache.arrow.stream"
ACCEPTED: Final = (JSON, RAW, ARROW)

_BODY_SIZES: Final = {
    JSON: JSON_BODY_SIZE_MAX,
    RAW: BINARY_BODY_SIZE_MAX,
    ARROW: BINARY_BODY_SIZE_MAX,
}
_PATH: Final = re.compile(r"/v1/streams/([^/]+)/records")
_INLINE_SIZE: Final = 64 * KIB
"""Bodies above are read in a thread, since the loop serves everybody."""

_PROMISES: Final = (
    b"producer-id",
    b"producer-epoch",
    b"producer-seq",
    b"producer-start",
    b"txn-number",
    b"idempotency-key",
    b"stream-expected-offset",
)
"""Headers that ask for a guarantee that is not there yet: ignoring one would break it."""


class AppendRoute:
    """The public application: this one path raw, everything else by `others`."""

    def __init__(self, appends: "Appends", others: ASGIApp) -> None:
        self._appends = appends
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = _PATH.fullmatch(scope["path"]) if scope["method"] == "POST" else None
        if match is None:
            await self._others(scope, receive, send)
            return
        request_id = request_id_of(scope)
        try:
            stream_id, appended = await self._appends.take(match[1], scope, receive)
        except ClientGone:
            # Nobody is there to answer, and nothing was stored.
            return
        except StoreError as error:
            await send_problem(send, error, request_id)
            return
        except Exception:
            log.exception("an append met a bug", request_id=request_id)
            bug = StoreError("an unexpected error", outcome=Outcome.UNKNOWN)
            await send_problem(send, bug, request_id)
            return
        await _send_answer(send, stream_id, appended, minimal=_wants_minimal(scope))


class Appends:
    """Appends in flight: counted, so that a stop can wait for them."""

    def __init__(
        self, settings: IngestSettings, names: StreamNames, disk: DiskUse, clocks: Clocks
    ) -> None:
        self._settings = settings
        self._names = names
        self._disk = disk
        self._clocks = clocks
        self._streams: OwnedStreams | None = None
        self._admission = Admission(
            settings.ingest_stream_queue_bytes_max, settings.ingest_queue_bytes_max
        )
        self._room = Pulse()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._draining = False

    def open(self, streams: OwnedStreams) -> None:
        """Take appends from now on."""
        self._streams = streams

    async def drain(self) -> None:
        """Refuse new appends, and return when those in flight are answered."""
        self._draining = True
        while self._in_flight:
            self._idle.clear()
            await self._idle.wait()

    async def take(self, text: str, scope: Scope, receive: Receive) -> tuple[StreamId, Appended]:
        """Everything that one append request does.

        Raises:
            StoreError: with the outcome that is known.
            ClientGone: before the whole body was here.
        """
        media_type = _check_form(scope)
        name = parse_stream_name(text)
        if self._draining or self._streams is None:
            raise Unavailable("this node stops", code=Code.DRAINING, retry_after_seconds=1)
        self._in_flight += 1
        try:
            stream_id = await self._names.find(name)
            appender = await self._streams.get(stream_id)
            self._disk.require_room()
            async with self._room_for(stream_id, _declared_size(scope, media_type)):
                append = await self._read(scope, receive, media_type)
                return stream_id, await appender.append(append)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    @asynccontextmanager
    async def _room_for(self, stream_id: StreamId, size: int) -> AsyncIterator[None]:
        """Hold room for a request of `size` bytes, from before its body is read.

        Raises:
            Overloaded: there was none within the deadline.
        """
        deadline = self._clocks.monotonic() + self._settings.ingest_queue_wait_ms / 1000
        freed = self._room.next()
        while not self._admission.take(stream_id, size):
            left = deadline - self._clocks.monotonic()
            if left <= 0 or not await wait_for(freed, left):
                raise Overloaded("too many appends are waiting", retry_after_seconds=1)
            freed = self._room.next()
        try:
            yield
        finally:
            self._admission.give_back(stream_id, size)
            self._room.fire()

    async def _read(self, scope: Scope, receive: Receive, media_type: str) -> Append:
        try:
            async with asyncio.timeout(self._settings.ingest_body_wait_ms / 1000):
                body = await read_body(scope, receive, _BODY_SIZES[media_type])
        except TimeoutError:
            raise Overloaded("the body did not arrive in time", retry_after_seconds=1) from None
        if media_type == RAW:
            key, filter_value = header(scope, b"stream-key"), header(scope, b"stream-filter-value")
            return take_raw(body, key, filter_value)
        if media_type == ARROW:
            size_max = self._settings.ingest_chunk_size_max
            return await _off_loop(len(body), take_arrow, body, size_max)
        return await _off_loop(len(body), _take_json, body)


def _take_json(body: bytes) -> Append:
    return take_json(body, parse_json(body), encode_json)


async def _off_loop(size: int, call: Callable[..., _T], *arguments: Any) -> _T:
    if size <= _INLINE_SIZE:
        return call(*arguments)
    return await asyncio.to_thread(call, *arguments)


def _check_form(scope: Scope) -> str:
    """What can be refused without the stream or the body; returns the media type."""
    parse_query(scope, {})
    for name in _PROMISES:
        if header(scope, name) is not None:
            sentence = "what this header asks for is not supported yet"
            fault = Fault(Code.BAD_HEADER, sentence, header=name.decode())
            raise InvalidRequest(sentence, code=Code.BAD_HEADER, faults=[fault])
    media_type = content_type(scope, ACCEPTED)
    content_encoding(scope)
    return media_type


def _declared_size(scope: Scope, media_type: str) -> int:
    """Bytes to hold for a body: what it says, or what it may have at most."""
    limit = _BODY_SIZES[media_type]
    declared = header(scope, b"content-length")
    if declared is None or not declared.isdigit():
        return limit
    return min(int(declared), limit)


def _wants_minimal(scope: Scope) -> bool:
    """Whether `Prefer: return=minimal` is there; preferences that are not known are no faults."""
    preferences = b",".join(value for name, value in scope["headers"] if name == b"prefer")
    words = (word.partition(b";")[0].strip().lower() for word in preferences.split(b","))
    return b"return=minimal" in words


async def _send_answer(
    send: Send, stream_id: StreamId, appended: Appended, *, minimal: bool
) -> None:
    headers = [
        (b"stream-id", stream_id.encode("ascii")),
        (b"stream-next-offset", b"%d" % appended.next_offset),
    ]
    if minimal:
        first_offset = b"%d" % appended.first_offset
        headers.append((b"stream-first-offset-appended", first_offset))
        headers.append((b"preference-applied", b"return=minimal"))
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body"})
        return
    body = orjson.dumps(
        {
            "stream_id": stream_id,
            "first_offset": appended.first_offset,
            "last_offset": appended.next_offset - 1,
            "next_offset": appended.next_offset,
            "count": appended.next_offset - appended.first_offset,
            "duplicates": 0,
            "timestamp": format_timestamp(appended.timestamp),
            "durability": "fsync",
        }
    )
    headers.append((b"content-type", b"application/json"))
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
