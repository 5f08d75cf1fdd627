"""The internal path by which readers tell what they have fetched of fragments.

Contract: openapi/internal.yaml. What comes of it is said in mutators/hot_fragments.py.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import structlog
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import StoreError
from bottomless.formats.stream_record import TIERS
from bottomless.model.names import StreamId
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.hot_fragments import promotes
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.tree.core.hot_ranges import Fetched
from bottomless_server.protocol.fetched import FETCHED, FetchedTold, FragmentFetched
from bottomless_server.runtime.http.app import message_response, parse_query
from bottomless_server.runtime.http.closed_body import read_closed_body

log = structlog.get_logger(__name__)

_PROMOTING_COUNT_MAX: Final = 4
"""Streams whose manifests are looked into at a time."""


def add_internal_fetched_routes(api: FastAPI, context: Context, mutators: Mutators) -> None:
    async def tell(request: Request) -> Response:
        parse_query(request.scope, {})
        told = await read_closed_body(request, FetchedTold)
        await hear_fetched(context, mutators, told.by_stream())
        return message_response({})

    api.add_api_route(FETCHED, tell, methods=["POST"])


async def hear_fetched(
    context: Context, mutators: Mutators, fetched: Mapping[StreamId, Sequence[FragmentFetched]]
) -> int:
    """Promote what was fetched often enough, of the streams whose tiers say so; how many moves that is.

    What fails for one stream fails for no other, and is left until it is told again.

    Raises:
        Unavailable: nothing is known of any stream.
    """
    if TIERS not in context.served or not fetched:
        return 0
    loaded = await context.streams.load_many(list(fetched))
    room = asyncio.Semaphore(_PROMOTING_COUNT_MAX)

    async def promote(stream_id: StreamId) -> int:
        told = [Fetched(*one[1:]) for one in fetched[stream_id]]
        async with room:
            try:
                return await mutators.of(stream_id).promote_fetched(told)
            except StoreError as error:
                log.warning(
                    "what is read often was not promoted", stream_id=stream_id, error=str(error)
                )
                return 0

    entered = sum(
        await asyncio.gather(
            *(promote(record.stream_id) for record in loaded.records if promotes(record))
        )
    )
    context.counts.read_promotions += entered
    return entered
