"""Internal paths about what the registry, the names, consumers' offsets and the list of nodes say.

Contract: openapi/internal.yaml.
"""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.consumers.core.consumers import offset_not_found
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.tree.going_back import require_not_gone_back
from bottomless_server.protocol.paths import stream_id_in
from bottomless_server.protocol.registry import (
    NAMES,
    NODES,
    REGISTRY,
    STORED_OFFSET,
    NodeSaid,
    consumer_in,
    encode_names_shown,
    encode_nodes,
    encode_registered,
    encode_stored_offset,
)
from bottomless_server.runtime.http.app import message_response, parse_query
from bottomless_server.stores.consumers import ConsumerOffsets
from bottomless_server.stores.freed_names import shown_names
from bottomless_server.stores.ingest_nodes import live_nodes


def add_internal_registry_routes(api: FastAPI, context: Context, registry: Registry) -> None:
    offsets = ConsumerOffsets(context.coordination, context.served)

    async def put_registry(request: Request) -> Response:
        parse_query(request.scope, {})
        record = await registry.load_active(stream_id_in(request.path_params))
        # Asked by a node before it acknowledges anything of a stream that was not its own.
        await require_not_gone_back(context, record)
        record = await registry.ensure_object(record)
        return message_response(encode_registered(record.registry_version))

    async def get_stored_offset(request: Request) -> Response:
        parse_query(request.scope, {})
        stream_id = stream_id_in(request.path_params)
        consumer = consumer_in(request.path_params)
        stored = await offsets.find(stream_id, consumer)
        if stored is None:
            # Says 404 of the stream where that is what is missing.
            await registry.load_active(stream_id)
            raise offset_not_found()
        return message_response(encode_stored_offset(stored))

    async def get_nodes(request: Request) -> Response:
        parse_query(request.scope, {})
        nodes = await live_nodes(context.coordination)
        return message_response(encode_nodes(NodeSaid(*node) for node in nodes))

    async def get_names(request: Request) -> Response:
        parse_query(request.scope, {})
        shown = await shown_names(context.coordination)
        return message_response(encode_names_shown(shown.generation, shown.mark))

    api.add_api_route(NAMES, get_names, methods=["GET"])
    api.add_api_route(NODES, get_nodes, methods=["GET"])
    api.add_api_route(REGISTRY, put_registry, methods=["PUT"])
    api.add_api_route(STORED_OFFSET, get_stored_offset, methods=["GET"])
