"""One round of compaction: objects are fetched, what waits of their streams becomes fragments, and what
needs no object any more is released.

What there is after a crash of this process at each step:

1. objects are taken and fetched     nothing but a copy
2. streams are compacted             as stream_runs.py tells; each stream is at a step of its own
3. objects are released              their held members are gone, or not: whoever has the shard next
                                     takes them, finds that no stream needs them, and releases them

Objects are deleted by the manifest alone, when nothing holds them.

On the record's path: after services/bottomless_server/uploader/compaction/objects.py, before
services/bottomless_server/uploader/fragments.py.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from bottomless.drives.base import Drive
from bottomless.errors import Corrupt, StoreError
from bottomless.model.names import StreamId, Uid
from bottomless_server.coordination.base import Coordination
from bottomless_server.leaderless.tail import shard_of
from bottomless_server.protocol.compaction import Compacted
from bottomless_server.runtime.base.task_groups import task_group
from bottomless_server.stores.releases import release
from bottomless_server.uploader.compaction.core.waiting import Left, Place, WaitingObjects
from bottomless_server.uploader.compaction.metrics import RoundCounts
from bottomless_server.uploader.compaction.needed_by import streams_needing
from bottomless_server.uploader.compaction.objects import Fetched, WalObject, fetch, find_sizes
from bottomless_server.uploader.compaction.stream_runs import RoundTime, StreamDone, StreamRuns

log = structlog.get_logger(__name__)

STREAMS_AT_ONCE: Final = 32
AGAIN_MS: Final = 30_000
"""The time in which a round begins with streams that failed before, after all others: the rest of them
is left to later rounds."""


class Rounds:
    """Rounds over the objects of one uploader, one at a time."""

    def __init__(
        self,
        drive: Drive,
        coordination: Coordination,
        objects: WaitingObjects,
        streams: StreamRuns,
        counts: RoundCounts,
        clock_ms: Callable[[], int],
    ) -> None:
        """`clock_ms` is the clock of rounds."""
        self._drive = drive
        self._coordination = coordination
        self._objects = objects
        self._streams = streams
        self._counts = counts
        self._clock_ms = clock_ms

    async def run(self, shards: Collection[int], at: RoundTime) -> Compacted:
        """Take what fits into the cache, and compact and release what is in it.

        Raises:
            StoreError: the store cannot be listed now.
        """
        candidates = self._objects.candidates(at.why, at.now)
        with self._counts.timed("list"):
            await find_sizes(self._drive, self._objects, candidates)
        with self._counts.timed("fetch"):
            fetched = await fetch(self._drive, self._objects.take(candidates))
        self._counts.objects += len(fetched.objects)
        self._counts.bytes += sum(len(one.data) for one in fetched.objects.values())
        streams = await self._streams_of(fetched, shards, at)
        at = at._replace(lost=self._objects.lost())
        with self._counts.timed("pack"):
            done = await self._compact_all(streams, fetched.objects, at)
        self._note([*fetched.objects, *fetched.missing], streams, list(done.values()), at.now)
        advanced_count = sum(1 for one in done.values() if one.advanced)
        self._counts.streams += advanced_count
        return Compacted(len(fetched.objects), advanced_count)

    async def _streams_of(
        self, fetched: Fetched, shards: Collection[int], at: RoundTime
    ) -> dict[StreamId, list[Place]]:
        """The streams of these shards, each with the objects that it may need: those whose directory
        names it, and what is broken in which it has an entry.

        Raises:
            Unavailable: not now.
        """
        streams: dict[StreamId, list[Place]] = {}
        broken = list(fetched.missing)
        for place, found in fetched.objects.items():
            self._objects.asked_for(place, is_lost=False)
            if found.directory is None:
                broken.append(place)
                continue
            for stream_id in found.directory.stream_ids():
                if shard_of(stream_id) in shards:
                    streams.setdefault(stream_id, []).append(place)
        for place in fetched.missing:
            self._objects.asked_for(place, is_lost=True)
        if broken:
            needing = await streams_needing(self._coordination, at.generation, broken, shards)
            for place, stream_ids in needing.items():
                for stream_id in stream_ids:
                    streams.setdefault(stream_id, []).append(place)
        return streams

    async def _compact_all(
        self,
        streams: Mapping[StreamId, Collection[Place]],
        objects: Mapping[Place, WalObject],
        at: RoundTime,
    ) -> dict[StreamId, StreamDone]:
        done: dict[StreamId, StreamDone] = {}
        room = asyncio.Semaphore(STREAMS_AT_ONCE)

        async def compact(stream_id: StreamId, until: int | None = None) -> None:
            async with room:
                named = streams[stream_id]
                if until is not None and self._clock_ms() >= until:
                    done[stream_id] = await self._streams.pass_over(stream_id, named, at)
                else:
                    done[stream_id] = await self._streams.compact(stream_id, objects, named, at)

        # In turn: those that this round does not come to are the first of the next one.
        failed = filter(self._streams.has_failed, streams)
        again = dict.fromkeys(sorted(failed, key=self._streams.aside.was_until))
        async with task_group() as runs:
            for stream_id in streams:
                if stream_id not in again:
                    runs.create_task(compact(stream_id))
        until = self._clock_ms() + AGAIN_MS
        async with task_group() as runs:
            for stream_id in again:
                runs.create_task(compact(stream_id, until))
        return done

    def _note(
        self,
        places: Collection[Place],
        streams: Mapping[StreamId, Collection[Place]],
        done: Collection[StreamDone],
        now: int,
    ) -> None:
        """Remember what the round has left of each object, and when somebody wants it."""
        left: dict[Place, Left] = {}
        advanced = set[Place]()
        for one in done:
            advanced |= one.advanced
            for place, wanted in one.left.items():
                before = left.get(place)
                left[place] = wanted if before is None else before.with_(wanted)
        of_place: Mapping[Place, list[StreamId]] = defaultdict(list)
        for stream_id, named in streams.items():
            for place in named:
                of_place[place].append(stream_id)
        for place in places:
            wanted_of = left.pop(place, None)
            if wanted_of is None:
                self._objects.finished(place, of_place[place], now)
            else:
                self._objects.looked_at(place, wanted_of, advanced=place in advanced)
        for place, wanted in left.items():
            self._objects.wanted(place, wanted)

    async def release(self, shards: Collection[int], at: RoundTime) -> None:
        """Release objects that no stream needs any more; what the manifest has not pruned yet is
        tried again, and pruned if that takes long.

        Raises:
            Unavailable: `coordination-regressed`, or not now.
        """
        due = self._objects.to_release(at.now)
        of_instance: Mapping[Uid, dict[int, Collection[StreamId]]] = defaultdict(dict)
        for place, one in due.items():
            of_instance[place.instance][place.sequence] = one.stream_ids
        unpruned = set[StreamId]()
        for instance, streams in of_instance.items():
            try:
                released = await release(
                    self._coordination, instance, at.generation, streams, shards
                )
            except Corrupt:
                log.exception("a WAL instance cannot be read", instance=instance)
                kept = set(streams)
            else:
                kept = {member.sequence for member in released.kept}
                self._counts.released += len(streams) - len(kept)
            self._objects.forget(Place(instance, one) for one in streams if one not in kept)
            for sequence in kept:
                place = Place(instance, sequence)
                if self._objects.done[place].refused_count:
                    unpruned.update(self._objects.done[place].stream_ids)
                self._objects.not_released(place, at.now)
        await self._prune(unpruned, at)

    async def _prune(self, stream_ids: Collection[StreamId], at: RoundTime) -> None:
        """Have streams pruned that keep objects from being released: each once, however many."""
        for stream_id in stream_ids:
            self._counts.prunes += 1
            try:
                await self._streams.prune(stream_id, at.generation)
            except StoreError as error:
                log.warning("nothing pruned", stream_id=stream_id, error=str(error))
