"""Open the log of a stream for the owner that another node is: find what lies here, decide, cut.

`node/core/following.py` decides what stays; these are the steps on the disk. What is there after a
crash that follows each step:

1. the directory is recovered       the log, whole; the next opening does the same again
2. a checkpoint: the new epoch, and  an owner of the past opens nothing here any more; what the
   the place at which the log ends   log has beyond that place is found and decided upon again
3. segments that are published and   a log that begins later
   that the owner has freed go,
   oldest first
4. segments beyond the end go, the   a log that ends earlier, and still beyond its new end; or, of
   newest first: they are removed,   one that is put aside, its beginning: decided upon again
   or put aside where not all of
   them is published
5. the last segment is cut           the log as it is opened; its index is made anew

Each removal is synced before the next one, so that no hole can appear. A log of which nothing
stays has a checkpoint that names its beginning and nothing synced: whatever a crash leaves of it is
walked with its checksums, and compared.

Nothing in S3 or in coordination is changed here.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog

from bottomless.errors import Code, Corrupt, Unavailable
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.ingest.replicas.context import FollowingContext, Here
from bottomless_server.ingest.replicas.followed_log import FollowedLog
from bottomless_server.ingest.replicas.opening import (
    Found,
    LogFiles,
    Plan,
    checkpoint_of,
    emptied,
    plan_of,
)
from bottomless_server.node.core import following
from bottomless_server.node.core.following import Held, Opened, OpenRefusal
from bottomless_server.protocol.replica import Opening, Place
from bottomless_server.runtime.base.fault_points import reach

log = structlog.get_logger(__name__)


class Refused(NamedTuple):
    """A log that was not opened, and what is known of it."""

    refusal: OpenRefusal
    held: Held


class OpenedLog(NamedTuple):
    """A log that was opened."""

    local: FollowedLog
    held: Held
    end: Place | None
    """Where the owner goes on; None of an empty log."""


class LogOpener:
    """Opens the log of one stream, which nobody has open meanwhile."""

    def __init__(self, context: FollowingContext, stream_id: StreamId) -> None:
        self._context = context
        self._stream_id = stream_id
        self._files = LogFiles(context.files, context.data_dir, stream_id)

    async def open(
        self, opening: Opening, told: int, cut_at: tuple[int, int] | None
    ) -> OpenedLog | Refused:
        """Do all steps. `told` is the committed bound that is known in memory, and from the place
        `cut_at` on nothing is believed.

        Raises:
            Unavailable: `storage-failed`: the disk does not work, or the log is damaged and may not
                be put aside as long as this node counts as one that has everything.
            StoreError: what the record says cannot be told.
        """
        try:
            return await self._open(opening, told, cut_at)
        except OSError as error:
            log.warning(
                "a replica could not be opened", stream_id=self._stream_id, error=str(error)
            )
            raise _storage_failed("the disk does not take it") from error

    async def look(self, known: Held, cut_at: tuple[int, int] | None) -> Held:
        """What lies here, with what is `known` of it in memory; nothing is changed beside what a crash
        left torn.

        Raises:
            Unavailable: `storage-failed`: it cannot be read, or is damaged.
        """
        try:
            found = await self._read(cut_at)
        except (Corrupt, OSError) as error:
            raise _storage_failed("a replica cannot be read") from error
        if found.damaged:
            raise _storage_failed("a replica is damaged")
        held = following.told(found.held, known.committed_next)
        return replace(held, epoch=max(held.epoch, known.epoch))

    async def _open(
        self, opening: Opening, told: int, cut_at: tuple[int, int] | None
    ) -> OpenedLog | Refused:
        found = await self._find(opening, cut_at)
        if isinstance(found, Refused):
            return found
        held = following.told(found.held, told)
        decided = await self._decide(held, opening)
        if isinstance(decided, OpenRefusal):
            return Refused(decided, replace(held, segments=()))
        found = await self._apply(found, decided, opening)
        local = FollowedLog.of(
            self._context.files, self._files.directory, self._stream_id, found.recovered
        )
        return OpenedLog(local, decided.held, decided.end)

    async def _find(self, opening: Opening, cut_at: tuple[int, int] | None) -> Found | Refused:
        """What lies here; a damaged log is put aside, unless this node is counted on."""
        hops = self._context.hops
        try:
            found = await self._read(cut_at)
        except Corrupt as error:
            log.error("a replica is damaged", stream_id=self._stream_id, error=str(error))  # noqa: TRY400
        else:
            if not found.damaged:
                return found
        known = Held(await hops.call(self._files.noted_epoch))
        if following.is_fenced(known, opening.epoch):
            return Refused(OpenRefusal.FENCED, known)
        if await is_counted_on(self._context.here, self._stream_id):
            raise _storage_failed("a replica is damaged")
        await self._empty(opening)
        return await self._read(None)

    async def _read(self, cut_at: tuple[int, int] | None) -> Found:
        """Recover what lies here, and read all of it where it was not read since the process began.

        Raises:
            Corrupt, OSError: as `LogFiles.find`.
        """
        context, sound = self._context, self._context.sound
        verified = is_verified(sound.is_known(self._stream_id))
        find = partial(self._files.find, context.clocks.elapsed(), cut_at, verified=verified)
        try:
            # What may take seconds is not done in a hop that others share.
            found = await (
                context.hops.call(find) if verified else sound.in_turn(context.executor, find)
            )
        except Corrupt:
            sound.forget(self._stream_id)
            raise
        if found.damaged:
            sound.forget(self._stream_id)
        else:
            sound.note(self._stream_id)
        return found

    async def _decide(self, held: Held, opening: Opening) -> Opened | OpenRefusal:
        owned = self._context.here.last_owned(self._stream_id)
        held = following.told(held, owned.shown_next)
        decided = following.open_log(held, opening, in_sync=True, owned=owned)
        if decided is not OpenRefusal.DIVERGED:
            return decided
        in_sync = await is_counted_on(self._context.here, self._stream_id)
        log.error(
            "an owner has less than a log that follows it",
            stream_id=self._stream_id,
            epoch=opening.epoch,
            committed_next=held.committed_next,
            in_sync=in_sync,
        )
        return following.open_log(held, opening, in_sync=in_sync, owned=owned)

    async def _empty(self, opening: Opening) -> None:
        """Put all segments aside, whatever is in them."""
        hops, files = self._context.hops, self._files
        firsts = await hops.call(files.firsts)
        point = emptied(self._stream_id, firsts[0] if firsts else 0, opening, None)
        await hops.call(files.note, point)
        await reach("ingest.replica.after-checkpoint")
        await hops.call(files.put_aside, opening.epoch, firsts[::-1])

    async def _apply(self, found: Found, opened: Opened, opening: Opening) -> Found:
        """Make of the log what was decided; returns what lies here then."""
        hops, files, plan = self._context.hops, self._files, plan_of(found.held, opened)
        noted = found.recovered.checkpoint
        if not plan.is_nothing or noted is None or noted.epoch < opening.epoch:
            point = checkpoint_of(self._stream_id, found, opened, opening)
            await hops.call(files.note, point)
        await reach("ingest.replica.after-checkpoint")
        if plan.is_nothing:
            return found
        await self._do(plan, opening.epoch, aside=opened.set_aside)
        again = await hops.call(files.find, self._context.clocks.elapsed(), None)
        if again.held.segments != opened.held.segments:
            raise OSError("a replica is not what was made of it")
        return again

    async def _do(self, plan: Plan, epoch: int, *, aside: bool) -> None:
        hops, files = self._context.hops, self._files
        await hops.call(files.remove, plan.freed)
        if aside:
            await hops.call(files.put_aside, epoch, plan.beyond)
        else:
            await hops.call(files.remove, plan.beyond)
        await reach("ingest.replica.after-removal")
        if plan.cut is not None:
            await hops.call(files.cut, *plan.cut)
            await reach("ingest.replica.after-cut")


@guard("the checksums of a log before it counts as held")
def is_verified(verified: bool) -> bool:
    """Whether a log need not be read whole before its owner is told what it holds: an index says where
    chunks are and not what became of them, and nobody else looks before this node is counted on."""
    return verified


@guard("the record before a damaged log is put aside")
async def is_counted_on(here: Here, stream_id: StreamId) -> bool:
    """Whether this node counts as one that has everything: it throws away nothing then, damaged or
    not, before it is evicted."""
    return await here.is_in_sync(stream_id)


def _storage_failed(why: str) -> Unavailable:
    return Unavailable(why, code=Code.STORAGE_FAILED, retry_after_seconds=1)
