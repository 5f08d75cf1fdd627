"""Answers that stay open: records as they are appended, as events or as lines.

Each goes from page to page at its client's own speed: the next page is read when the one
before it was taken, so that a connection holds one page that is on its way and one that
waits, both of a bounded size. At the end of a stream all wait for one question to the
owner (shared_tail.py). An answer never jumps: it ends, with a reason and the offset to go
on from. That offset is the end of what the connection accepted, whatever was read since: a
send that was given up has written nothing.

On the record's path: after page_reader.py put a page together.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from bottomless.errors import Code, StoreError, Unavailable
from bottomless.model.backoff import backoff
from bottomless.model.offset_spec import At, format_timestamp
from bottomless_server.protocol.tail import Bounds
from bottomless_server.reader.followers import Followers, FollowRequest, SharedPage
from bottomless_server.reader.pages import PASS_MS, Page, PageQuery
from bottomless_server.reader.runs_ahead import reader_that_stays
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.on_loop import loop_time
from bottomless_server.runtime.http.connection import gone, while_connected
from bottomless_server.runtime.identity.credential_watch import CredentialWatch, credential_watch_of

TROUBLE_SECONDS: Final = 30.0
"""How long the services that we ask may be away before an answer ends for it."""
PASS_SECONDS: Final = PASS_MS / 1000
_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 2.0
_TOLD: Final = ("first_offset", "readable_offset", "fragment_id")
"""What an end says of its error as the problem of a page does: what cannot be read, and from where
on it can."""


class _BlockedError(Exception):
    """The client took nothing for too long."""


class End(NamedTuple):
    """Why an answer ends."""

    reason: str
    members: Mapping[str, Any] = {}


class Leave(NamedTuple):
    """What ends an answer from outside, as tasks that are done when it is so."""

    draining: "asyncio.Task[bool]"
    watch: "asyncio.Task[StoreError] | None"
    lost: "asyncio.Task[StoreError] | None"

    def end(self) -> End | None:
        """Why the answer ends now, if it does."""
        if self.draining.done():
            return End("draining")
        if self.lost is not None and self.lost.done():
            return _error_end(self.lost.result())
        if self.watch is None or not self.watch.done():
            return None
        error = self.watch.result()
        if isinstance(error, Unavailable):
            return _error_end(error)
        return End("token-expired")

    async def wait_for(self, reading: "asyncio.Task[Any]") -> None:
        """Return when it is read, or when the answer ends."""
        await asyncio.wait({reading, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)

    async def wait(self, seconds: float) -> None:
        """Let some time pass, less if the answer ends."""
        await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    @property
    def _tasks(self) -> "set[asyncio.Task[Any]]":
        return {task for task in self if task is not None}


class FollowResponse(Response):
    """One of them. What fails before the first byte is a problem, as of a page."""

    def __init__(self, followers: Followers, wanted: FollowRequest) -> None:
        super().__init__()
        self._followers = followers
        self._wanted = wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        followers, wanted = self._followers, self._wanted
        followers.check()
        try:
            async with reader_that_stays():
                with followers.places.one():
                    query = followers.bounded(wanted.query, wanted.limit)
                    first = await while_connected(receive, self._first(query))
                    following = Following(
                        followers, wanted, SharedPage(first), send, credential_watch_of(scope)
                    )
                    await self._stay(following, scope, receive)
        finally:
            followers.left()

    async def _first(self, query: PageQuery) -> Page:
        reader, wanted = self._followers.reader, self._wanted
        if wanted.fence is None:
            return await reader.page(wanted.name, query)
        return await wanted.fence.page(wanted.name, lambda: reader.page(wanted.name, query))

    async def _stay(self, following: "Following", scope: Scope, receive: Receive) -> None:
        working = asyncio.create_task(following.run())
        leaving = asyncio.create_task(gone(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if working.done() and following.blocked:
                # What waits in the connection cannot be taken back: it gets its last words
                # and a little time, and is then cut off with all that it holds.
                if (cut := scope.get("bottomless.cut")) is not None:
                    cut(following.end(End("slow-consumer")) if following.begun else None)
                    await leaving
            elif working.done():
                working.result()
        finally:
            await end_tasks(working, leaving)


@dataclass(eq=False)
class Following:
    """The work for one client, from the first byte to the last."""

    followers: Followers
    wanted: FollowRequest
    shared: SharedPage | None
    """What is to be sent next."""
    send: Send
    watch: CredentialWatch | None = None
    """The watch of its credential, where there is one."""
    blocked: bool = False
    """The client took nothing for too long."""
    begun: bool = False
    """Its head was sent, so that something of it can stand after that."""
    _sent_at: float = 0
    _batch_at: float = 0
    """When a batch was sent, from whose end a client goes on."""
    next_offset: int = 0
    """Offset after what was sent, or passed over without a record that a filter asks for: where a
    client goes on, and what is read next."""
    _committed_next: int = 0
    _bounds: Bounds | None = None

    def __post_init__(self) -> None:
        assert self.shared is not None
        page = self.shared.page
        self._framing = self.wanted.framing(page)
        self._stream_id = page.stream.stream_id
        self._headers = {
            "content-type": self._framing.media_type,
            "cache-control": "no-cache, no-transform",
            "x-accel-buffering": "no",
            "stream-id": self._stream_id,
            "stream-first-offset": str(page.first_offset),
            "page-start-offset": str(page.start.offset),
            "stream-next-offset": str(page.committed_next),
        }
        self.next_offset = page.start.offset
        self.remember(page)

    async def run(self) -> None:
        raw = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        draining = asyncio.create_task(self.followers.draining.wait())
        watch = None if self.watch is None else asyncio.create_task(self.watch.ended())
        fence, stream_id = self.wanted.fence, self._stream_id
        lost = None if fence is None else asyncio.create_task(fence.lost(stream_id))
        try:
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
            self.begun = True
            await self._send_body(self._framing.opening)
            end = await self._follow(Leave(draining, watch, lost))
            await self._send_body(self.end(end), more=False)
        except _BlockedError:
            self.blocked = True
        finally:
            await end_tasks(*(task for task in (draining, watch, lost) if task is not None))

    def end(self, end: End) -> bytes:
        return self._framing.end(end.reason, {"next_offset": self.next_offset, **end.members})

    async def _follow(self, leave: "Leave") -> End:
        bounds, wanted = self.followers.bounds, self.wanted
        # Spread, so that clients that came together do not all come back together.
        rotate_at = loop_time() + bounds.rotate_seconds * random.uniform(0.5, 1.5)  # noqa: S311
        left = wanted.limit
        first = True
        while True:
            assert self.shared is not None
            count, until = self.shared.page.count, wanted.query.until
            await self._send_batch(first=first)
            first = False
            if left is not None and (left := left - count) <= 0:
                return End("max-records")
            if until is not None and self.next_offset >= until:
                return End("until-offset")
            if (end := await self._wait(left, rotate_at, leave)) is not None:
                return end

    async def _send_batch(self, *, first: bool) -> None:
        """Send the page; even an empty first one, since its id is where a reader resumes."""
        assert self.shared is not None
        page = self.shared.page
        next_offset = page.next_offset
        members: dict[str, Any] = {
            "next_offset": next_offset,
            "up_to_date": page.up_to_date,
        }
        if first:
            members |= {"start_offset": page.start.offset, "clamped": page.start.clamped}
        if page.gaps:
            members["gaps"] = [gap._asdict() for gap in page.gaps]
        body = await self.shared.body(self._framing, self.wanted.encoding, members)
        # Not kept while the client takes its time.
        del page
        self.shared = None
        await self._send_body(body)
        # Not before: a send that is given up waits for its client first, and writes nothing.
        self.next_offset = next_offset
        self._batch_at = loop_time()

    async def _wait(self, left: int | None, rotate_at: float, leave: "Leave") -> End | None:
        """Read the next page that holds something; meanwhile say that this answer lives."""
        trouble_since: float | None = None
        failures = 0
        while True:
            now = loop_time()
            beat_at = self._sent_at + self.followers.bounds.heartbeat_seconds
            if (end := leave.end()) is not None:
                return end
            if now >= rotate_at:
                return End("rotate")
            if now >= beat_at:
                await self._beat()
                continue
            seconds = min(beat_at, rotate_at) - now
            reading = asyncio.create_task(self._read(left, seconds))
            try:
                await leave.wait_for(reading)
                if (end := leave.end()) is not None:
                    if reading.done():
                        reading.exception()
                    return end
                shared = reading.result()
            except StoreError as error:
                trouble_since = now if trouble_since is None else trouble_since
                end = _end_of(error, trouble_for=loop_time() - trouble_since)
                if end is not None:
                    return end
                pause = backoff(failures, _PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
                failures += 1
                await leave.wait(pause * random.uniform(0.5, 1))  # noqa: S311
                continue
            finally:
                reading.cancel()
            trouble_since, failures = None, 0
            if shared is None:
                continue
            page = shared.page
            advanced = page.next_offset > self.next_offset
            self.remember(page)
            if advanced and self._passes_over(page):
                self.next_offset = page.next_offset
            elif advanced:
                self.shared = shared
                return None

    def _passes_over(self, page: Page) -> bool:
        """Whether a page of a filter that found nothing need not be sent: its client knows of a place
        not far before it, and goes on from there."""
        until = self.wanted.query.until
        if page.scan is None or page.count or page.gaps:
            return False
        if until is not None and page.next_offset >= until:
            return False
        return loop_time() - self._batch_at < PASS_SECONDS

    async def _read(self, left: int | None, seconds: float) -> SharedPage | None:
        query = replace(
            self.wanted.query,
            spec=At(self.next_offset),
            consumer=None,
            default=None,
            strict=True,
            stream_id=self._stream_id,
            known=self._bounds,
        )
        followers = self.followers
        shared = await followers.read(self.wanted.name, followers.bounded(query, left), seconds)
        if shared is not None and self.wanted.fence is not None:
            # All who follow share the page, and not all of them may still have it.
            await self.wanted.fence.check(self._stream_id)
        return shared

    def remember(self, page: Page) -> None:
        """Take from a page that was read what beats say of the stream."""
        if page.end_known:
            self._committed_next, self._bounds = page.committed_next, page.bounds
        else:
            self._committed_next = max(self._committed_next, page.committed_next)

    async def _beat(self) -> None:
        committed_next = self._committed_next
        members = {
            "next_offset": self.next_offset,
            "committed_offset": committed_next - 1 if committed_next else None,
            "time": format_timestamp(round(self.followers.now() * 1000)),
        }
        await self._send_body(self._framing.heartbeat(members))

    async def _send_body(self, body: bytes, *, more: bool = True) -> None:
        if body or not more:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self.followers.bounds.blocked_seconds):
                await self.send(message)
        except TimeoutError:
            raise _BlockedError from None
        self._sent_at = loop_time()


def _error_end(error: StoreError) -> End:
    return End("error", {"code": error.code, "retryable": error.retryable})


def _end_of(error: StoreError, *, trouble_for: float) -> End | None:
    """What an error means to who follows; None if it may pass."""
    if error.code in {Code.STREAM_NOT_FOUND, Code.STREAM_REPLACED}:
        return End("stream-deleted")
    if error.code is Code.OFFSET_TRIMMED:
        return End("offset-trimmed", {"first_offset": error.facts["first_offset"]})
    if error.retryable and trouble_for < TROUBLE_SECONDS:
        return None
    told: dict[str, Any] = {"code": error.code, "retryable": error.retryable}
    told |= {name: error.facts[name] for name in _TOLD if name in error.facts}
    return End("error", told)
