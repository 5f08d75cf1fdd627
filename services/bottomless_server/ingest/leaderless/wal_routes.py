"""The internal listener: bytes of the WAL objects that this node has put lately."""

from typing import NamedTuple

from fastapi import FastAPI, Request
from starlette.responses import Response

from bottomless.errors import Code, NotFound
from bottomless_server.ingest.leaderless.wal_cache import WalCache
from bottomless_server.protocol.wal import (
    WAL_BYTES,
    WAL_BYTES_QUERY,
    WAL_MEDIA_TYPE,
    decode_wal_bytes_asked,
    instance_in,
    sequence_in,
)
from bottomless_server.runtime.http.app import parse_query


class WalRoutes(NamedTuple):
    """What the route is made of."""

    cache: WalCache

    async def wal_bytes(self, request: Request) -> Response:
        """Answer a range of an object from memory, or that it is not here."""
        instance, sequence = instance_in(request.path_params), sequence_in(request.path_params)
        asked = decode_wal_bytes_asked(parse_query(request.scope, WAL_BYTES_QUERY))
        found = self.cache.find(instance, sequence, asked.start, asked.size)
        if found is None:
            sentence = "this node does not keep that object; ask the object store"
            raise NotFound(sentence, code=Code.NOT_FOUND)
        return Response(bytes(found), 200, media_type=WAL_MEDIA_TYPE)


def add_wal_routes(api: FastAPI, cache: WalCache) -> None:
    """Serve what a cache has."""
    api.add_api_route(WAL_BYTES, WalRoutes(cache).wal_bytes, methods=["GET"])
