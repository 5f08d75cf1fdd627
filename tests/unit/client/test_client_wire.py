"""One call against servers that answer wrongly, late or not at all: what is known of it then."""

import asyncio
import gc
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aiohttp
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from support.raw_server import NOTHING, Asked, Cut, answer, problem, raw_server

from bottomless.client import AsyncClient, Timeouts
from bottomless.errors import Code, NotFound, Outcome, Overloaded, StoreError, Unavailable

RECORDS = [{"value": "x"}]
APPENDED = answer(
    value={
        "first_offset": 0,
        "next_offset": 1,
        "timestamp": "2026-11-21T08:00:00.000Z",
        "count": 1,
        "duplicates": 0,
    }
)
PAGE = answer(value={"records": [], "next_offset": 0, "up_to_date": True})
BUSY = problem(503, "overloaded", retryable=True, headers={"Retry-After": "0"})
PROXY = answer(502, body=b"<html>Bad Gateway</html>", media_type="text/html")


async def failed_append(reply: bytes) -> tuple[StoreError, int]:
    """The error of an append that is answered so, and how often it was sent."""
    async with (
        raw_server(lambda _: reply) as server,
        AsyncClient(server.url, retry_seconds=2) as client,
    ):
        with pytest.raises(StoreError) as caught:
            await client.append("orders", RECORDS)
    return caught.value, len(server.asked)


@pytest.mark.parametrize(
    "reply",
    [
        NOTHING,
        Cut(APPENDED[:-10]),
        Cut(APPENDED[:20]),
        Cut(b"\0\1\2 garbage\r\n\r\n"),
        answer(body=b"not json"),
        answer(body=b"[]"),
        PROXY,
        answer(504, body=b"", media_type="text/html"),
    ],
    ids=["lost", "cut body", "cut head", "garbage", "no json", "no object", "502", "504"],
)
async def test_an_append_without_a_proper_answer_has_an_unknown_outcome_and_is_not_repeated(
    reply: bytes,
) -> None:
    error, times = await failed_append(reply)
    assert (error.outcome, times) == (Outcome.UNKNOWN, 1)


async def test_an_append_with_a_key_is_repeated_after_an_unknown_outcome() -> None:
    replies = iter([NOTHING, PROXY, Cut(APPENDED[:-10]), APPENDED])
    async with raw_server(lambda _: next(replies)) as server, AsyncClient(server.url) as client:
        stored = await client.append("orders", RECORDS, idempotency_key="k")
    assert stored.first_offset == 0
    assert [asked.header("idempotency-key") for asked in server.asked] == ["k"] * 4


async def test_an_append_that_was_refused_for_now_is_repeated() -> None:
    replies = iter([BUSY, BUSY, APPENDED])
    async with raw_server(lambda _: next(replies)) as server, AsyncClient(server.url) as client:
        await client.append("orders", RECORDS)
    assert len({asked.body for asked in server.asked}) == 1


async def test_what_stays_refused_ends_at_the_deadline_with_the_last_answer() -> None:
    error, _ = await failed_append(BUSY)
    assert (type(error), error.outcome) == (Overloaded, Outcome.NONE)


async def test_what_cannot_be_connected_to_did_nothing() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        async with AsyncClient(url, retry_seconds=0) as client:
            for call in (
                client.append("orders", RECORDS),
                client.delete_stream("orders"),
                client.read("orders", 0),
            ):
                with pytest.raises(Unavailable) as caught:
                    await call
                assert caught.value.outcome is Outcome.NONE


async def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_was_said() -> None:
    async def never(_: Asked) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    timeouts = Timeouts(connect=5, answer=0.2, silence=0.2)
    async with (
        raw_server(never) as server,
        AsyncClient(server.url, timeouts=timeouts, retry_seconds=0) as client,
    ):
        for call in (
            partial(client.append, "orders", RECORDS),
            partial(client.delete_stream, "orders"),
        ):
            outcome: Outcome | None = Outcome.NONE
            async with asyncio.timeout(240):
                # Nothing is sent on a machine that takes as long to connect.
                while outcome is Outcome.NONE:
                    with pytest.raises(Unavailable) as caught:
                        await call()
                    outcome = caught.value.outcome
            assert outcome is Outcome.UNKNOWN
        with pytest.raises(Unavailable):
            await anext(client.follow("orders", "first", on_outage=lambda _: None))


async def test_a_question_is_asked_again_whatever_became_of_the_answer() -> None:
    replies = iter([NOTHING, PROXY, Cut(PAGE[:-3]), BUSY, PAGE])
    async with raw_server(lambda _: next(replies)) as server, AsyncClient(server.url) as client:
        assert (await client.read("orders", 0)).up_to_date
    assert len(server.asked) == 5


async def test_a_deletion_is_not_repeated_after_an_unknown_outcome() -> None:
    async with raw_server(lambda _: NOTHING) as server, AsyncClient(server.url) as client:
        with pytest.raises(Unavailable):
            await client.delete_stream("orders")
    assert len(server.asked) == 1


async def test_what_another_program_answers_is_not_asked_again() -> None:
    page = answer(body=b"<html>Welcome</html>", media_type="text/html")
    async with raw_server(lambda _: page) as server, AsyncClient(server.url) as client:
        with pytest.raises(Unavailable, match="not that of a Bottomless server"):
            await client.describe("orders")
        with pytest.raises(Unavailable, match="not that of a Bottomless server"):
            await client.read_arrow("orders", 0)
    assert len(server.asked) == 2


async def test_a_problem_is_the_error_of_its_code() -> None:
    reply = problem(404, "stream-not-found", detail="no such stream")
    async with raw_server(lambda _: reply) as server, AsyncClient(server.url) as client:
        with pytest.raises(NotFound, match="no such stream") as caught:
            await client.append("orders", RECORDS)
    assert caught.value.code is Code.STREAM_NOT_FOUND


async def test_a_client_that_is_closed_opens_nothing_any_more() -> None:
    async with raw_server(lambda _: APPENDED) as server:
        for before in (0, 1):
            client = AsyncClient(server.url)
            for _ in range(before):
                await client.append("orders", RECORDS)
            await client.aclose()
            for call in (client.append("orders", RECORDS), client.describe("orders")):
                with pytest.raises(RuntimeError, match="closed"):
                    await call
            with pytest.raises(RuntimeError, match="closed"):
                await anext(client.follow("orders", "first", on_outage=lambda _: None))
    assert len(server.asked) == 1


async def test_tests_put_a_transport_of_their_own_under_either_library(tmp_path: Path) -> None:
    async def app(scope: dict[str, object], receive: object, send: object) -> None:
        request = Request(scope)
        said = {"path": request.url.path, "etag": ""}
        answered = JSONResponse(said, headers={"Request-Id": "01TEST"})
        await answered(scope, receive, send)  # type: ignore[arg-type]

    path = str(tmp_path / "socket")
    listening = await asyncio.start_unix_server(_page, path)
    async with (
        listening,
        AsyncClient(
            "http://nowhere.invalid",
            control_transport=httpx.ASGITransport(app=app),  # type: ignore[arg-type]
            bulk_connector=lambda: aiohttp.UnixConnector(path),
        ) as client,
    ):
        assert (await client.describe("orders"))["path"] == "/v1/streams/orders"
        assert (await client.read("orders", 0)).records == []


async def _page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(PAGE)
    await writer.drain()
    writer.close()


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
async def test_an_answer_that_was_read_does_not_wait_for_the_garbage_collector() -> None:
    page = answer(
        value={"records": [{"value": "x" * 100_000}], "next_offset": 1, "up_to_date": True}
    )
    of_others = answers_in_memory()
    async with raw_server(lambda _: page) as server, AsyncClient(server.url) as client:
        for _ in range(3):
            await client.read("orders", 0)
        kept = answers_in_memory()
    assert [each for each in kept if all(each is not other for other in of_others)] == []


def answers_in_memory() -> list[aiohttp.ClientResponse]:
    return [each for each in gc.get_objects() if isinstance(each, aiohttp.ClientResponse)]
