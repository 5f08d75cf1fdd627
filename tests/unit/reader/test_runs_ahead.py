"""The next run is on its way while one is given out: the same GETs, a little earlier."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.reader.harness import WatchedDrive
from unit.reader.test_read_costs import PART, gets_of_a_replay

from bottomless.drives.base import DriveUnavailable
from bottomless.formats.checks import crc32c
from bottomless.model.limits import GIB, MIB
from bottomless_server.reader.blocks import Blocks, NextObject, ReadsOn
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.runs_ahead import reader_that_stays

BLOCK: Final = 1_000
RUN: Final = 4_000
DATA: Final = bytes(range(250)) * 96
ALL: Final = ReadsOn(len(DATA), None)


class GatedDrive(WatchedDrive):
    """Notes ranges, and answers while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int, int]] = []
        self.answered = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures = 0
        self.held_from = 2**63
        """Reads of fragments from there on are not answered."""
        self.held: list[int] = []
        self.cancelled: list[int] = []

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        self.asked.append((object_key, start, size or 0))
        if start >= self.held_from and (size or 0) > self.held_from // 4:
            self.held.append(start)
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.append(start)
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise DriveUnavailable("not now")
        self.answered += 1
        return await super().get(object_key, start, size)


async def a_reader(
    *, cache: int = 160_000, fetches: int = 16, ahead: int = RUN
) -> tuple[GatedDrive, Blocks, SharedCache]:
    drive, kept = GatedDrive(), SharedCache(cache)
    for name in "abcdef":
        await drive.put(name, [DATA], crc32c(DATA))
    return drive, Blocks(drive, kept, BLOCK, fetches, ahead_size_max=ahead), kept


async def read(
    blocks: Blocks, key: str, start: int, size: int, on: ReadsOn | None = ALL
) -> memoryview:
    return await blocks.read(key, start, size, len(DATA), reads_on=on)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_goes_on_in_a_run_finds_the_next_one_on_its_way() -> None:
    drive, blocks, _ = await a_reader()
    await read(blocks, "a", 0, 2_000)
    await turns()
    assert drive.asked == [("a", 0, RUN)], "one page tells nothing"
    await read(blocks, "a", 2_000, 500)
    await turns()
    assert drive.asked == [("a", 0, RUN), ("a", RUN, RUN)]
    drive.gate.clear()
    assert await read(blocks, "a", RUN, 1_200) == DATA[RUN : RUN + 1_200], "it is here"
    await turns()
    assert drive.asked[2:] == [("a", 2 * RUN, RUN)], "who came to a run ahead goes on"
    drive.gate.set()


async def test_at_the_end_of_an_object_the_first_run_of_the_next_one_is_fetched() -> None:
    drive, blocks, _ = await a_reader()
    on = ReadsOn(len(DATA), NextObject("b", len(DATA)))
    for start in range(0, len(DATA), 2_000):
        await read(blocks, "a", start, 2_000, on)
        await turns()
    runs = [("a", start, RUN) for start in range(0, len(DATA), RUN)]
    assert drive.asked == [*runs, ("b", 0, RUN)]


@pytest.mark.parametrize(
    ("ranges", "on"),
    [
        ([(0, 2_000), (0, 2_000), (500, 900)], ALL),
        ([(0, 2_000), (3_000, 500), (1_000, 700)], ALL),
        ([(0, 2_000), (2_000, 2_000)], ReadsOn(RUN, None)),
        ([(0, 2_000), (2_000, 2_000)], None),
        ([(9_100, 10), (9_110, 10), (9_120, 10)], ALL),
    ],
    ids=["the same again", "here and there", "ends there", "does not say", "by blocks"],
)
async def test_for_who_does_not_read_on_nothing_is_fetched(
    ranges: list[tuple[int, int]], on: ReadsOn | None
) -> None:
    drive, blocks, _ = await a_reader()
    for start, size in ranges:
        await read(blocks, "a", start, size, on)
        await turns()
    assert len(drive.asked) == 1


async def test_what_is_fetched_ahead_takes_a_quarter_of_the_cache_at_most() -> None:
    drive, blocks, cache = await a_reader(cache=9 * (RUN + 256), fetches=100)
    for name in "abcdef":
        await read(blocks, name, 0, 2_000)
        await read(blocks, name, 2_000, 2_000)
        await turns()
        assert cache.size <= cache.budget
    assert len(drive.asked) == 6 + 2
    await read(blocks, "a", RUN, 2_000)
    await read(blocks, "f", 2_000, 2_001)
    await turns()
    assert ("f", RUN, RUN) in drive.asked, "where one was taken there is room again"


async def test_nothing_goes_ahead_of_those_who_wait_for_room() -> None:
    drive, blocks, _ = await a_reader(fetches=8)
    await read(blocks, "a", 0, 2_000)
    drive.gate.clear()
    waiting = asyncio.create_task(read(blocks, "b", 0, 2_000))
    await turns()
    await read(blocks, "a", 2_000, 2_000)
    await turns()
    assert [key for key, *_ in drive.asked] == ["a", "b"]
    drive.gate.set()
    await waiting


async def test_a_run_that_came_in_vain_is_fetched_by_who_needs_it() -> None:
    drive, blocks, _ = await a_reader()
    await read(blocks, "a", 0, 2_000)
    drive.failures = 1
    await read(blocks, "a", 2_000, 2_000)
    await turns()
    assert await read(blocks, "a", RUN, 2_000) == DATA[RUN : RUN + 2_000]
    assert [start for _, start, _ in drive.asked] == [0, RUN, RUN]


async def test_a_run_that_cannot_be_fetched_is_asked_for_ahead_once() -> None:
    """The tests of before read one page after the failure, and the next one of the run began the
    same fetch again: with a store that fails, a GET for each page."""
    drive, blocks, _ = await a_reader()
    await read(blocks, "a", 0, 2_000)
    drive.failures = 100
    for start in range(2_000, RUN, 100):
        await read(blocks, "a", start, 100)
        await turns()
    assert drive.asked == [("a", 0, RUN), ("a", RUN, RUN)]


async def test_what_is_begun_in_one_turn_leaves_room_for_who_asks_next() -> None:
    """Each of them looked at the room before any had taken it. Places: 12, a run takes 4."""
    drive, blocks, _ = await a_reader(fetches=12)
    for name in "abcdef":
        await read(blocks, name, 0, 2_000)
    drive.gate.clear()
    drive.asked.clear()
    await asyncio.gather(*(read(blocks, name, 2_000, 1_000) for name in "abcdef"))
    asking = asyncio.create_task(read(blocks, "f", 2 * RUN, RUN))
    await turns()
    assert drive.asked == [("a", RUN, RUN), ("b", RUN, RUN), ("f", 2 * RUN, RUN)]
    drive.gate.set()
    await asking
    await read(blocks, "c", 3_000, 500)
    await turns()
    assert drive.asked[3:] == [("c", RUN, RUN)], "who found no room goes ahead with its next page"


async def test_the_longer_run_at_the_end_of_an_object_counts_as_what_it_is() -> None:
    """Its 5,500 bytes fill a quarter of a cache of 40,000 with one of 4,000; the count of runs let
    in a second one."""
    drive, kept = GatedDrive(), SharedCache(40_000)
    long = DATA[: RUN + 5_500]
    for name in "ab":
        await drive.put(name, [long], crc32c(long))
    blocks = Blocks(drive, kept, BLOCK, 100, ahead_size_max=RUN)
    for name in "ab":
        for start in (0, 2_000):
            on = ReadsOn(len(long), None)
            await blocks.read(name, start, 2_000, len(long), reads_on=on)
            await turns()
    assert [key for key, *_ in drive.asked] == ["a", "a", "b"]


async def test_what_was_begun_ahead_is_no_hit_for_the_first_who_comes() -> None:
    """So the rate of hits says what it said before: how much is read without a GET of its own."""

    async def counts(ahead: int) -> tuple[int, int]:
        _, blocks, cache = await a_reader(ahead=ahead)
        for start in range(0, len(DATA), 2_000):
            await read(blocks, "a", start, 2_000)
            await turns()
        return cache.hit_count, cache.miss_count

    assert await counts(RUN) == await counts(0)


@asynccontextmanager
async def gone_while_fetching(blocks: Blocks, drive: GatedDrive) -> AsyncIterator[None]:
    """Within the block somebody who stays has a run on its way; at its end it goes."""
    async with reader_that_stays():
        await read(blocks, "a", 0, 2_000)
        drive.gate.clear()
        await read(blocks, "a", 2_000, 2_000)
        await turns()
        assert len(drive.asked) == 2
        yield


async def test_who_goes_takes_its_fetching_along() -> None:
    drive, blocks, cache = await a_reader()
    async with gone_while_fetching(blocks, drive):
        pass
    drive.gate.set()
    await turns()
    assert drive.answered == 1
    assert await read(blocks, "a", RUN, 2_000) == DATA[RUN : RUN + 2_000]
    await cache.aclose()


async def test_who_goes_leaves_what_another_one_waits_for() -> None:
    drive, blocks, _ = await a_reader()
    async with gone_while_fetching(blocks, drive):
        other = asyncio.create_task(read(blocks, "a", RUN, 2_000))
        await turns()
    drive.gate.set()
    assert await other == DATA[RUN : RUN + 2_000]
    assert len(drive.asked) == 2


@settings(max_examples=60, deadline=None)
@given(
    ranges=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, len(DATA) - 1), st.integers(1, 9_000)),
        max_size=12,
    ),
    budget=st.sampled_from([0, 8 * RUN, 160_000]),
    fetches=st.sampled_from([3, 8, 16]),
)
async def test_whatever_is_fetched_ahead_the_bytes_are_right_and_the_cache_bounded(
    ranges: list[tuple[str, int, int]], budget: int, fetches: int
) -> None:
    _, blocks, cache = await a_reader(cache=budget, fetches=fetches)
    place = 0
    for key, start, most in ranges:
        # Each range, and one that goes on where the last one ended.
        for first in (start, place):
            size = min(most, len(DATA) - first)
            if size:
                on = ReadsOn(len(DATA), NextObject("c", len(DATA)))
                assert await read(blocks, key, first, size, on) == DATA[first : first + size]
                place = first + size
                assert cache.size <= budget
    await cache.aclose()


@pytest.mark.parametrize(
    ("sizes", "page_size"),
    [([64] * 3, 8), ([25] * 5, 8), ([61, 12, 64, 30, 17, 9], 8), ([50] * 3, 16), ([64] * 3, 1)],
    ids=str,
)
async def test_a_replay_asks_for_no_more_gets_than_without_reading_ahead(
    sizes: list[int], page_size: int
) -> None:
    scaled = [size * MIB // PART for size in sizes]
    with_it, size = await gets_of_a_replay(scaled, page_size * MIB // PART)
    without, _ = await gets_of_a_replay(scaled, page_size * MIB // PART, reader_read_ahead_bytes=0)
    assert with_it <= without
    assert with_it * GIB / (size * PART) < 200
