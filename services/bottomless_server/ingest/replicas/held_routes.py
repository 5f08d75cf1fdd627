"""The internal listener: what this node holds of a stream, for whoever shows or chooses its nodes.

A question changes nothing. Of a log that nobody has open it is read from the disk, as an opening would.
Contract: openapi/internal.yaml, `get_replica`.
"""

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.model.names import parse_stream_id
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.replicas.following import Following
from bottomless_server.node.meant import require_meant
from bottomless_server.node.owner import Owner
from bottomless_server.protocol.held import HELD, HeldThere, encode_held
from bottomless_server.runtime.http.app import message_response, parse_query


class HeldRoutes:
    """What the route is made of."""

    def __init__(self, owner: Owner, streams: OwnedStreams, following: Following) -> None:
        self._owner = owner
        self._streams = streams
        self._following = following

    async def held(self, stream_id: str, request: Request) -> Response:
        """Say what lies here of a stream."""
        parse_query(request.scope, {})
        require_meant(request.scope, self._owner.node_id)
        found = parse_stream_id(stream_id)
        appender = self._streams.find(found)
        if appender is not None and appender.stopped is None:
            end, epoch = appender.log.committed_next, appender.claim.epoch
            said = HeldThere(True, epoch, end, appender.failing, appender.stalled)
        else:
            held = await self._following.held(found)
            said = HeldThere(False, held.epoch, held.next_offset if held.segments else None)
        return message_response(encode_held(said))


def add_held_routes(api: FastAPI, routes: HeldRoutes) -> None:
    """Serve it beside what `api` serves."""
    api.add_api_route(HELD, routes.held, methods=["GET"])
