"""The public application of ingest, made of the parts that the routes share."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fastapi import FastAPI, Request
from starlette.types import ASGIApp

from bottomless.model.config import Profile
from bottomless_server.ingest.front.append_lane import AppendLane
from bottomless_server.ingest.front.append_requests import AppendRequests
from bottomless_server.ingest.front.broker_routes import add_produce_route
from bottomless_server.ingest.front.lookup import AppenderLookup
from bottomless_server.ingest.front.metrics import AppendCounts
from bottomless_server.ingest.front.names import StreamNames
from bottomless_server.ingest.front.producer_routes import add_producer_routes
from bottomless_server.ingest.front.remote_partitions import PartitionOwners
from bottomless_server.ingest.front.routes import AppendRoute
from bottomless_server.ingest.front.staged_routes import add_staged_route
from bottomless_server.ingest.front.super_names import SuperNames
from bottomless_server.ingest.front.super_produce import SuperProduce
from bottomless_server.ingest.front.super_routes import add_super_routes
from bottomless_server.ingest.ports import Appenders
from bottomless_server.node.forwarded import ForwardedRequests
from bottomless_server.node.room import MemoryRoom
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.runtime.http.app import create_api
from bottomless_server.runtime.http.broker import BrokerHealth
from bottomless_server.runtime.http.contract import describe


class Public(NamedTuple):
    """What ingest answers to producers, by two ways."""

    app: ASGIApp
    lane: AppendLane
    """Takes those appends that nobody has to wait for."""


class Supers(NamedTuple):
    """How requests to super streams are served."""

    names: SuperNames
    owners: PartitionOwners
    room: MemoryRoom
    """Memory for the requests alone: their parts take that of appends, here or at another node, and
    must not wait for the requests that they are parts of."""
    parts_in_flight: int
    since_boot: Callable[[], int]
    """The ms since boot, by a clock that goes on while the machine sleeps."""
    parts_ms: int
    """Until when after its beginning parts of a request with numbers are sent."""


class Broker(NamedTuple):
    """How the broker contract is served."""

    health: BrokerHealth
    creates: bool
    """The first produce to a partition makes its stream."""


def create_public_app(
    names: StreamNames,
    appenders: Mapping[Profile, Appenders],
    under_way: RequestsUnderWay,
    forwarded: ForwardedRequests,
    room: MemoryRoom,
    counts: AppendCounts,
    *,
    frame_size_max: int,
    supers: Supers | None = None,
    broker: Broker | None = None,
) -> Public:
    """Everything that ingest answers to producers; `appenders` is all that it knows of streams,
    by their profiles.

    `frame_size_max` is the bound on a frame of a request, decoded, in bytes. With `supers` super
    streams are served, with `broker` the broker contract, too.
    """
    lookup = AppenderLookup(names, appenders, under_way)
    api = create_api("Bottomless ingest")
    describe(api)
    _state_append(api)
    add_staged_route(api, lookup, under_way, room, frame_size_max)
    add_producer_routes(api, lookup)
    requests = AppendRequests(lookup, under_way, room, counts, frame_size_max)
    if supers is not None:
        produce = SuperProduce(
            supers.names,
            supers.owners,
            requests,
            under_way,
            supers.room,
            counts,
            frame_size_max=frame_size_max,
            parts_in_flight=supers.parts_in_flight,
            since_boot=supers.since_boot,
            parts_ms=supers.parts_ms,
        )
        add_super_routes(api, produce)
    if broker is not None:
        add_produce_route(
            api,
            requests,
            forwarded,
            under_way,
            room,
            health=broker.health,
            makes=names if broker.creates else None,
        )
    lane = AppendLane(lookup, under_way, room, counts, frame_size_max)
    return Public(AppendRoute(requests, lookup, forwarded, room, api), lane)


def _state_append(api: FastAPI) -> None:
    """State the contract of appends, which `AppendRoute` takes before they come here."""

    @api.post(
        "/v1/streams/{s}/records",
        operation_id="append_records",
        summary="Append records",
    )
    async def append_records(s: str, request: Request) -> None:
        # Only here for the contract and for `Allow`.
        raise AssertionError((s, request.method))
