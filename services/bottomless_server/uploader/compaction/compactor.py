"""The life of compaction in one uploader: shards are held, what waits is read, rounds are begun.

One loop does all but renew the leases, so no two rounds of a process run at once. Nothing is kept here
that a crash could lose: after a start everything is read anew.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog
from prometheus_client.metrics_core import Metric

from bottomless.errors import StoreError
from bottomless.model.backoff import backoff
from bottomless_server.coordination.base import Coordination
from bottomless_server.protocol.compaction import Compacted
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.generation import held_generation
from bottomless_server.uploader.compaction.core.waiting import Limits, WaitingObjects, Why
from bottomless_server.uploader.compaction.held import HeldReader
from bottomless_server.uploader.compaction.metrics import RoundCounts, compaction_metrics
from bottomless_server.uploader.compaction.objects import find_sizes
from bottomless_server.uploader.compaction.rounds import Rounds
from bottomless_server.uploader.compaction.shards import Shards
from bottomless_server.uploader.compaction.stream_runs import RoundTime, StreamRuns
from bottomless_server.uploader.failures import Failures
from bottomless_server.uploader.fragments import Parts
from bottomless_server.uploader.metrics import UploadCounts

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.0
IDLE_SECONDS_MAX: Final = 5.0
"""The longest pause between two rounds of which the first advanced no stream."""
_LOOK: Final = "compaction"
"""What was being done, where a look failed."""


class Compactor:
    """Rounds of compaction from `start` to `stop`. Owns neither drive nor coordination."""

    def __init__(self, parts: Parts, coordination: Coordination) -> None:
        settings = parts.settings
        self._parts = parts
        self._coordination = coordination
        self.shards = Shards(coordination, settings.uploader_wal_lease_ms)
        limits = Limits(settings.uploader_wal_cache_bytes, settings.uploader_wal_entries)
        self.objects = WaitingObjects(limits)
        self._reader = HeldReader(coordination)
        self.counts = RoundCounts(uploads=UploadCounts(whole=parts.counts))
        self.streams = StreamRuns(replace(parts, counts=self.counts.uploads), coordination)
        self._rounds = Rounds(
            parts.drive, coordination, self.objects, self.streams, self.counts, parts.clock_ms
        )
        self.failures = Failures()
        self._read_of: tuple[int, int] | None = None
        """The shards and the generation of which all is known that was read."""
        self._clock_ahead_ms = 0
        """The clock of the coordination store, less that of rounds. The wall clock of this machine may
        be anything: each stream would be cut every second, or none."""
        self._idle_count = 0
        self._not_before = 0
        self._one_at_a_time = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(
                endless("uploader-shards", self._renew_once), name="compaction leases"
            ),
            asyncio.create_task(
                endless("uploader-compaction", self._look_once), name="compaction rounds"
            ),
        ]

    async def stop(self) -> None:
        """Stop where everything stands; the next one to hold the shards finds it."""
        tasks, self._tasks = self._tasks, []
        await end_tasks(*tasks)
        await self.shards.give_up()

    async def _renew_once(self) -> float:
        try:
            await self.shards.renew()
        except StoreError as error:
            log.warning("leases of shards are not renewed", code=error.code)
        return self.shards.renew_seconds

    async def _look_once(self) -> float:
        try:
            await self.look()
        except StoreError as error:
            self.failures.note(_LOOK, error)
        else:
            self.failures.clear(_LOOK)
        return LOOK_SECONDS

    async def look(self) -> Compacted:
        """Read what waits, do a round if it is time, and release what no stream needs.

        Raises:
            StoreError: not now.
        """
        async with self._one_at_a_time:
            return await self._look_and_compact(None)

    async def compact_now(self) -> Compacted:
        """Do one round now, which cuts all streams, however young their records are.

        Raises:
            StoreError: not now.
        """
        async with self._one_at_a_time:
            if not self.shards.held:
                await self.shards.renew()
            return await self._look_and_compact(Why.ASKED)

    async def _look_and_compact(self, asked: Why | None) -> Compacted:
        """Read what is new, do a round if it is time or somebody asked, and release."""
        done = Compacted(0, 0)
        generation = await held_generation(self._coordination)
        if generation is None or not self.shards.held:
            return done
        shards = self.shards.held
        await self._read(generation)
        now = self._parts.clock_ms()
        why = asked or await self._begins(now)
        clock_ms = now + self._clock_ahead_ms
        at = RoundTime(why or Why.AGE, now, clock_ms, generation, self.objects.seen_at())
        if why is not None:
            self.counts.rounds += 1
            done = await self._rounds.run(shards, at)
            self._pause_after(done)
        with self.counts.timed("release"):
            await self._rounds.release(shards, at)
        return done

    async def _read(self, generation: int) -> None:
        read_of = (self.shards.version, generation)
        if self._read_of != read_of:
            self._read_of = read_of
            self._reader.forget()
            self.objects.forget()
        now, clock_ms = self._parts.clock_ms(), await self._coordination.clock()
        self._clock_ahead_ms = clock_ms - now
        with self.counts.timed("read"):
            new = await self._reader.read(self.shards.held)
        for instance, held in new.items():
            self.objects.seen(instance, held, now, clock_ms)
        self.objects.forget(place for place in self.objects.places() if place.instance not in new)

    async def _begins(self, now: int) -> Why | None:
        if now < self._not_before:
            return None
        why = self.objects.begins(now)
        if why is Why.FULL:
            # Only now it matters how large they really are.
            candidates = self.objects.candidates(why, now)
            with self.counts.timed("list"):
                await find_sizes(self._parts.drive, self.objects, candidates)
            why = self.objects.begins(now)
        return why

    def _pause_after(self, done: Compacted) -> None:
        """Rounds that advance nothing come more and more rarely: what they wait for takes time."""
        wait = backoff(self._idle_count, LOOK_SECONDS, IDLE_SECONDS_MAX)
        self._idle_count = 0 if done.stream_count else self._idle_count + 1
        self._not_before = 0 if done.stream_count else self._parts.clock_ms() + int(wait * 1000)

    def report(self) -> Mapping[str, Any]:
        return {
            "shards": len(self.shards.held),
            "waiting_objects": len(self.objects),
            "streams_set_aside": len(self.streams.aside),
            "failures": {**self.failures.report(), **self.streams.report()},
        }

    def metrics(self) -> Iterable[Metric]:
        return compaction_metrics(
            self.counts,
            shard_count=len(self.shards.held),
            object_count=len(self.objects),
            entry_count=self.objects.entry_count,
            oldest_age_ms=self.objects.oldest_age_ms(self._parts.clock_ms() + self._clock_ahead_ms),
            aside_count=len(self.streams.aside),
        )
