"""Which way a worker takes to an object, and what it does when one is closed to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.s3 import CREDENTIALS
from support.scripted_s3 import ScriptedS3, refusal, reply, scripted_s3

from bottomless.errors import InvalidRequest, Unavailable
from bottomless.model.names import StreamId, StreamName
from bottomless.spark import s3_objects, service, url_objects, ways
from bottomless.spark.options import Mode
from bottomless.spark.plan import Share, Slice, Stored
from bottomless.spark.read import Task, read_share, sum_counts
from bottomless.spark.service import Source
from bottomless.spark.store import Counts, StorePlace
from bottomless.spark.ways import Ways, open_objects

STREAM_ID = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
SOURCE = Source("http://127.0.0.1:9", StreamName("orders"), STREAM_ID)
S3 = StorePlace("s3", "bucket", "http://127.0.0.1:9", None, True)
FILE = StorePlace("file", "/nowhere")


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process that has left no way yet, and may read."""
    monkeypatch.setattr(ways, "LEFT", {})
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def ways_of(mode: Mode, place: StorePlace | None) -> Ways:
    return Ways(mode, SOURCE, 10, place, None, Counts())


def modes(found: Ways) -> list[Mode]:
    return [way.mode for way in found.open()]


@pytest.mark.parametrize(
    ("mode", "place", "wanted"),
    [
        (Mode.AUTO, S3, [Mode.DIRECT, Mode.PRESIGNED]),
        (Mode.AUTO, FILE, [Mode.DIRECT]),
        (Mode.AUTO, StorePlace("memory", ""), []),
        (Mode.AUTO, None, []),
        (Mode.DIRECT, S3, [Mode.DIRECT]),
        (Mode.PRESIGNED, None, [Mode.PRESIGNED]),
        (Mode.READER, None, []),
    ],
)
def test_each_mode_has_its_ways(mode: Mode, place: StorePlace | None, wanted: list[Mode]) -> None:
    assert modes(ways_of(mode, place)) == wanted


def test_a_way_that_was_left_is_left_by_all_tasks_of_the_process_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = ways_of(Mode.AUTO, S3)
    first.leave(next(first.open()))
    assert modes(ways_of(Mode.AUTO, S3)) == [Mode.PRESIGNED]
    assert modes(ways_of(Mode.AUTO, S3._replace(endpoint=None))) == [Mode.DIRECT, Mode.PRESIGNED]

    monkeypatch.setattr(ways, "LEFT_SECONDS", 0)
    first.leave(next(ways_of(Mode.DIRECT, S3).open()))
    assert modes(ways_of(Mode.AUTO, S3)) == [Mode.DIRECT, Mode.PRESIGNED]


def test_a_mode_of_one_way_tries_what_auto_has_left() -> None:
    auto = ways_of(Mode.AUTO, S3)
    for way in auto.open():
        auto.leave(way)
    assert modes(ways_of(Mode.DIRECT, S3)) == [Mode.DIRECT]


def test_a_store_that_workers_cannot_read_names_the_way_out() -> None:
    with pytest.raises(InvalidRequest, match="mode=reader"):
        open_objects(StorePlace("memory", ""), Counts())


class Store:
    """One server that is store and reader, and a task that reads a share of two fragments."""

    def __init__(self, server: ScriptedS3, metrics_dir: Path) -> None:
        self.server = server
        self.metrics_dir = metrics_dir
        self.place = StorePlace("s3", "bucket", server.endpoint, None, True)
        fragments = [Stored(name, name, at, at + 3, 900, 800) for name, at in (("a", 0), ("b", 3))]
        self.share = Share(0, 6, tuple(Slice(item, *item[2:4]) for item in fragments))

    async def read(self, mode: Mode) -> list[int | None]:
        source = Source(self.server.endpoint, StreamName("orders"), STREAM_ID)
        schema = pa.schema([pa.field("offset", pa.int64())])
        task = Task(source, schema, mode, metrics_dir=str(self.metrics_dir))

        def offsets() -> list[int | None]:
            batches = read_share(task, self.share, self.place)
            return [row for batch in batches for row in batch.column("offset").to_pylist()]

        return await asyncio.to_thread(offsets)

    def reader_has_urls(self) -> None:
        items = [
            {"id": name, "url": f"{self.server.endpoint}/{name}?signed"} for name in ("a", "b")
        ]
        page = {"stream_id": STREAM_ID, "fragments": items}
        self.server.replies.append(reply(200, json.dumps(page).encode()))

    def reader_has_records(self, first: int, end: int) -> None:
        batch = pa.record_batch({"offset": pa.array(range(first, end), pa.int64())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        body = sink.getvalue().to_pybytes()
        self.server.replies.append(reply(200, body, page_next_offset=str(end)))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with scripted_s3() as server:
        made = Store(server, tmp_path)
        yield made
        s3_objects.client_of(made.place).close()
        s3_objects.client_of.cache_clear()
        url_objects.pool_of(None).clear()
        service.pool().clear()


async def test_where_the_store_refuses_everything_the_reader_brings_the_records(
    store: Store,
) -> None:
    store.server.replies.append(refusal(403, "AccessDenied"))
    store.reader_has_urls()
    store.server.replies.append(refusal(403, "AccessDenied"))
    store.reader_has_records(0, 3)
    store.reader_has_records(3, 6)
    assert await store.read(Mode.AUTO) == list(range(6))

    # Both ways are left now: the next task asks the reader at once, for all at once.
    store.reader_has_records(0, 6)
    assert await store.read(Mode.AUTO) == list(range(6))
    assert store.server.requests[-1].target.startswith("/v1/streams/orders/records?offset=0&until")
    counts = sum_counts(store.metrics_dir)
    assert (counts.object_reads, counts.page_reads, counts.url_requests) == (0, 3, 1)


async def test_a_missing_object_sends_auto_to_the_reader_and_closes_no_way(store: Store) -> None:
    for first in (0, 3):
        store.server.replies.append(refusal(404, "NoSuchKey"))
        store.reader_has_records(first, first + 3)
    assert await store.read(Mode.AUTO) == list(range(6))
    targets = [request.target.partition("?")[0] for request in store.server.requests]
    records = "/v1/streams/orders/records"
    assert targets == ["/bucket/a", records, "/bucket/b", records]


async def test_in_a_mode_of_one_way_its_error_is_that_of_the_job(store: Store) -> None:
    store.server.replies.append(refusal(403, "AccessDenied"))
    with pytest.raises(Unavailable, match="refuses this worker"):
        await store.read(Mode.DIRECT)
    store.reader_has_urls()
    store.server.replies.append(refusal(403, "AccessDenied"))
    with pytest.raises(Unavailable, match="refuses a presigned URL"):
        await store.read(Mode.PRESIGNED)
