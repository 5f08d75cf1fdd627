"""The public application of queues: each request is answered where the tenant's queues are.

What a body names beside the queue in the path is checked where the credential was shown; then the
request is answered here, or passed on to the home, one hop. Requests that come all the time are spoken
as raw ASGI; FastAPI serves everything else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

import orjson
import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottomless.errors import Outcome, Overloaded, StoreError, Unavailable
from bottomless.model.limits import JSON_BODY_SIZE_MAX
from bottomless_server.core.not_found import queue_not_found
from bottomless_server.core.restated import restated
from bottomless_server.core.scopes import Operation
from bottomless_server.node.core.ownership import OwnedElsewhere, not_owner
from bottomless_server.node.forwarded import ForwardedRequests
from bottomless_server.node.forwarding import Answer, send_forwarded, was_taken
from bottomless_server.node.room import BodyReservation
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.protocol.forwarding import UNDELIVERED, ForwardedFor, encode_forwarded
from bottomless_server.queues.bodies.answers import received_members
from bottomless_server.queues.bodies.naming import NAMING, PUBLISH_TO, PUT, named_in
from bottomless_server.queues.front.requests import ASKING_SIZE_MAX, JSON, RAW, QueueRequests
from bottomless_server.queues.homes import OWNED, TenantHomes
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import (
    ClientGone,
    content_encoding,
    header,
    negotiate,
    parse_json,
    read_body,
    request_id_of,
    send_problem,
)
from bottomless_server.runtime.http.connection import (
    gone,
    require_connected,
    while_connected,
)
from bottomless_server.runtime.http.endpoint_table import Endpoint
from bottomless_server.runtime.http.endpoints import find
from bottomless_server.runtime.http.expecting import Expecting
from bottomless_server.runtime.http.problems import unexpected
from bottomless_server.runtime.http.whole_answer import WholeAnswer, send_whole
from bottomless_server.runtime.identity.credential_watch import credential_watch_of

log = structlog.get_logger(__name__)

LIST: Final = "list_queues"
RECEIVE: Final = "receive_messages"
PEEK: Final = "peek_messages"
OF_THE_NODE: Final = frozenset({"get_queue_store", "compact_queue_store", "take_over_queues"})
"""Operations about the node that is asked, and not about the queues of the caller's tenant."""

Handle = Callable[[Scope, Receive], Awaitable[WholeAnswer]]


class Passing(NamedTuple):
    """Ways to other nodes."""

    receives: ForwardedRequests
    """Receives that wait have a connection each, and none that others use: so they hold up nobody else."""
    others: ForwardedRequests

    async def aclose(self) -> None:
        """Close the connections."""
        await self.receives.aclose()
        await self.others.aclose()


class QueueFront:
    """Finds out where a request is answered, and answers it or passes it on."""

    def __init__(
        self,
        requests: QueueRequests,
        homes: TenantHomes,
        under_way: RequestsUnderWay,
        passing: Passing,
        others: ASGIApp,
    ) -> None:
        """`others` answers what is not spoken here."""
        self._requests = requests
        self._homes = homes
        self._under_way = under_way
        self._passing = passing
        self._others = others
        self._spoken: Mapping[str, Handle] = {
            "publish_messages": requests.publish,
            PUBLISH_TO: requests.publish_to,
            "ack_messages": requests.ack,
            "nack_messages": requests.nack,
            "extend_messages": requests.extend,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = find(scope).endpoints.get(scope["method"])
        if endpoint is None or endpoint.service != "queues":
            await self._others(scope, receive, send)
            return
        expecting = Expecting(scope, receive, send)
        work = self._serve(endpoint, scope, expecting.receive, expecting.send)
        await _answered(work, scope, expecting.send)

    async def _serve(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        operation_id = endpoint.operation_id
        self._under_way.require_accepting()
        with self._under_way.counted():
            if operation_id in OF_THE_NODE:
                await self._others(scope, receive, send)
                return
            if (
                operation_id in NAMING
                and not was_taken(scope)
                and principal_of(scope).authenticated
            ):
                content_encoding(scope)
                owner = (principal_of(scope).tenant,)
                async with self._requests.body_room(
                    scope, receive, owner, JSON_BODY_SIZE_MAX
                ) as noting:
                    receive = await _checked(operation_id, scope, noting)
                    await self._place(operation_id, scope, receive, send)
                return
            await self._place(operation_id, scope, receive, send)

    async def _place(self, operation_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._require_home(operation_id, scope)
        except OwnedElsewhere as owner:
            if was_taken(scope):
                # Two nodes that each take the other for the home form no loop.
                raise not_owner(owned=OWNED) from None
            await self._pass_on(owner, operation_id, scope, receive, send)
            return
        if operation_id == RECEIVE:
            with self._requests.answer_room(scope) as room:
                await send_whole(send, await self._requests.receive(scope, receive, room))
            return
        handle = self._spoken.get(operation_id)
        if operation_id == PEEK:
            with self._requests.answer_room(scope):
                await self._others(scope, receive, send)
        elif handle is None:
            await self._others(scope, receive, send)
        else:
            await send_whole(send, await handle(scope, receive))

    async def _require_home(self, operation_id: str, scope: Scope) -> None:
        tenant = principal_of(scope).tenant
        try:
            await self._homes.require(tenant)
        except StoreError as error:
            if error.code is not queue_not_found().code:
                raise
            if operation_id == PUT:
                await self._homes.found(tenant)
            elif operation_id != LIST:
                raise

    async def _pass_on(
        self, owner: OwnedElsewhere, operation_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if operation_id == RECEIVE:
            with self._requests.answer_room(scope) as room:
                answer = await self._received(owner, scope, receive, room)
                await send_forwarded(send, answer)
            return
        if operation_id == PEEK:
            with self._requests.answer_room(scope) as room:
                await room.take(0)
                answer = await self._passing.others.ask(owner, scope, receive, room.take)
                await send_forwarded(send, answer)
            return
        answer = await self._passing.others.ask(owner, scope, receive)
        if operation_id == LIST and answer.status == 200:
            answer = _shown_to(answer, scope)
        await send_forwarded(send, answer)

    async def _received(
        self, owner: OwnedElsewhere, scope: Scope, receive: Receive, room: BodyReservation
    ) -> Answer:
        """What the home answers to a receive. It is told when the client leaves, and takes nothing then;
        in a drain of this node it is told so too, and the answer is that there is nothing.

        Raises:
            StoreError: also where the credential ended while it waited, or where there is no room for
                the answer: what was taken comes again when its visibility is over, or at once where the
                credential had ended.
            ClientGone: the client has left; an answer that was here by then goes back at once.
        """
        body = await read_body(scope, receive, ASKING_SIZE_MAX)
        # Who finds others before it waits for its turn before anything is taken for it.
        await room.take(0)

        async def hold(size: int) -> None:
            try:
                await room.take(size)
            except Overloaded as error:
                # The home has taken messages, and sends them.
                raise restated(error, Outcome.UNKNOWN) from error

        asking = self._passing.receives.ask(owner, scope, _again(body, receive), hold)
        answer = await self._answered(asking, owner, scope, receive)
        if answer is None:
            return _nothing_received(scope)
        watch = credential_watch_of(scope)
        try:
            if watch is not None:
                await while_connected(receive, watch.check())
            await require_connected(receive)
        except (StoreError, ClientGone):
            await self._give_back(owner, scope, answer)
            raise
        return answer

    async def _give_back(self, owner: OwnedElsewhere, scope: Scope, answer: Answer) -> None:
        """Let others have at once what the home has taken for somebody who may not have it any more. If it
        does not hear of it, it comes again when its visibility is over.
        """
        receipts = _receipts_in(answer)
        if not receipts:
            return
        principal = principal_of(scope)
        asked = ForwardedFor(principal.tenant, principal.actor if principal.authenticated else None)
        headers = {
            **dict(encode_forwarded(asked)),
            UNDELIVERED.decode(): "1",
            "content-type": JSON,
            "accept": JSON,
        }
        target = scope["raw_path"].decode("ascii").rpartition("/")[0] + "/nack"
        body = orjson.dumps({"receipts": receipts})
        try:
            await self._passing.others.tell(owner, "POST", target, body, headers)
        except Unavailable as error:
            log.warning("messages could not be given back to their home", error=str(error))

    async def _answered(
        self,
        asking: Coroutine[Any, Any, Answer],
        owner: OwnedElsewhere,
        scope: Scope,
        receive: Receive,
    ) -> Answer | None:
        """An answer; None where a drain began before it came, and it is not waited for any more. One that
        comes in the moment in which nobody waits for it any more goes back.

        Raises:
            ClientGone: the client left before.
        """
        answered = asyncio.create_task(asking)
        leaving = asyncio.create_task(gone(receive))
        draining = asyncio.create_task(self._under_way.until_draining())
        try:
            await asyncio.wait({answered, leaving, draining}, return_when=asyncio.FIRST_COMPLETED)
            is_wanted, has_left = answered.done() and not leaving.done(), leaving.done()
        except asyncio.CancelledError:
            await end_tasks(answered, leaving, draining)
            await self._give_back_what_came(owner, scope, answered)
            raise
        await end_tasks(answered, leaving, draining)
        if is_wanted:
            return answered.result()
        await self._give_back_what_came(owner, scope, answered)
        if has_left:
            raise ClientGone
        return None

    async def _give_back_what_came(
        self, owner: OwnedElsewhere, scope: Scope, answered: "asyncio.Task[Answer]"
    ) -> None:
        if not answered.cancelled() and answered.exception() is None:
            await self._give_back(owner, scope, answered.result())


def _receipts_in(answer: Answer) -> list[str]:
    """The receipts of the messages that an answer to a receive has."""
    if answer.status != 200:
        return []
    receipt = dict(answer.headers).get(b"message-receipt")
    if receipt is not None:
        return [receipt.decode("ascii")]
    return [message["receipt"] for message in orjson.loads(answer.body)["messages"]]


def _nothing_received(scope: Scope) -> Answer:
    if negotiate(header(scope, b"accept"), [JSON, RAW]) == RAW:
        return Answer(204, [], b"")
    body = orjson.dumps(received_members([]), option=orjson.OPT_APPEND_NEWLINE)
    return Answer(200, [(b"content-type", JSON.encode())], body)


async def _checked(operation_id: str, scope: Scope, receive: Receive) -> Receive:
    """Check what a body names, and give the body back to whoever reads it next.

    Raises:
        StoreError: the credential does not allow it; or the body is too large.
        ClientGone: the client left before the whole body was here.
    """
    principal = principal_of(scope)
    body = await read_body(scope, receive, JSON_BODY_SIZE_MAX)
    try:
        value = parse_json(body) if body else None
    except StoreError:
        # Whoever answers the request refuses it so, too.
        value = None
    for named in named_in(operation_id, value):
        named.require(principal)
    return _again(body, receive)


def _again(body: bytes, receive: Receive) -> Receive:
    """A receive that begins with a body that was read."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again


def _shown_to(answer: Answer, scope: Scope) -> Answer:
    """A list as another node gave it, with only what the credential that was shown here may see."""
    grants = principal_of(scope).grants
    if grants.allow_everywhere(Operation.QUEUE_DESCRIBE):
        return answer
    members: dict[str, Any] = orjson.loads(answer.body)
    if "not_served" in members:
        members["not_served"] = [
            name for name in members["not_served"] if grants.allow(Operation.QUEUE_DESCRIBE, name)
        ]
    members["items"] = [
        item for item in members["items"] if grants.allow(Operation.QUEUE_DESCRIBE, item["name"])
    ]
    return answer._replace(body=orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE))


async def _answered(work: Awaitable[None], scope: Scope, send: Send) -> None:
    request_id = request_id_of(scope)
    try:
        await work
    except ClientGone:
        # Nobody is there to answer, and nothing was done.
        return
    except StoreError as error:
        await send_problem(send, error, request_id, scope["path"])
    except Exception as error:
        log.exception("a request to queues met a bug", request_id=request_id)
        await send_problem(send, unexpected(error, Outcome.UNKNOWN), request_id)
