"""For whom the next run is on its way: it ends when the last of them has gone, and not before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from starlette.types import Message
from support.asgi import scope_of
from unit.reader.harness import ReaderHarness
from unit.reader.open_answers import comes_true
from unit.reader.test_runs_ahead import RUN, GatedDrive, a_reader, read

from bottomless.model.limits import KIB
from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.runs_ahead import reader_that_stays

LARGE_RUN: Final = 64 * KIB
RECORD_COUNT: Final = 300
"""Of a thousand bytes each: more than four large runs."""
_SECONDS: Final = 240


async def _begin_and_leave(blocks: Blocks, begun: asyncio.Event, seen: asyncio.Event) -> None:
    """A follower that has the second run fetched, and goes when others have read a little too."""
    async with reader_that_stays():
        await read(blocks, "a", 2_000, 1_000)
        begun.set()
        await seen.wait()


@pytest.mark.parametrize("to", [3_000, 3_500], ids=["in step", "further on"])
async def test_who_goes_leaves_what_another_follower_comes_to(to: int) -> None:
    """Only who began a run was noted: with it went what others were about to come to. In the tests
    of before the other one waited for that run already."""
    drive, blocks, _ = await a_reader()
    await read(blocks, "a", 0, 2_000)
    drive.gate.clear()
    begun, seen = asyncio.Event(), asyncio.Event()
    leaving = asyncio.create_task(_begin_and_leave(blocks, begun, seen))
    async with reader_that_stays():
        await begun.wait()
        await read(blocks, "a", 2_000, to - 2_000)
        seen.set()
        await leaving
        drive.gate.set()
        await read(blocks, "a", RUN, 2_000)
    assert drive.asked.count(("a", RUN, RUN)) == 1


async def test_who_goes_leaves_what_a_reader_of_pages_comes_to() -> None:
    drive, blocks, _ = await a_reader()
    await read(blocks, "a", 0, 2_000)
    drive.gate.clear()
    begun, seen = asyncio.Event(), asyncio.Event()
    leaving = asyncio.create_task(_begin_and_leave(blocks, begun, seen))
    await begun.wait()
    await read(blocks, "a", 3_000, 500)
    seen.set()
    await leaving
    drive.gate.set()
    await read(blocks, "a", RUN, 2_000)
    assert drive.asked.count(("a", RUN, RUN)) == 1


class Clients:
    """Followers of one stream, whose clients take nothing any more once a run is held."""

    def __init__(self, harness: ReaderHarness, drive: GatedDrive) -> None:
        self.drive = drive
        self._harness = harness
        self._left: list[asyncio.Event] = []
        self._answering: list[asyncio.Future[None]] = []

    async def page(self, query: str) -> None:
        answer = await self._harness.client.get(f"/v1/streams/orders/records?{query}")
        assert answer.status_code == 200

    def follow(self, query: str = "", *, stalls: bool = True) -> None:
        left = asyncio.Event()

        async def receive() -> Message:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(_: Message) -> None:
            if stalls and self.drive.held:
                await asyncio.Event().wait()

        scope = scope_of(
            {"accept": "application/x-ndjson"},
            f"offset=first&follow=true{query}",
            path="/v1/streams/orders/records",
        )
        answering = self._harness.service.public(scope, receive, send)
        self._left.append(left)
        self._answering.append(asyncio.ensure_future(answering))

    async def leave(self, number: int) -> None:
        self._left[number].set()
        async with asyncio.timeout(_SECONDS):
            await self._answering[number]

    async def ended(self) -> None:
        async with asyncio.timeout(_SECONDS):
            await asyncio.gather(*self._answering)


@asynccontextmanager
async def clients_of_a_stream() -> AsyncIterator[Clients]:
    """The third run of its fragment is held on its way, and those after it."""
    drive = GatedDrive()
    drive.held_from = 2 * LARGE_RUN
    harness = ReaderHarness(
        drive=drive, reader_block_bytes=LARGE_RUN // 4, reader_follower_bytes=LARGE_RUN
    )
    for _ in range(RECORD_COUNT):
        harness.append("x" * 1_000)
    await harness.upload(RECORD_COUNT, free=True)
    assert harness.fragments[0].size > 3 * LARGE_RUN
    try:
        yield Clients(harness, drive)
    finally:
        await harness.aclose()


async def test_a_follower_that_goes_away_ends_the_fetching_for_it() -> None:
    """Its client takes nothing for a while, so nobody waits for the run that is on its way."""
    async with clients_of_a_stream() as clients:
        drive = clients.drive
        clients.follow()
        await comes_true(lambda: drive.held)
        assert (drive.held, drive.cancelled) == ([2 * LARGE_RUN], [])
        await clients.leave(0)
        assert drive.cancelled == [2 * LARGE_RUN], "ended with the answer, and not later"


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]], ids=str)
async def test_what_a_crowd_comes_to_ends_with_the_last_of_it(order: list[int]) -> None:
    """They share their pages, and the run belonged to the one of them that had asked first for the
    page: it went with that one, or it was never ended when that one had gone before."""
    async with clients_of_a_stream() as clients:
        drive = clients.drive
        for _ in order:
            clients.follow()
        await comes_true(lambda: drive.held)
        *others, last = order
        for number in others:
            await clients.leave(number)
            assert (drive.held, drive.cancelled) == ([2 * LARGE_RUN], [])
        await clients.leave(last)
        assert drive.cancelled == [2 * LARGE_RUN]


@pytest.mark.parametrize("limit", ["&limit=60", "&limit=60&max_bytes=4000", "&until_offset=60"])
async def test_for_an_answer_that_ends_nothing_is_fetched_beyond_its_end(limit: str) -> None:
    """Its last record lies in the second run."""
    async with clients_of_a_stream() as clients:
        clients.follow(limit, stalls=False)
        await clients.ended()
        assert LARGE_RUN in [start for _, start, _ in clients.drive.asked]
        assert clients.drive.held == []


async def test_the_limit_of_a_page_is_no_end_of_who_reads_page_after_page() -> None:
    """It was taken for one: who reads pages of few and small records never found a run here."""
    async with clients_of_a_stream() as clients:
        for offset in range(0, 60, 10):
            await clients.page(f"offset={offset}&limit=10")
        assert clients.drive.held == [2 * LARGE_RUN]
        await clients.page("offset=0&limit=10")
        assert clients.drive.held == [2 * LARGE_RUN]
