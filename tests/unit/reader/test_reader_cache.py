"""What is kept stays under one budget, and nothing is fetched twice at once."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.reader.harness import WatchedDrive

from bottomless.errors import Corrupt, NotFound, StoreError, Unavailable
from bottomless.formats.checks import crc32c
from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.core.byte_range import ByteRange
from bottomless_server.reader.read_ahead import read_ahead

DATA = bytes(range(256)) * 40


async def a_drive() -> WatchedDrive:
    drive = WatchedDrive()
    await drive.put("a/object", [DATA], crc32c(DATA))
    return drive


async def test_blocks_give_the_bytes_of_any_range() -> None:
    blocks = Blocks(await a_drive(), SharedCache(100_000), 1000, 4)

    for start, size in ((0, 1), (999, 2), (0, 10_240), (5_000, 1_000), (10_000, 999)):
        assert bytes(await blocks.read("a/object", start, size)) == DATA[start : start + size]


async def test_readers_at_the_same_time_share_one_fetch() -> None:
    drive = await a_drive()
    blocks = Blocks(drive, SharedCache(100_000), 1000, 4)

    await asyncio.gather(*(blocks.read("a/object", 500, 1000) for _ in range(50)))
    await blocks.read("a/object", 0, 2000)

    assert drive.reads == ["a/object"] * 2


async def test_no_more_fetches_than_allowed_are_in_flight() -> None:
    running, most = 0, 0

    class Slow(WatchedDrive):
        async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
            nonlocal running, most
            running += 1
            most = max(most, running)
            data = await super().get(object_key, start, size)
            for _ in range(5):
                await asyncio.sleep(0)
            running -= 1
            return data

    drive = Slow()
    await drive.put("a/object", [DATA], crc32c(DATA))
    blocks = Blocks(drive, SharedCache(0), 10, 3)
    await blocks.read("a/object", 0, 200)

    assert (most, blocks.fetch_count) == (3, 20)


async def test_the_cache_stays_under_its_budget_whatever_is_read() -> None:
    cache = SharedCache(5_000)
    blocks = Blocks(await a_drive(), cache, 1000, 4)

    for start in range(0, 10_000, 700):
        await blocks.read("a/object", start, 900)
        assert cache.size <= 5_000


async def a_large_drive() -> tuple[WatchedDrive, bytes]:
    drive, data = WatchedDrive(), DATA * 10
    await drive.put("a/object", [data], crc32c(data))
    return drive, data


@settings(max_examples=60, deadline=None)
@given(
    ranges=st.lists(
        st.tuples(st.integers(0, 102_399), st.integers(1, 40_000), st.booleans()), max_size=12
    ),
    budget=st.sampled_from([0, 20_000, 33_000, 1_000_000]),
)
async def test_runs_and_blocks_together_give_the_bytes_of_any_range(
    ranges: list[tuple[int, int, bool]], budget: int
) -> None:
    drive, data = await a_large_drive()
    cache = SharedCache(budget)
    blocks = Blocks(drive, cache, 1000, 4)
    for start, most, flag in ranges:
        size = min(most, len(data) - start)
        found = await blocks.read("a/object", start, size, len(data), follows=flag)
        assert found == data[start : start + size]
        once = await blocks.read_once("a/object", start, size, len(data), reads_on=flag)
        assert once == data[start : start + size]
        assert cache.size <= budget


async def test_who_looks_up_a_record_fetches_a_block_and_who_reads_on_fetches_runs() -> None:
    drive, data = await a_large_drive()
    size = len(data)
    alone = Blocks(drive, SharedCache(1_000_000), 1000, 4)
    await alone.read("a/object", 9_100, 300, size)
    await alone.read_once("a/object", size - 70, 70, size, reads_on=False)
    assert alone.fetched_size == 1_000 + 70

    on = Blocks(drive, SharedCache(1_000_000), 1000, 4)
    for start in range(0, size, 2_000):
        await on.read("a/object", start, min(2_300, size - start), size)
    assert on.fetched_size == size, "each byte once"
    # The last one has 2,400 bytes, which is more than half a run.
    assert on.fetch_count == size // 4_000 + 1


async def test_what_is_there_already_is_not_fetched_again_with_a_run() -> None:
    drive, data = await a_large_drive()
    blocks = Blocks(drive, SharedCache(1_000_000), 1000, 4)
    await blocks.read("a/object", 6_100, 300, len(data))
    await blocks.read("a/object", 4_000, 4_000, len(data))
    assert (blocks.fetch_count, blocks.fetched_size) == (4, 4_000)


async def test_a_dropped_run_is_fetched_again() -> None:
    drive, data = await a_large_drive()
    blocks = Blocks(drive, SharedCache(1_000_000), 1000, 4)
    await blocks.read("a/object", 4_000, 4_000, len(data))
    blocks.drop("a/object", 5_500, 10, len(data))
    await blocks.read("a/object", 4_000, 4_000, len(data))
    assert blocks.fetch_count == 2


async def test_runs_in_flight_take_the_memory_of_as_many_blocks() -> None:
    in_flight, most = 0, 0

    class Slow(WatchedDrive):
        async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
            nonlocal in_flight, most
            in_flight += size or 0
            most = max(most, in_flight)
            data = await super().get(object_key, start, size)
            for _ in range(5):
                await asyncio.sleep(0)
            in_flight -= size or 0
            return data

    drive, data = Slow(), DATA * 10
    await drive.put("a/object", [data], crc32c(data))
    blocks = Blocks(drive, SharedCache(1_000_000), 1000, 9)
    reading = [
        blocks.read("a/object", start, 4_000, len(data)) for start in range(0, 96_000, 4_000)
    ]
    gone = asyncio.create_task(blocks.read("a/object", 96_000, 6_000, len(data)))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(*reading)
    assert 8_000 <= most <= 9_000
    await blocks.read("a/object", 96_000, 6_000, len(data))
    assert in_flight == 0, "who is gone holds nothing"


async def test_what_is_larger_than_the_budget_is_given_and_not_kept() -> None:
    cache = SharedCache(100)
    blocks = Blocks(await a_drive(), cache, 1000, 4)

    assert len(await blocks.read("a/object", 0, 1000)) == 1000
    assert cache.size == 0


async def test_a_dropped_block_is_fetched_again() -> None:
    blocks = Blocks(await a_drive(), SharedCache(100_000), 1000, 4)
    await blocks.read("a/object", 0, 3000)
    blocks.drop("a/object", 1500, 10)
    await blocks.read("a/object", 0, 3000)

    assert blocks.fetch_count == 4


async def test_a_block_dropped_while_it_is_fetched_is_not_kept() -> None:
    cache, gate = SharedCache(1_000), asyncio.Event()

    async def make() -> bytes:
        await gate.wait()
        return b"bad"

    asking = asyncio.create_task(cache.get("name", make, len))
    await asyncio.sleep(0)
    cache.drop("name")
    gate.set()

    assert await asking == b"bad"
    assert cache.size == 0


async def test_an_asker_that_goes_away_leaves_the_fetch_to_the_others() -> None:
    cache, gate, made = SharedCache(1_000), asyncio.Event(), 0

    async def make() -> bytes:
        nonlocal made
        made += 1
        await gate.wait()
        return b"x"

    first = asyncio.create_task(cache.get("name", make, len))
    second = asyncio.create_task(cache.get("name", make, len))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    gate.set()

    assert (await second, made) == (b"x", 1)


async def test_a_failure_is_told_and_not_kept() -> None:
    cache = SharedCache(1_000)

    async def fail() -> bytes:
        raise Unavailable("not now")

    async def succeed() -> bytes:
        return b"x"

    with pytest.raises(Unavailable):
        await cache.get("name", fail, len)
    assert await cache.get("name", succeed, len) == b"x"


@pytest.mark.parametrize(("error", "tries"), [(NotFound, 2), (Corrupt, 2), (Unavailable, 1)])
async def test_what_was_missing_before_is_looked_for_again_by_who_joined(
    error: type[StoreError], tries: int
) -> None:
    cache, gate, begun = SharedCache(1_000), asyncio.Event(), 0

    async def fail() -> bytes:
        nonlocal begun
        begun += 1
        await gate.wait()
        raise error("as of then")

    first = asyncio.create_task(cache.get("name", fail, len))
    await asyncio.sleep(0)
    joined = [asyncio.create_task(cache.get("name", fail, len)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.set()

    answers = await asyncio.gather(first, *joined, return_exceptions=True)
    assert [type(answer) for answer in answers] == [error] * 4
    assert begun == tries


async def test_closing_ends_what_is_being_made() -> None:
    cache = SharedCache(1_000)

    async def never() -> bytes:
        await asyncio.Event().wait()
        return b""

    asking = asyncio.create_task(cache.get("name", never, len))
    await asyncio.sleep(0)
    await cache.aclose()

    with pytest.raises(asyncio.CancelledError):
        await asking


RANGES = [ByteRange(start, 10) for start in range(0, 100, 10)]


async def test_read_ahead_gives_everything_in_order() -> None:
    async def get(wanted: ByteRange) -> int:
        for _ in range(10 - wanted.start // 10):
            await asyncio.sleep(0)
        return wanted.start

    async with read_ahead(get, RANGES, 30) as results:
        assert [result async for result in results] == list(range(0, 100, 10))


async def test_leaving_early_cancels_what_is_in_flight() -> None:
    cancelled: list[int] = []

    async def get(wanted: ByteRange) -> int:
        try:
            if wanted.start > 0:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(wanted.start)
            raise
        return wanted.start

    async with read_ahead(get, RANGES, 30) as results:
        await anext(results)
        await asyncio.sleep(0)

    assert cancelled == [10, 20]


async def test_a_failure_is_raised_where_it_is_reached() -> None:
    async def get(wanted: ByteRange) -> int:
        if wanted.start == 20:
            raise Unavailable("not now")
        return wanted.start

    async with read_ahead(get, RANGES, 1000) as results:
        assert [await anext(results), await anext(results)] == [0, 10]
        with pytest.raises(Unavailable):
            await anext(results)
