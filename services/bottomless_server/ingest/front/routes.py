"""`POST /v1/streams/{name}/records`, spoken as raw ASGI.

FastAPI costs four times as much as the rest of a small append, so it stands beside this
one and serves everything else.

On the record's path: after openapi/ingest.yaml, before records/intake.py. What is refused is
refused in this order: the request's form, the stream, room for it, its body.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Code, NotFound, Outcome, StoreError, Unavailable
from bottomless.model.names import FullName, StreamId
from bottomless_server.ingest.front.answers import Expecting, send_answer, wants_minimal
from bottomless_server.ingest.front.forms import STAGED, Form, read_append, read_form
from bottomless_server.ingest.front.metrics import AppendCounts
from bottomless_server.ingest.front.names import StreamNames
from bottomless_server.ingest.local.appender import Appender
from bottomless_server.ingest.local.freeing import DiskUse
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.producers.commit_plan import read_staged_ids
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.ingest.staged.batches import StagedBatches
from bottomless_server.ingest.staged.commits import StagedCommits
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.forwarding import Answer, Forwarding, is_forwarded, send_forwarded
from bottomless_server.node.lease import Clocks
from bottomless_server.node.room import BodyReservation, MemoryRoom
from bottomless_server.runtime.http.app import (
    ClientGone,
    parse_json,
    read_body,
    request_id_of,
    send_problem,
)
from bottomless_server.runtime.http.encodings import decode_body
from bottomless_server.runtime.http.endpoint_table import STREAM
from bottomless_server.runtime.http.endpoints import find
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.problems import enough_memory, unexpected

log = structlog.get_logger(__name__)

_APPEND: Final = "append_records"
_OURS: Final = ("ingest",)
_DECODINGS_MAX: Final = 2
"""Bodies whose encoding is being undone at once: each may take what one may hold, twice."""


class AppendRoute:
    """The public application: appends raw, everything else by `others`; what is about a stream
    that another node owns is passed on to it."""

    def __init__(self, appends: "Appends", others: ASGIApp) -> None:
        self._appends = appends
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = find(scope)
        endpoint = found.endpoints.get(scope["method"])
        stream = found.parts.get(STREAM)
        if stream is None or endpoint is None or endpoint.operation_id != _APPEND:
            owner = None
            if stream is not None and found.services(scope["method"]) == _OURS:
                # A path of ingest alone: what it is about is the owner's.
                owner = await self._appends.owner_elsewhere(stream, scope)
            if owner is None:
                await self._others(scope, receive, send)
            else:
                await self._answer(self._forward(owner, scope, receive, send), scope, send)
            return
        expecting = Expecting(scope, receive, send)
        work = self._append(stream, scope, expecting.receive, expecting.send)
        await self._answer(work, scope, expecting.send)

    async def _append(self, text: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._appends.take(text, scope, receive)
        except OwnedElsewhere as owner:
            if is_forwarded(scope):
                raise
            await self._forward(owner, scope, receive, send)
            return
        await send_answer(send, *answer, minimal=wants_minimal(scope))

    async def _forward(
        self, owner: OwnedElsewhere, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await send_forwarded(send, await self._appends.forward(owner, scope, receive))

    async def _answer(self, work: Awaitable[None], scope: Scope, send: Send) -> None:
        request_id = request_id_of(scope)
        try:
            await work
        except ClientGone:
            # Nobody is there to answer, and nothing was stored.
            return
        except StoreError as error:
            await send_problem(send, error, request_id, scope["path"])
        except Exception as error:
            log.exception("an append met a bug", request_id=request_id)
            await send_problem(send, unexpected(error, Outcome.UNKNOWN), request_id)


class Appends:
    """Appends in flight: counted, so that a stop can wait for them."""

    def __init__(
        self,
        settings: IngestSettings,
        names: StreamNames,
        disk: DiskUse,
        clocks: Clocks,
        staged: StagedBatches,
        forwarding: Forwarding,
    ) -> None:
        self._settings = settings
        self._names = names
        self._forwarding = forwarding
        self._disk = disk
        self._clocks = clocks
        self._streams: OwnedStreams | None = None
        self.room = MemoryRoom(
            Admission(settings.ingest_stream_queue_bytes_max, settings.ingest_queue_bytes_max),
            clocks.monotonic,
            settings.ingest_queue_wait_ms / 1000,
        )
        self._decoding = asyncio.Semaphore(_DECODINGS_MAX)
        self.counts = AppendCounts()
        self.drop_damaged_plan = staged.drop_damaged_plan
        self._commits = StagedCommits(staged, clocks, settings.group_bytes_max, self.room.hold)
        self.settle_commits = self._commits.settle
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._draining = False

    @property
    def frame_size_max(self) -> int:
        return self._settings.ingest_chunk_size_max

    @property
    def queue_size(self) -> int:
        return self.room.admission.total

    def open(self, streams: OwnedStreams) -> None:
        """Take appends from now on."""
        self._streams = streams

    async def find(self, name: FullName) -> Appender:
        """The appender of a stream.

        Raises:
            StoreError: there is none, or it cannot be owned now; outcome none.
        """
        if self._draining or self._streams is None:
            raise Unavailable("this node stops", code=Code.DRAINING, retry_after_seconds=1)
        stream_id = await self._names.find(name)
        try:
            return await self._streams.get(stream_id)
        except NotFound:
            # Deleted; the name may be another stream's by now.
            return await self._streams.get(await self._names.find_other(name, stream_id))

    async def owner_elsewhere(self, text: str, scope: Scope) -> OwnedElsewhere | None:
        """The node that is to be asked about a stream instead; None where this node answers, also if it refuses."""
        if is_forwarded(scope):
            return None
        try:
            await self.find(full_name_of(scope, text))
        except OwnedElsewhere as owner:
            return owner
        except StoreError:
            pass
        return None

    async def forward(self, owner: OwnedElsewhere, scope: Scope, receive: Receive) -> Answer:
        """What the owner of a stream answers to a request.

        Raises:
            ClientGone, Unavailable: as `Forwarding.ask`.
        """
        with self.in_flight():
            self.counts.forwarded += 1
            try:
                answer = await self._forwarding.ask(owner.owner_url, scope, receive)
            except Unavailable:
                self.counts.forwarded_unanswered += 1
                self._forget(owner)
                raise
            if answer.disowned:
                self._forget(owner)
            return answer

    def _forget(self, owner: OwnedElsewhere) -> None:
        if self._streams is not None:
            self._streams.forget_owner(owner.owner_url)

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """A stop waits for what is done within."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    def require_disk(self) -> None:
        """Refuse an append where the local disk has no room for it.

        Raises:
            Overloaded: `disk-bound`.
        """
        self._disk.require_room()

    async def drain(self) -> None:
        """Refuse new appends, and return when those in flight are answered and what they have begun
        is finished, if it can be."""
        self._draining = True
        while self._in_flight:
            self._idle.clear()
            await self._idle.wait()
        await self._commits.stop()
        await self.finish_commits()

    async def finish_commits(self) -> None:
        """Append what is missing of commits that were cut off."""
        if self._streams is not None:
            await self._commits.finish(self._streams.opened())

    async def take(
        self, text: str, scope: Scope, receive: Receive
    ) -> tuple[StreamId, int, Appended]:
        """Everything that one append request does; returns also the end of the stream.

        Raises:
            StoreError: with the outcome that is known.
            ClientGone: before the whole body was here.
        """
        form = read_form(scope)
        name = full_name_of(scope, text)
        with self.in_flight():
            appender = await self.find(name)
            self.require_disk()
            if form.media_type == STAGED:
                appended = await self._commit(appender, form, scope, receive)
            else:
                appended = await self._append(appender, form, scope, receive)
            return appender.stream_id, appender.log.next_offset, appended

    async def _commit(
        self, appender: Appender, form: Form, scope: Scope, receive: Receive
    ) -> Appended:
        """The room of the body goes back before that of the batches is taken."""
        async with self.room.body(appender.stream_id, form.size_to_hold) as room:
            body = await self._body(form, scope, receive, room)
        appended = await self._commits.commit(
            appender, form.conditions, read_staged_ids(parse_json(body))
        )
        self.counts.note(appended, 0)
        return appended

    async def _append(
        self, appender: Appender, form: Form, scope: Scope, receive: Receive
    ) -> Appended:
        """Hold room for a body from its first byte until its records are stored."""
        async with self.room.body(appender.stream_id, form.size_to_hold) as room:
            with enough_memory():
                body = await self._body(form, scope, receive, room)
                append = await read_append(scope, form, body, self.frame_size_max)
            appended = await appender.append(append)
            self.counts.note(appended, len(body))
            return appended

    async def _body(
        self, form: Form, scope: Scope, receive: Receive, room: BodyReservation
    ) -> bytes:
        """The body with its encoding undone, and room held for that."""
        body = await read_body(scope, room.noting(receive), form.body_size_max)
        if form.encoding is None:
            return body
        # The room for what was sent goes first: both together may be more than there is.
        async with self._decoding:
            body = await asyncio.to_thread(decode_body, body, form.encoding, form.decoded_size_max)
            room.give_back()
            await room.take(len(body))
        return body
