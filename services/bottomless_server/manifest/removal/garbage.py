"""Find objects that nothing leads to, and hand them to the delete queue: an operation.

Orphans are what a crash leaves between a put and the EXEC that names it. They harm nobody,
so the collection is as careful as it likes. One step looks at one page of the listing:

1. The page is listed. What is younger than the minimum age, by the object store's own
   clock, is not looked at.
2. The stream's record is read, after the listing, and what nothing leads to is picked out.
3. The record's version is raised by EXEC. Every attempt to publish that began before fails
   now, and the next one uses names of its own: a group or a root that is in the listing and
   not in this record's tree can never come into a tree any more. A fragment cannot either,
   without an intent in this record.
4. By this record everything is looked at again. What somebody has published in between is
   named by it, and stays.
5. The rest goes into the delete queue, due now. The deleter asks the live record once more.

After a crash that follows step 3 the version is higher, which is harmless; after step 5, the keys
are queued, and the page is looked at again without finding them. Of a stream that has no
record anything is deleted only if its newest registry object is a tombstone, and that object
last; everything else without a record may be what a lost coordination does not know of, so
it is reported and never touched. The same holds if the bucket has a root that is newer than
any attempt of the record can be: then the record went back.

Each drive of the registry is listed after the other, drive 0 first; one that is away is passed over,
and the report says so.

WAL objects belong to no stream and are looked at by themselves (`stray_wal.py`), and so are super
objects (`stray_supers.py`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import structlog

from bottomless.drives.base import DriveRefused, DriveUnavailable, ObjectMissing
from bottomless.errors import Code, Corrupt, NotFound, StoreError
from bottomless.formats.keys import (
    SYSTEM_PREFIX,
    WAL_PREFIX,
    parse_consumers_key,
    stream_prefix,
)
from bottomless.formats.stream_record import LEADERLESS, decode_registry
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.names import StreamId, SuperId
from bottomless.model.object_facts import ObjectFacts
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.other_drives import next_drive
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done
from bottomless_server.manifest.removal.core.orphan_tally import (
    ObjectKind,
    OrphanCandidate,
    OrphanTally,
    after_home,
    candidate,
    home_of,
    stream_of,
)
from bottomless_server.manifest.removal.orphans import orphans_of, unqueued
from bottomless_server.manifest.removal.stray_supers import stray_supers, super_objects_in
from bottomless_server.manifest.removal.stray_wal import delete_stray_wal, stray_wal
from bottomless_server.manifest.tree.going_back import has_gone_back
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.consumers import ConsumerOffsets
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.stored_sizes import StoredOfKind, StoredSizes, note_stored
from bottomless_server.stores.streams import deletes_key, stream_key

log = structlog.get_logger(__name__)

GC: Final = "gc"

PAGE_COUNT: Final = 5_000
"""Objects of one step; it also bounds what is loaded of a tree."""


def register_gc(operations: Operations, page_count: int = PAGE_COUNT) -> None:
    async def run(context: Context, operation: Operation) -> Again | Done:
        return await collect_step(context, operation, page_count)

    operations.register(GC, run, long=True)


async def collect_step(context: Context, operation: Operation, page_count: int) -> Again | Done:
    """Look at one page; after a crash anywhere in it the same again is right.

    Raises:
        Unavailable: not now.
    """
    return await _CollectionStep(context, operation, page_count).run()


def gc_arguments(
    *, dry_run: bool, minimum_age_ms: int, tenant: str | None, stream_id: StreamId | None = None
) -> dict[str, Any]:
    """What the operation is told: to look at one stream of a tenant, at all of them, or, with
    `tenant` None, at all that is in the bucket."""
    prefix = "" if tenant is None else f"{tenant}/"
    if stream_id is not None:
        assert tenant is not None
        prefix = stream_prefix(stream_id, tenant)
    return {"dry_run": dry_run, "minimum_age_ms": minimum_age_ms, "prefix": prefix}


class _CollectionStep:
    """One page of one collection."""

    def __init__(self, context: Context, operation: Operation, page_count: int) -> None:
        self._context = context
        self._page_count = page_count
        arguments, progress = operation.arguments, operation.progress
        self._dry_run = bool(arguments["dry_run"])
        self._minimum_age_ms = int(arguments["minimum_age_ms"])
        self._prefix: str = arguments["prefix"]
        self._after: str = progress.get("_after", "")
        self._before: str = progress.get("_home", "")
        """The stream of the last page."""
        self._number = int(progress.get("_drive", DEFAULT_NUMBER))
        """The drive that is looked at."""
        self._tally = OrphanTally.of(progress)

    async def run(self) -> Again | Done:
        try:
            self._drive = self._context.drives.of(self._number)
            # Asked before the listing: what is put later is younger still.
            oldest = await self._now() - self._minimum_age_ms
            page, home = await self._page()
        except (DriveUnavailable, DriveRefused, Corrupt) as error:
            if self._number == DEFAULT_NUMBER:
                raise
            # One that is away, refuses, or shows a damaged marker holds up no collection of the others.
            log.warning("garbage of a drive is not collected", drive=self._number)
            self._tally.skip_drive(self._number, error.code.value)
            page, home = [], None
        if not page:
            return await self._next_drive()
        self._tally.add_stored(page)
        self._after = page[-1].object_key
        if home is None:
            await self._look_at_strays(page, oldest)
        else:
            await self._look_at(home, page, oldest)
            self._before = home
        return self._again()

    def _again(self) -> Again:
        going_on: dict[str, Any] = {
            "_after": self._after,
            "_home": self._before,
            "_tally": self._tally.members(),
        }
        if self._number != DEFAULT_NUMBER:
            going_on["_drive"] = self._number
        return Again({**self._shown(), **going_on})

    async def _next_drive(self) -> Again | Done:
        following = await next_drive(self._context, self._number)
        if following is not None:
            self._number, self._after, self._before = following, "", ""
            return self._again()
        await self._note_stored()
        return Done(self._shown())

    async def _now(self) -> int:
        """Tell the time of the store's clock, which dates its objects. Where that is only ours, and
        something may go for it, it has to be one that is believed.
        """
        drive = self._drive
        now = await drive.clock()
        if self._dry_run:
            return now
        believed = await self._context.time.require()
        return now if drive.has_own_clock else min(now, believed)

    async def _note_stored(self) -> None:
        """Tell all processes what there is, after the whole bucket was listed."""
        if self._prefix:
            return
        kinds = {kind: StoredOfKind(*counts) for kind, counts in self._tally.stored.items()}
        found = StoredSizes(self._context.clock(), kinds)
        await note_stored(self._context.coordination, found)
        self._context.counts.stored = found

    def _shown(self) -> Mapping[str, Any]:
        return {"dry_run": self._dry_run, **self._tally.report()}

    async def _page(self) -> tuple[Sequence[ObjectFacts], str | None]:
        """The next objects of one stream, or of none; and the stream's prefix."""
        page: list[ObjectFacts] = []
        async for facts in self._drive.list(self._prefix, self._after):
            if page and home_of(facts.object_key) != home_of(page[0].object_key):
                break
            page.append(facts)
            if len(page) == self._page_count:
                break
        return page, home_of(page[0].object_key) if page else None

    async def _look_at_strays(self, page: Sequence[ObjectFacts], oldest: int) -> None:
        for facts in page:
            if not facts.object_key.startswith(SYSTEM_PREFIX):
                self._tally.add_unknown(facts)
        wal = [facts for facts in page if facts.object_key.startswith(WAL_PREFIX)]
        if wal and LEADERLESS in self._context.served and self._number == DEFAULT_NUMBER:
            self._tally.objects += len(wal)
            await self._look_at_wal([facts for facts in wal if facts.modified <= oldest])

    async def _look_at_wal(self, old: Sequence[ObjectFacts]) -> None:
        found = await stray_wal(self._context, old)
        if found and not self._dry_run:
            await delete_stray_wal(self._context, found)
        for facts in found:
            self._tally.add_orphan(ObjectKind.WAL, facts)

    async def _look_at(self, home: str, page: Sequence[ObjectFacts], oldest: int) -> None:
        """Look at one page of one stream."""
        supers = super_objects_in(page)
        if home != self._before and not supers and self._number == DEFAULT_NUMBER:
            self._tally.streams += 1
        self._tally.objects += len(page)
        if supers:
            await self._look_at_super(home, page, supers, oldest)
            return
        known = self._known(page, oldest)
        try:
            record = await self._record(home)
            if record is None:
                await self._without_record(home, page, known)
            elif record.state is StreamState.ACTIVE:
                await self._of_stream(home, record, known, oldest)
            # Of one that is being deleted everything goes anyhow.
        except (Corrupt, ObjectMissing) as error:
            self._skip(home, error)

    async def _look_at_super(
        self,
        home: str,
        page: Sequence[ObjectFacts],
        supers: Sequence[ObjectFacts],
        oldest: int,
    ) -> None:
        """Look at what lies below the prefix of a super stream. What is left of one that was deleted
        goes at once, the tombstone last: a crash in between leaves it, and the same again is right."""
        try:
            found = await stray_supers(self._context, SuperId(stream_of(home)), supers)
        except Corrupt as error:
            self._skip(home, error)
            return
        for facts in page:
            if facts not in supers:
                self._tally.add_unknown(facts)
        if found is None:
            self._tally.add_unknown_prefix(home, page)
            return
        if any(facts.modified > oldest for facts in found):
            return
        for facts in found:
            if not self._dry_run and await self._context.drive.delete([facts.object_key]):
                # What is not deleted is met by the next collection, and the tombstone with it.
                return
            self._tally.add_orphan(ObjectKind.SUPER, facts)

    async def _record(self, home: str) -> StreamRecord | None:
        try:
            return await self._context.streams.load(stream_of(home))
        except NotFound:
            return None

    def _known(self, page: Sequence[ObjectFacts], oldest: int) -> list[OrphanCandidate]:
        known = []
        for facts in page:
            one = candidate(facts, self._number)
            if one is None:
                self._tally.add_unknown(facts)
            elif facts.modified <= oldest:
                known.append(one)
        return known

    def _skip(self, home: str, error: StoreError) -> None:
        """Leave a stream out: of one that is damaged nobody knows what is needed."""
        log.error("garbage of a stream is not collected", prefix=home, error=str(error))
        self._tally.skip(home, error.code.value)
        self._after = after_home(home)

    async def _of_stream(
        self, home: str, record: StreamRecord, known: Sequence[OrphanCandidate], oldest: int
    ) -> None:
        if home != self._before and await has_gone_back(self._context, record):
            log.critical("a stream's record is older than its roots", stream_id=record.stream_id)
            self._tally.skip(home, Code.COORDINATION_REGRESSED.value)
            self._after = after_home(home)
            return
        found = await orphans_of(self._context, record, known, oldest)
        if not self._dry_run:
            await self._overtake(record.stream_id, known)
        if found and not self._dry_run:
            first_count = len(found)
            found = await still_orphans(self._context, record, found, oldest)
            self._tally.refused += first_count - len(found)
            await self._hand_over(record.stream_id, found)
        self._tally.add_orphans(found)

    async def _overtake(self, stream_id: StreamId, known: Sequence[OrphanCandidate]) -> None:
        """Have a snapshot of consumers made above one that nobody noted in all this time.

        A rebuild would take it for the newest, and it would stay until the next commit.
        """
        keys = [one.facts.object_key for one in known if one.kind is ObjectKind.CONSUMERS]
        if not keys:
            return
        version = max(parse_consumers_key(key) or 0 for key in keys)
        offsets = ConsumerOffsets(self._context.coordination, self._context.served)
        noted = await offsets.pointer(stream_id)
        if noted is not None and version > noted.version:
            with suppress(NotFound):
                await offsets.overtake(stream_id, version, self._context.clock())

    async def _hand_over(self, stream_id: StreamId, found: Sequence[OrphanCandidate]) -> None:
        now = self._context.clock()
        queued = [Due(deletes_key(one.target.drive), one.target.member, now) for one in found]
        if queued:
            await self._context.coordination.transact(
                [stream_key(stream_id)], lambda _: (Changes(queued=queued), None)
            )
            await reach("manifest.garbage.after-queue")
        self._tally.queued += len(queued)

    async def _without_record(
        self, home: str, page: Sequence[ObjectFacts], known: Sequence[OrphanCandidate]
    ) -> None:
        """Queue what is left of a deleted stream; objects of any other are counted, as nobody knows them."""
        newest = await self._newest_registry(home)
        if newest is None or not await self._is_tombstone(newest):
            self._tally.add_unknown_prefix(home, page)
            return
        whole = len(page) < self._page_count and home != self._before
        alone = whole and all(facts.object_key == newest for facts in page)
        found = [one for one in known if alone or one.facts.object_key != newest]
        found = await unqueued(self._context, found)
        if not self._dry_run:
            await self._hand_over(stream_of(home), found)
        self._tally.add_orphans(found)

    async def _newest_registry(self, home: str) -> str | None:
        newest = None
        async for facts in self._context.drive.list(f"{home}stream."):
            one = candidate(facts)
            if one is not None and one.kind is ObjectKind.REGISTRY:
                newest = facts.object_key
        return newest

    async def _is_tombstone(self, object_key: str) -> bool:
        try:
            data = bytes(await self._context.drive.get(object_key))
            record = decode_registry(data, self._context.served)
        except (Corrupt, ObjectMissing):
            return False
        return record.state is StreamState.DELETING


@guard("the second look of a collection")
async def still_orphans(
    context: Context, record: StreamRecord, found: Sequence[OrphanCandidate], oldest: int
) -> list[OrphanCandidate]:
    """Candidates that are orphans even now that no older attempt to publish can succeed."""

    def bump(record: StreamRecord) -> StreamRecord:
        return replace(record, version=record.version + 1)

    try:
        bumped = await context.streams.update(record.stream_id, bump)
    except NotFound:
        return []
    await reach("manifest.garbage.after-bump")
    if bumped.state is not StreamState.ACTIVE:
        return []
    return await orphans_of(context, bumped, found, oldest)
