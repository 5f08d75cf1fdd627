"""Load: appends and reads that are counted and timed, bounded by time and by bytes."""

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Final

import orjson

from bottomless.cli.measures import Bounds, Load
from bottomless.client.encoding import JSON
from bottomless.errors import Outcome, Overloaded, StoreError
from bottomless.model.limits import MIB, PAGE_RECORD_COUNT_MAX

if TYPE_CHECKING:
    from bottomless.client import AsyncClient

_PAGE_SIZE: Final = 4 * MIB
_WAIT_COUNT_MAX: Final = 1_000_000
"""A load ends with so many requests, so that what is remembered of it is bounded."""


async def write(client: "AsyncClient", stream: str, bounds: Bounds) -> Load:
    """Append from all connections at once until time, bytes or room for measures end.

    Raises:
        Overloaded: the server was busy and does not say that nothing was stored.
        StoreError: an append failed.
    """
    load = Load()
    body = _body(bounds)
    size = bounds.record_bytes * bounds.batch_count
    # Connections and the owner of the stream come into being here, outside of what is timed.
    await asyncio.gather(*(client.bounds(stream) for _ in range(bounds.connections)))
    begun = [0]

    def may_begin(now: float) -> bool:
        fits = begun[0] == 0 or (begun[0] + 1) * size <= bounds.max_bytes
        return now < deadline and fits and begun[0] < _WAIT_COUNT_MAX

    async def connection() -> None:
        while may_begin(asked := time.perf_counter()):
            begun[0] += 1
            try:
                stored = await client.append_body(stream, body, JSON)
            except Overloaded as error:
                if error.outcome is not Outcome.NONE:
                    raise
                load.refused += 1
                await asyncio.sleep(error.retry_after_seconds or 0.1)
                continue
            load.waits.append(time.perf_counter() - asked)
            load.record_count += stored.record_count
            load.size += size

    began, busy = time.perf_counter(), time.process_time()
    deadline = began + bounds.seconds
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(bounds.connections):
                group.create_task(connection())
    except BaseExceptionGroup as several:
        # Of several that met the same, one is told; `except*` would put it into a group again.
        told = several.subgroup(StoreError)
        if told is None:
            raise
        raise told.exceptions[0] from None
    load.seconds = time.perf_counter() - began
    load.busy_seconds = time.process_time() - busy
    return load


async def read_back(client: "AsyncClient", stream: str, bounds: Bounds, record_count: int) -> Load:
    """Read page after page until everything is read or the time is over."""
    load = Load()
    began, busy = time.perf_counter(), time.process_time()
    offset = 0
    while offset < record_count and (asked := time.perf_counter()) < began + bounds.seconds:
        page = await client.read(stream, offset, limit=PAGE_RECORD_COUNT_MAX, max_bytes=_PAGE_SIZE)
        load.waits.append(time.perf_counter() - asked)
        load.record_count += len(page.records)
        load.size += sum(len(record["value"]) for record in page.records)
        if page.next_offset <= offset:
            break
        offset = page.next_offset
    load.seconds = time.perf_counter() - began
    load.busy_seconds = time.process_time() - busy
    return load


def _body(bounds: Bounds) -> bytes:
    """A request of random values, the same for all: making it is not what is measured."""
    half = -(-bounds.record_bytes // 2)
    values = (secrets.token_hex(half)[: bounds.record_bytes] for _ in range(bounds.batch_count))
    return orjson.dumps({"records": [{"value": value} for value in values]})
