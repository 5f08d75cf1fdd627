"""The part of one stream in a round: what waits of it becomes fragments, if its time has come.

What there is after a crash of this process at each step:

1. record and index are read, chunks placed      nothing but a copy
2. a session is begun                            the manifest resolves what other sessions left, and
                                                 prunes what is published
3. intents, put, registered, applied             as fragments.py tells of all streams
4. pruned                                        by the manifest, when it publishes or at the next
                                                 session: entries are leftovers until then

WAL objects stay as they are: rounds.py releases them. Damage to a piece, and an upload that fails, end
the run of that stream alone; it is set aside, and an alarm tells of it.
"""

import asyncio
from collections.abc import Collection, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from bottomless.errors import Code, Corrupt, Fenced, StoreError, Unavailable
from bottomless.formats.checks import corrupt
from bottomless.formats.stream_record import LEADERLESS, SERVED, decode_record
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Coordination
from bottomless_server.leaderless.tail import Tail, TailEntry, TailState
from bottomless_server.stores.streams import GENERATION_KEY, stream_key
from bottomless_server.stores.tail_keys import all_known, entries_from, tail_in, tail_key
from bottomless_server.stores.wal import require_generation
from bottomless_server.uploader.compaction.core.aside import AsideStreams
from bottomless_server.uploader.compaction.core.runs import (
    is_cut,
    left_aside,
    left_by,
    place_of,
    run_of,
    unpublished,
)
from bottomless_server.uploader.compaction.core.tracking_chunks import FragmentTracking, LastTold
from bottomless_server.uploader.compaction.core.waiting import Left, Place, Why
from bottomless_server.uploader.compaction.objects import WalObject
from bottomless_server.uploader.compaction.run_cut import RunCut
from bottomless_server.uploader.failures import Failures
from bottomless_server.uploader.fragments import FragmentUploads, Parts

log = structlog.get_logger(__name__)

STREAM_SECONDS: Final = 120.0
"""The longest time that one stream may take in a round: one that cannot be uploaded must not keep the
others from their next round. What is left then is done by another session."""
STREAM_SECONDS_MIN: Final = 30.0
"""What a stream has for a run of a few bytes, and a second for each MiB more."""
REPORTED_COUNT_MAX: Final = 100
"""Streams that failed which a report names."""
LAST_TOLD_MAX: Final = 100_000
"""Streams of which trailers are counted; of another one the count begins anew."""
_OF_ROUND: Final = "compaction"
"""What was being done, where a stream failed."""


class RoundTime(NamedTuple):
    """When a round looks, and why it does."""

    why: Why
    now: int
    """Time of the clock of rounds, which never goes back."""
    clock_ms: int
    """In ms since 1970, by the coordination store, whose clock writers compare theirs with."""
    generation: int
    known: Mapping[Place, int]
    """The objects that wait in the shards of this process, taken or not, each with the time of rounds at
    which it was heard of."""
    lost: Container[Place] = frozenset()
    """Objects that are held and that the store does not have."""

    def waited_ms(self, entries: Sequence[TailEntry]) -> int:
        """How long the first of these has waited: by its time, or since it was heard of where that
        is longer, since times of a stream may be ahead; 0 if there is none."""
        if not entries:
            return 0
        heard_of = self.known.get(place_of(entries[0]), self.now)
        return max(0, self.clock_ms - entries[0].timestamp, self.now - heard_of)


class StreamDone(NamedTuple):
    """What a round made of one stream."""

    left: Mapping[Place, Left]
    """The objects that it still needs, and when it wants them."""
    advanced: AbstractSet[Place] = frozenset()
    """The objects of which something became a fragment."""


class _Seen(NamedTuple):
    """A stream as coordination showed it."""

    tail: Tail
    record: StreamRecord
    entries: list[TailEntry]
    """Entries of which no fragment has all."""

    @property
    def max_age_ms(self) -> int:
        return self.record.config.fragment.max_age_ms


class StreamRuns:
    """What rounds do with streams, one at a time or several at once."""

    def __init__(self, parts: Parts, coordination: Coordination) -> None:
        self._parts = parts
        self._coordination = coordination
        self.aside = AsideStreams()
        self._failing: dict[StreamId, Failures] = {}
        self._last_told: dict[StreamId, LastTold] = {}
        """The last tracking chunk of each; looked for anew after a start."""

    def report(self) -> dict[StreamId, Mapping[str, Any]]:
        """What failed last, of streams that are set aside; not of all where they are many."""
        failing = list(self._failing.items())[:REPORTED_COUNT_MAX]
        return {stream_id: failures.report() for stream_id, failures in failing}

    async def compact(
        self,
        stream_id: StreamId,
        objects: Mapping[Place, WalObject],
        named: Collection[Place],
        at: RoundTime,
    ) -> StreamDone:
        """Make fragments of what is in these objects, if it is due; `named` are those whose directory
        names the stream. Whatever is wrong with it is not of the others."""
        if (until := self.aside.until(stream_id, at.now)) is not None:
            return await self._passed_over(stream_id, named, at, until)
        seen = None
        try:
            seen = await self._look(stream_id, at.generation)
            if seen is None:
                self._is_well(stream_id)
                return StreamDone({})
            return await self._compact(stream_id, seen, objects, at)
        except (StoreError, TimeoutError) as error:
            until = self._set_aside(stream_id, error)
        except Exception as error:
            log.exception("a stream cannot be compacted", stream_id=stream_id)
            until = self._set_aside(stream_id, error)
        return await self._passed_over(stream_id, named, at, until, before=seen)

    def has_failed(self, stream_id: StreamId) -> bool:
        """Whether a stream failed, and was not well since."""
        return stream_id in self._failing

    async def pass_over(
        self, stream_id: StreamId, named: Collection[Place], at: RoundTime
    ) -> StreamDone:
        """Leave a stream to a later round, which may be the next one."""
        until = self.aside.until(stream_id, at.now) or at.now
        return await self._passed_over(stream_id, named, at, until)

    async def _passed_over(
        self,
        stream_id: StreamId,
        named: Collection[Place],
        at: RoundTime,
        until: int,
        before: _Seen | None = None,
    ) -> StreamDone:
        """What a stream needs that is set aside: as far as nobody can tell, all that names it."""
        try:
            seen = await self._look(stream_id, at.generation)
        except Exception as error:
            if not isinstance(error, StoreError):
                log.exception("a stream cannot be looked at", stream_id=stream_id)
            return StreamDone(dict.fromkeys(named, Left(until, until, 0)))
        if seen is None:
            self._is_well(stream_id)
            return StreamDone({})
        left = left_aside(seen.entries, now=at.now, until=until)
        if before is None:
            return StreamDone(left)
        still = unpublished(before.entries, seen.record.published_next)
        advanced = before.entries[: len(before.entries) - len(still)]
        return StreamDone(left, set(map(place_of, advanced)))

    async def _compact(
        self,
        stream_id: StreamId,
        seen: _Seen,
        objects: Mapping[Place, WalObject],
        at: RoundTime,
    ) -> StreamDone:
        published_next = seen.record.published_next
        run = run_of(seen.entries, published_next, objects)
        if not run and seen.entries and not self._is_reached(seen, at):
            until = self.aside.set_aside(stream_id, at.now)
            return StreamDone(left_aside(seen.entries, now=at.now, until=until))
        due = is_cut(
            run,
            at.why,
            waited_ms=at.waited_ms(run),
            max_age_ms=seen.max_age_ms,
            target_bytes=seen.record.config.fragment.target_bytes,
        )
        if due:
            await self._upload(stream_id, seen, run, objects)
            published_next = run[-1].next_offset
            self._is_well(stream_id)
        left = unpublished(seen.entries, published_next)
        times = left_by(left, now=at.now, waited_ms=at.waited_ms(left), max_age_ms=seen.max_age_ms)
        return StreamDone(times, {place_of(entry) for entry in run} if due else frozenset())

    def _is_reached(self, seen: _Seen, at: RoundTime) -> bool:
        """Whether some round will have the first object of a stream: not before its writer is settled.

        Raises:
            Corrupt: its entries begin after the end of the manifest, or with an object that is gone.
        """
        first = seen.entries[0]
        if first.first_offset > seen.record.published_next:
            raise corrupt("tail index", "nothing is known of what follows the manifest")
        if place_of(first) in at.lost:
            raise Corrupt("a WAL object with its records is missing", code=Code.DATA_MISSING)
        return place_of(first) in at.known

    async def prune(self, stream_id: StreamId, generation: int) -> None:
        """Have the manifest prune a stream of which something is published and not pruned: it does
        so whenever a session begins. Nobody else would, of a stream to which nothing comes.

        Raises:
            StoreError: not now.
        """
        seen = await self._look(stream_id, generation)
        if seen is None or seen.tail.pruned_next >= seen.record.published_next:
            return
        oldest = await entries_from(self._coordination, stream_id, seen.tail.pruned_next, limit=1)
        if oldest and oldest[0].next_offset <= seen.record.published_next:
            failures, woken = Failures(stream_id), asyncio.Event()
            await FragmentUploads(stream_id, failures, woken, self._parts).begin()

    async def _look(self, stream_id: StreamId, generation: int) -> _Seen | None:
        """Tail and record as they are at one moment, and the entries; None of a stream that is gone.

        Raises:
            Corrupt: something of it cannot be read.
            Unavailable: `coordination-regressed`, or not now.
        """
        keys = [GENERATION_KEY, tail_key(stream_id), stream_key(stream_id)]
        values = dict(zip(keys, await self._coordination.get_many(keys), strict=True))
        require_generation(values, generation)
        tail, value = tail_in(values, stream_id), values[stream_key(stream_id)]
        if value is None or (tail is not None and tail.state is TailState.CLOSED):
            return None
        record = decode_record(value, SERVED | {LEADERLESS})
        if record.state is StreamState.DELETING:
            return None
        if tail is None:
            raise corrupt("tail record", "a stream is there without it")
        entries: list[TailEntry] = []
        offset = record.published_next
        while page := await entries_from(self._coordination, stream_id, offset):
            entries += page
            offset = page[-1].next_offset
        return _Seen(tail, record, unpublished(entries, record.published_next))

    async def _upload(
        self,
        stream_id: StreamId,
        seen: _Seen,
        run: Sequence[TailEntry],
        objects: Mapping[Place, WalObject],
    ) -> None:
        """Get a run into the manifest.

        Raises:
            Corrupt: a piece is damaged; what lies before it is in the manifest.
            StoreError, TimeoutError: it could not be done, or not in time.
        """
        uploads = FragmentUploads(stream_id, Failures(stream_id), asyncio.Event(), self._parts)
        async with asyncio.timeout(seconds_for(sum(entry.size for entry in run))):
            opened = await uploads.begin()
            if opened.epoch != seen.tail.epoch:
                raise Unavailable("the manifest shows another epoch of the stream than its tail")
            # Others may have published of it meanwhile.
            left = unpublished(run, opened.published_next)
            if left:
                tracking = await self._tracking(stream_id, seen)
                cut = RunCut(self._parts, uploads, objects, seen.tail.epoch, tracking)
                target_bytes = seen.record.config.fragment.target_bytes
                await uploads.run(
                    partial(cut.into_fragments, left, opened.published_next, target_bytes)
                )
                self._note_told(stream_id, tracking)

    async def _tracking(self, stream_id: StreamId, seen: _Seen) -> FragmentTracking | None:
        """What fragments end with, of a stream of which anything is known; read after its entries, so
        all that changed below them is in it."""
        if seen.tail.producer_count + seen.tail.key_count == 0:
            return None
        known = await all_known(self._coordination, stream_id)
        last = self._last_told.get(stream_id, LastTold())
        return FragmentTracking(known, last, seen.record.condemned_next)

    def _note_told(self, stream_id: StreamId, tracking: FragmentTracking | None) -> None:
        self._last_told.pop(stream_id, None)
        if tracking is not None and tracking.last != LastTold():
            self._last_told[stream_id] = tracking.last
        if len(self._last_told) > LAST_TOLD_MAX:
            del self._last_told[next(iter(self._last_told))]

    def _is_well(self, stream_id: StreamId) -> None:
        self.aside.clear(stream_id)
        self._failing.pop(stream_id, None)

    def _set_aside(self, stream_id: StreamId, error: Exception) -> int:
        """Set a stream aside from now on, with an alarm; returns until when."""
        if isinstance(error, TimeoutError):
            error = Unavailable("the stream took longer than it may in one round")
        failures = self._failing.setdefault(stream_id, Failures(stream_id))
        if not isinstance(error, Fenced):
            failures.note(_OF_ROUND, error)
        until = self.aside.set_aside(stream_id, self._parts.clock_ms())
        for one in [one for one in self._failing if not self.aside.is_known(one)]:
            del self._failing[one]
        return until


def seconds_for(size: int) -> float:
    """The time that a run of `size` bytes may take: no longer than it needs where little else can be
    wrong, since all others wait for the end of the round."""
    return min(STREAM_SECONDS, STREAM_SECONDS_MIN + size / MIB)
