"""Delete objects that the manifest gave up, when their time has come.

A member gets into the queue in the EXEC that makes its object unreachable, with the time
from which it may go (`tree/core/delete_queue.py` has its form). Before anything is deleted the live
record is asked once more, since a bug elsewhere must cost disk space and not data. For
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
a drive is lost while the deleter is at it, what was moved is looked at anew: it may be named again. What a move took elsewhere goes when no
lease begins below its end: who has one may have been told the old place.

While the clock is doubted only given-up fragments go. Nobody reads them, and they wait for puts that
are under way: that is a duration, and the time that passed tells it. Else the quarantine would fill,
which is bounded, and uploads would stop.

A page is made of members of all streams that have some, and what failed goes back into the
queue for later (`common/failing_deletes.py`): neither a stream that cannot be read nor a prefix that
cannot be deleted stops what is due of others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from bottomless.errors import NotFound, StoreError
from bottomless.formats.keys import FragmentPlace
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.manifest import Node
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import CoordinationUnavailable, Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.delete_page import fair_page
from bottomless_server.manifest.common.failing_deletes import FailingDeletes, queue_later
from bottomless_server.manifest.common.lookup import entry_of
from bottomless_server.manifest.removal.claims import claim, named_since, settle
from bottomless_server.manifest.removal.expansion import Expansion, expand
from bottomless_server.manifest.removal.moved_sources import require_other, unleased
from bottomless_server.manifest.removal.range_leases import condemn, latest_end, put_off
from bottomless_server.manifest.removal.stray_roots import remove_stray_roots
from bottomless_server.manifest.tree.core.delete_queue import (
    DeleteTarget,
    is_at,
    is_copied,
    parse_delete_target,
)
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.streams import deletes_key

log = structlog.get_logger(__name__)

_PAGE_COUNT: Final = 256
"""Members of one pass; what remains is due in the next one, at once."""
_WINDOW_PAGES: Final = 8
"""How many pages of the queue are looked at, so that one is made of several streams."""
_DOUBT_WINDOW_MAX: Final = 65_536
"""How many members are looked through for given-up fragments while all others wait before them."""

_Members = dict[Due, DeleteTarget]


class Settled(NamedTuple):
    """The members that are done, and those that failed; all others are queued again for later already."""

    live: tuple[Due, ...]
    """Members whose objects are named, so that there is nothing to do."""
    gone: tuple[Due, ...]
    """Members whose objects are gone."""
    failed: tuple[Due, ...]


class Look(NamedTuple):
    """What was found out of the members of one stream."""

    record: StreamRecord | None
    lost: frozenset[int]
    """The drives of the stream that were lost."""
    live: tuple[Due, ...]
    """Members whose objects are named."""
    unread: tuple[Due, ...]
    """Members of which that cannot be told."""
    members: Mapping[Due, DeleteTarget]
    """Members whose objects may go."""

    @property
    def may_be_claimed(self) -> bool:
        """Whether anything of the stream may be claimed: not of one that was never on another drive."""
        return self.record is None or bool(self.record.drives)

    @property
    def to_be_claimed(self) -> dict[Due, FragmentPlace]:
        """What has to be claimed before it goes: what could be named again instead of a copy of it."""
        record = self.record
        if record is None or record.state is not StreamState.ACTIVE or not record.drives:
            return {}
        return {due: one.place for due, one in self.members.items() if one.is_fragment}


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
        failed: list[Due] = []
        deleted: dict[StreamId, Sequence[Due]] = {}
        looks: dict[StreamId, Look] = {}
        for stream_id, members in self._page(known).items():
            try:
                looks[stream_id] = await self._look(stream_id, members, now)
            except CoordinationUnavailable:
                raise
            except Exception as error:  # noqa: BLE001  a bug of one stream stops no other
                self._note_failure(stream_id, error)
                failed += _members_of(stream_id, known)
        wanted = {
            stream_id: places
            for stream_id, look in looks.items()
            if (places := [*look.to_be_claimed.values()])
        }
        claimed = await claim(coordination, wanted)
        if claimed:
            await reach("manifest.deleter.after-claim")
        for stream_id, look in looks.items():
            try:
                one = await self._settle(look, claimed.get(stream_id, set()))
            except CoordinationUnavailable:
                raise
            except Exception as error:  # noqa: BLE001  a bug of one stream stops no other
                self._note_failure(stream_id, error)
                one = Settled((), (), tuple(_members_of(stream_id, known)))
            settled += [*one.live, *one.gone]
            deleted[stream_id] = one.gone
            failed += one.failed
        unknown = [due for due, target in known.items() if target is None]
        if unknown:
            # Of a later release, perhaps, which knows what to do with them.
            log.error("the delete queue holds keys that are not known", count=len(unknown))
        await failing.put_off([*failed, *unknown], now)
        if settled:
            await reach("manifest.deleter.before-settle")
        named = {
            stream_id: live
            for stream_id, look in looks.items()
            if look.may_be_claimed and (live := _fragments(known, look.live))
        }
        gone = {
            stream_id: [one.place for one in mine.values()]
            for stream_id, look in looks.items()
            if look.may_be_claimed and (mine := _fragments(known, deleted.get(stream_id, ())))
        }
        # Where there was no room for all, claims without a member may have taken it.
        for stream_id, places in wanted.items():
            if len(claimed.get(stream_id, ())) < len(places):
                gone.setdefault(stream_id, [])
        settled = await settle(self._context, settled, gone, named, self.reachable)
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

    def _page(self, known: Mapping[Due, DeleteTarget | None]) -> dict[StreamId, _Members]:
        """The members of one pass, by their streams."""
        streams: dict[StreamId, _Members] = {}
        mine = {due: target for due, target in known.items() if target is not None}
        for due in fair_page(mine, lambda due: mine[due].stream_id, self._page_count):
            streams.setdefault(mine[due].stream_id, {})[due] = mine[due]
        return streams

    def _note_failure(self, stream_id: StreamId, error: Exception) -> None:
        if isinstance(error, StoreError):
            log.warning("objects were not deleted", stream_id=stream_id, error=str(error))
        else:
            log.error("deleting objects met a bug", stream_id=stream_id, exc_info=error)

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

    async def _look(self, stream_id: StreamId, members: _Members, now: int) -> "Look":
        """Find out what of one stream may go."""
        record = await self._record(stream_id)
        lost = await self._lost(record)
        live: list[Due] = []
        unread: list[Due] = []
        if record is not None:
            if record.state is StreamState.ACTIVE:
                # Of a stream that is being deleted nothing is live, and its root may be gone.
                live, unread = await self._live(record, members)
            await self._tell_live(record, [members[due] for due in live])
            decided = {*live, *unread}
            members = {due: target for due, target in members.items() if due not in decided}
            members = await condemned(self._context, record, members, now)
            members, unsure = await unleased(self._context, record, members, now)
            unread += unsure
        return Look(record, lost, tuple(live), tuple(unread), members)

    async def _settle(self, look: "Look", claimed: Collection[FragmentPlace]) -> "Settled":
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
            named = await named_since(self._context, record, mine, self.reachable)
            # These are due again: the next look leaves them alone.
            members = {due: one for due, one in members.items() if due not in named}
        gone = await self._delete(record, members, look.lost)
        left = [due for due in members if due not in gone]
        return Settled(look.live, tuple(gone), (*look.unread, *unclaimed, *left))

    async def _tell_live(self, record: StreamRecord, live: Sequence[DeleteTarget]) -> None:
        """Tell of what was to be deleted although the manifest names it: a bug, unless it was taken back
        in place of what a lost drive had."""
        if not live:
            return
        lost = await self._context.drive_states.lost(record.drives)
        for target in live:
            if lost and target.may_be_named:
                log.info("a copy is needed again", stream_id=record.stream_id, uid=target.uid)
                continue
            self.refused_count += 1
            log.critical(
                "a live object was to be deleted", stream_id=record.stream_id, uid=target.uid
            )
        self._context.counts.refused_deletes = self.refused_count

    async def _record(self, stream_id: StreamId) -> StreamRecord | None:
        try:
            return await self._context.streams.load(stream_id)
        except NotFound:
            return None

    async def _live(self, record: StreamRecord, members: _Members) -> tuple[list[Due], list[Due]]:
        """Members that a reader of the committed manifest could still come to, and members of which
        that cannot be told."""
        record, root = await load_root(self._context, record)
        live: list[Due] = []
        unread: list[Due] = []
        for due, target in members.items():
            try:
                if await self.reachable(record, root, target):
                    live.append(due)
            except StoreError as error:
                log.warning("the way to an object cannot be read", uid=target.uid, error=str(error))
                unread.append(due)
        return live, unread

    @guard("reachability before a delete")
    async def reachable(self, record: StreamRecord, root: Node, target: DeleteTarget) -> bool:
        """Whether the record, its root, or the way from it leads to any of the target."""
        if target.registry_version is not None:
            return target.registry_version == record.registry_version
        if target.uid is None:
            # Of what is left of the copies of a move each one is looked at by itself.
            return False
        if target.copy and any(is_copied(move, target) for move in record.moves):
            return True
        if record.root is not None and record.root.uid == target.uid:
            return True
        if any(target.uid == intent.uid for intent in record.intents):
            return True
        if target.range is not None:
            # Below the floor nothing is reachable, at or above it everything is.
            return target.range.next_offset > root.first_offset
        if target.first_offset is None:
            return False
        # A group whose front was cut begins below the floor, and is reached through it.
        offset = max(target.first_offset, root.first_offset)
        drive = self._context.drive
        entry = await entry_of(drive, record.tenant, root, offset, target.uid)
        if entry is None or is_at(entry, target):
            return entry is not None
        await require_other(self._context, record, entry, target)
        return False

    async def _named_by_strays(self, record: StreamRecord, members: _Members) -> list[Due]:
        """Members that stay for now, since a root that a rebuild could believe may name them."""
        named = {due: target for due, target in members.items() if target.is_of_tree}
        if not named:
            return []
        try:
            await remove_stray_roots(self._context, record, named.values())
        except StoreError as error:
            log.warning(
                "what a lost attempt may name stays for now",
                stream_id=record.stream_id,
                error=str(error),
            )
            return [*named]
        return []

    async def _lost(self, record: StreamRecord | None) -> frozenset[int]:
        """Tell which drives of a stream are lost by now."""
        return await self._context.drive_states.lost(() if record is None else record.drives)

    async def _delete(
        self, record: StreamRecord | None, members: _Members, lost_before: frozenset[int]
    ) -> list[Due]:
        """Delete what members stand for, of a stream of which these drives were lost at the look."""
        # All are of one queue, and so on one drive.
        number = next((target.drive for target in members.values()), DEFAULT_NUMBER)
        members = await self._not_outdated(record, members, lost_before)
        if record is not None and record.state is StreamState.ACTIVE:
            kept = await self._named_by_strays(record, members)
            members = {due: target for due, target in members.items() if due not in kept}
        if await self._context.drive_states.lost([number]):
            # What lay there is gone, or nothing to anybody.
            if record is not None:
                await self._release(record, {target.uid for target in members.values()})
            return [*members]
        done: dict[Due, Expansion] = {}
        for due, target in members.items():
            try:
                drive = self._context.drives.of(target.drive)
                done[due] = await expand(drive, target)
            except StoreError as error:
                # It stays in the queue, and the others need not wait for it.
                log.warning("a group cannot be read", uid=target.uid, error=str(error))
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
        self, record: StreamRecord | None, members: _Members, lost_before: frozenset[int]
    ) -> _Members:
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


def _members_of(stream_id: StreamId, known: Mapping[Due, DeleteTarget | None]) -> list[Due]:
    """All members of a stream: it fails as a whole, and none of it need be tried before all of it is."""
    return [due for due, one in known.items() if one and one.stream_id == stream_id]


def _fragments(known: Mapping[Due, DeleteTarget | None], dues: Sequence[Due]) -> _Members:
    """Members that stand for one whole fragment each."""
    return {due: one for due in dues if (one := known[due]) is not None and one.is_fragment}


@guard("condemning before a delete")
async def condemned(
    context: Context, record: StreamRecord, members: _Members, now: int
) -> _Members:
    """Members that are condemned now, or need not be; the others are put off."""
    ends = {
        due: one.range.next_offset
        for due, one in members.items()
        # What is left of the copies of a move lies beside what is live, at the same offsets.
        if one.range is not None and not one.is_of_copies
    }
    if not ends:
        return members
    if max(ends.values()) > record.condemned_next:
        record = await condemn(
            context.streams,
            record.stream_id,
            max(ends.values()),
            now,
            latest_end(context.settings, now),
        )
        await reach("manifest.deleter.after-condemn")
    held = {due: end for due, end in ends.items() if end > record.condemned_next}
    await queue_later(context.coordination, put_off(context.settings, record, held, now))
    return {due: one for due, one in members.items() if due not in held}
