"""What an append may cost, in numbers that noise cannot move.

Each bound is also held against a worse way of doing the same, which it must notice.
"""

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pytest
from support.counting import CountedFiles, counted_calls

from bottomless.model.limits import MIB
from bottomless_server.ingest.log.core.batcher import seal_round
from bottomless_server.ingest.records.intake import Append, take_arrow, take_frames, take_json
from bottomless_server.runtime.http.app import encode_json, parse_json
from unit.ingest.harness import ROUTE, IngestHarness, arrow, arrow_of_batches
from unit.ingest.test_forms import frame

CHUNK_SIZE: Final = 8 * MIB
ROUND: Final = Counter({"pwritev .segment": 1, "fdatasync .segment": 1, "pwritev .index": 1})
"""One gathered write, one sync, one index record that nobody waits for."""
JSON_CALLS_MAX: Final = 20
"""Calls for one more record of JSON, which has to be looked at one by one."""


class InPieces(CountedFiles):
    """What a round would cost if each part were written on its own."""

    def pwritev(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        return super().pwritev(fd, parts[:1], position)


@asynccontextmanager
async def counted(directory: Path, files: CountedFiles) -> AsyncIterator[IngestHarness]:
    harness = IngestHarness(directory / "data", files=files)  # type: ignore[arg-type]
    await (await harness.declare()).start()
    try:
        await harness.append("the first makes the segment")
        files.taken()
        yield harness
    finally:
        await harness.aclose()


async def of_one_append(directory: Path, files: CountedFiles) -> Counter[str]:
    async with counted(directory, files) as harness:
        assert (await harness.append("a", "b")).status_code == 200
        return files.taken()


async def test_a_small_append_is_one_write_and_one_sync(tmp_path: Path) -> None:
    assert await of_one_append(tmp_path, CountedFiles()) == ROUND
    assert await of_one_append(tmp_path / "worse", InPieces()) > ROUND


async def test_an_append_larger_than_a_chunk_is_one_write_and_one_sync(tmp_path: Path) -> None:
    files = CountedFiles()
    body = arrow(pa.table({"value": [bytes(MIB - 64)] * 12}))
    headers = {"content-type": "application/vnd.apache.arrow.stream"}
    async with counted(tmp_path, files) as harness:
        answer = await harness.client.post(ROUTE, content=body, headers=headers)
        assert answer.status_code == 200
        assert len(harness.appender.log.segments[-1].index) > 2, "it is several chunks"
        assert files.taken() == ROUND


async def rounds_of(harness: IngestHarness, files: CountedFiles, *, together: bool) -> int:
    if together:
        await asyncio.gather(*(harness.append("x") for _ in range(64)))
    else:
        for _ in range(64):
            await harness.append("x")
    return files.taken()["fdatasync .segment"]


async def test_appends_that_wait_together_share_their_sync(tmp_path: Path) -> None:
    files = CountedFiles()
    async with counted(tmp_path, files) as harness:
        assert await rounds_of(harness, files, together=True) <= 8
        assert await rounds_of(harness, files, together=False) == 64


async def test_a_run_of_the_tail_is_one_read_whatever_it_holds(tmp_path: Path) -> None:
    files = CountedFiles()
    async with counted(tmp_path, files) as harness:
        for _ in range(20):
            await harness.append("x")
        files.taken()
        whole = await harness.chunks(0)
        assert whole.headers["chunks-next-offset"] == "21"
        assert files.taken() == {"open .segment": 1, "pread .segment": 1, "close .segment": 1}
        for offset in range(20):
            await harness.chunks(offset, max_bytes=1)
        assert files.taken()["pread .segment"] == 20


def of_arrow(count: int) -> Append:
    return take_arrow(arrow(pa.table({"value": [b"0123456789"] * count})), CHUNK_SIZE)


def of_frames(count: int) -> Append:
    return take_frames(frame([b"0123456789"] * count), CHUNK_SIZE)


def of_json(count: int) -> Append:
    body = orjson.dumps({"records": [{"value": "0123456789"}] * count})
    return take_json(body, parse_json(body), encode_json)


def calls_of(take: Callable[[int], Append], count: int) -> int:
    """Calls of taking so many records in and sealing them."""
    with counted_calls() as calls:
        append = take(count)
        seal_round([append], next_offset=0, timestamp=0, epoch=1, chunk_size_max=CHUNK_SIZE)
    assert append.record_count == count
    return calls.count


@pytest.mark.parametrize("take", [of_arrow, of_frames])
def test_no_python_runs_for_each_record_of_arrow_and_frames(take: Callable[[int], Append]) -> None:
    take(2)
    assert calls_of(take, 10_000) == calls_of(take, 2) > 0


def test_a_record_of_json_costs_a_bounded_number_of_calls() -> None:
    of_json(1)
    more = (calls_of(of_json, 1_001) - calls_of(of_json, 1)) / 1_000
    assert 1 <= more <= JSON_CALLS_MAX, "what is counted above would show per-record work"


async def test_a_whole_request_runs_as_much_python_for_one_record_as_for_many(
    tmp_path: Path,
) -> None:
    async def calls(harness: IngestHarness, body: bytes, media_type: str) -> int:
        with counted_calls() as calls:
            answer = await harness.client.post(
                ROUTE, content=body, headers={"content-type": media_type}
            )
        assert answer.status_code == 200
        return calls.count

    binary, json = "application/vnd.bottomless.batches", "application/json"
    async with counted(tmp_path, CountedFiles()) as harness:
        await calls(harness, frame([b"x"]), binary)
        one = await calls(harness, frame([b"x"]), binary)
        many = await calls(harness, frame([b"x"] * 5_000), binary)
        assert abs(many - one) < 50, "other tasks of the service may run meanwhile"
        rows = orjson.dumps({"records": [{"value": "x"}] * 1_000})
        assert await calls(harness, rows, json) > one + 1_000


def bytes_made(make: Callable[[], object]) -> int:
    """Bytes that were held at most while it was made, in Python and in Arrow."""
    pool = pa.default_memory_pool()
    tracemalloc.start()
    try:
        before, in_arrow = tracemalloc.get_traced_memory()[0], pool.bytes_allocated()
        made = make()
        peak = tracemalloc.get_traced_memory()[1] - before + pool.bytes_allocated() - in_arrow
        del made
    finally:
        tracemalloc.stop()
    return peak


def test_bodies_are_not_copied_more_often_than_they_have_to_be() -> None:
    values = [bytes(100)] * 10_000
    stored, stream = frame(values), arrow(pa.table({"value": values}))
    size = len(stored)

    def seal(append: Append) -> object:
        return seal_round([append], next_offset=0, timestamp=0, epoch=1, chunk_size_max=CHUNK_SIZE)

    assert bytes_made(lambda: seal(take_frames(stored, CHUNK_SIZE))) < size // 10
    assert bytes_made(lambda: seal(take_arrow(stream, CHUNK_SIZE))) < size // 10, (
        "a usual body is stored as it lies"
    )
    # Of empty batches Arrow's own reader makes nothing, and its writer then copies the others.
    none: Any = pa.array([], pa.binary())
    unusual = arrow_of_batches(*(pa.record_batch({"value": one}) for one in (values, none)))
    assert size // 2 < bytes_made(lambda: seal(take_arrow(unusual, CHUNK_SIZE))) < 1.5 * size
    assert bytes_made(lambda: bytes(memoryview(stored))) >= size, "a copy is seen"
