"""Commits of consumers beside their snapshots: what is said to be in one is what a rebuild brings back.

Two manifest processes, the clock of one of them ahead or late, take commits and write snapshots at
once, in an order that a seed chooses at every call; passes are killed in the middle of any call,
garbage is collected, and in the end coordination is lost and rebuilt.

The simulation of all services stores an offset here and there, and loses coordination nowhere; the
tests of snapshots had one clock for all, and commits whose time was later than the queue's.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from support.guards import remove
from support.manifest import STREAM, ManifestHarness, a_record
from support.rebuilding import put_registry, rebuild

from bottomless.errors import StoreError
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference, StreamId
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.consumers.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.recovery.rebuild_stream import find_consumers
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.removal.garbage import GC, collect_step, gc_arguments
from bottomless_server.stores.consumers import SNAPSHOTS_KEY, ConsumerOffsets
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.operations import Operation

NAMES: Final = [Reference(name) for name in ("audit", "billing", "search")]
SKEWS: Final = (-1_000, 0, 1, 4 * 60_000, 2 * 86_400_000)
HOUR: Final = 3_600_000
SEEDS: Final = 20
STEPS: Final = 25
CALLS: Final = ("get", "get_many", "transact", "due", "due_at", "settle", "members")


class Story:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = ManifestHarness()
        self.harness.clock.now = 1_750_000_000_000
        for name in CALLS:
            self._scatter(self.harness.coordination, name)
        self._scatter(self.harness.drive, "put")
        skew = self.random.choice(SKEWS)
        context, clock = self.harness.context, self.harness.clock
        self.contexts: list[Context] = [context, replace(context, clock=lambda: clock.now + skew)]
        self.processes = [ConsumerSnapshots(one) for one in self.contexts]
        self.offsets = ConsumerOffsets(self.harness.coordination)

    def _scatter(self, store: Any, name: str) -> None:
        """Let calls take as long as it pleases the seed, so that others come between."""
        call: Callable[..., Any] = getattr(store, name)

        async def scattered(*args: Any, **more: Any) -> Any:
            await self._turns()
            answer = await call(*args, **more)
            await self._turns()
            return answer

        setattr(store, name, scattered)

    async def _turns(self) -> None:
        for _ in range(self.random.choice((0, 0, 1, 3, 9, 40))):
            await asyncio.sleep(0)

    async def begin(self) -> None:
        harness = self.harness
        harness.streams.generation = await check_generation(harness.drive, harness.coordination)
        idle = {"home": None, "dirty": False, "epoch": 0, "epochs": (), "owner_url": None}
        record = a_record(**idle, reserved_next=0)
        await harness.streams.create(record)
        await put_registry(harness, record)

    async def step(self) -> None:
        """Some commits and passes at once, of which one may be killed."""
        passes = [
            asyncio.ensure_future(process.make_pass())
            for process in self.processes
            if self.random.random() < 0.9
        ]
        commits = [asyncio.ensure_future(self._commit()) for _ in range(self.random.randrange(10))]
        if passes and self.random.random() < 0.2:
            await self._turns()
            await self._turns()
            self.random.choice(passes).cancel()
        results = await asyncio.gather(*passes, *commits, return_exceptions=True)
        for result in results:
            fine = result is None or isinstance(result, StoreError | asyncio.CancelledError)
            assert fine, result
        self.harness.clock.now += self.random.choice((0, 0, 1, 700, 60_000))
        if self.random.random() < 0.1:
            await self._collect()

    async def _commit(self) -> None:
        """As a request does: it reads the time, and gets to its EXEC a while later."""
        name, now = self.random.choice(NAMES), self.random.choice(self.contexts).clock()
        await self._turns()

        def decide(stored: StoredOffset | None) -> StoredOffset:
            if stored is None:
                return StoredOffset(name, 1, now, now)
            return StoredOffset(name, stored.next_offset + 1, now, max(now, stored.revision + 1))

        await self.offsets.change(STREAM, name, decide, now)

    async def _collect(self) -> None:
        self.harness.clock.now += 2 * HOUR
        context = self.harness.context
        arguments = gc_arguments(dry_run=False, minimum_age_ms=HOUR, tenant=None)
        operation = Operation("op_1", GC, "default", None, 0, 0, arguments=arguments)
        await collect_step(context, operation, 1_000)
        await Deleter(context).make_pass()

    async def check(self) -> None:
        """What is said to be in a snapshot is what a rebuild would find."""
        found = await find_consumers(self.harness.drive, await self.harness.record())
        rows = {} if found is None else {one.consumer: one for one in found[0].consumers}
        for stored in await self.offsets.all(STREAM):
            asked = [*self.processes, ConsumerSnapshots(self.harness.context)]
            if any([await process.holds(STREAM, stored) for process in asked]):
                assert rows.get(stored.consumer) == stored

    async def end(self) -> None:
        """Nobody commits any more: after a while the queue is empty, and nothing is lost."""
        harness = self.harness
        for _ in range(3):
            await asyncio.gather(*(one.make_pass() for one in self.processes))
        await self.processes[0].make_pass()
        assert await harness.coordination.due(SNAPSHOTS_KEY, 2**52, 9) == []
        before = await self.offsets.all(STREAM)
        harness.coordination.lose()
        await rebuild(harness)
        assert await self.offsets.all(STREAM) == before


async def tell(seed: int) -> None:
    story = Story(seed)
    await story.begin()
    for _ in range(STEPS):
        await story.step()
        await story.check()
    await story.end()


async def tell_all() -> None:
    for seed in range(SEEDS):
        await tell(seed)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_is_said_to_be_in_a_snapshot_outlives_the_loss_of_coordination(
    seed: int,
) -> None:
    await tell(seed)


def _without_growing_times(patch: pytest.MonkeyPatch) -> None:
    """A commit enters the queue by its clock alone, as everything else does."""

    def behind(stream_id: StreamId, now: int) -> Changes:
        return Changes(queued=[Due(SNAPSHOTS_KEY, stream_id.encode("ascii"), now)])

    remove(patch, "a time in the queue of snapshots that grows with each commit", behind)


async def test_without_times_that_grow_with_each_commit_some_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _without_growing_times(monkeypatch)
    with pytest.raises(AssertionError):
        await tell_all()
