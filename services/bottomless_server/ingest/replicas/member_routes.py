"""The internal listener: the owner of a stream takes another node in, or lets one go.

Each change is one EXEC on the record, with the number of nodes that its configuration wants: after a
crash both are as before, or both changed, and the same question again is right. Who comes catches up
after the answer. Contract: openapi/internal.yaml, `change_members`.
"""

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Code, Exists, Fault, Fenced, InvalidRequest, StoreError
from bottomless.model.limits import REPLICA_COUNT_MAX
from bottomless.model.names import NodeId, StreamId, parse_stream_id
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.meant import require_meant
from bottomless_server.node.owner import Owner
from bottomless_server.node.replica_records import Owned, ReplicaRecords
from bottomless_server.protocol.members import MEMBERS, MemberChange, MembersAsked
from bottomless_server.runtime.http.app import message_response, parse_query
from bottomless_server.runtime.http.closed_body import read_closed_body


class MemberRoutes:
    """What the route is made of."""

    def __init__(self, owner: Owner, streams: OwnedStreams, giving_way: set[StreamId]) -> None:
        """`giving_way`: streams that are asked about other nodes though they are to have none."""
        self._owner = owner
        self._streams = streams
        self._giving_way = giving_way

    async def change(self, stream_id: str, request: Request) -> Response:
        """Take a node in, let one go, or have one replaced."""
        parse_query(request.scope, {})
        require_meant(request.scope, self._owner.node_id)
        asked = await read_closed_body(request, MembersAsked)
        node, found = NodeId(asked.node), parse_stream_id(stream_id)
        try:
            await self._change(found, asked.change, node)
        except Refused as error:
            raise not_changed(error.refusal) from error
        except Fenced as error:
            raise not_owner() from error
        return message_response({})

    async def _change(self, stream_id: StreamId, change: MemberChange, node: NodeId) -> None:
        appender = await self._streams.get(stream_id)
        replicas, is_owner = appender.replicas, node == self._owner.node_id
        if is_owner and change == "replace":
            await self._give_way(appender)
        elif replicas is None:
            if change == "add":
                await self._add_to_one(appender, node)
            elif is_owner:
                raise Refused(Refusal.HOME)
        elif change == "add":
            await replicas.add(node)
        elif change == "remove":
            await replicas.remove(node)
        else:
            replicas.replace(node)

    async def _add_to_one(self, appender: LocalAppender, node: NodeId) -> None:
        """Have a stream that lies here alone held by another node too: it is opened anew for that."""
        records = ReplicaRecords(self._owner.streams, self._owner.node_id)
        owned = Owned(appender.stream_id, appender.claim.epoch)
        record = await records.add_member(owned, node)
        await self._streams.configure(appender, record.config)
        await self._streams.get(appender.stream_id)

    async def _give_way(self, appender: LocalAppender) -> None:
        """Have another node hold what the owner holds, so that the stream can be given to it.

        Raises:
            Unavailable: `not-owner`: a commit is open whose rest lies on this disk; or it is not open here.
        """
        if appender.is_bound():
            raise not_owner()
        if appender.replicas is None:
            self._giving_way.add(appender.stream_id)
            try:
                await self._streams.reopen(appender)
                appender = await self._streams.get(appender.stream_id)
            finally:
                self._giving_way.discard(appender.stream_id)
        if appender.replicas is None:
            raise not_owner()
        appender.replicas.replace(self._owner.node_id)


def not_changed(refusal: Refusal) -> StoreError:
    """Say why a node was not taken in, or not let go."""
    match refusal:
        case Refusal.HOME:
            sentence = "the node is the owner of the stream: give that to another one first"
            return Fenced(sentence, code=Code.HOME_LIVE)
        case Refusal.TOO_MANY:
            sentence = f"{REPLICA_COUNT_MAX} nodes hold the stream, and no more may"
            fault = Fault("too-many", sentence, "/node")
            return InvalidRequest(sentence, code=Code.VALIDATION_FAILED, faults=[fault])
        case Refusal.NOT_HOME:
            return not_owner()
        case Refusal.OF_SUPER:
            sentence = "how many nodes hold a partition is said of its super stream"
            return Exists(sentence, code=Code.PARTITION_OF_SUPER_STREAM)
        case _:
            sentence = "without the node too few would have everything that the stream holds"
            return Fenced(sentence, code=Code.NOT_IN_SYNC, retry_after_seconds=5)


def add_member_routes(api: FastAPI, routes: MemberRoutes) -> None:
    """Serve it beside what `api` serves."""
    api.add_api_route(MEMBERS, routes.change, methods=["POST"])
