"""The internal paths of the manifest: for ingest, uploader and reader.

Contract: openapi/internal.yaml.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Fenced, Overloaded, StoreError
from bottomless.formats.stream_record import LEADERLESS
from bottomless.model.config import parse_config
from bottomless.model.names import Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.core.preconditions import matches
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.fault_routes import add_fault_routes
from bottomless_server.manifest.consumers.internal_group_routes import add_internal_group_routes
from bottomless_server.manifest.front.internal_fetched_routes import add_internal_fetched_routes
from bottomless_server.manifest.front.internal_move_routes import add_internal_move_routes
from bottomless_server.manifest.front.internal_registry_routes import add_internal_registry_routes
from bottomless_server.manifest.front.internal_super_routes import add_internal_super_routes
from bottomless_server.manifest.keys.internal_key_routes import add_internal_key_routes
from bottomless_server.manifest.keys.keys import Keys
from bottomless_server.manifest.keys.root_key import RootKey
from bottomless_server.manifest.mutators.mutator import Mutator, Mutators
from bottomless_server.manifest.queue_homes.homes import Homes
from bottomless_server.manifest.queue_homes.internal_home_routes import add_internal_home_routes
from bottomless_server.manifest.queue_homes.starts import Starts
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.registry.stream_description import root_etag, root_state
from bottomless_server.manifest.tree.core.events import Why
from bottomless_server.manifest.tree.outcomes import FragmentOutcome
from bottomless_server.protocol.paths import STREAM, stream_id_in
from bottomless_server.protocol.registry import (
    BY_NAME,
    BY_NAME_QUERY,
    NAMES,
    ROOT,
    ROOT_QUERY,
    ByNameAsked,
    NamesAsked,
    RootAsked,
    ToMake,
    encode_made,
    encode_root,
    encode_stream,
    encode_streams,
    name_in,
)
from bottomless_server.protocol.uploads import (
    ABANDON,
    FRAGMENTS,
    INTENTS,
    UPLOADS,
    AbandonAsked,
    BeginAsked,
    IntentsAsked,
    Opened,
    RegisterAsked,
    Registered,
    encode_intended,
    encode_opened,
    encode_registered,
    refusal_facts,
)
from bottomless_server.runtime.base.on_loop import loop_time
from bottomless_server.runtime.http.app import create_api, header, message_response, parse_query
from bottomless_server.runtime.http.closed_body import read_closed_body

_REREAD_SECONDS: Final = 1.0
"""How late a long poll may hear of what another process published."""


def internal_api(
    context: Context, registry: Registry, mutators: Mutators, keys: Keys, root_key: RootKey
) -> FastAPI:
    api = create_api("Bottomless manifest, internal")
    routes = _InternalRoutes(context, registry, mutators)
    api.add_api_route(NAMES, routes.by_names, methods=["POST"])
    api.add_api_route(BY_NAME, routes.by_name, methods=["GET"])
    api.add_api_route(BY_NAME, routes.make, methods=["PUT"])
    api.add_api_route(STREAM, routes.by_id, methods=["GET"])
    api.add_api_route(ROOT, routes.root, methods=["GET"])
    api.add_api_route(UPLOADS, routes.uploads, methods=["POST"])
    api.add_api_route(INTENTS, routes.intents, methods=["POST"])
    api.add_api_route(FRAGMENTS, routes.fragments, methods=["POST"])
    api.add_api_route(ABANDON, routes.abandon, methods=["POST"])
    add_internal_move_routes(api, context, mutators)
    add_internal_fetched_routes(api, context, mutators)
    add_internal_registry_routes(api, context, registry)
    add_internal_super_routes(api, registry)
    add_internal_group_routes(api, context)
    add_internal_key_routes(api, context, keys, root_key)
    add_internal_home_routes(api, Homes(context), Starts(context))
    add_fault_routes(api, enabled=context.settings.fault_points)
    return api


class _InternalRoutes:
    def __init__(self, context: Context, registry: Registry, mutators: Mutators) -> None:
        self._context = context
        self._registry = registry
        self._mutators = mutators

    async def by_name(self, request: Request) -> Response:
        asked = ByNameAsked(**parse_query(request.scope, BY_NAME_QUERY))
        record = await self._registry.find(name_in(request.path_params, asked.tenant))
        return message_response(encode_stream(record))

    async def make(self, request: Request) -> Response:
        asked = ByNameAsked(**parse_query(request.scope, BY_NAME_QUERY))
        name = name_in(request.path_params, asked.tenant)
        wanted = await read_closed_body(request, ToMake)
        served = LEADERLESS in self._context.served
        config = parse_config(wanted.model_dump(), leaderless=served)
        made = await self._registry.declare(name, config)
        return message_response(encode_made(created=made.created))

    async def by_names(self, request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, NamesAsked)
        return message_response(encode_streams(await self._registry.find_many(asked.full_names())))

    async def by_id(self, request: Request) -> Response:
        parse_query(request.scope, {})
        record = await self._registry.load(stream_id_in(request.path_params))
        return message_response(encode_stream(record))

    async def root(self, request: Request) -> Response:
        asked = RootAsked(**parse_query(request.scope, ROOT_QUERY))
        known = header(request.scope, b"if-none-match")
        mutator = self._mutators.of(stream_id_in(request.path_params))
        deadline = loop_time() + asked.wait_ms / 1000
        while True:
            change = mutator.next_change
            record, root = await mutator.refresh()
            left = deadline - loop_time()
            if not matches(known, root_etag(record)):
                answer = encode_root(root_state(record, root))
                return message_response(answer, {"etag": root_etag(record)})
            if left <= 0:
                return Response(status_code=304, headers={"etag": root_etag(record)})
            # Another process may publish too, which only its record tells.
            await _wait(change, min(left, _REREAD_SECONDS))

    async def uploads(self, request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, BeginAsked)
        mutator = self._mutators.of(stream_id_in(request.path_params))
        record = await mutator.begin(asked.session)
        mutator.tell_again()
        opened = Opened(record.published_next, record.version, record.epoch, record.tenant)
        return message_response(encode_opened(opened))

    async def intents(self, request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, IntentsAsked)
        mutator = self._mutators.of(stream_id_in(request.path_params))
        intended = await mutator.intend(asked.session, asked.first_offsets, asked.drives)
        return message_response(encode_intended(*intended))

    async def abandon(self, request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, AbandonAsked)
        uids = {Uid(uid) for uid in asked.uids}
        await self._mutators.of(stream_id_in(request.path_params)).abandon(asked.session, uids)
        return message_response({})

    async def fragments(self, request: Request) -> Response:
        parse_query(request.scope, {})
        asked = await read_closed_body(request, RegisterAsked)
        fragments = asked.infos()
        uids = [fragment.uid for fragment in fragments]
        mutator = self._mutators.of(stream_id_in(request.path_params))

        record = await mutator.register(asked.session, fragments)
        seconds = self._context.settings.manifest_register_wait_ms / 1000
        outcomes = await _wait_applied(mutator, uids, seconds)
        record = mutator.record or record
        registered = Registered(
            record.published_next,
            record.version,
            applied=tuple(uid for uid in uids if outcomes[uid] is True),
            waiting=tuple(uid for uid in uids if outcomes[uid] is not True),
        )
        return message_response(encode_registered(registered))


async def _wait_applied(
    mutator: Mutator, uids: Sequence[Uid], seconds: float
) -> dict[Uid, FragmentOutcome]:
    """Wait until all are applied or the time is over; what is then known of each.

    Raises:
        Fenced, Overloaded: one of them is refused.
    """
    deadline = loop_time() + seconds
    while True:
        change = mutator.next_change
        outcomes = mutator.outcomes(uids)
        for uid, outcome in outcomes.items():
            if isinstance(outcome, Why):
                raise _refusal(mutator.record, uid, outcome)
        done = all(outcome is True for outcome in outcomes.values())
        # Without a record the manifest was put aside, and nothing of it waits any more: the
        # stream is deleted, or who asks again makes it load what is stored.
        if done or mutator.record is None or loop_time() >= deadline:
            return outcomes
        await _wait(change, deadline - loop_time())


async def _wait(change: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await change.wait()


def _refusal(record: StreamRecord | None, uid: Uid, why: Why) -> StoreError:
    facts = refusal_facts(uid, record)
    if why is Why.FULL:
        return Overloaded(f"a fragment is refused: {why.value}", facts=facts)
    return Fenced(f"a fragment is refused: {why.value}", facts=facts)
