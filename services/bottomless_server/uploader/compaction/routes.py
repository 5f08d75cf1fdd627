"""The internal path of compaction. Contract: openapi/internal.yaml."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Unavailable
from bottomless_server.protocol.compaction import COMPACT, encode_compacted
from bottomless_server.runtime.http.app import message_response, parse_query
from bottomless_server.uploader.compaction.compactor import Compactor


def add_compaction_routes(api: FastAPI, compactor: Compactor | None) -> None:
    """Let somebody ask for a round now; without a compactor there is none to be had."""

    async def compact(request: Request) -> Response:
        parse_query(request.scope, {})
        if compactor is None:
            raise Unavailable(
                "leaderless streams are not compacted by this process",
                code=Code.COORDINATION_UNAVAILABLE,
                retryable=False,
            )
        return message_response(encode_compacted(await compactor.compact_now()))

    api.add_api_route(COMPACT, compact, methods=["POST"])
