"""Consumers and followers against answers that break off, end, and point elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
from support.raw_server import Asked, Cut, RawServer, answer, problem, raw_server

from bottomless.client import AsyncClient, AsyncConsumer
from bottomless.client.consumer import Consuming
from bottomless.errors import (
    Code,
    InvalidRequest,
    NotFound,
    OffsetGone,
    StoreError,
    Unavailable,
    WrongOffset,
)

STREAM_ID = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"
BUSY = problem(503, "overloaded", retryable=True, headers={"Retry-After": "0"})


def lines(*values: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(value) + b"\n" for value in values)


def records(first: int, count: int) -> bytes:
    """A batch as the server sends it."""
    each = [{"offset": offset, "value": str(offset)} for offset in range(first, first + count)]
    return lines(*each, {"_control": {"next_offset": first + count, "up_to_date": True}})


def end(reason: str, next_offset: int, **more: Any) -> bytes:
    return lines({"_control": {"end": reason, "next_offset": next_offset, **more}})


HEARTBEAT = lines({"_control": {"next_offset": 0, "time": "2026-11-21T08:00:00.000Z"}})


class Stream:
    """A script of answers that stay open, each given once; then nothing more comes."""

    def __init__(self, *answers: bytes, start: int = 0) -> None:
        self.answers = list(answers)
        self.start = start
        self.asked: list[dict[str, str]] = []
        self.commits: list[int] = []
        self.committed_to: set[str] = set()
        """Ids of streams that commits were for."""
        self.commit_reply: Callable[[int], bytes] = lambda offset: answer(
            value={"next_offset": offset}
        )
        self.all_given = asyncio.Event()

    def __call__(self, asked: Asked) -> Any:
        if asked.method == "PUT":
            body = orjson.loads(asked.body)
            self.committed_to.add(body["expect_stream_id"])
            offset = body["next_offset"]
            self.commits.append(offset)
            return self.commit_reply(offset)
        query = parse_qs(urlsplit(asked.path).query)
        self.asked.append({name: found[0] for name, found in query.items()})
        if not self.answers:
            self.all_given.set()
            return self._silence()
        reply = self.answers.pop(0)
        return reply if reply.startswith(b"HTTP") else self._opened() + reply

    def _opened(self) -> Cut:
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nStream-Id: {STREAM_ID}\r\n"
            f"Page-Start-Offset: {self.start}\r\nConnection: close\r\n\r\n"
        )
        return _CutWith(head.encode())

    async def _silence(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError


class _CutWith(Cut):
    def __add__(self, more: bytes) -> Cut:  # type: ignore[override]
        return Cut(bytes(self) + more)


@asynccontextmanager
async def consuming(
    stream: Stream, name: str | None = "billing", **options: Any
) -> AsyncIterator[tuple[AsyncConsumer, RawServer]]:
    async with (
        raw_server(stream) as server,
        AsyncClient(server.url, retry_seconds=0.5) as client,
        client.consumer("orders", name, **options) as consumer,
    ):
        yield consumer, server


async def values_of(consumer: AsyncConsumer, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        found += [record["value"] for record in (await anext(consumer)).records]
    return found


async def test_reading_goes_on_where_it_was_whatever_breaks_off() -> None:
    cut_in_a_record = records(3, 4)[:-60]
    stream = Stream(
        records(0, 3) + cut_in_a_record,
        BUSY,
        records(3, 2) + HEARTBEAT,
        end("rotate", 5),
        records(5, 1) + end("draining", 6),
        records(6, 1) + end("slow-consumer", 7),
        records(7, 1),
    )
    outages: list[StoreError] = []
    async with consuming(stream, on_outage=outages.append) as (consumer, _):
        assert await values_of(consumer, 8) == [str(number) for number in range(8)]
        assert consumer.position == 8
    assert [asked["offset"] for asked in stream.asked][:7] == [
        "stored",
        "3",
        "3",
        "5",
        "5",
        "6",
        "7",
    ]
    assert len(outages) >= 6


@pytest.mark.parametrize("reason", ["slow-consumer", "draining", "rotate"])
async def test_an_end_that_names_more_than_what_came_moves_nothing(reason: str) -> None:
    """A server of release 0.1 named the end of a page that it had read and never written. All
    bytes that the tests fed to a client until then agreed with each other, so that going by the
    end and going by the last batch were the same."""
    stream = Stream(
        records(0, 3) + end(reason, 5),
        lines({"offset": 3, "value": "3"}) + end(reason, 4),
        records(3, 2),
    )
    async with consuming(stream) as (consumer, _):
        assert await values_of(consumer, 5) == [str(number) for number in range(5)]
    assert [asked["offset"] for asked in stream.asked[1:3]] == ["3", "3"]


async def test_a_limit_is_that_of_all_answers_together() -> None:
    stream = Stream(records(0, 3) + end("rotate", 3), records(3, 1) + end("max-records", 4))
    ended = Stream(records(0, 4))
    for script in (stream, ended):
        async with raw_server(script) as server, AsyncClient(server.url) as client:
            found = [
                record["offset"]
                async for batch in client.follow("orders", 0, on_outage=lambda _: None, limit=4)
                for record in batch.records
            ]
        assert found == [0, 1, 2, 3]
    assert [asked["limit"] for asked in stream.asked] == ["4", "1"]
    assert [asked["limit"] for asked in ended.asked] == ["4"]


async def test_what_was_asked_for_once_is_pinned_from_then_on() -> None:
    """A spec asked again would leap, and a name may be another stream's by now."""
    stream = Stream(b"", records(40, 1), start=40)
    async with consuming(stream, start="next") as (consumer, _):
        await values_of(consumer, 1)
    first, second = stream.asked[:2]
    assert (first["offset"], first["consumer"], first["default"]) == ("stored", "billing", "next")
    assert first["on_out_of_range"] == "error", "also where it begins nothing is left out"
    assert "expect_stream_id" not in first
    assert second == {
        "offset": "40",
        "on_out_of_range": "error",
        "expect_stream_id": STREAM_ID,
        "follow": "true",
        "max_bytes": first["max_bytes"],
    }


async def test_a_batch_is_committed_when_the_next_is_asked_for_and_not_before() -> None:
    stream = Stream(records(0, 2) + records(2, 2) + records(4, 2))
    async with consuming(stream, commit_seconds=0) as (consumer, _):
        await anext(consumer)
        assert stream.commits == []
        await anext(consumer)
        assert stream.commits == [2]
        await anext(consumer)
    assert stream.commits == [2, 4]
    assert stream.committed_to == {STREAM_ID}


async def test_what_is_processed_is_committed_while_nothing_new_comes() -> None:
    stream = Stream(records(0, 2))
    async with consuming(stream, commit_seconds=0.01) as (consumer, _):
        await anext(consumer)
        while not stream.commits:
            assert await consumer.poll(0.3) is None
    assert stream.commits == [2]


async def test_commits_within_the_interval_are_left_out_and_made_up_for_at_the_end() -> None:
    stream = Stream(records(0, 1) + records(1, 1) + records(2, 1))
    async with consuming(stream, commit_seconds=3600) as (consumer, _):
        await values_of(consumer, 3)
        assert stream.commits == []
    assert stream.commits == [2]


async def test_so_many_processed_records_are_committed_before_the_interval_is_over() -> None:
    stream = Stream(records(0, 2) + records(2, 2) + records(4, 2) + records(6, 1))
    async with consuming(stream, commit_seconds=3600, commit_records=3) as (consumer, _):
        await anext(consumer)
        await anext(consumer)
        assert stream.commits == []
        await anext(consumer)
        assert stream.commits == [4]
        await anext(consumer)
        assert stream.commits == [4]
    assert stream.commits == [4, 6]


async def test_a_commit_by_count_that_fails_for_now_is_made_later() -> None:
    stream = Stream(records(0, 1) + records(1, 1))
    replies = [BUSY]
    stream.commit_reply = lambda offset: (
        replies.pop() if replies else answer(value={"next_offset": offset})
    )
    outages: list[StoreError] = []
    told: dict[str, Any] = {"commit_seconds": 3600, "commit_records": 1}
    told["on_outage"] = outages.append
    async with consuming(stream, **told) as (consumer, _):
        assert await values_of(consumer, 2) == ["0", "1"]
        while len(stream.commits) < 2:
            await consumer.poll(0.1)
    assert stream.commits[-1] == 2
    assert [error.code for error in outages].count(Code.OVERLOADED) == 1


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_of_no_records_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequest, match="commit_records"):
        Consuming("orders", "billing", commit_records=count)


async def test_what_the_program_commits_itself_includes_the_last_batch() -> None:
    stream = Stream(records(0, 2))
    async with consuming(stream, auto_commit=False) as (consumer, _):
        await anext(consumer)
        await consumer.commit()
        await consumer.commit()
    assert stream.commits == [2]


async def test_leaving_by_an_error_commits_nothing() -> None:
    stream = Stream(records(0, 2) + records(2, 2))
    with suppress(ZeroDivisionError):
        async with consuming(stream, commit_seconds=3600) as (consumer, _):
            await anext(consumer)
            await anext(consumer)
            raise ZeroDivisionError
    assert stream.commits == []


async def test_a_commit_that_fails_for_now_is_made_later_and_reading_goes_on() -> None:
    stream = Stream(records(0, 1) + records(1, 1))
    replies = [BUSY]
    stream.commit_reply = lambda offset: (
        replies.pop() if replies else answer(value={"next_offset": offset})
    )
    outages: list[StoreError] = []
    async with consuming(stream, commit_seconds=0, on_outage=outages.append) as (consumer, _):
        assert await values_of(consumer, 2) == ["0", "1"]
        assert [error.code for error in outages][:1] == [Code.OVERLOADED]
        while len(stream.commits) < 2:
            await consumer.poll(0.1)
    assert stream.commits[-1] == 2


async def test_a_consumer_that_another_program_overtook_is_told() -> None:
    stream = Stream(records(0, 1))
    stream.commit_reply = lambda _: problem(409, "offset-regression", retryable=False)
    with pytest.raises(WrongOffset) as caught:
        async with consuming(stream, commit_seconds=0) as (consumer, _):
            await values_of(consumer, 2)
    assert caught.value.code is Code.OFFSET_REGRESSION


async def test_a_cancelled_wait_loses_no_batch() -> None:
    stream = Stream()
    go = asyncio.Event()

    async def later() -> bytes:
        await go.wait()
        return stream._opened() + records(0, 2)

    async with (
        raw_server(lambda asked: later() if asked.method == "GET" else answer()) as server,
        AsyncClient(server.url) as client,
        client.consumer("orders") as consumer,
    ):
        for _ in range(3):
            waiting = asyncio.ensure_future(consumer.poll(60))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        go.set()
        assert await values_of(consumer, 2) == ["0", "1"]
        assert len(server.asked) == 1


async def test_a_batch_that_did_not_arrive_at_its_caller_is_given_again() -> None:
    stream = Stream(records(0, 1) + records(1, 1))
    async with consuming(stream, name=None) as (consumer, _):
        first = await consumer.fetch(None)
        assert await consumer.fetch(None) is first
        second = await consumer.fetch(1)
        assert second is not None
        assert second.next_offset == 2


async def test_a_batch_that_did_not_arrive_at_its_caller_is_not_committed() -> None:
    stream = Stream(records(0, 1) + records(1, 1))
    async with consuming(stream, commit_seconds=3600) as (consumer, _):
        await consumer.fetch(None)
        await consumer.fetch(1)
        await consumer.store(1)
    assert stream.commits == [1]


async def test_who_is_cancelled_while_a_consumer_closes_is_cancelled() -> None:
    stream = Stream(records(0, 1))
    async with raw_server(stream) as server, AsyncClient(server.url) as client:
        consumer = client.consumer("orders")
        await anext(consumer)
        assert await consumer.poll(0.01) is None
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert stream.commits == []
        await consumer.close()


async def test_an_error_is_the_end_of_a_consumer_and_not_of_its_loop() -> None:
    stream = Stream(problem(404, "stream-not-found"))
    async with consuming(stream, name=None) as (consumer, _):
        with pytest.raises(NotFound):
            await anext(consumer)
        with pytest.raises(RuntimeError, match="has ended"):
            await anext(consumer)


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (problem(410, "offset-trimmed", first_offset=9), OffsetGone, Code.OFFSET_TRIMMED),
        (problem(409, "stream-replaced"), WrongOffset, Code.STREAM_REPLACED),
        (problem(404, "stream-not-found"), NotFound, Code.STREAM_NOT_FOUND),
        (end("offset-trimmed", 1, first_offset=9), OffsetGone, Code.OFFSET_TRIMMED),
        (end("stream-deleted", 1), NotFound, Code.STREAM_NOT_FOUND),
        (end("error", 1, code="data-missing", retryable=False), StoreError, Code.DATA_MISSING),
        (b"<html>\n", Unavailable, Code.PEER_UNAVAILABLE),
    ],
    ids=["trimmed before", "replaced", "gone", "trimmed", "deleted", "damaged", "stranger"],
)
async def test_what_reading_cannot_go_on_after_is_raised(
    reply: bytes, kind: type[StoreError], code: Code
) -> None:
    stream = Stream(records(0, 1), reply)
    async with consuming(stream, name=None) as (consumer, _):
        await values_of(consumer, 1)
        with pytest.raises(kind) as caught:
            await anext(consumer)
    assert caught.value.code is code


async def test_a_server_that_is_never_there_is_an_error_and_not_an_outage() -> None:
    async with (
        AsyncClient("http://127.0.0.1:1", retry_seconds=0.1) as client,
        client.consumer("orders") as consumer,
    ):
        with pytest.raises(Unavailable):
            await anext(consumer)


async def comes_true(consumer: AsyncConsumer, fact: Callable[[], bool]) -> None:
    """Wait for batches that do not come until `fact()` is true."""
    async with asyncio.timeout(60):
        while not fact():
            assert await consumer.poll(0.05) is None


async def test_what_a_filter_passes_over_is_processed_and_committed() -> None:
    passed = lines({"_control": {"next_offset": 9, "up_to_date": False}})
    stream = Stream(records(0, 2) + passed)
    async with (
        raw_server(stream) as server,
        AsyncClient(server.url, retry_seconds=2) as client,
        client.consumer(
            "orders", "billing", filter=["a", "b"], key=b"\xff", commit_seconds=0
        ) as consumer,
    ):
        batch = await anext(consumer)
        await comes_true(consumer, lambda: 9 in stream.commits)

    assert (batch.next_offset, consumer.position) == (2, 2)
    assert stream.asked[0]["filter"] == "a"
    assert stream.asked[0]["key_base64"] == "/w=="
