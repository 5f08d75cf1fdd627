"""Staged batches on this node's disk: kept until they are committed, or for a while.

They are no part of any log: nobody reads them, and losing one loses nothing that was
answered with an offset. One file for each body that was staged, one plan for each commit
that is too large for one append (commits.py).

What is on disk after a crash at each step:

    starting    the directory of all of them, perhaps without a durable name: the next start
                makes it durable before anything is staged in it.
    staging     `*.new`: removed at the next start. Nobody was told the id.
    renamed     the batch is whole and synced, its id perhaps not told: it expires.
    planning    the old plan, or none, or the new one; never half of one (`replace_file`).
    dropping    the plan goes first, then its batches: those that are left expire.
    expiring    each file by itself.

A file goes out of the index before it goes from the disk, so no commit names one that is
being removed; one that a commit has pinned is not removed at all. Its bytes count until it
is gone. What cannot be removed now is tried again with every sweep.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from bottomless.errors import Corrupt, Overloaded, StoreError
from bottomless.formats.rows import Frame
from bottomless.model.names import StreamId
from bottomless_server.ingest.log.layout import staged_dir
from bottomless_server.ingest.producers.commit_plan import (
    CommitPlan,
    StagedBatch,
    plan_name,
)
from bottomless_server.ingest.staged.files import DamagedPlan, StagedFiles
from bottomless_server.ingest.staged.kept import droppable, free_batches
from bottomless_server.ingest.staged.stream_batches import (
    StagedBounds,
    StreamBatches,
    quota_exceeded,
)
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.lease import Clocks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.on_loop import in_thread

log = structlog.get_logger(__name__)
_T = TypeVar("_T")

SWEEP_SECONDS: Final = 15.0


IsBegun = Callable[[StreamId, CommitPlan], bool | None]
"""Whether some parts of a plan are in the log and others are not; None where that is not known."""


class StagedBatches:
    """All staged batches of this node. The event loop owns its state; files are touched in threads."""

    def __init__(
        self,
        files: FileCalls,
        data_dir: Path,
        clocks: Clocks,
        bounds: StagedBounds,
        executor: Executor,
    ) -> None:
        self._files = StagedFiles(files, staged_dir(data_dir))
        self._clocks = clocks
        self._bounds = bounds
        self._executor = executor
        self._streams: dict[StreamId, StreamBatches] = {}
        self._pins: set[str] = set()
        self.size = 0
        """Bytes of all batches, until they are gone from the disk."""
        self._changing_plans = asyncio.Lock()
        self._to_remove: list[tuple[Path, int]] = []
        """Files that are to go, with the bytes that they hold until then."""

    async def start(self) -> None:
        """Look what an earlier process has left, and remove what that one had not finished.

        Raises:
            OSError: the disk does not work.
        """
        for stream_id, found in await self._in_thread(lambda: list(self._files.scan())):
            held = self._streams.setdefault(stream_id, StreamBatches())
            if isinstance(found, DamagedPlan):
                held.damaged_plans.add(found.file_name)
            elif isinstance(found, CommitPlan):
                held.plans[found.producer_id] = found
                held.since[plan_name(found.producer_id)] = self._clocks.elapsed()
            else:
                held.batches[found.staged_id] = found
                held.since[found.staged_id] = self._clocks.elapsed()
                self._count(held, found.size)

    @property
    def count(self) -> int:
        return sum(len(one.batches) for one in self._streams.values())

    def expires_at(self, batch: StagedBatch) -> int:
        return batch.created_at + self._bounds.keep_ms

    async def stage(
        self, stream_id: StreamId, staged_id: str, frames: Sequence[Frame]
    ) -> StagedBatch:
        """Put validated frames on the disk; returns when they are synced.

        Raises:
            Overloaded: `quota-exceeded`.
            OSError: nothing is staged.
        """
        batch = StagedBatch(
            staged_id,
            self._clocks.wall(),
            sum(frame.size for frame in frames),
            sum(frame.record_count for frame in frames),
            len(frames),
        )
        held = self._streams.setdefault(stream_id, StreamBatches())
        try:
            self._require_room(held, batch.size)
        except Overloaded:
            self._forget_empty(stream_id)
            raise
        held.arriving_count += 1
        self._count(held, batch.size)
        try:
            data = [part for frame in frames for part in frame.parts]
            await self._in_thread(self._files.write, stream_id, batch, data)
            held.batches[staged_id] = batch
            held.since[staged_id] = self._clocks.elapsed()
        finally:
            held.arriving_count -= 1
            if staged_id not in held.batches:
                self._count(held, -batch.size)
            self._forget_empty(stream_id)
        return batch

    @asynccontextmanager
    async def pinned(
        self, stream_id: StreamId, producer_id: str, staged_ids: Sequence[str]
    ) -> AsyncIterator[list[StagedBatch]]:
        """Batches by id, in order; within, none of them is removed or pinned by another.

        Raises:
            NotFound: `staged-not-found`: also where they are another producer's by now.
        """
        held = self._streams.get(stream_id) or StreamBatches()
        others = [plan for plan in held.plans.values() if plan.producer_id != producer_id]
        batches = free_batches(held.batches, staged_ids, self._pins, others)
        self._pins.update(staged_ids)
        try:
            yield batches
        finally:
            self._pins.difference_update(staged_ids)

    async def read(self, stream_id: StreamId, batches: Sequence[StagedBatch]) -> tuple[Frame, ...]:
        """The frames of pinned batches, as they were staged.

        Raises:
            Corrupt: the disk gives something else than it was given.
            OSError
        """
        return await self._in_thread(self._files.read, stream_id, batches)

    def plan(self, stream_id: StreamId, producer_id: str) -> CommitPlan | None:
        """The plan of a producer's commit that needs several parts, None if there is none.

        Raises:
            Corrupt: there was one, and what it said is lost: so is what its repeat must do.
        """
        held = self._streams.get(stream_id)
        if held is None:
            return None
        if plan_name(producer_id) in held.damaged_plans:
            raise Corrupt("the plan of an earlier commit of this producer is damaged")
        return held.plans.get(producer_id)

    def plans(self, stream_id: StreamId) -> list[CommitPlan]:
        """The plans of a stream that can be read."""
        held = self._streams.get(stream_id)
        return [] if held is None else list(held.plans.values())

    def has_begun(self, stream_id: StreamId, is_begun: Callable[[CommitPlan], bool]) -> bool:
        """Whether this disk has what finishes a commit of a stream, or had it: a plan that cannot
        be read may be one that is begun."""
        held = self._streams.get(stream_id)
        return held is not None and (
            bool(held.damaged_plans) or any(map(is_begun, held.plans.values()))
        )

    def has_all(self, stream_id: StreamId, staged_ids: Sequence[str]) -> bool:
        """Whether all these batches are here."""
        held = self._streams.get(stream_id) or StreamBatches()
        return all(staged_id in held.batches for staged_id in staged_ids)

    async def record_count(self, stream_id: StreamId, staged_ids: Sequence[str]) -> int:
        """Records of those batches that are here."""
        held = self._streams.get(stream_id) or StreamBatches()
        found = (held.batches.get(staged_id) for staged_id in staged_ids)
        return sum(batch.record_count for batch in found if batch is not None)

    async def save_plan(self, stream_id: StreamId, plan: CommitPlan) -> None:
        """Write a plan in place of the producer's earlier one; its batches are pinned and stay.

        Raises:
            OSError: the old one is there, or the new one.
        """
        path = self._files.plan_path(stream_id, plan.producer_id)
        async with self._changing_plans:
            # An earlier plan that is still to be removed has the same name.
            self._to_remove = [one for one in self._to_remove if one[0] != path]
            await self._in_thread(self._files.save_plan, stream_id, plan)
        held = self._streams[stream_id]
        held.plans[plan.producer_id] = plan
        held.since[plan_name(plan.producer_id)] = self._clocks.elapsed()

    async def drop(
        self, stream_id: StreamId, staged_ids: Sequence[str], plan: CommitPlan | None = None
    ) -> None:
        """Remove batches that nobody needs any more, and before them the plan that names them.

        Those of any other plan, and those that a commit has pinned, stay: the commit that names them
        here did not need them. What fails is tried again by the sweep.
        """
        held = self._streams.get(stream_id)
        if held is not None:
            ids = droppable(staged_ids, plan, held.plans.values())
            await self._remove(stream_id, held, ids, plan)

    async def _remove(
        self,
        stream_id: StreamId,
        held: StreamBatches,
        staged_ids: Sequence[str],
        plan: CommitPlan | None,
    ) -> None:
        if plan is not None and held.plans.get(plan.producer_id) == plan:
            del held.plans[plan.producer_id]
            held.since.pop(plan_name(plan.producer_id), None)
            self._to_remove.append((self._files.plan_path(stream_id, plan.producer_id), 0))
        # Pins are looked at here, without any wait before the batches are out of the index.
        for staged_id in self._not_pinned(staged_ids):
            batch = held.batches.pop(staged_id, None)
            if batch is not None:
                held.since.pop(staged_id, None)
                held.size -= batch.size
                self._to_remove.append((self._files.batch_path(stream_id, batch), batch.size))
        self._forget_empty(stream_id)
        await self._remove_files()

    async def drop_damaged_plan(self, stream_id: StreamId, producer_id: str) -> None:
        """Remove the plan of a producer that is to be forgotten, if it cannot be read."""
        held = self._streams.get(stream_id)
        name = plan_name(producer_id)
        if held is not None and name in held.damaged_plans:
            held.damaged_plans.discard(name)
            self._to_remove.append((self._files.plan_path(stream_id, producer_id), 0))
            self._forget_empty(stream_id)
            await self._remove_files()

    async def drop_stream(self, stream_id: StreamId) -> None:
        """Remove all that is staged of a stream that was deleted."""
        held = self._streams.get(stream_id)
        if held is None:
            return
        for plan in list(held.plans.values()):
            await self._remove(stream_id, held, (), plan)
        for name in list(held.damaged_plans):
            held.damaged_plans.discard(name)
            self._to_remove.append((self._files.file_path(stream_id, name), 0))
        await self._remove(stream_id, held, list(held.batches), None)

    async def run(self, is_begun: IsBegun, finish: Callable[[], Awaitable[None]]) -> None:
        """Sweep for ever, and have commits finished that are begun; not in the first sweep, since a
        client may be about to ask for the rest of its commit."""
        started = False

        async def sweep() -> float:
            nonlocal started
            try:
                await self.sweep(is_begun)
                if started:
                    await finish()
                started = True
            except (StoreError, OSError) as error:
                log.warning("staged batches were not swept", error=str(error))
            return SWEEP_SECONDS

        # Keeping more is no harm: after a bug the next sweep begins anew.
        await endless("ingest-staged", sweep)

    async def sweep(self, is_begun: IsBegun) -> None:
        """Remove what has waited for its commit for too long.

        A plan that is begun stays, so that its repeat is never taken for that of a whole; in
        the end without its batches: then the repeat is refused. Age is time that has gone by in
        this process: a wall clock that is ahead removes nothing.
        """
        now, bounds = self._clocks.elapsed(), self._bounds
        for stream_id, held in list(self._streams.items()):
            kept = set[str]()
            for plan in list(held.plans.values()):
                # One that went while another was being removed is not old.
                age = now - held.since.get(plan_name(plan.producer_id), now)
                begun = is_begun(stream_id, plan)
                pinned = not self._pins.isdisjoint(plan.staged_ids)
                # Of a stream that is not here nobody can tell. By then its batches are too old, and
                # the log says without the plan what is begun, but for one of version 1.
                left = begun is None and plan.epoch is not None and age >= bounds.plan_keep_ms
                old = begun is False and age >= bounds.keep_ms
                if (old or left) and not pinned:
                    await self._remove(stream_id, held, (), plan)
                elif age < bounds.plan_keep_ms:
                    kept.update(plan.staged_ids)
            expired = [
                staged_id
                for staged_id in held.batches
                if now - held.since[staged_id] >= bounds.keep_ms and staged_id not in kept
            ]
            await self._remove(stream_id, held, expired, None)
        await self._remove_files()

    def _not_pinned(self, staged_ids: Sequence[str]) -> list[str]:
        return [staged_id for staged_id in staged_ids if staged_id not in self._pins]

    def _require_room(self, held: StreamBatches, size: int) -> None:
        bounds = self._bounds
        if len(held.batches) + held.arriving_count >= bounds.stream_count_max:
            raise quota_exceeded("batches of this stream", limit_count=bounds.stream_count_max)
        arriving = sum(one.arriving_count for one in self._streams.values())
        if self.count + arriving >= bounds.count_max:
            raise quota_exceeded("batches", limit_count=bounds.count_max)
        if held.size + size > bounds.stream_bytes_max:
            raise quota_exceeded("bytes of this stream", limit_bytes=bounds.stream_bytes_max)
        if self.size + size > bounds.bytes_max:
            raise quota_exceeded("bytes", limit_bytes=bounds.bytes_max)

    def _count(self, held: StreamBatches, size: int) -> None:
        held.size += size
        self.size += size

    def _forget_empty(self, stream_id: StreamId) -> None:
        held = self._streams.get(stream_id)
        if held is not None and not held:
            del self._streams[stream_id]

    async def _remove_files(self) -> None:
        if not self._to_remove:
            return
        async with self._changing_plans:
            removing, self._to_remove = self._to_remove, []
            left = await self._in_thread(self._files.remove, removing)
            self._to_remove += left
            self.size -= sum(size for _, size in removing) - sum(size for _, size in left)

    async def _in_thread(self, call: Callable[..., _T], *arguments: Any) -> _T:
        return await in_thread(self._executor, call, *arguments)
