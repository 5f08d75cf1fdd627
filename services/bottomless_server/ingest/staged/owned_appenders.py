"""The port of ingest for streams that this node owns: their log, and what is staged beside it.

On the record's path: after front/append_requests.py, before local/appender.py; commits of staged
batches go by commits.py.
"""

import asyncio
import errno
import os
from collections.abc import Coroutine, Sequence
from heapq import nsmallest
from typing import Any, Final

from bottomless.errors import Code, Fault, StoreError, Unavailable
from bottomless.formats.rows import Frame
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.core.faults import invalid
from bottomless_server.core.tracking.known_producers import Producer
from bottomless_server.core.tracking.open_commits import is_of_parts
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.freeing import DiskUse
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.ports import Staged
from bottomless_server.ingest.producers.commit_parts import progress
from bottomless_server.ingest.producers.commit_plan import CommitPlan
from bottomless_server.ingest.producers.producer_changes import forget, raise_epoch
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.producers.super_requests import is_of_requests
from bottomless_server.ingest.records.conditions import Conditions
from bottomless_server.ingest.records.intake import Append
from bottomless_server.ingest.staged.batches import StagedBatches
from bottomless_server.ingest.staged.commits import StagedCommits
from bottomless_server.ingest.staged.object_batches import SharedBatches
from bottomless_server.runtime.base.fault_points import reach


class OwnedAppenders:
    """The `Appenders` of the local profile: all streams of this process that this node owns."""

    def __init__(
        self,
        streams: OwnedStreams,
        batches: StagedBatches,
        commits: StagedCommits,
        disk: DiskUse,
        shared: SharedBatches | None = None,
    ) -> None:
        """`shared`: staged batches in the object store; None if this node has none."""
        self.streams: Final = streams
        self.batches: Final = batches
        self.shared: Final = shared
        self.commits: Final = commits
        self.disk: Final = disk

    async def get(self, stream_id: StreamId) -> "OwnedAppender":
        """The appender of a stream, under a claim that was good just now.

        Raises:
            NotFound: there is no such stream.
            Corrupt: what lies here of it is damaged.
            OwnedElsewhere: another node owns it.
            Unavailable: it cannot be owned now; outcome none.
        """
        return OwnedAppender(self, await self.streams.get(stream_id))

    def forget_elsewhere(self, stream_id: StreamId) -> None:
        """Ask anew who owns a stream."""
        self.streams.others.forget(stream_id)

    def at_once(self, stream_id: StreamId) -> "OwnedAppender | None":
        """The appender of a stream that is open here under a claim that is good now, and that has
        space; None leaves it to `get`, also where that will refuse."""
        local = self.streams.find(stream_id)
        if local is None or local.stopped is not None:
            return None
        try:
            local.claim.require()
            self.disk.require_room()
        except StoreError:
            return None
        return OwnedAppender(self, local)

    async def finish_commits(self) -> None:
        """Append what is missing of commits that were cut off, as far as that can be done now."""
        await self.commits.finish(self.streams.opened())

    def is_begun(self, stream_id: StreamId, plan: CommitPlan) -> bool | None:
        """Whether some parts of a plan are in the log and others are not; None where the stream is
        not open, so that nobody can tell."""
        local = self.streams.find(stream_id)
        return None if local is None else progress(plan, local.tracking).start > 0


class OwnedAppender:
    """The `Appender` of one stream that this node owns."""

    __slots__ = ("_local", "_owned", "stream_id")

    durability: Final = "fsync"

    def __init__(self, owned: OwnedAppenders, local: LocalAppender) -> None:
        self._owned = owned
        self._local = local
        self.stream_id: Final = local.stream_id

    @property
    def next_offset(self) -> int:
        return self._local.log.committed_next

    @property
    def replica_count(self) -> int | None:
        local = self._local
        # Whoever is in sync by now has what was answered before.
        return len(local.in_sync_others) + 1 if local.has_replicas else None

    def require_space(self) -> None:
        self._owned.disk.require_room()

    def append(self, append: Append) -> Coroutine[Any, Any, Appended]:
        # Handed through, not awaited: an append pays for each coroutine on its way.
        return self._local.append(append)

    def put(self, append: Append) -> asyncio.Future[Appended]:
        return self._local.put(append)

    async def stage(self, frames: Sequence[Frame]) -> Staged:
        if self._local.has_replicas:
            return await self._stage_shared(frames)
        batches, staged_id = self._owned.batches, f"st_{os.urandom(16).hex()}"
        try:
            batch = await batches.stage(self.stream_id, staged_id, frames)
        except OSError as error:
            full = error.errno == errno.ENOSPC
            raise Unavailable(
                "the local disk does not take it",
                code=Code.STORAGE_FULL if full else Code.STORAGE_FAILED,
                retry_after_seconds=1,
            ) from error
        await reach("ingest.staged.after-sync")
        return Staged(batch, batches.expires_at(batch))

    async def _stage_shared(self, frames: Sequence[Frame]) -> Staged:
        if self._owned.shared is None:
            # On this disk alone another owner could neither finish a commit of several parts nor
            # tell a half of one from its repeat.
            sentence = (
                "this node has no object store, and a stream with replicas stages nothing on disks: "
                "set BOTTOMLESS_STORE_URL, or append the records"
            )
            raise invalid([Fault(Code.VALIDATION_FAILED, sentence, None)])
        staged = await self._owned.shared.stage(self._local, frames)
        await reach("ingest.staged.after-sync")
        return staged

    async def commit(self, conditions: Conditions, staged_ids: Sequence[str]) -> Appended:
        await self._until_known()
        return await self._owned.commits.commit(self._local, conditions, staged_ids)

    async def list_producers(self, after: str, count: int) -> list[tuple[str, Producer]]:
        await self._until_known()
        known = self._local.tracking.producers
        listed = (name for name in known if name > after and not _is_ours(name))
        return [(name, known[name]) for name in nsmallest(count, listed)]

    async def find_producer(self, producer_id: str) -> Producer | None:
        await self._until_known()
        return self._local.tracking.producers.get(producer_id)

    async def raise_epoch(self, producer_id: str) -> None:
        self.require_space()
        # After a crash between the two the epoch is raised, and nobody was told the last number.
        await self._local.change(
            lambda tracking, now, places: raise_epoch(tracking, producer_id, now, places)
        )
        await self._owned.commits.settle(self._local, producer_id)

    async def forget_producer(self, producer_id: str) -> None:
        self.require_space()
        # Before it is forgotten: after a crash between the two the producer is still there to be
        # forgotten, and what the plan said was lost anyway.
        await self._owned.batches.drop_damaged_plan(self.stream_id, producer_id)
        if self._owned.shared is not None:
            self._owned.shared.drop_damaged_plan(self._local, producer_id)
        await self._local.change(lambda tracking, now, _: forget(tracking, producer_id, now))

    async def _until_known(self) -> None:
        """Return when what is known of producers here is that of the stream.

        Raises:
            StoreError: too few nodes have it; or this one is the owner no more.
        """
        local = self._local
        if not is_known(local.awaits_found):
            await local.change(lambda *_: ())
            local.claim.require()


@guard("what is known of producers, shown once all in sync have it")
def is_known(awaits_found: bool) -> bool:
    """Whether what a log says of producers may be told. Of one that was just claimed it may be more than the
    stream holds: what one node alone had, and the next owner would not know."""
    return not awaits_found


def _is_ours(name: str) -> bool:
    """Whether a name is one that only we give, and no producer's own."""
    return is_of_parts(name) or is_of_requests(name)
