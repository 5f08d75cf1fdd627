"""A pass of the deleter asks its stores little, and much of it at once."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.drives import register
from support.manifest import ManifestHarness
from support.moving import COLD, GRACE_MS, HOT, Moving, a_moving_stream
from unit.manifest.test_deleter import an_orphan_of, keys

from bottomless.drives.base import Drive
from bottomless.formats.drive_objects import drives_key
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.removal.deleter import Deleter

COUNT = 24


async def all_moved(count: int = COUNT) -> Moving:
    """A stream whose fragments went to the other drive long enough ago."""
    moving = await a_moving_stream(count)
    await register(moving.harness.drive, COLD)
    await moving.move(0, 10 * count)
    moving.harness.clock.now += GRACE_MS
    return moving


class Requests:
    """Counts what a drive is asked for, and how much of it at once."""

    def __init__(self, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._running = self.most = 0
        for name in ("get", "head"):
            monkeypatch.setattr(drive, name, self._counted(name, getattr(drive, name)))

    def of(self, name: str, ending: str) -> list[int]:
        """How often each object with such a key was asked for."""
        return [
            count
            for (what, key), count in self.counts.items()
            if what == name and key.endswith(ending)
        ]

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(object_key: str, *more: Any, **named: Any) -> Any:
            self.counts[name, object_key] += 1
            self._running += 1
            self.most = max(self.most, self._running)
            # As with a real store others have their turn meanwhile.
            await asyncio.sleep(0)
            try:
                return await call(object_key, *more, **named)
            finally:
                self._running -= 1

        return counted


async def test_of_a_stream_each_group_and_each_copy_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = await all_moved()
    groups = await moving.harness.group_count()
    hot, cold = (Requests(moving.drive(number), monkeypatch) for number in (HOT, COLD))
    assert await Deleter(moving.harness.context).make_pass() >= COUNT
    assert await moving.fragments(HOT) == []
    assert cold.of("head", ".fragment") == [1] * COUNT
    read = [key for (what, key) in hot.counts if key.endswith(".g1")]
    assert 0 < len(read) < groups
    assert {count for height in range(1, 6) for count in hot.of("get", f".g{height}")} == {1}


async def test_the_registry_of_drives_is_asked_as_often_for_many_as_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def questions(count: int) -> int:
        moving = await all_moved(count)
        requests = Requests(moving.drive(HOT), monkeypatch)
        await Deleter(moving.harness.context).make_pass()
        return requests.counts["get", drives_key(2)]

    assert await questions(3) == await questions(COUNT) > 0


async def test_copies_are_looked_at_side_by_side_and_never_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = await all_moved()
    cold = Requests(moving.drive(COLD), monkeypatch)
    await Deleter(moving.harness.context).make_pass()
    assert cold.most == 8


async def test_streams_are_looked_at_side_by_side_and_never_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = ManifestHarness()
    for number in range(20):
        await an_orphan_of(harness, StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:012x}"))
    running = most = 0
    load = harness.streams.load

    async def counted(stream_id: StreamId) -> StreamRecord:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await load(stream_id)

    monkeypatch.setattr(harness.streams, "load", counted)
    assert await Deleter(harness.context).make_pass() == 20
    assert await keys(harness) == []
    assert most == 4
