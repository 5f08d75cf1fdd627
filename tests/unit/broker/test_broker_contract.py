"""openapi/broker.yaml says what is served where the broker contract is on, and no other file does."""

from pathlib import Path
from typing import Any, Final

import httpx
from support.asgi import client_of
from unit.ingest.harness import IngestHarness
from unit.reader.harness import ReaderHarness
from unit.test_openapi import Operation, check_operations, operations, served, served_table, table

from bottomless.errors import Overloaded
from bottomless_server.core.broker.asked import Fetch, Fetched
from bottomless_server.core.broker.error_types import ErrorType
from bottomless_server.core.broker.names import (
    FETCH_SIZE_MAX,
    PARTITION_COUNT_MAX,
    PARTITION_MAX,
    Place,
)
from bottomless_server.core.broker.results import refused, stored
from bottomless_server.runtime.http.app import BROKER_OPERATIONS
from openapi.bundle import BROKER, OPENAPI, PUBLIC, bundled, read

SCHEMAS: Final[dict[str, Any]] = read(OPENAPI / f"{BROKER}.yaml")["components"]["schemas"]
SERVED: Final = {"ingest": {"/produce", "/health"}, "reader": {"/consume", "/health"}}


def of_service(name: str) -> list[Operation]:
    return [each for each in operations(BROKER) if each.path in SERVED[name]]


async def check(name: str, client: httpx.AsyncClient) -> None:
    assert await served_table(client) == table([*operations(name), *of_service(name)])
    await check_operations(client, of_service(name))


async def test_ingest_serves_what_the_document_says(tmp_path: Path) -> None:
    harness = await (await IngestHarness(tmp_path / "ingest", broker=True).declare()).start()
    async with client_of(served(harness.service.public)) as client:
        await check("ingest", client)
    await harness.aclose()


async def test_the_reader_serves_what_the_document_says() -> None:
    harness = ReaderHarness(broker=True)
    async with client_of(served(harness.service.public)) as client:
        await check("reader", client)
    await harness.aclose()


def test_the_contract_that_clients_are_told_has_nothing_that_is_off() -> None:
    assert {each.path for each in operations(BROKER)} == set().union(*SERVED.values())
    assert not bundled(*PUBLIC)["paths"].keys() & set().union(*SERVED.values())


def test_who_asks_for_what_is_off_is_told_so_of_each_operation() -> None:
    described = read(OPENAPI / f"{BROKER}.yaml")["paths"].values()
    assert {
        each["operationId"] for path in described for each in path.values()
    } == BROKER_OPERATIONS


def test_results_have_the_members_that_are_named() -> None:
    good = stored(Place("t", 0), "id", 0, 1, 1).members
    named = SCHEMAS["PartitionProduced"]
    assert good.keys() == named["properties"].keys() == set(named["required"])
    bad = refused(Place("t", 0), Overloaded("full"), write=True).members
    assert bad.keys() == set(SCHEMAS["BrokerFailure"]["required"])
    assert SCHEMAS["BrokerFailure"]["properties"]["error_type"]["enum"] == [*ErrorType]


def test_bounds_are_those_that_are_held() -> None:
    consume = SCHEMAS["Consume"]["properties"]
    assert consume["topic_partitions"]["maxItems"] == PARTITION_COUNT_MAX
    assert SCHEMAS["Produce"]["properties"]["topic_partitions"]["maxItems"] == PARTITION_COUNT_MAX
    assert SCHEMAS["PartitionNumber"]["maximum"] == PARTITION_MAX
    fetch = Fetch([])
    defaults = (fetch.wait_ms, fetch.size_min, fetch.size_max)
    names = ("max_wait_ms", "min_bytes", "max_bytes")
    assert tuple(consume[name]["default"] for name in names) == defaults
    assert consume["max_bytes"]["maximum"] == consume["min_bytes"]["maximum"] == FETCH_SIZE_MAX
    one = consume["topic_partitions"]["items"]["properties"]["partition_max_bytes"]
    assert one["default"] == Fetched(Place("t", 0), 0).size_max
    assert one["maximum"] == FETCH_SIZE_MAX
