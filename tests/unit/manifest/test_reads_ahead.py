"""Reads ahead of one consumer: in order, bounded, and ended when the consumer leaves."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.rebuilding import rebuild
from unit.manifest.test_rebuild_wal import found, with_two_flushes

from bottomless.errors import Unavailable
from bottomless_server.manifest.recovery.reads_ahead import AheadBounds, reads_ahead


class Store:
    """Reads that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self.gates: dict[int, asyncio.Future[int]] = {}

    async def read(self, number: int) -> int:
        self.begun.append(number)
        gate = self.gates.setdefault(number, asyncio.get_running_loop().create_future())
        try:
            return await gate
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise

    def end(self, *numbers: int) -> None:
        for number in numbers:
            gate = self.gates.setdefault(number, asyncio.get_running_loop().create_future())
            gate.set_result(number * 10)


async def turns() -> None:
    """Let all tasks that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_so_many_are_read_at_a_time_and_come_in_their_order() -> None:
    store = Store()
    async with reads_ahead(store.read, range(6), AheadBounds(3, 100)) as results:
        first = asyncio.ensure_future(anext(results))
        await turns()
        assert store.begun == [0, 1, 2]
        store.end(2, 1)
        await turns()
        assert (first.done(), store.begun) == (False, [0, 1, 2])
        store.end(0, 3, 4, 5)
        assert [await first, *[one async for one in results]] == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize(("sizes", "begun"), [([4, 4, 4, 4], 2), ([99, 1, 1], 1), ([1, 99], 1)])
async def test_what_waits_has_a_bound_of_bytes_and_one_always_is_read(
    sizes: Sequence[int], begun: int
) -> None:
    store = Store()
    numbers = range(len(sizes))
    bounds = AheadBounds(10, 10)
    async with reads_ahead(store.read, numbers, bounds, lambda one: sizes[one]) as results:
        first = asyncio.ensure_future(anext(results))
        await turns()
        assert len(store.begun) == begun
        store.end(*numbers)
        assert [await first, *[one async for one in results]] == [10 * one for one in numbers]


async def test_a_read_that_fails_is_heard_of_in_its_turn() -> None:
    async def read(number: int) -> int:
        if number == 1:
            raise Unavailable("not now")
        return number

    async with reads_ahead(read, range(3), AheadBounds(3, 100)) as results:
        assert await anext(results) == 0
        with pytest.raises(Unavailable):
            await anext(results)


async def test_who_leaves_early_leaves_nothing_that_is_still_read() -> None:
    store = Store()
    async with reads_ahead(store.read, range(6), AheadBounds(3, 100)) as results:
        store.end(0)
        assert await anext(results) == 0
    assert store.cancelled == [1, 2]


@pytest.mark.parametrize(("count", "most"), [(1, 1), (2, 2), (16, 3)])
async def test_a_rebuild_reads_so_many_wal_objects_at_a_time(
    count: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three objects: two with records, and one with the notes of the second."""
    harness, _ = await with_two_flushes(manifest_rebuild_wal_reads=count)
    get = harness.drive.get
    under_way: list[str] = []
    highest = 0

    async def watched(object_key: str, *range_: Any) -> Any:
        nonlocal highest
        under_way.append(object_key)
        highest = max(highest, sum(key.endswith(".wal") for key in under_way))
        await turns()
        under_way.remove(object_key)
        return await get(object_key, *range_)

    monkeypatch.setattr(harness.drive, "get", watched)
    harness.coordination.lose()

    await rebuild(harness)

    assert highest == most
    assert await found(harness) == [("leaf", 0, 20)]
