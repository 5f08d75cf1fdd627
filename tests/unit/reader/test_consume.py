"""`POST /consume`: pages of several partitions, within one budget, and waits for all together."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from support.asgi import client_of
from unit.reader.harness import ReaderHarness, Sent, WatchedDrive
from unit.reader.open_answers import comes_true

from bottomless.errors import Unavailable
from bottomless.model.names import TENANT_DEFAULT, FullName
from bottomless_server.core.broker.asked import Fetched
from bottomless_server.core.broker.names import Place
from bottomless_server.core.principal import Principal
from bottomless_server.reader.core.fetch_budget import FetchBudget
from bottomless_server.reader.fetching import Fetching, Partition
from bottomless_server.reader.pages import Page, PageQuery
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.runtime.base.on_loop import loop_time
from bottomless_server.runtime.base.principal import note_principal
from bottomless_server.runtime.http.connection import Places
from bottomless_server.runtime.process.rate_limits import Policy, RateLimits

PARTITION: Final = {"topic": "orders", "partition": 0}


class BrokerHarness(ReaderHarness):
    """The one stream that there is, asked for as the partition 0 of `orders`."""

    def __init__(self, drive: WatchedDrive | None = None, **settings: Any) -> None:
        super().__init__(drive=drive, broker=True, **settings)
        self.other_names.add("orders-0")

    async def consume(self, offset: int, **asked: Any) -> httpx.Response:
        one = {**PARTITION, "fetch_offset": offset}
        return await self.client.post("/consume", json={"topic_partitions": [one], **asked})


@pytest.fixture
async def broker() -> AsyncIterator[BrokerHarness]:
    made = BrokerHarness()
    yield made
    await made.aclose()


def only(answer: httpx.Response) -> dict[str, Any]:
    [one] = answer.json()["results"]
    found: dict[str, Any] = one
    return found


async def test_what_is_off_is_not_there(harness: ReaderHarness) -> None:
    for method, path in (("POST", "/consume"), ("GET", "/consume"), ("GET", "/health")):
        answer = await harness.client.request(method, path, json={})
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


async def test_records_come_with_offset_time_and_value(broker: BrokerHarness) -> None:
    broker.append("a", Sent(b"\xff\x00"), timestamp=1_750_000_000_000)
    answer = await broker.consume(0)

    assert answer.status_code == 200
    at = "2025-06-15T15:06:40.000Z"
    assert answer.json() == {
        "results": [
            {
                **PARTITION,
                "ok": True,
                "records": [
                    {"offset": 0, "timestamp": at, "text": "a"},
                    {"offset": 1, "timestamp": at, "base64": "/wA="},
                ],
                "next_offset": 2,
                "high_watermark": 2,
                "log_start": 0,
            }
        ],
        "success_count": 1,
        "error_count": 0,
    }


async def test_a_partition_is_read_on_over_both_tiers(broker: BrokerHarness) -> None:
    broker.fill(100)
    await broker.upload(4, free=True)
    offset, seen = 0, []
    while offset < 100:
        one = only(await broker.consume(offset, max_bytes=200))
        assert one["records"]
        seen += [record["offset"] for record in one["records"]]
        offset = one["next_offset"]
    assert seen == list(range(100))


async def test_a_fetch_brings_all_that_fits_from_both_tiers_at_once(broker: BrokerHarness) -> None:
    broker.fill(100)
    await broker.upload(4, free=True)
    assert len(only(await broker.consume(0))["records"]) == 100


async def test_one_record_always_comes_and_no_more_than_fit(broker: BrokerHarness) -> None:
    broker.append("x" * 100, "y" * 100, "z")
    for asked, count in (
        ({"max_bytes": 1}, 1),
        ({"max_bytes": 199}, 1),
        ({"max_bytes": 200}, 2),
        ({"max_bytes": 201}, 3),
    ):
        assert len(only(await broker.consume(0, **asked))["records"]) == count
    one = {**PARTITION, "fetch_offset": 0, "partition_max_bytes": 200}
    answer = await broker.client.post("/consume", json={"topic_partitions": [one]})
    assert len(only(answer)["records"]) == 2


@pytest.mark.parametrize("offset", [3, 11])
async def test_out_of_range_carries_both_bounds(broker: BrokerHarness, offset: int) -> None:
    broker.fill(10)
    await broker.upload(1)
    await broker.trim(5)
    answer = await broker.consume(offset, max_wait_ms=30_000)
    one = only(answer)
    assert (answer.status_code, one["error_type"]) == (409, "OffsetOutOfRange")
    assert (one["log_start"], one["high_watermark"]) == (5, 10)


async def test_a_gap_is_named_and_never_jumped_in_silence(broker: BrokerHarness) -> None:
    broker.fill(10)
    await broker.upload(1, free=True)
    await broker.lose(5)
    broker.fill(10)
    one = only(await broker.consume(8))
    assert [record["offset"] for record in one["records"]] == [8, 9, *range(15, 25)]
    assert one["gaps"] == [{"first_offset": 10, "next_offset": 15, "reason": "local-log-lost"}]


async def test_unknown_partitions_do_not_keep_others_from_being_read(
    broker: BrokerHarness,
) -> None:
    broker.fill(10)
    asked = [
        {**PARTITION, "partition": 7, "fetch_offset": 0},
        {**PARTITION, "fetch_offset": 4},
        {"topic": "a/../b", "partition": 0, "fetch_offset": 0},
    ]
    answer = await broker.client.post("/consume", json={"topic_partitions": asked})
    missing, there, none = answer.json()["results"]
    assert answer.status_code == 409
    assert (missing["error_type"], missing["code"]) == ("UnknownPartition", "stream-not-found")
    assert (none["error_type"], none["code"]) == ("UnknownPartition", "bad-name")
    assert len(there["records"]) == 6


async def test_the_end_is_waited_at_until_there_is_enough(broker: BrokerHarness) -> None:
    broker.fill(10)
    asking = asyncio.create_task(broker.consume(10, max_wait_ms=30_000, min_bytes=6))
    await broker.waiting.wait()
    broker.append("abc")
    await comes_true(lambda: broker.asked.count("chunks 11") > 0)
    assert not asking.done()
    broker.append("def")
    one = only(await asking)
    assert [record["text"] for record in one["records"]] == ["abc", "def"]
    assert (one["next_offset"], one["high_watermark"]) == (12, 12)
    assert broker.service.waiters.count == 0


async def test_a_wait_ends_with_its_time_and_with_what_there_is(broker: BrokerHarness) -> None:
    broker.append("a")
    one = only(await broker.consume(0, max_wait_ms=50, min_bytes=1000))
    assert [record["text"] for record in one["records"]] == ["a"]
    one = only(await broker.consume(1, max_wait_ms=50))
    assert (one["records"], one["next_offset"], one["high_watermark"]) == ([], 1, 1)
    assert only(await broker.consume(1))["records"] == []


async def test_too_many_who_wait_are_refused(broker: BrokerHarness) -> None:
    made = BrokerHarness(reader_waiter_count_max=1)
    with made.service.waiters.one():
        answer = await made.consume(0, max_wait_ms=10_000)
    await made.aclose()
    assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
    assert answer.headers["retry-after"] == "1"


async def test_the_scope_and_the_rate_are_asked_for_each_stream(broker: BrokerHarness) -> None:
    broker.fill(10)

    def known(app: ASGIApp, *scopes: str) -> ASGIApp:
        async def knowing(scope: Scope, receive: Receive, send: Send) -> None:
            note_principal(scope, Principal(TENANT_DEFAULT, "key", scopes))
            await app(scope, receive, send)

        return knowing

    asked = [{**PARTITION, "partition": number, "fetch_offset": 0} for number in range(3)]
    body = {"topic_partitions": asked}
    async with client_of(
        known(broker.service.public, "read:orders-0", "append:orders-1")
    ) as client:
        answer = await client.post("/consume", json=body)
    types = [one.get("error_type") for one in answer.json()["results"]]
    assert types == [None, "Denied", "UnknownPartition"]

    policy = Policy("tenant-requests", 2, 10**7, per_key=False, of_bytes=False)
    limited = RateLimits([policy]).around(broker.service.public)
    async with client_of(known(limited, "*")) as client:
        some, none = [await client.post("/consume", json=body) for _ in range(2)]
    assert some.json()["results"][2]["error_type"] == "BackPressureRejected"
    assert (some.status_code, none.status_code) == (409, 503)
    assert int(none.headers["retry-after"]) > 0


async def test_a_request_that_is_wrong_is_400(broker: BrokerHarness) -> None:
    bodies: list[dict[str, Any]] = [{}, {"topic_partitions": []}, {"topic_partitions": [PARTITION]}]
    for body in bodies:
        answer = await broker.client.post("/consume", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad-parameter")
    answer = await broker.client.get("/consume")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


class Shelf:
    """Streams of records of one byte, from which pages are taken without a store."""

    def __init__(self, **ends: int) -> None:
        self.ends = ends
        self.asked: list[tuple[str, PageQuery]] = []
        self.size = 1
        self.together = self.most = 0
        self.grown = asyncio.Event()
        self.failing: set[str] = set()

    async def page(self, name: FullName, query: PageQuery) -> Page:
        self.asked.append((name.name, query))
        if name.name in self.failing:
            raise Unavailable("away")
        self.together += 1
        self.most = max(self.most, self.together)
        try:
            await asyncio.sleep(0)
            start = query.spec.offset  # type: ignore[union-attr]
            if query.wait_ms and self.ends[name.name] == start:
                try:
                    async with asyncio.timeout(query.wait_ms / 1000):
                        while self.ends[name.name] == start:
                            await self.grown.wait()
                except TimeoutError:
                    pass
            return self._page(name, start, query)
        finally:
            self.together -= 1

    def _page(self, name: FullName, start: int, query: PageQuery) -> Page:
        end = self.ends[name.name]
        count = min(end - start, query.limit, max(query.size_max // self.size, 1))
        stream: Any = StreamFacts("id", name, 0, None)  # type: ignore[arg-type]
        empty: Any = None
        return Page(
            stream=stream,
            start=empty,
            table=empty,
            chunks=(),
            count=count,
            size=count * self.size,
            held_size=0,
            lasting=False,
            gaps=(),
            next_offset=start + count,
            first_offset=0,
            committed_next=end,
            bounds=empty,
        )

    def grow(self, name: str, count: int) -> None:
        self.ends[name] += count
        self.grown.set()
        self.grown = asyncio.Event()


def partitions_of(shelf: Shelf, size_max: int = 1000) -> list[Partition]:
    return [
        Partition(Fetched(Place(name, 0), 0, size_max), FullName(TENANT_DEFAULT, name))  # type: ignore[arg-type]
        for name in shelf.ends
    ]


async def filled(
    shelf: Shelf, partitions: list[Partition], wait_seconds: float = 0, **bounds: int
) -> list[int]:
    budget = FetchBudget(**{"size_max": 100, "count_max": 1000, **bounds})
    fetching = Fetching(shelf.page, Places(100, "waiters"), budget, partitions)
    await fetching.fill(loop_time() + wait_seconds)
    assert budget.count == sum(sum(page.count for page in one.pages) for one in partitions)
    return [one.position for one in partitions]


async def test_at_most_some_are_read_at_once_and_all_tell_their_bounds() -> None:
    shelf = Shelf(**{f"s{number}": 50 for number in range(50)})
    partitions = partitions_of(shelf)
    positions = await filled(shelf, partitions)
    assert shelf.most == 8
    assert sum(positions) == 100
    assert all(one.newest is not None for one in partitions)


async def test_who_has_nothing_leaves_its_share_to_those_who_have() -> None:
    shelf = Shelf(**{f"s{number}": 0 for number in range(8)})
    shelf.ends["s3"] = 1000
    assert await filled(shelf, partitions_of(shelf)) == [0, 0, 0, 100, 0, 0, 0, 0]
    shelf = Shelf(a=1000, b=1000)
    assert await filled(shelf, partitions_of(shelf, size_max=30)) == [30, 30]


async def test_records_that_do_not_fit_stay_for_the_next_request() -> None:
    shelf = Shelf(a=5, b=5)
    shelf.size = 60
    partitions = partitions_of(shelf)
    assert await filled(shelf, partitions) == [1, 0]
    assert [one.newest.committed_next for one in partitions if one.newest] == [5, 5]


async def test_it_waits_for_the_sum_of_all_partitions() -> None:
    shelf = Shelf(a=0, b=2, c=0)
    partitions = partitions_of(shelf)
    filling = asyncio.create_task(filled(shelf, partitions, wait_seconds=60, size_min=6))
    await comes_true(lambda: shelf.together == 3)
    shelf.grow("a", 2)
    await comes_true(lambda: len(shelf.asked) == 7)
    assert not filling.done()
    shelf.grow("c", 2)
    assert await filling == [2, 2, 2]
    assert shelf.together == 0


async def test_who_has_an_error_hears_of_it_without_waiting_for_others() -> None:
    shelf = Shelf(a=0, b=0)
    shelf.failing.add("b")
    partitions = partitions_of(shelf)
    assert await filled(shelf, partitions, wait_seconds=3600) == [0, 0]
    assert [one.error is None for one in partitions] == [True, False]


async def test_an_error_behind_records_is_met_by_the_next_request() -> None:
    shelf = Shelf(a=3, b=0)
    partitions = partitions_of(shelf)
    filling = asyncio.create_task(filled(shelf, partitions, wait_seconds=60, size_min=5))
    await comes_true(lambda: shelf.together == 2)
    shelf.failing.add("a")
    shelf.grow("a", 1)
    await comes_true(lambda: partitions[0].position == 4)
    shelf.grow("b", 1)
    assert await filling == [4, 1]
    assert [one.error for one in partitions] == [None, None]


async def test_a_client_that_leaves_ends_all_waits() -> None:
    shelf = Shelf(a=0, b=0)
    filling = asyncio.create_task(filled(shelf, partitions_of(shelf), wait_seconds=3600))
    await comes_true(lambda: shelf.together == 2)
    filling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await filling
    assert shelf.together == 0
