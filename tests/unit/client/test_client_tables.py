"""Consumers that take Arrow tables, against answers that break off, end, and point elsewhere."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import pyarrow as pa
import pytest
from support.raw_server import Asked, Cut, RawServer, answer, problem, raw_server

from bottomless.client import ArrowPage, AsyncClient, AsyncConsumer, Client
from bottomless.errors import Code, InvalidRequest, NotFound, OffsetGone, StoreError, WrongOffset
from bottomless.model.names import StreamId

STREAM_ID = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"
BUSY = problem(503, "overloaded", retryable=True, headers={"Retry-After": "0"})


def page(first: int, count: int, gap: int = 0) -> bytes:
    """A page as the server sends it; `gap` offsets before its records were given up."""
    begin = first + gap
    table = pa.table(
        {
            "offset": pa.array(range(begin, begin + count), pa.int64()),
            "value": pa.array([b"%d" % n for n in range(begin, begin + count)], pa.binary()),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    headers = {
        "Stream-Id": STREAM_ID,
        "Page-Next-Offset": str(begin + count),
        "Stream-Up-To-Date": "false",
        **({"Page-Gaps": f"{first}-{begin - 1}"} if gap else {}),
    }
    body = sink.getvalue().to_pybytes()
    return answer(body=body, media_type="application/vnd.apache.arrow.stream", headers=headers)


class Pages:
    """A script of answers, each given once; then nothing more comes."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, str]] = []
        self.commits: list[tuple[int, str]] = []

    def __call__(self, asked: Asked) -> Any:
        if asked.method == "PUT":
            body = orjson.loads(asked.body)
            self.commits.append((body["next_offset"], body["expect_stream_id"]))
            return answer(value={"next_offset": body["next_offset"]})
        query = parse_qs(urlsplit(asked.path).query)
        self.asked.append({name: found[0] for name, found in query.items()})
        return self.answers.pop(0) if self.answers else _silence()


async def _silence() -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def consuming(
    pages: Pages, name: str | None = "billing", **options: Any
) -> AsyncIterator[tuple[AsyncConsumer, RawServer]]:
    async with (
        raw_server(pages) as server,
        AsyncClient(server.url, retry_seconds=60) as client,
        client.consumer("orders", name, **options) as consumer,
    ):
        yield consumer, server


async def offsets_of(consumer: AsyncConsumer, count: int) -> list[int]:
    found: list[Any] = []
    async for one in consumer.tables():
        found += one.table["offset"].to_pylist()
        if len(found) >= count:
            break
    return found


async def test_tables_go_on_where_they_were_whatever_breaks_off() -> None:
    pages = Pages(
        BUSY, page(0, 3), Cut(page(3, 2)[:-40]), BUSY, page(3, 2), Cut(b""), page(5, 1, gap=2)
    )
    outages: list[StoreError] = []
    async with consuming(pages, start="first", on_outage=outages.append) as (consumer, _):
        assert await offsets_of(consumer, 6) == [0, 1, 2, 3, 4, 7]
        assert consumer.position == 8
    first, *rest = pages.asked[1:]
    assert (first["offset"], first["consumer"], first["default"]) == ("stored", "billing", "first")
    assert first["on_out_of_range"] == "error", "nothing is left out where it begins either"
    assert [asked["offset"] for asked in rest[:5]] == ["3", "3", "3", "5", "5"]
    assert all(asked["expect_stream_id"] == STREAM_ID for asked in rest)
    assert not any("consumer" in asked for asked in rest)
    assert len(outages) >= 2


async def test_a_table_is_committed_when_the_next_is_asked_for_or_by_a_call() -> None:
    pages = Pages(page(0, 2), page(2, 2), page(4, 2))
    async with consuming(pages, commit_seconds=0) as (consumer, _):
        tables = consumer.tables()
        await anext(tables)
        assert pages.commits == []
        await anext(tables)
        assert pages.commits == [(2, STREAM_ID)]
        await consumer.commit()
        assert pages.commits[-1] == (4, STREAM_ID)
        last = await tables.poll(60)
        assert last is not None
        assert last.next_offset == 6
        assert await tables.poll(0.01) is None
    assert pages.commits[-1] == (6, STREAM_ID), "the next was asked for"


async def test_a_table_of_a_gap_alone_says_so() -> None:
    pages = Pages(page(0, 0, gap=5), page(5, 1))
    async with consuming(pages, name=None) as (consumer, _):
        one = await anext(consumer.tables())
    assert (one.table.num_rows, one.next_offset) == (0, 5)
    assert list(one.gaps) == [{"first_offset": 0, "next_offset": 5}]


BOUNDS = answer(
    value={
        "stream_id": STREAM_ID,
        "first_offset": 0,
        "next_offset": 12,
        "object_store_next_offset": 0,
    }
)


@pytest.mark.parametrize("last", [page(7, 0, gap=5), page(7, 0, gap=9)])
async def test_pages_of_a_gap_alone_are_among_them_and_say_so(last: bytes) -> None:
    """`arrow_pages` left them out, so that nobody saw what was lost; only the tables of a consumer
    were asked for a gap without records."""
    pages = Pages(BOUNDS, page(0, 0, gap=5), page(5, 2), last)
    async with raw_server(pages) as server, AsyncClient(server.url) as client:
        found = [(one.table.num_rows, list(one.gaps)) async for one in client.arrow_pages("s", 0)]
    assert [count for count, _ in found] == [0, 2, 0]
    assert [gaps[0]["first_offset"] if gaps else None for _, gaps in found] == [0, None, 7]
    assert not pages.answers, "and no question is asked too many"


@pytest.mark.parametrize("asked_for", [None, "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12"])
async def test_pages_are_of_the_stream_whose_end_was_asked_for(asked_for: str | None) -> None:
    """Of a name that was made again in between the end of the old stream cut the new one."""
    pages = Pages(BOUNDS, problem(409, "stream-replaced"))
    more: dict[str, Any] = {} if asked_for is None else {"expect_stream_id": asked_for}
    async with raw_server(pages) as server, AsyncClient(server.url) as client:
        with pytest.raises(WrongOffset):
            await anext(client.arrow_pages("s", "first", **more))
    assert pages.asked[1]["expect_stream_id"] == (asked_for or STREAM_ID)


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (problem(410, "offset-trimmed", first_offset=9), OffsetGone, Code.OFFSET_TRIMMED),
        (problem(409, "stream-replaced"), WrongOffset, Code.STREAM_REPLACED),
        (problem(404, "stream-not-found"), NotFound, Code.STREAM_NOT_FOUND),
    ],
)
async def test_what_tables_cannot_go_on_after_is_raised(
    reply: bytes, kind: type[StoreError], code: Code
) -> None:
    async with consuming(Pages(page(0, 1), reply), name=None) as (consumer, _):
        tables = consumer.tables()
        await anext(tables)
        with pytest.raises(kind) as caught:
            await anext(tables)
    assert caught.value.code is code


async def test_a_consumer_gives_records_or_tables_and_not_both() -> None:
    async with consuming(Pages(page(0, 1)), name=None) as (consumer, _):
        tables = consumer.tables()
        with pytest.raises(InvalidRequest, match="max_bytes"):
            consumer.tables(max_bytes=0)
        await anext(tables)
        with pytest.raises(InvalidRequest, match="gives batches already"):
            consumer.tables()
        with pytest.raises(InvalidRequest, match="gives tables"):
            await anext(consumer)


async def test_a_program_without_a_loop_takes_tables_too() -> None:
    pages = Pages(page(0, 2), page(2, 1))

    def consume(url: str) -> list[int]:
        found: list[Any] = []
        with Client(url) as client, client.consumer("orders", "billing") as consumer:
            for one in consumer.tables():
                found += one.table["offset"].to_pylist()
                consumer.commit()
                assert consumer.position == one.next_offset
                if len(found) == 3:
                    return found
        raise AssertionError

    async with raw_server(pages) as server:
        assert await asyncio.to_thread(consume, server.url) == [0, 1, 2]
    assert pages.commits == [(2, STREAM_ID), (3, STREAM_ID)]


async def test_only_the_columns_that_were_asked_for_are_asked_of_the_server() -> None:
    pages = Pages(page(0, 2), BOUNDS, page(0, 12), page(2, 2))
    async with raw_server(pages) as server, AsyncClient(server.url) as client:
        await client.read_arrow("s", 0, columns=["value", "key"])
        found = [one async for one in client.arrow_pages("s", 0, columns=["value"])]
        await client.read_arrow("s", 2, columns="value")
    assert len(found) == 1
    asked = [one.get("columns") for one in pages.asked]
    assert asked == ["value,key", None, "value", "value"], "bounds have no columns"


def test_a_table_says_what_to_install_where_polars_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    one = ArrowPage(pa.table({}), 0, StreamId(STREAM_ID), up_to_date=True)
    with pytest.raises(ModuleNotFoundError, match="pip install polars") as raised:
        one.to_polars()
    assert raised.value.name == "polars"
