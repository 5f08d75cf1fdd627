"""`POST /consume`: pages of several partitions in one answer, each a page like any other.

On the record's path: instead of record_routes.py, after fetching.py.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Scope

from bottomless.errors import StoreError
from bottomless.model.limits import PAGE_RECORD_COUNT_DEFAULT
from bottomless_server.core.broker.asked import Fetched, read_consume
from bottomless_server.core.broker.names import FETCH_RECORD_COUNT_MAX
from bottomless_server.core.broker.results import Result, refused, whole
from bottomless_server.core.broker.turns import Turns, rotated
from bottomless_server.core.scopes import Operation
from bottomless_server.reader.core.fetch_budget import FetchBudget
from bottomless_server.reader.core.rendering import as_broker_records
from bottomless_server.reader.fetching import Fetching, Partition
from bottomless_server.reader.page_reader import PageReader
from bottomless_server.reader.verified import INLINE_SIZE_MAX
from bottomless_server.runtime.base.on_loop import loop_time
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.broker import (
    CONSUME,
    HEALTH,
    BrokerHealth,
    check_form,
    read_value,
    results_response,
)
from bottomless_server.runtime.http.connection import Places, while_connected
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.process.rate_limits import count_by_route


class ConsumeRoute:
    """The route of consume."""

    def __init__(self, reader: PageReader, waiters: Places) -> None:
        self._reader = reader
        self._waiters = waiters
        self._turns = Turns()

    async def consume(self, request: Request) -> Response:
        """Answer a request for the records of several partitions."""
        scope = request.scope
        check_form(scope)
        fetch = read_consume(await read_value(scope, request.receive))
        ends = loop_time() + fetch.wait_ms / 1000
        partitions = [_admitted(scope, asked) for asked in fetch.partitions]
        budget = FetchBudget(fetch.size_max, FETCH_RECORD_COUNT_MAX, fetch.size_min)
        in_turn = rotated(partitions, self._turns.take(_client(scope, fetch.partitions)))
        fetching = Fetching(self._reader.page, self._waiters, budget, in_turn)
        await while_connected(request.receive, fetching.fill(ends))

        def render() -> list[Result]:
            return [_result(one) for one in partitions]

        inline = budget.size <= INLINE_SIZE_MAX and budget.count <= PAGE_RECORD_COUNT_DEFAULT
        return results_response(whole(render() if inline else await asyncio.to_thread(render)))


def add_consume_route(
    api: FastAPI, reader: PageReader, waiters: Places, health: BrokerHealth
) -> None:
    """Serve the part of the broker contract that is the reader's, beside what `api` serves."""
    route = ConsumeRoute(reader, waiters)
    api.add_api_route(CONSUME, route.consume, methods=["POST"], operation_id="consume")
    api.add_api_route(HEALTH, health.show, methods=["GET"], operation_id="get_broker_health")


def _client(scope: Scope, asked: Sequence[Fetched]) -> int:
    """A number for a client that asks for the same partitions again; two that have it share turns."""
    principal = principal_of(scope)
    return hash((principal.tenant, principal.actor, *(one.place for one in asked)))


def _admitted(scope: Scope, asked: Fetched) -> Partition:
    """A partition, with its stream's name if it may be read and the rate allows it."""
    try:
        name = full_name_of(scope, asked.place.stream)
        principal_of(scope).require_visible(Operation.READ, name.name)
        count_by_route(scope)
    except StoreError as error:
        return Partition(asked, error=error)
    return Partition(asked, name)


def _result(one: Partition) -> Result:
    place, newest = one.asked.place, one.newest
    if one.error is not None:
        return refused(place, one.error, write=False)
    assert newest is not None, "it was neither read nor refused"
    members: dict[str, Any] = {
        **place._asdict(),
        "ok": True,
        "records": [record for page in one.pages for record in as_broker_records(page.table)],
        "next_offset": one.position,
        "high_watermark": newest.committed_next,
        "log_start": newest.first_offset,
    }
    gaps = [gap._asdict() for page in one.pages for gap in page.gaps]
    return Result({**members, "gaps": gaps} if gaps else members)
