"""The internal listener: a stream is given to another node, and that node is told that it has it.

Contract: openapi/internal.yaml, `transfer_stream`.
"""

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Code, Fenced, StoreError
from bottomless.model.names import NodeId, parse_stream_id
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.replicas.failover import Failover
from bottomless_server.ingest.replicas.transfers import Transfers
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.meant import require_meant
from bottomless_server.node.owner import Owner
from bottomless_server.protocol.transfer import TRANSFER, TransferAsked, encode_transferred
from bottomless_server.runtime.http.app import message_response, parse_query
from bottomless_server.runtime.http.closed_body import read_closed_body


class TransferRoutes:
    """What the route is made of."""

    def __init__(
        self, owner: Owner, streams: OwnedStreams, transfers: Transfers, failover: Failover
    ) -> None:
        self._owner = owner
        self._streams = streams
        self._transfers = transfers
        self._failover = failover

    async def transfer(self, stream_id: str, request: Request) -> Response:
        """Give a stream to a node, or open one that was given to this node."""
        parse_query(request.scope, {})
        require_meant(request.scope, self._owner.node_id)
        asked = await read_closed_body(request, TransferAsked)
        node, found = NodeId(asked.node), parse_stream_id(stream_id)
        if node == self._owner.node_id:
            await self._open(stream_id=found)
        else:
            try:
                await self._transfers.give(found, node)
            except Refused as error:
                raise not_given(error.refusal) from error
        return message_response(encode_transferred(node))

    async def _open(self, stream_id: str) -> None:
        found = parse_stream_id(stream_id)
        try:
            await self._streams.get_given(found)
        except StoreError:
            # The watch tries again, also where nobody asks any more.
            self._failover.given(found)
            raise


def not_given(refusal: Refusal) -> StoreError:
    """Say why a stream was not given to a node."""
    if refusal is Refusal.NOT_LIVE:
        return Fenced("the node does not live, or has not said where it is", code=Code.NOT_IN_SYNC)
    return Fenced("the node does not have everything that the stream holds", code=Code.NOT_IN_SYNC)


def add_transfer_routes(api: FastAPI, routes: TransferRoutes) -> None:
    """Serve it beside what `api` serves."""
    api.add_api_route(TRANSFER, routes.transfer, methods=["POST"])
