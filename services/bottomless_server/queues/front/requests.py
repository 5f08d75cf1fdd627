"""The requests that come all the time, without FastAPI: publish, receive, acknowledge.

Whatever is refused is refused in this order: the form of the request, the memory for its body, its body,
what the engine says.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar

import orjson
from starlette.types import Receive, Scope

from bottomless.errors import StoreError
from bottomless.model.limits import JSON_BODY_SIZE_MAX, KIB
from bottomless.model.names import parse_queue_name
from bottomless_server.core.faults import bad_header
from bottomless_server.node.forwarding import was_taken
from bottomless_server.node.room import BodyReservation, MemoryRoom
from bottomless_server.protocol.forwarding import UNDELIVERED
from bottomless_server.queues.bodies.answers import (
    fan_out_members,
    published_members,
    raw_answer_headers,
    received_members,
    settled_members,
)
from bottomless_server.queues.bodies.asking import (
    ReceiveAsked,
    read_ack,
    read_extend,
    read_nack,
    read_receive,
)
from bottomless_server.queues.bodies.publishing import (
    Published,
    check_repeats,
    read_fan_out,
    read_messages,
    read_raw,
)
from bottomless_server.queues.calls import (
    PublishAnswer,
    PublishRequest,
    ReceivedMessage,
    Settlement,
)
from bottomless_server.queues.engine import QueueEngine
from bottomless_server.queues.front.counts import QueueCounts
from bottomless_server.queues.homes import TenantHomes
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import (
    ClientGone,
    content_encoding,
    content_type,
    encode_json,
    header,
    negotiate,
    parse_json,
    parse_query,
    read_body,
)
from bottomless_server.runtime.http.connection import gone
from bottomless_server.runtime.http.endpoint_table import QUEUE
from bottomless_server.runtime.http.endpoints import find
from bottomless_server.runtime.http.problems import enough_memory
from bottomless_server.runtime.http.whole_answer import WholeAnswer
from bottomless_server.runtime.identity.credential_watch import credential_watch_of

T = TypeVar("T")

JSON: Final = "application/json"
RAW: Final = "application/octet-stream"
_INLINE_SIZE: Final = 64 * KIB
"""JSON above is read in a thread, since the loop serves everybody."""
ASKING_SIZE_MAX: Final = 1_024 * KIB
"""A body that names receipts: a thousand of the largest."""
_OF_RAW: Final = b"message-"
"""How headers begin that say something of a message whose value is the body."""
_REPLAYED: Final = (b"idempotent-replayed", b"true")
_HELD: Final = "bottomless.body-held"
_ANSWER_ROOM: Final = "bottomless.answer-room"


class QueueRoom(NamedTuple):
    """Memory of a process for requests to queues."""

    publishes: MemoryRoom
    """Bodies of publishes have it until they are stored."""
    answers: MemoryRoom
    """What receives have taken has it until it is sent."""


class QueueRequests:
    """Reads the bodies of requests and hands what they ask to the engine."""

    def __init__(
        self,
        engine: Callable[[], QueueEngine],
        homes: TenantHomes,
        room: QueueRoom,
        counts: QueueCounts,
        message_size_max: int,
    ) -> None:
        """`engine` gives the engine, which is there once the service has started."""
        self._engine = engine
        self._homes = homes
        self._room = room
        self._counts = counts
        self._message_size_max = message_size_max

    async def publish(self, scope: Scope, receive: Receive) -> WholeAnswer:
        """Store messages in the queue of the path.

        Raises:
            StoreError: with the outcome that is known.
            ClientGone: the client left before the whole body was here.
        """
        media_type = _form(scope, (JSON, RAW))
        if media_type != RAW:
            _refuse_raw_headers(scope)
        name = queue_in(scope)
        size_max = self._message_size_max if media_type == RAW else JSON_BODY_SIZE_MAX
        owner = (principal_of(scope).tenant, name)
        async with self.body_room(scope, receive, owner, size_max) as noting:
            body = await read_body(scope, noting, size_max)
            with enough_memory():
                published = await self._read(scope, media_type, body)
            done = await self._store(scope, [name], published, body)
        return _answer(published_members(done.queues[0]), replayed=done.replayed)

    async def publish_to(self, scope: Scope, receive: Receive) -> WholeAnswer:
        """Store messages in all the queues that the body names.

        Raises:
            StoreError, ClientGone: as `publish`.
        """
        _form(scope, (JSON,))
        size_max = JSON_BODY_SIZE_MAX
        owner = (principal_of(scope).tenant,)
        async with self.body_room(scope, receive, owner, size_max) as noting:
            body = await read_body(scope, noting, size_max)
            with enough_memory():
                published = await _in_turn(
                    body,
                    lambda: read_fan_out(parse_json(body), encode_json, self._message_size_max),
                )
            done = await self._store(scope, published.queues, published, body)
        return _answer(fan_out_members(done.queues), replayed=done.replayed)

    @asynccontextmanager
    async def body_room(
        self, scope: Scope, receive: Receive, owner: Hashable, size_max: int
    ) -> AsyncIterator[Receive]:
        """Hold room for the body of a publish, unless whoever checked it holds it already; gives what
        to receive the body with.

        Raises:
            Overloaded: there was none in time.
        """
        if scope.get(_HELD):
            yield receive
            return
        async with self._room.publishes.body(owner, _held(scope, size_max)) as room:
            scope[_HELD] = True
            yield room.noting(receive)

    @contextmanager
    def answer_room(self, scope: Scope) -> Iterator[BodyReservation]:
        """Room for the messages that are answered, which is given back at the end."""
        room = self._room.answers.nothing_yet((principal_of(scope).tenant, queue_in(scope)))
        scope[_ANSWER_ROOM] = room
        try:
            yield room
        finally:
            room.give_back()

    async def receive(self, scope: Scope, receive: Receive, room: BodyReservation) -> WholeAnswer:
        """Take messages for whoever asks, and wait for some. What they take of memory is held in
        `room`.

        Raises:
            StoreError: nothing was taken, or what was is given back.
            ClientGone: it left; what was taken for it is given back.
        """
        parse_query(scope, {})
        media_type = negotiate(header(scope, b"accept"), [JSON, RAW])
        name = queue_in(scope)
        asked = read_receive(await _asking(scope, receive, optional=True))
        if media_type == RAW:
            asked = asked._replace(limit=1)
        messages = await self._take(scope, receive, name, asked, room)
        if media_type == JSON:
            return _answer(received_members(messages))
        if not messages:
            return WholeAnswer(204, [])
        return _raw_answer(messages[0])

    async def ack(self, scope: Scope, receive: Receive) -> WholeAnswer:
        """Say that messages are done with.

        Raises:
            StoreError: with the outcome that is known.
        """
        tenant, name = await self._settling(scope)
        receipts = read_ack(await _asking(scope, receive))
        settled = await self._engine().ack(tenant, name, receipts)
        self._homes.require_still(tenant)
        return _answer(settled_members("acked", settled))

    async def nack(self, scope: Scope, receive: Receive) -> WholeAnswer:
        """Give messages back, or reject them.

        Raises:
            StoreError: with the outcome that is known.
        """
        tenant, name = await self._settling(scope)
        receipts, delay_ms, dead_letter = read_nack(await _asking(scope, receive))
        if was_taken(scope) and header(scope, UNDELIVERED) is not None:
            # The node that passed a receive on could not hand these out: nobody was given them.
            self._give_back(tenant, name, receipts)
            return _answer(settled_members("returned", Settlement(len(receipts), (), ())))
        settled = await self._engine().nack(
            tenant, name, receipts, delay_ms=delay_ms, dead_letter=dead_letter
        )
        self._homes.require_still(tenant)
        return _answer(settled_members("returned", settled))

    async def extend(self, scope: Scope, receive: Receive) -> WholeAnswer:
        """Keep messages for longer.

        Raises:
            StoreError: with the outcome that is known.
        """
        tenant, name = await self._settling(scope)
        receipts, visibility_ms = read_extend(await _asking(scope, receive))
        settled = await self._engine().extend(tenant, name, receipts, visibility_ms)
        self._homes.require_still(tenant)
        return _answer(settled_members("extended", settled))

    async def _settling(self, scope: Scope) -> tuple[str, str]:
        parse_query(scope, {})
        negotiate(header(scope, b"accept"), [JSON])
        return principal_of(scope).tenant, queue_in(scope)

    async def _read(self, scope: Scope, media_type: str, body: bytes) -> Published:
        if media_type == RAW:
            return read_raw(body, scope["headers"], self._message_size_max)
        return await _in_turn(
            body, lambda: read_messages(parse_json(body), encode_json, self._message_size_max)
        )

    async def _store(
        self, scope: Scope, queues: Sequence[str], published: Published, body: bytes
    ) -> PublishAnswer:
        key = header(scope, b"idempotency-key")
        check_repeats(key, published)
        principal = principal_of(scope)
        request = PublishRequest(
            principal.tenant,
            queues,
            published.messages,
            principal=principal.actor if principal.authenticated else "",
            key=key,
            body_hash=b"" if key is None else _hash_of(scope, body),
        )
        done = await self._engine().publish(request)
        self._homes.require_still(principal.tenant)
        return done

    async def _take(
        self,
        scope: Scope,
        receive: Receive,
        name: str,
        asked: ReceiveAsked,
        room: BodyReservation,
    ) -> Sequence[ReceivedMessage]:
        tenant = principal_of(scope).tenant
        taking = asyncio.create_task(
            self._engine().receive(
                tenant,
                name,
                limit=asked.limit,
                bytes_max=asked.max_bytes,
                visibility_ms=asked.visibility_ms,
                wait_ms=asked.max_wait_ms,
                room=room,
            )
        )
        leaving = asyncio.create_task(gone(receive))
        try:
            try:
                await asyncio.wait({taking, leaving}, return_when=asyncio.FIRST_COMPLETED)
                _require_done(taking)
                messages = taking.result()
                _require_there(leaving)
                await self._require_allowed(scope, asked, leaving)
                self._homes.require_still(tenant)
            finally:
                await end_tasks(taking, leaving)
        except (StoreError, ClientGone, asyncio.CancelledError):
            # Also who is cancelled in the moment in which they are there, before looking at them or after.
            if taking.done() and not taking.cancelled() and taking.exception() is None:
                self._give_back(tenant, name, [each.receipt for each in taking.result()])
            raise
        return messages

    async def _require_allowed(
        self, scope: Scope, asked: ReceiveAsked, leaving: "asyncio.Task[None]"
    ) -> None:
        """After a wait, ask whether the credential is still good before anything is handed out.

        Raises:
            StoreError: the same request would be refused now.
            ClientGone: the client left meanwhile.
        """
        watch = credential_watch_of(scope)
        if watch is None or not asked.max_wait_ms:
            return
        checking = asyncio.create_task(watch.check())
        try:
            await asyncio.wait({checking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            _require_there(leaving)
            checking.result()
        finally:
            await end_tasks(checking)

    def _give_back(self, tenant: str, name: str, receipts: Sequence[str]) -> None:
        if receipts:
            self._counts.given_back += len(receipts)
            self._engine().give_back(tenant, name, receipts)


def _require_done(taking: "asyncio.Task[Sequence[ReceivedMessage]]") -> None:
    if not taking.done():
        raise ClientGone


def _require_there(leaving: "asyncio.Task[None]") -> None:
    if leaving.done():
        raise ClientGone


def answer_room_of(scope: Scope) -> BodyReservation:
    """The room that is held for the answer to a request."""
    room: BodyReservation = scope[_ANSWER_ROOM]
    return room


def queue_in(scope: Scope) -> str:
    """The queue that the path names.

    Raises:
        InvalidRequest: `bad-name`.
    """
    return parse_queue_name(find(scope).parts[QUEUE])


def _form(scope: Scope, accepted: Sequence[str]) -> str:
    """The media type of a publish; what can be refused without its body is.

    Raises:
        InvalidRequest: 400, 406 or 415.
    """
    parse_query(scope, {})
    negotiate(header(scope, b"accept"), [JSON])
    media_type = content_type(scope, accepted)
    content_encoding(scope)
    return media_type


def _refuse_raw_headers(scope: Scope) -> None:
    for name, _ in scope["headers"]:
        if name.startswith(_OF_RAW):
            sentence = f"goes with {RAW} alone; other messages bring their own members"
            raise bad_header(name.decode("latin-1"), sentence)


def _held(scope: Scope, size_max: int) -> int:
    """Bytes to hold for a body: what it says, or what it may have at most."""
    declared = header(scope, b"content-length")
    if declared is None or not declared.isdigit():
        return size_max
    return min(int(declared), size_max)


async def _asking(scope: Scope, receive: Receive, *, optional: bool = False) -> Any:
    """The JSON of a small body; none is `{}` where it is optional.

    Raises:
        InvalidRequest: 400, 413 or 415.
    """
    body = await read_body(scope, receive, ASKING_SIZE_MAX)
    if optional and not body:
        return {}
    content_type(scope, (JSON,))
    content_encoding(scope)
    return await _in_turn(body, lambda: parse_json(body))


async def _in_turn(body: bytes, read: Callable[[], T]) -> T:
    return read() if len(body) <= _INLINE_SIZE else await asyncio.to_thread(read)


def _hash_of(scope: Scope, body: bytes) -> bytes:
    """What stands for all that a publish says: its body, what it is read as, and what headers say of a raw
    one.
    """
    hashed = sha256(body)
    if content_type(scope, (JSON, RAW)) == RAW:
        hashed.update(b"\0raw")
    for name, value in sorted(scope["headers"]):
        if name.startswith(_OF_RAW):
            hashed.update(b"\0%s\0%s" % (name, value))
    return hashed.digest()


def _answer(members: dict[str, Any], *, replayed: bool = False) -> WholeAnswer:
    body = orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if replayed:
        headers.append(_REPLAYED)
    return WholeAnswer(200, headers, body)


def _raw_answer(message: ReceivedMessage) -> WholeAnswer:
    body = bytes(message.value)
    headers = [
        (b"content-type", RAW.encode()),
        (b"content-length", b"%d" % len(body)),
        *raw_answer_headers(message),
    ]
    return WholeAnswer(200, headers, body)
