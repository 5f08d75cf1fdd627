"""What one append request does, from its headers to its answer.

Whatever is refused is refused in this order: the form of the request, the stream, the space where
it would be stored, the memory for its body, its body.

On the record's path: after routes.py, before records/intake.py.
"""

import asyncio
from typing import Final, NamedTuple

from starlette.types import Receive, Scope

from bottomless.model.names import FullName, StreamId
from bottomless_server.ingest.front.forms import STAGED, Form, read_append, read_form
from bottomless_server.ingest.front.lookup import AppenderLookup, begun_with
from bottomless_server.ingest.front.metrics import AppendCounts
from bottomless_server.ingest.ports import Appender
from bottomless_server.ingest.producers.commit_plan import read_staged_ids
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.room import BodyReservation, MemoryRoom
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.runtime.http.app import parse_json, read_body
from bottomless_server.runtime.http.encodings import decode_body
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.problems import enough_memory

_DECODINGS_MAX: Final = 2
"""Bodies whose encoding is being undone at once: each may take what one may hold, twice."""


class AppendedTo(NamedTuple):
    """What an append did, and to which stream."""

    stream_id: StreamId
    next_offset: int
    """The end of the stream by now."""
    durability: str
    replica_count: int | None
    """Nodes on whose disks it is; None where it is to be on one, or on none."""
    appended: Appended

    @classmethod
    def by(cls, appender: Appender, appended: Appended) -> "AppendedTo":
        """What an append did that an appender has just answered."""
        return cls(
            appender.stream_id,
            appender.next_offset,
            appender.durability,
            appender.replica_count,
            appended,
        )


class AppendRequests:
    """Reads the bodies of append requests and hands what they hold to the appenders of streams."""

    def __init__(
        self,
        lookup: AppenderLookup,
        under_way: RequestsUnderWay,
        room: MemoryRoom,
        counts: AppendCounts,
        frame_size_max: int,
    ) -> None:
        self._lookup = lookup
        self._under_way = under_way
        self._room = room
        self._counts = counts
        self._frame_size_max = frame_size_max
        self._decoding = asyncio.Semaphore(_DECODINGS_MAX)

    async def take(self, text: str, scope: Scope, receive: Receive) -> AppendedTo:
        """Do all that one append request asks for; `text` is the name in its path.

        Raises:
            StoreError: with the outcome that is known.
            ClientGone: the client left before the whole body was here.
        """
        form = read_form(scope)
        name = full_name_of(scope, text)
        with self._under_way.counted():
            appender = await self._lookup.find(name, begun_with(scope))
            appender.require_space()
            take = self._commit if form.media_type == STAGED else self._append
            appended = await take(name, appender, form, scope, receive)
            return AppendedTo.by(appender, appended)

    async def _commit(
        self, name: FullName, appender: Appender, form: Form, scope: Scope, receive: Receive
    ) -> Appended:
        """Commit staged batches; the room of the body goes back before that of the batches is
        taken."""
        async with self._room.body(appender.stream_id, form.size_to_hold) as room:
            body = await self._body(form, scope, receive, room)
        staged_ids = read_staged_ids(parse_json(body))
        await self._lookup.require_same(name, appender)
        appended = await appender.commit(form.conditions, staged_ids)
        self._counts.note(appended, 0)
        return appended

    async def _append(
        self, name: FullName, appender: Appender, form: Form, scope: Scope, receive: Receive
    ) -> Appended:
        """Append records; room is held for the body from its first byte until they are stored."""
        async with self._room.body(appender.stream_id, form.size_to_hold) as room:
            append, body = await self.read(form, scope, receive, room)
            await self._lookup.require_same(name, appender)
            appended = await appender.append(append)
            self._counts.note(appended, len(body))
            return appended

    async def read(
        self, form: Form, scope: Scope, receive: Receive, room: BodyReservation
    ) -> tuple[Append, bytes]:
        """Receive a body whose room is held, and read it; returns it decoded, too.

        Raises:
            StoreError: nothing is stored.
            ClientGone: the client left before the whole body was here.
        """
        with enough_memory():
            body = await self._body(form, scope, receive, room)
            return await read_append(scope, form, body, self._frame_size_max), body

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
