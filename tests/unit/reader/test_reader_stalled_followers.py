"""Clients that take nothing for longer than any limit, and go on from what they were told.

The tests that were there looked for the word `slow-consumer` and never went on from the offset
beside it; no reader of any other test stood still for as long as a service waits for one.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send
from support.asgi import on_tcp
from unit.reader.harness import ReaderHarness
from unit.reader.open_answers import NDJSON, SSE

from bottomless.client import AsyncClient

COUNT = 40
SECONDS = 240


class Cutting:
    """The reader behind a connection that says when it was cut."""

    def __init__(self, harness: ReaderHarness) -> None:
        self._app = harness.service.public
        self.was_cut = asyncio.Event()
        self.last: list[bytes | None] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (cut := scope.get("bottomless.cut")) is not None:

            def noted(last: bytes | None) -> None:
                cut(last)
                self.last.append(last)
                self.was_cut.set()

            scope["bottomless.cut"] = noted
        await self._app(scope, receive, send)


@asynccontextmanager
async def impatient() -> AsyncIterator[tuple[Cutting, str]]:
    """A reader that waits 0.3 s for a client, with a stream of more than a connection holds."""
    harness = ReaderHarness(reader_blocked_seconds=0.3)
    for number in range(COUNT):
        harness.append(f"{number} " + "x" * 900_000)
    app = Cutting(harness)
    async with on_tcp(app) as port, asyncio.timeout(SECONDS):
        yield app, f"http://127.0.0.1:{port}"
    await harness.aclose()


async def test_our_client_that_stalls_past_its_limit_is_given_every_record_once() -> None:
    async with impatient() as (app, url), AsyncClient(url) as client:
        seen: list[int] = []
        async for batch in client.follow("orders", 0, on_outage=lambda _: None, limit=COUNT):
            seen += [record["offset"] for record in batch.records]
            # Once, in the middle of the first answer.
            await app.was_cut.wait()

    assert seen == list(range(COUNT))


@pytest.mark.parametrize("accept", [SSE, NDJSON])
async def test_who_goes_on_from_the_end_that_it_was_told_leaves_nothing_out(accept: str) -> None:
    async with impatient() as (app, url), aiohttp.ClientSession() as http:
        seen: list[int] = []
        position = 0
        while position < COUNT:
            query = f"offset={position}&follow=true&until_offset={COUNT}"
            data = b""
            target = f"{url}/v1/streams/orders/records?{query}"
            async with http.get(target, headers={"accept": accept}) as answer:
                assert answer.status == 200
                await app.was_cut.wait()
                async for piece in answer.content.iter_any():
                    data += piece
            for records, said in told_in(data):
                seen += records
                assert said["next_offset"] == len(seen), "not the end of what was sent"
                position = said["next_offset"]
        assert any(last is not None and b"slow-consumer" in last for last in app.last)

    assert seen == list(range(COUNT))


def told_in(data: bytes) -> list[tuple[list[int], dict[str, Any]]]:
    """The offsets in each batch of an answer, and what was said with them."""
    found: list[tuple[list[int], dict[str, Any]]] = []
    offsets: list[int] = []
    for line in data.split(b"\n"):
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            found.append(([record["offset"] for record in event.get("records", ())], event))
        elif line.startswith(b"{"):
            value = json.loads(line)
            if "_control" in value:
                found.append((offsets, value["_control"]))
                offsets = []
            else:
                offsets.append(value["offset"])
    return found


async def test_an_answer_of_which_nothing_was_sent_gets_no_last_words() -> None:
    """What stands in a connection from the answer before blocks the head of the next one."""
    async with impatient() as (app, url):
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        target = "/v1/streams/orders/records?offset=0"
        head = "Host: x\r\nAccept: {}\r\n\r\n"
        # A page before it that nobody takes; then the answer that stays open.
        page = f"GET {target}&max_bytes=16000000 HTTP/1.1\r\n{head.format('application/json')}"
        events = f"GET {target} HTTP/1.1\r\n{head.format(SSE)}"
        writer.write((page + events).encode())
        await app.was_cut.wait()
        data = b""
        try:
            while piece := await reader.read(1 << 20):
                data += piece
        except ConnectionResetError:
            pass
        writer.close()

    assert app.last == [None]
    assert b"slow-consumer" not in data
