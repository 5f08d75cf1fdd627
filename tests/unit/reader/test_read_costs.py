"""What a read may cost, in numbers that noise cannot move.

Each bound is also held against a worse way of doing the same, which it must notice.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pyarrow as pa
import pytest
from starlette.types import Message
from support.asgi import scope_of
from support.counting import counted_calls
from unit.reader.harness import ARROW, ReaderHarness, Sent, a_batch

from bottomless.model.limits import GIB, KIB, MIB
from bottomless.model.record import Columns
from bottomless_server.reader.blocks import RUN_BLOCK_COUNT
from bottomless_server.reader.core.arrow_schema import Rows, as_table
from bottomless_server.reader.core.rendering import as_arrow_stream
from bottomless_server.reader.page_query import CHUNKS
from bottomless_server.runtime.listener.gathered import GATHERS, Gathered

BLOCK: Final = 64 * KIB
VALUE: Final = bytes(100)
READERS: Final = 50


@asynccontextmanager
async def a_stream(
    chunk_count: int, records: int, *, stored: bool, **settings: Any
) -> AsyncIterator[ReaderHarness]:
    """Chunks of so many records of 100 bytes each."""
    harness = ReaderHarness(reader_block_bytes=BLOCK, reader_root_ttl_ms=60_000, **settings)
    try:
        for _ in range(chunk_count):
            harness.append(*([Sent(VALUE)] * records))
        if stored:
            await harness.upload(chunk_count, free=True)
        yield harness
    finally:
        await harness.aclose()


async def page(harness: ReaderHarness, accept: str = CHUNKS, query: str = "offset=0") -> Gathered:
    """A page as our own listener gets it."""
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    path = "/v1/streams/orders/records"
    scope = scope_of({"accept": accept}, f"{query}&max_bytes={16 * MIB}&limit=1000000", path=path)
    await harness.service.public({**scope, GATHERS: True}, receive, send)
    assert sent[0]["status"] == 200
    (body,) = [message["body"] for message in sent[1:]]
    assert isinstance(body, Gathered)
    return body


def held_by(view: memoryview) -> int:
    """Bytes that stay in memory as long as the view does."""
    return memoryview(view.obj).nbytes


async def gets(harness: ReaderHarness, readers: int) -> int:
    before = len(harness.drive.reads)
    await asyncio.gather(*(page(harness) for _ in range(readers)))
    return len(harness.drive.reads) - before


async def test_a_cold_page_gets_each_run_once_and_a_warm_one_nothing() -> None:
    async with a_stream(8, 2_000, stored=True) as harness:
        (info,) = harness.fragments
        blocks, runs = -(-info.size // BLOCK), round(info.size / (RUN_BLOCK_COUNT * BLOCK))
        assert blocks > 20
        cold = await gets(harness, 1)
        assert cold == runs + 2, "the root and the index are all that is beside them"
        assert await gets(harness, 1) == 0
    async with a_stream(8, 2_000, stored=True, reader_cache_bytes=0) as harness:
        await gets(harness, 1)
        assert await gets(harness, 1) >= blocks, "without a cache it is seen"


PART: Final = 64
"""So many times smaller is everything here than as it is set by default: fragments, blocks, pages."""


async def gets_of_a_replay(sizes: list[int], page_size: int, **settings: Any) -> tuple[int, int]:
    """GETs of a reader that goes from page to page over fragments of so many bytes, nothing of
    which is in the cache at first, and the bytes of these fragments."""
    async with a_stream(0, 0, stored=False, **settings) as harness:
        for size in sizes:
            chunks = max(size // (16 * KIB), 1)
            for _ in range(chunks):
                harness.append(Sent(bytes(size // chunks - 300)))
            await harness.upload(chunks, free=True)
        harness.drive.reads.clear()
        headers, offset = {"accept": CHUNKS}, 0
        while offset < harness.committed_next:
            query = f"/records?offset={offset}&max_bytes={page_size}&limit=1000000"
            answer = await harness.client.get(f"/v1/streams/orders{query}", headers=headers)
            assert answer.status_code == 200
            offset = int(answer.headers["page-next-offset"])
        return len(harness.drive.reads), sum(info.size for info in harness.fragments)


@pytest.mark.parametrize(
    ("sizes", "page_size"),
    [([64] * 3, 8), ([25] * 5, 8), ([61, 12, 64, 30, 17, 9], 8), ([50] * 3, 16), ([64] * 3, 1)],
    ids=str,
)
async def test_a_cold_replay_asks_for_at_most_140_gets_a_gib(
    sizes: list[int], page_size: int
) -> None:
    """S3 is paid by the request. Without runs it is some 300: a GET for each block of 4 MiB, and the
    rests at the ends of fragments."""
    scaled = [size * MIB // PART for size in sizes]
    count, size = await gets_of_a_replay(scaled, page_size * MIB // PART)
    # The root is there once, whatever is read; and who begins with small pages reads the first
    # run by its blocks, since nobody knows then how far that goes.
    begins = 1 + (RUN_BLOCK_COUNT - 1) * (page_size < 8)
    assert (count - begins) * GIB / (size * PART) <= 140


async def test_without_runs_a_cold_replay_asks_for_far_more_gets() -> None:
    scaled = [64 * MIB // PART] * 3
    count, size = await gets_of_a_replay(scaled, 8 * MIB // PART, reader_cache_bytes=2 * MIB)
    assert count * GIB / (size * PART) > 250


async def test_fifty_readers_of_a_cold_stream_get_what_one_gets() -> None:
    async with a_stream(8, 2_000, stored=True) as harness:
        one = await gets(harness, 1)
    async with a_stream(8, 2_000, stored=True) as harness:
        assert await gets(harness, READERS) <= 1.2 * one
    async with a_stream(8, 2_000, stored=True, reader_cache_bytes=0) as harness:
        assert sum([await gets(harness, 1) for _ in range(READERS)]) > 10 * one


async def test_a_page_asks_the_owner_once_whatever_it_holds() -> None:
    async with a_stream(16, 1_000, stored=False) as harness:
        await page(harness)
        harness.asked.clear()
        assert len(await page(harness)) > 16 * 1_000 * 100
        assert harness.asked == ["chunks 0"]


@pytest.mark.parametrize("accept", [CHUNKS, ARROW])
async def test_no_python_runs_for_each_record_of_a_page(accept: str) -> None:
    async def calls(records: int) -> int:
        async with a_stream(1, records, stored=False) as harness:
            await page(harness, accept)
            with counted_calls() as calls:
                await page(harness, accept)
            return calls.count

    await calls(700)
    few, many = await calls(700), await calls(1_000)
    assert abs(many - few) < 30, "both are made on the loop; other tasks of it may run meanwhile"


async def test_a_page_of_chunks_is_what_ingest_answered() -> None:
    async with a_stream(8, 2_000, stored=False) as harness:
        body = await page(harness)
        answered = sum(len(chunk.data) for chunk in harness.chunks)
        assert len(body) == answered
        assert [held_by(view) for view in body.views] == [answered] * 8, "views of one answer"
        assert bytes(body) == b"".join(chunk.data for chunk in harness.chunks)


def is_value(view: memoryview) -> bool:
    """Whether it is a values buffer within a larger one, as it lies in a chunk."""
    return isinstance(view.obj, pa.Buffer) and view.nbytes >= len(VALUE) * 1_000


async def test_an_arrow_page_of_large_batches_is_their_stored_columns() -> None:
    async with a_stream(8, 2_000, stored=False) as harness:
        body = await page(harness, ARROW)
        table = pa.ipc.open_stream(bytes(body)).read_all()
        assert table.num_rows == 16_000
        assert table.column("value").to_pylist() == [VALUE] * 16_000
        assert table.column("offset").to_pylist() == list(range(16_000))
        values = [view for view in body.views if is_value(view)]
        assert len(values) == 8, "a buffer for each stored batch"


async def test_values_alone_are_sent_as_they_are_stored() -> None:
    """Nothing is made for them but their places: 104 bytes for a value of 100."""
    async with a_stream(8, 2_000, stored=False) as harness:
        body = await page(harness, ARROW, "offset=0&columns=value")
        table = pa.ipc.open_stream(bytes(body)).read_all()
        assert table.to_pydict() == {"value": [VALUE] * 16_000}
        values = [view for view in body.views if is_value(view)]
        assert len(values) == 8, "a buffer for each stored batch"
        assert len(body) / table.num_rows < len(VALUE) + 5
        whole = await page(harness, ARROW)
        assert len(whole) / table.num_rows > len(VALUE) + 20, "all columns take more"


def test_columns_that_a_batch_lacks_add_a_fixed_number_of_bytes() -> None:
    batch = a_batch([Sent(VALUE)] * 2_000, Columns.VALUE)
    table = as_table([Rows(2_000 * number, 5, batch) for number in range(8)])
    table.validate(full=True)
    size = sum(len(memoryview(piece)) for piece in as_arrow_stream(table))
    assert size / table.num_rows < len(VALUE) + 44
    assert table.column("headers").null_count == table.column("key").null_count == 16_000
    assert set(table.column("content").to_pylist()) == {0}


async def test_small_batches_are_put_together() -> None:
    async with a_stream(300, 3, stored=False) as harness:
        body = await page(harness, ARROW)
        with pa.ipc.open_stream(bytes(body)) as reader:
            assert [batch.num_rows for batch in reader] == [900]
        assert len(body.views) < 10
        assert len((await page(harness)).views) < 10


async def test_a_few_records_do_not_keep_what_was_read_with_them() -> None:
    async with a_stream(1, 500, stored=True) as harness:
        for accept in (CHUNKS, ARROW):
            (view,) = (await page(harness, accept, "offset=499")).views
            assert held_by(view) < BLOCK
