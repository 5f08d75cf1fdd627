"""Delete objects that the manifest gave up, when their time has come.

A member gets into the queue in the EXEC that makes its object unreachable, with the time
from which it may go (`tree/core/delete_queue.py` has its form). Before anything is deleted the live
record is asked once more, since a bug elsewhere must cost disk space and not data (`looks.py`). For
one stream, in this order; after a crash at any step the members are due again:

1. What retention removed is condemned by EXEC, as far as leases allow. From here on
   nobody can lease it. What a lease holds goes back into the queue for later.
2. Groups below a group that is to be deleted go into the queue themselves. A crash here: they are
   there twice, which is once.
3. Fragments that could be named again are claimed, of all streams of a pass in one EXEC, and the record
   is asked once more (`claims.py`). A crash here leaves claims, and members that are due again.
4. Roots of lost attempts go that lead to any of it (`stray_roots.py`): a rebuild could believe
   them. A crash here leaves what they name. Not before step 3: until then the newest root may name a source
   again, since the drive of its copy was lost after the look.
5. Objects are deleted, fragments and children before the group that names them: a group
   that is gone means that everything below it is gone, or queued.
6. Uids leave the quarantine, then members leave the queue, and claims with them. An absent object
   counts as deleted, so that the same again is harmless.

Each drive has a queue of its own (`stores/streams.py`), and a pass goes through all of them: what lies
on a drive that is away is put off, and holds up nothing else; of one that is lost it counts as done. Where
a drive is lost while the deleter is at it, what was moved is looked at anew: it may be named again. What a
move took elsewhere goes when no lease begins below its end: who has one may have been told the old place.

While the clock is doubted only given-up fragments go. Nobody reads them, and they wait for puts that
are under way: that is a duration, and the time that passed tells it. Else the quarantine would fill,
which is bounded, and uploads would stop.

Some streams are looked at side by side, then all claims are entered, then some are deleted from side by
side: so each of these steps is over for a stream before its next one begins.

A page is made of members of all streams that have some, and what failed goes back into the
queue for later (`common/failing_deletes.py`): neither a stream that cannot be read nor a prefix that
cannot be deleted stops what is due of others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from bottomless.errors import StoreError
from bottomless.formats.keys import FragmentPlace
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import CoordinationUnavailable, Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.delete_page import fair_page
from bottomless_server.manifest.common.failing_deletes import FailingDeletes, queue_later
from bottomless_server.manifest.removal.claims import claim, named_since, settle
from bottomless_server.manifest.removal.expansion import Expansion, expand
from bottomless_server.manifest.removal.looks import (
    Look,
    Members,
    look,
    named_by_strays,
    queued_as_before,
)
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget, parse_delete_target
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.runtime.base.side_by_side import side_by_side
from bottomless_server.stores.streams import deletes_key

log = structlog.get_logger(__name__)

_PAGE_COUNT: Final = 256
"""Members of one pass; what remains is due in the next one, at once."""
_WINDOW_PAGES: Final = 8
"""How many pages of the queue are looked at, so that one is made of several streams."""
_DOUBT_WINDOW_MAX: Final = 65_536
"""How many members are looked through for given-up fragments while all others wait before them."""
_STREAMS_AT_ONCE: Final = 4
"""Streams that are looked at at once. Each has up to eight requests on their way, so that a pass has 32: half of
the calls that a process sends to S3 at once, by default. The others are for appends and reads."""
_GROUPS_AT_ONCE: Final = 8


class Settled(NamedTuple):
    """The members that are done, and those that failed; all others are queued again for later already."""

    live: tuple[Due, ...]
    """Members whose objects are named, so that there is nothing to do."""
    gone: tuple[Due, ...]
    """Members whose objects are gone."""
    failed: tuple[Due, ...]


class Deleter:
    def __init__(self, context: Context, *, page_count: int = _PAGE_COUNT) -> None:
        self._context = context
        self._page_count = page_count
        self._more = False
        """Whether the last pass left something that may be due."""
        interval_ms = context.settings.manifest_delete_interval_ms
        self._failing = {
            number: FailingDeletes(context.coordination, interval_ms, number)
            for number in context.drives.numbers
        }
        self.deleted_count = 0
        self.refused_count = 0
        """Keys that were due and reachable: each one is a bug somewhere."""

    async def run(self) -> None:
        """Make passes for ever."""
        # Deleting less is no harm: after a bug the next pass begins anew.
        await endless("manifest-deleter", self._pass_once)

    async def _pass_once(self) -> float:
        try:
            await self.make_pass()
            if self._more:
                return 0
        except StoreError as error:
            log.warning("a pass of the deleter failed", error=str(error))
        return self._context.settings.manifest_delete_interval_ms / 1000

    async def make_pass(self) -> int:
        """Delete what is due now; returns how many members were settled.

        Raises:
            Unavailable: `clock-skew`: how late it is, is not known; nothing was deleted.
            CoordinationUnavailable, CoordinationUnknown, DriveUnavailable, DriveRefused
        """
        now, doubt = await self._context.time.look()
        if doubt is not None and not self._context.time.is_counted:
            await self._context.time.require()
        self._more, settled_count = False, 0
        for number in self._context.drives.numbers:
            find = self._due if doubt is None else self._due_in_doubt
            settled_count += await self._pass_over(number, await find(now, number), now)
        await self._count(now)
        return settled_count

    async def _pass_over(
        self, number: int, known: Mapping[Due, DeleteTarget | None], now: int
    ) -> int:
        """Do what is due of the queue of one drive."""
        coordination, failing = self._context.coordination, self._failing[number]
        settled: list[Due] = []
        deleted: dict[StreamId, Sequence[Due]] = {}
        looks, failed = await self._looks(known, now)
        wanted = {
            stream_id: places
            for stream_id, one in looks.items()
            if (places := [*one.to_be_claimed.values()])
        }
        claimed = await claim(coordination, wanted)
        if claimed:
            await reach("manifest.deleter.after-claim")

        async def settle_one(stream_id: StreamId) -> Settled:
            return await self._settle(looks[stream_id], claimed.get(stream_id, set()))

        done = await side_by_side(looks, settle_one, _STREAMS_AT_ONCE)
        for stream_id, came_of in done.items():
            if isinstance(came_of, Exception):
                failed += self._failed(stream_id, came_of, known)
                continue
            settled += [*came_of.live, *came_of.gone]
            deleted[stream_id] = came_of.gone
            failed += came_of.failed
        unknown = [due for due, target in known.items() if target is None]
        if unknown:
            # Of a later release, perhaps, which knows what to do with them.
            log.error("the delete queue holds keys that are not known", count=len(unknown))
        await failing.put_off([*failed, *unknown], now)
        if settled:
            await reach("manifest.deleter.before-settle")
        named = {
            stream_id: live
            for stream_id, one in looks.items()
            if one.may_be_claimed and (live := _fragments(known, one.live))
        }
        gone = {
            stream_id: [target.place for target in mine.values()]
            for stream_id, one in looks.items()
            if one.may_be_claimed and (mine := _fragments(known, deleted.get(stream_id, ())))
        }
        # Where there was no room for all, claims without a member may have taken it.
        for stream_id, places in wanted.items():
            if len(claimed.get(stream_id, ())) < len(places):
                gone.setdefault(stream_id, [])
        settled = await settle(self._context, settled, gone, named)
        await failing.done(settled)
        more = len(known) > self._page_count
        if not more:
            await failing.sweep()
        self._more = self._more or more
        return len(settled)

    async def _due(self, now: int, number: int) -> dict[Due, DeleteTarget | None]:
        """The members that are due, earliest first; None of those whose form is not known."""
        count = self._page_count * _WINDOW_PAGES
        dues = await self._context.coordination.due(deletes_key(number), now, count)
        return {due: parse_delete_target(due.member, number) for due in dues}

    async def _due_in_doubt(self, now: int, number: int) -> dict[Due, DeleteTarget | None]:
        """Given-up fragments that are due, however much is due before them."""
        count = self._page_count * _WINDOW_PAGES
        while True:
            dues = await self._context.coordination.due(deletes_key(number), now, count)
            known = {due: parse_delete_target(due.member, number) for due in dues}
            found = {due: one for due, one in known.items() if one and one.is_unread}
            enough = len(found) >= self._page_count or len(dues) < count
            if enough or count >= _DOUBT_WINDOW_MAX:
                return {**found}
            count *= 4

    def _page(
        self, known: Mapping[Due, DeleteTarget | None]
    ) -> dict[StreamId, dict[Due, DeleteTarget]]:
        """The members of one pass, by their streams."""
        streams: dict[StreamId, dict[Due, DeleteTarget]] = {}
        mine = {due: target for due, target in known.items() if target is not None}
        for due in fair_page(mine, lambda due: mine[due].stream_id, self._page_count):
            streams.setdefault(mine[due].stream_id, {})[due] = mine[due]
        return streams

    async def _looks(
        self, known: Mapping[Due, DeleteTarget | None], now: int
    ) -> tuple[dict[StreamId, Look], list[Due]]:
        """Look at the streams of one pass; returns what was found, and the members that failed."""
        page = self._page(known)

        async def look_at(stream_id: StreamId) -> Look:
            return await look(self._context, stream_id, page[stream_id], now)

        looks: dict[StreamId, Look] = {}
        failed: list[Due] = []
        for stream_id, one in (await side_by_side(page, look_at, _STREAMS_AT_ONCE)).items():
            if isinstance(one, Exception):
                failed += self._failed(stream_id, one, known)
                continue
            looks[stream_id] = one
            self._tell_live(one, page[stream_id])
        return await queued_as_before(self._context.coordination, looks), failed

    def _failed(
        self, stream_id: StreamId, error: Exception, known: Mapping[Due, DeleteTarget | None]
    ) -> list[Due]:
        """All members of a stream: it fails as a whole, and none of it need be tried before all of it is.

        Raises:
            CoordinationUnavailable: that is no fault of one stream.
        """
        if isinstance(error, CoordinationUnavailable):
            raise error
        if isinstance(error, StoreError):
            log.warning("objects were not deleted", stream_id=stream_id, error=str(error))
        else:
            log.error("deleting objects met a bug", stream_id=stream_id, exc_info=error)
        return [due for due, one in known.items() if one and one.stream_id == stream_id]

    async def _count(self, now: int) -> None:
        counts = self._context.counts
        queued = failed = 0
        oldest: list[int] = []
        for number, failing in self._failing.items():
            await failing.look()
            queued += await self._context.coordination.member_count(deletes_key(number))
            failed += failing.count
            oldest += [] if failing.oldest_since is None else [failing.oldest_since]
        since = min(oldest, default=None)
        counts.queued_deletes, counts.failing_deletes = queued, failed
        counts.failing_delete_ms = 0 if since is None else max(0, now - since)

    async def _settle(self, look: Look, claimed: Collection[FragmentPlace]) -> Settled:
        """Do what is due of one stream."""
        record, members = look.record, look.members
        unclaimed = [due for due, one in look.to_be_claimed.items() if one not in claimed]
        members = {due: one for due, one in members.items() if due not in unclaimed}
        if record is not None and unclaimed:
            log.warning(
                "objects wait, since as many of their stream are going as may",
                stream_id=record.stream_id,
                count=len(unclaimed),
            )
        if record is not None and claimed:
            mine = {due: one for due, one in members.items() if one.place in claimed}
            named = await named_since(self._context, record, mine)
            # These are due again: the next look leaves them alone.
            members = {due: one for due, one in members.items() if due not in named}
        gone = await self._delete(record, members, look.lost)
        left = [due for due in members if due not in gone]
        return Settled(look.live, tuple(gone), (*look.unread, *unclaimed, *left))

    def _tell_live(self, look: Look, members: Members) -> None:
        """Tell of what was to be deleted although the manifest names it: a bug, unless it was taken back
        in place of what a lost drive had."""
        for due in look.live:
            target = members[due]
            if look.lost and target.may_be_named:
                log.info("a copy is needed again", stream_id=target.stream_id, uid=target.uid)
                continue
            self.refused_count += 1
            log.critical(
                "a live object was to be deleted", stream_id=target.stream_id, uid=target.uid
            )
        self._context.counts.refused_deletes = self.refused_count

    async def _lost(self, record: StreamRecord | None) -> frozenset[int]:
        """Tell which drives of a stream are lost by now."""
        return await self._context.drive_states.lost(() if record is None else record.drives)

    async def _delete(
        self, record: StreamRecord | None, members: Members, lost_before: frozenset[int]
    ) -> list[Due]:
        """Delete what members stand for, of a stream of which these drives were lost at the look."""
        # All are of one queue, and so on one drive.
        number = next((target.drive for target in members.values()), DEFAULT_NUMBER)
        members = await self._not_outdated(record, members, lost_before)
        if record is not None and record.state is StreamState.ACTIVE:
            kept = await named_by_strays(self._context, record, members)
            members = {due: target for due, target in members.items() if due not in kept}
        if await self._context.drive_states.lost([number]):
            # What lay there is gone, or nothing to anybody.
            if record is not None:
                await self._release(record, {target.uid for target in members.values()})
            return [*members]
        drive = self._context.drives.of(number)

        async def expand_one(due: Due) -> Expansion:
            return await expand(drive, members[due])

        done: dict[Due, Expansion] = {}
        for due, one in (await side_by_side(members, expand_one, _GROUPS_AT_ONCE)).items():
            if isinstance(one, StoreError):
                # It stays in the queue, and the others need not wait for it.
                log.warning("a group cannot be read", uid=members[due].uid, error=str(one))
            elif isinstance(one, Exception):
                raise one
            else:
                done[due] = one
        now = self._context.clock()
        found = [below for one in done.values() for below in one.queued]
        lost = await self._context.drive_states.lost({below.drive for below in found})
        queued = [
            Due(deletes_key(below.drive), below.member, now)
            for below in found
            if below.drive not in lost
        ]
        await queue_later(self._context.coordination, queued)
        members = await self._not_outdated(record, members, lost_before)
        done = {due: one for due, one in done.items() if due in members}
        # Once each: parts of a group that are due together may have the same below them.
        first = [*dict.fromkeys(key for one in done.values() for key in one.first)]
        failed = await self._delete_keys(number, first)
        last = [
            key
            for one in done.values()
            for key in one.last
            # What names others stays until they are gone.
            if failed.isdisjoint(one.first)
        ]
        failed |= await self._delete_keys(number, last)
        gone = [due for due, one in done.items() if failed.isdisjoint({*one.first, *one.last})]
        if record is not None:
            await self._release(record, {members[due].uid for due in gone})
        return gone

    async def _not_outdated(
        self, record: StreamRecord | None, members: Members, lost_before: frozenset[int]
    ) -> Members:
        """Members that may go though drives were lost since the look: what was moved may be named again by
        now, where its copy was lost with one of them."""
        if not is_outdated(lost_before, await self._lost(record)):
            return members
        return {due: one for due, one in members.items() if not one.may_be_named}

    async def _delete_keys(self, number: int, object_keys: Sequence[str]) -> set[str]:
        """Delete objects of one drive; returns the keys of those that are still there, or may be."""
        if not object_keys:
            return set()
        failed = await self._context.drives.of(number).delete(object_keys)
        if failed:
            errors = sorted({str(error) for error in failed.values()})
            log.warning("objects were not deleted", count=len(failed), errors=errors)
        self.deleted_count += len(object_keys) - len(failed)
        self._context.counts.deleted = self.deleted_count
        await reach("manifest.deleter.after-delete")
        return set(failed)

    async def _release(self, record: StreamRecord, uids: set[Uid | None]) -> None:
        """Take uids whose objects are gone out of quarantine, which is bounded."""
        if not any(intent.uid in uids for intent in record.quarantine):
            return

        def release(record: StreamRecord) -> StreamRecord:
            left = tuple(intent for intent in record.quarantine if intent.uid not in uids)
            return replace(record, quarantine=left)

        await self._context.streams.update(record.stream_id, release)


@guard("drives that are lost between the look and a delete")
def is_outdated(lost_before: frozenset[int], lost: frozenset[int]) -> bool:
    """Whether a drive of a stream was lost since its manifest was looked at. What was moved may be all
    that is left then, and is looked at once more. Nothing else that was not named is ever named again."""
    return lost_before != lost


def _fragments(known: Mapping[Due, DeleteTarget | None], dues: Sequence[Due]) -> Members:
    """Members that stand for one whole fragment each."""
    return {due: one for due in dues if (one := known[due]) is not None and one.is_fragment}
