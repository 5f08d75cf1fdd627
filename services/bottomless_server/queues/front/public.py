"""The public application of the queues service, made of the parts that its routes share."""

from collections.abc import Callable

from fastapi import FastAPI, Request
from starlette.types import ASGIApp

from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.queues.engine import QueueEngine
from bottomless_server.queues.front.admin_routes import add_admin_routes
from bottomless_server.queues.front.placing import Passing, QueueFront
from bottomless_server.queues.front.queue_routes import add_queue_routes
from bottomless_server.queues.front.requests import QueueRequests
from bottomless_server.queues.homes import TenantHomes
from bottomless_server.queues.ports import OutgoingStreams
from bottomless_server.runtime.http.app import create_api
from bottomless_server.runtime.http.contract import describe
from bottomless_server.runtime.http.paging import Paging


def create_public_app(
    engine: Callable[[], QueueEngine],
    requests: QueueRequests,
    homes: TenantHomes,
    directory: DataDirectory,
    under_way: RequestsUnderWay,
    passing: Passing,
    paging: Paging,
    streams: OutgoingStreams,
) -> ASGIApp:
    """Everything that the service answers to the public; `engine` gives the engine once it is open."""
    api = create_api("Bottomless queues")
    describe(api)
    add_queue_routes(api, engine, homes, paging, streams)
    add_admin_routes(api, engine, homes, directory)
    _state_spoken(api)
    return QueueFront(requests, homes, under_way, passing, api)


def _state_spoken(api: FastAPI) -> None:
    """State the paths that `QueueFront` takes before they come here, for the contract and `Allow`."""

    async def spoken(request: Request) -> None:
        raise AssertionError(request.method)

    queue = "/v1/queues/{q}"
    for path in ("messages", "receive", "ack", "nack", "extend"):
        api.add_api_route(f"{queue}/{path}", spoken, methods=["POST"])
    api.add_api_route("/v1/publish", spoken, methods=["POST"])
