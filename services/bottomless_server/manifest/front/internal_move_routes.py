"""The internal paths by which uploaders take up moves of fragments, and tell that they are done.

Contract: openapi/internal.yaml. What each step leaves after a crash is said in mutators/moves.py.
"""

from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.formats.stream_record import TIERS
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.protocol.moves import (
    CLAIM,
    FINISH,
    GIVE_UP,
    MOVES,
    MOVES_QUERY,
    ClaimAsked,
    FinishAsked,
    GiveUpAsked,
    MoveFound,
    MovesAsked,
    MovesFound,
    encode_claimed,
    encode_found,
)
from bottomless_server.protocol.paths import stream_id_in
from bottomless_server.runtime.http.app import message_response, parse_query
from bottomless_server.runtime.http.closed_body import read_closed_body
from bottomless_server.stores.streams import STREAMS_KEY

_PAGE_COUNT: Final = 256
"""Streams that one request looks at."""


def add_internal_move_routes(api: FastAPI, context: Context, mutators: Mutators) -> None:
    async def search(request: Request) -> Response:
        asked = MovesAsked(**parse_query(request.scope, MOVES_QUERY))
        return message_response(encode_found(*await find_moves(context, asked)))

    async def claim(request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, ClaimAsked)
        mutator = mutators.of(stream_id_in(request.path_params))
        claimed = await mutator.claim_move(int(asked.move, 16), asked.session)
        return message_response(encode_claimed(*claimed))

    async def finish(request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, FinishAsked)
        mutator = mutators.of(stream_id_in(request.path_params))
        copied = [Uid(uid) for uid in asked.uids]
        damaged = [Uid(uid) for uid in asked.damaged]
        await mutator.finish_move(int(asked.move, 16), asked.session, copied, damaged)
        return message_response({})

    async def give_up(request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, GiveUpAsked)
        mutator = mutators.of(stream_id_in(request.path_params))
        await mutator.give_up_move(int(asked.move, 16))
        return message_response({})

    api.add_api_route(MOVES, search, methods=["GET"])
    api.add_api_route(CLAIM, claim, methods=["POST"])
    api.add_api_route(FINISH, finish, methods=["POST"])
    api.add_api_route(GIVE_UP, give_up, methods=["POST"])


async def find_moves(context: Context, asked: MovesAsked) -> MovesFound:
    """Look at some streams for moves that no other session is at.

    Nothing is remembered from one request to the next, so any process answers any of them. Where no
    stream can have a move, none is looked at.

    Raises:
        Unavailable
    """
    if TIERS not in context.served:
        return MovesFound((), None)
    after = asked.after.encode("ascii")
    members = await context.coordination.members(STREAMS_KEY, after, _PAGE_COUNT)
    if not members:
        return MovesFound((), None)
    stream_ids = [StreamId(member.decode("ascii", "replace")) for member in members]
    # What cannot be read has its alarm from the walk of retention.
    loaded = await context.streams.load_many(stream_ids)
    found = [one for record in loaded.records for one in _waiting(context, record, asked.session)]
    return MovesFound(tuple(found), stream_ids[-1])


def _waiting(context: Context, record: StreamRecord, session: str) -> list[MoveFound]:
    if record.state is not StreamState.ACTIVE:
        return []
    return [
        MoveFound(record.stream_id, move.copy, (move.from_drive, move.to_drive))
        for move in record.moves
        if not context.held_moves.is_held(move, session)
    ]
