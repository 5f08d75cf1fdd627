"""The streams that this node owns: opened at the start or at first touch, each once.

What lies on this disk and is not open is tried again until it is (local/core/unopened.py): its records
may be on this disk alone, and nobody need ever touch it. opening.py says what an opening does, and
what is there after a crash between any two of its steps. How a stream of this node becomes another
node's is in giving.py.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from heapq import nsmallest
from typing import Final, Protocol

import structlog
from cachetools import LRUCache

from bottomless.errors import Code, Corrupt, Fenced, NotFound, Outcome, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.config import StreamConfig
from bottomless.model.names import StreamId
from bottomless_server.core.restated import restated
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.appender_context import AppenderContext
from bottomless_server.ingest.local.core.failing import FailingLogs
from bottomless_server.ingest.local.core.unopened import Unopened
from bottomless_server.ingest.local.opening import FoundHere, Opener
from bottomless_server.ingest.local.other_owners import OtherOwners
from bottomless_server.ingest.local.sound_logs import is_read_before_it_goes_on
from bottomless_server.ingest.log.segments import LogBroken
from bottomless_server.node.core.following import NEVER_OWNED, LastOwned
from bottomless_server.node.core.ownership import OwnedElsewhere, not_owner
from bottomless_server.node.owner import Owner
from bottomless_server.protocol.replica import Place
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.single_flight import SingleFlight

log = structlog.get_logger(__name__)

_NAMED_COUNT_MAX: Final = 10
"""Streams that one line of the log names."""
_LAST_OWNED_COUNT_MAX: Final = 10_000
"""Streams that were owned here, two numbers each."""
TICK_SECONDS: Final = 0.5
"""How often streams are asked whether their files need looking after."""


class Followed(Protocol):
    """Logs here that follow those of other nodes."""

    def in_use(self, stream_id: StreamId) -> bool:
        """Whether files of a stream may be open there."""
        ...

    async def let_go(self, stream_id: StreamId) -> None:
        """Return when they are closed, and durable as they were told."""
        ...


class NotOpened(Unavailable):
    """`not-owner`, outcome none: the log of a stream was looked at, and the stream was not opened. It may be
    a moment later."""

    def __init__(self) -> None:
        super().__init__(
            "this node does not own the stream now",
            code=Code.NOT_OWNER,
            outcome=Outcome.NONE,
            retry_after_seconds=1,
        )


class OwnedStreams:
    """The streams that this process owns, each with its appender."""

    def __init__(
        self,
        opener: Opener,
        owner: Owner,
        context: AppenderContext,
        changed: Callable[[LocalAppender], None],
        closed: Callable[[LocalAppender], None],
        *,
        open_count: int,
    ) -> None:
        """`changed` is told when records of a stream become visible, `closed` when it takes none
        any more; `open_count` streams are opened at once."""
        self._opener = opener
        self._owner = owner
        self._context = context
        self._changed = changed
        self._closed = closed
        self._open: dict[StreamId, LocalAppender] = {}
        self._opening: SingleFlight[StreamId, LocalAppender] = SingleFlight()
        self._damaged: dict[StreamId, Corrupt] = {}
        self._left_to_owners: set[StreamId] = set()
        """Streams whose logs are damaged here, and that other nodes owned when that was asked last."""
        self._unopened = Unopened()
        self._failing = FailingLogs()
        self._opening_room = asyncio.Semaphore(open_count)
        """Bounds how many are opened at once, not counting those that somebody touches."""
        self.others = OtherOwners(owner, context.clocks.monotonic)
        self._last_owned: LRUCache[StreamId, LastOwned] = LRUCache(_LAST_OWNED_COUNT_MAX)
        self.followed: Followed | None = None
        """What has files of streams open whose logs follow those of other nodes."""
        self.claim_failed: Callable[[StreamId, StoreError], None] | None = None
        """Hears of streams of other nodes that could not be claimed, before they may be followed again."""
        self.is_stopping = False
        """Whether streams are closed for good, and none is opened any more."""
        self._generation: int | None = None
        """The generation of coordination when these streams were claimed."""
        self._confirmed_term = 0
        """The term of the lease under which all claims were last confirmed."""
        self._ticking: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open every stream that has a directory here; those that cannot be opened are tried again."""
        await self._opener.make_dirs()
        await self._open_all(await self._opener.local_ids())
        self._generation = self._owner.lease.generation
        self._confirmed_term = self._owner.lease.term
        self._ticking = [
            asyncio.create_task(endless("ingest-files", self._tick), name="ingest-files"),
            asyncio.create_task(endless("ingest-claims", self._confirm_due), name="ingest-claims"),
            asyncio.create_task(endless("ingest-opening", self._open_due), name="ingest-opening"),
        ]

    async def stop(self) -> None:
        """Close every stream; those that object storage holds whole are left clean."""
        self.is_stopping = True
        await end_tasks(*self._ticking)
        await self._opening.ended(*self._opening.names())
        draining = Unavailable(
            "this node is about to stop", code=Code.DRAINING, retry_after_seconds=1
        )
        await asyncio.gather(
            *(appender.close(draining, leave=True) for appender in self._open.values())
        )

    def opened(self) -> Iterator[LocalAppender]:
        """Streams that are open and take appends."""
        return (appender for appender in self._open.values() if appender.stopped is None)

    def unopened(self) -> list[StreamId]:
        """Streams that lie here, and could not be opened so far; without those of which the log is damaged
        and another node is the owner."""
        return [*self._unopened, *(one for one in self._damaged if one not in self._left_to_owners)]

    async def count_unopened(self) -> None:
        """Count what lies here and is not open: streams of other nodes, most of all."""
        resting = [one for one in await self._opener.local_ids() if one not in self._open]
        for stream_id, size in (await self._opener.sizes(resting)).items():
            if stream_id not in self._open:
                self._context.disk.count(stream_id, size)

    async def local_ids(self) -> list[StreamId]:
        """Name the streams that have a directory here, open or not."""
        return await self._opener.local_ids()

    async def open_all(self) -> None:
        """Try once more to open what lies here and is not open."""
        await self._open_all(list(self._unopened))

    def find(self, stream_id: StreamId) -> LocalAppender | None:
        """The appender of a stream that is open, without opening it."""
        return self._open.get(stream_id)

    async def get(self, stream_id: StreamId) -> LocalAppender:
        """The appender of a stream, under a claim that was good just now.

        Raises:
            NotFound: there is no such stream.
            Corrupt: what lies here of it is damaged.
            OwnedElsewhere: another node owns it.
            Unavailable: it cannot be owned now; outcome none.
        """
        damaged = self._damaged.get(stream_id)
        if damaged is not None:
            await self.others.look_for(stream_id)
        # Meanwhile its owner may have made the log here anew.
        if damaged is not None and self._damaged.get(stream_id) is damaged:
            # It may have been given to this node, which gives it to one that can go on with it.
            self._left_to_owners.discard(stream_id)
            self._failing.failed(stream_id, self._context.clocks.elapsed(), for_good=True)
            raise restated(damaged)
        appender = self._open.get(stream_id)
        if appender is None or appender.stopped is not None:
            appender = await self._opened(stream_id)
        try:
            await appender.claim.confirm()
        except Fenced as error:
            await appender.close(not_owner(), leave=False)
            log.warning("another node owns the stream", stream_id=stream_id, error=str(error))
            appender = await self._opened(stream_id)
        return appender

    async def close(self, stream_id: StreamId) -> None:
        """Stop a stream for its deletion; returns when nothing runs any more."""
        await self._opening.ended(stream_id)
        appender = self._open.get(stream_id)
        if appender is not None:
            await appender.close(not_owner(), leave=True)
            await self._let_go(appender)
        self._unopened.drop(stream_id)

    def is_opening(self, stream_id: StreamId) -> bool:
        """Whether a stream is being opened, so that its files are read and may be cut."""
        return stream_id in self._opening

    def note_followed(self, stream_id: StreamId) -> None:
        """What lies here of a stream is made by another node from now on: damage is not for ever."""
        self._forget_damage(stream_id)

    def _forget_damage(self, stream_id: StreamId) -> None:
        self._damaged.pop(stream_id, None)
        self._left_to_owners.discard(stream_id)
        self._failing.drop(stream_id)

    async def leave_to_owner(self, stream_id: StreamId) -> bool:
        """Find out whether another node that lives owns a stream that fails here, and count it as failing no
        more then, until somebody asks this node for the stream."""
        try:
            await self.others.look_for(stream_id)
        except OwnedElsewhere:
            self._failing.drop(stream_id)
            if stream_id in self._damaged:
                self._left_to_owners.add(stream_id)
            return True
        return False

    def failing(self, ms: int) -> list[StreamId]:
        """The streams that this node's disk has not let it open or write for so long."""
        return self._failing.lasting(ms)

    async def give_files(self, stream_id: StreamId) -> tuple[int, int] | None:
        """Stop a stream that another node owns by now, and forget it; returns the place in its log from
        which on nothing is believed, None if all of it is. Not while it is being opened."""
        appender = self._open.get(stream_id)
        if appender is None:
            return None
        await appender.close(not_owner(), leave=False)
        failed = appender.failed
        if self._open.get(stream_id) is appender:
            self.forget(stream_id)
        return appender.log.synced_place() if failed else None

    async def get_given(self, stream_id: StreamId) -> LocalAppender:
        """The appender of a stream of which somebody says that it was given to this node; raises what `get`
        does.

        An opening that is under way may have read the record before that, so it is no answer.
        """
        await self._opening.ended(stream_id)
        self.others.forget(stream_id)
        return await self.get(stream_id)

    async def _opened(self, stream_id: StreamId) -> LocalAppender:
        if self.is_stopping:
            raise Unavailable(
                "this node is about to stop", code=Code.DRAINING, retry_after_seconds=1
            )
        self.others.require_none(stream_id)
        try:
            return await self._opening.join(stream_id, lambda: self.open_in_turn(stream_id))
        except NotOpened:
            # A look at a former log was under way, and no opening.
            return await self._opening.join(stream_id, lambda: self.open_in_turn(stream_id))

    async def open_in_turn(self, stream_id: StreamId) -> LocalAppender:
        """Open a stream; only from what runs in the place of its opening, of which there is one.

        Raises:
            StoreError: as `get`.
        """
        try:
            return await self._open_here(stream_id)
        except StoreError as error:
            if isinstance(error, Corrupt) or error.code is Code.STORAGE_FAILED:
                now, for_good = self._context.clocks.elapsed(), isinstance(error, Corrupt)
                self._failing.failed(stream_id, now, for_good=for_good)
            raise

    async def _open_here(self, stream_id: StreamId) -> LocalAppender:
        await self._unfollow(stream_id)
        found = await self._recover(stream_id)
        try:
            found = await self._opener.without_outdated(stream_id, found)
            await self._require_sound(stream_id, found)
            appender = await self._opener.claim(stream_id, found)
        except StoreError as error:
            if isinstance(error, OwnedElsewhere):
                self.others.note(stream_id, error.owner_url)
            if self.claim_failed is not None and found.record is not None and found.record.members:
                self.claim_failed(stream_id, error)
            is_known = stream_id in self._damaged or isinstance(error, NotFound | OwnedElsewhere)
            if found.is_nothing or is_known:
                # Not to be opened here; what becomes of files without a stream says log/leftovers.py.
                self._unopened.drop(stream_id)
            else:
                self._unopened.add(stream_id, self._context.clocks.elapsed())
            raise
        self._open[stream_id] = appender
        if not found.segments:
            # Whatever comes to it is made here.
            self._context.sound.note(stream_id)
        self._unopened.drop(stream_id)
        self._context.tell_time()
        self._context.tracking_room.join(appender.tracking, appender.log.last_timestamp)
        if appender.log.committed_next > appender.published_next:
            self._changed(appender)
        return appender

    @guard("the follower's task before an opening")
    async def _unfollow(self, stream_id: StreamId) -> None:
        """Return when no log here follows another node's any more, of a stream that may be claimed.

        Raises:
            OwnedElsewhere: its owner lives, and is followed on.
            StoreError: this node may not claim it, or nobody can tell.
        """
        if self.followed is None or not self.followed.in_use(stream_id):
            return
        try:
            await self.others.require_claimable(stream_id)
        except OwnedElsewhere:
            self._unopened.drop(stream_id)
            raise
        await self.followed.let_go(stream_id)

    async def _recover(self, stream_id: StreamId) -> FoundHere:
        # It stays in the table until another one is open: only it knows up to where its file was
        # synced.
        before, cut_at = self._open.get(stream_id), None
        if before is not None:
            await before.close(not_owner(), leave=False)
            self._forget_state(before)
            cut_at = before.log.synced_place()
        try:
            return await self._opener.recover(stream_id, cut_at)
        except Corrupt as error:
            raise self._note_damage(stream_id, error) from error
        except StoreError:
            self._unopened.add(stream_id, self._context.clocks.elapsed())
            raise

    async def _require_sound(self, stream_id: StreamId, found: FoundHere) -> None:
        """Go on with no log that is damaged, of a stream that others hold: one in sync has it whole.

        Raises:
            Corrupt: it is damaged; until its owner has opened it again.
            LogBroken: it cannot be read.
            StoreError: this node may not claim the stream, or nobody can tell.
        """
        is_read = is_read_before_it_goes_on(found.record, self._owner.node_id)
        if not is_read or self._context.sound.is_known(stream_id):
            return
        # It takes a while, and is in vain where its owner lives, who has it read when it opens the log.
        await self._owner.require_claimable(stream_id)
        if not await self._opener.is_sound(stream_id):
            damage = Corrupt("the log of a stream that others hold is damaged here")
            raise self._note_damage(stream_id, damage)
        self._context.sound.note(stream_id)

    def _note_damage(self, stream_id: StreamId, error: Corrupt) -> StoreError:
        """What whoever asks for a stream hears from now on whose log is damaged here."""
        log.error("a local log is damaged", stream_id=stream_id, cause=str(error))
        self._context.sound.forget(stream_id)
        self._damaged[stream_id] = Corrupt("this node's log of the stream is damaged")
        self._left_to_owners.discard(stream_id)
        self._unopened.drop(stream_id)
        return restated(self._damaged[stream_id])

    def owns(self, stream_id: StreamId) -> bool:
        """Whether a stream is open here and takes appends."""
        appender = self._open.get(stream_id)
        return appender is not None and appender.stopped is None

    def last_owned(self, stream_id: StreamId) -> LastOwned:
        """What this node knows of when it owned a stream last since its process began; nothing if it did
        not, or that was too long ago."""
        return self._last_owned.get(stream_id, NEVER_OWNED)

    def note_closed(self, appender: LocalAppender) -> None:
        """Remember how far this node has shown a stream, and tell those who read it that it takes no
        appends here any more."""
        if appender.has_replicas:
            epoch, shown_next, shown = self.last_owned(appender.stream_id)
            # An opening that was given up before it showed anything began at what is published. And one
            # that was closed before another may be noted once more after it.
            self._last_owned[appender.stream_id] = LastOwned(
                max(epoch, appender.claim.epoch),
                max(shown_next, appender.log.committed_next),
                max(shown, Place(*appender.log.committed_place())),
            )
        self._closed(appender)

    async def instead_of_opening(
        self, stream_id: StreamId, make: Callable[[], Coroutine[None, None, LocalAppender]]
    ) -> LocalAppender:
        """Do something in the place of an opening: whoever asks for the stream meanwhile waits, and gets
        what `make` returns or raises. Where the stream is being opened already, that is waited for.

        Raises:
            StoreError: what `make` raised; `NotOpened` to let those who wait open it after all.
        """
        return await self._opening.join(stream_id, make)

    async def opening_ended(self, stream_id: StreamId) -> None:
        """Return when a stream is not being opened, however that ended."""
        await self._opening.ended(stream_id)

    def note_given(self, stream_id: StreamId, owner_url: str) -> None:
        """Pass on from now on what is asked of a stream that another node was made the owner of."""
        self.others.note(stream_id, owner_url)
        self._failing.drop(stream_id)
        if stream_id in self._damaged:
            self._left_to_owners.add(stream_id)
        self._unopened.drop(stream_id)

    def has_open_files(self, stream_id: StreamId) -> bool:
        """Whether an appender, or a log that follows another node's, has files of a stream open."""
        appender = self._open.get(stream_id)
        is_followed = self.followed is not None and self.followed.in_use(stream_id)
        return is_followed or (appender is not None and not appender.closed)

    def in_use(self, stream_id: StreamId) -> bool:
        """Whether anything here reads or writes the files of a stream."""
        appender = self._open.get(stream_id)
        return stream_id in self._opening or (appender is not None and not appender.closed)

    def forget(self, stream_id: StreamId) -> None:
        """Forget a stream whose files are not here any more."""
        appender = self._open.pop(stream_id, None)
        if appender is not None:
            self._forget_state(appender)
        self._forget_damage(stream_id)
        self._unopened.drop(stream_id)

    async def _let_go(self, appender: LocalAppender) -> None:
        """Forget an appender that has stopped, with all that it knows.

        An appender whose log failed stays, since it knows up to where its file was synced: the next
        opening cuts there.
        """
        self.note_closed(appender)
        if self._open.get(appender.stream_id) is not appender:
            return
        if isinstance(appender.stopped, LogBroken):
            self._failing.failed(appender.stream_id, self._context.clocks.elapsed())
            self._unopened.add(appender.stream_id, self._context.clocks.elapsed())
            return
        await appender.close(not_owner(), leave=False)
        if self._open.get(appender.stream_id) is appender:
            del self._open[appender.stream_id]
            self._forget_state(appender)

    def _forget_state(self, appender: LocalAppender) -> None:
        self.note_closed(appender)
        self._context.tracking_room.leave(appender.tracking)

    async def _tick(self) -> float:
        await asyncio.sleep(TICK_SECONDS)
        for appender in list(self._open.values()):
            if appender.stopped is None:
                if appender.has_written:
                    self._failing.drop(appender.stream_id)
                appender.tick()
            elif appender.closed:
                await self._let_go(appender)
        self._rest_oldest()
        return 0

    async def _confirm_due(self) -> float:
        await asyncio.sleep(TICK_SECONDS)
        await self._confirm_again()
        return 0

    async def configure(self, appender: LocalAppender, config: StreamConfig) -> None:
        """Go on with another configuration of a stream that is open, if need be by opening it anew."""
        if appender.configure(config):
            self._changed(appender)
            return
        await self.reopen(appender)

    async def reopen(self, appender: LocalAppender) -> None:
        """Have a stream opened anew once what is under way has ended, also if nobody asks for it."""
        await appender.close(not_owner(), leave=False)
        self._unopened.add(appender.stream_id, self._context.clocks.elapsed())

    async def _open_due(self) -> float:
        """Open what lies here and is not open, as soon as this node may own anything."""
        await asyncio.sleep(TICK_SECONDS)
        await self._note_rebuild()
        lease = self._owner.lease
        if lease.is_live() and not lease.regressed:
            await self._open_all(self._unopened.due(self._context.clocks.elapsed()))
        return 0

    async def _open_all(self, stream_ids: Iterable[StreamId]) -> None:
        tries = await asyncio.gather(
            *(self._try_to_open(stream_id) for stream_id in stream_ids), return_exceptions=True
        )
        failed = [error for error in tries if isinstance(error, BaseException)]
        for error in failed:
            if not isinstance(error, StoreError):
                raise error
        if failed:
            named = self.unopened()[:_NAMED_COUNT_MAX]
            log.warning(
                "streams are not open", count=len(failed), streams=named, error=str(failed[0])
            )

    async def _try_to_open(self, stream_id: StreamId) -> None:
        """Try once more to open a stream that lies on this disk.

        Raises:
            StoreError: it is tried again, or is damaged.
        """
        self._unopened.begin_try(stream_id, self._context.clocks.elapsed())
        async with self._opening_room:
            with suppress(NotFound, OwnedElsewhere):
                await self.get(stream_id)
        self._unopened.drop(stream_id)

    def _rest_oldest(self) -> None:
        """Keep the number of open files bounded: of ten thousand streams few are written at once."""
        holding = [appender for appender in self.opened() if appender.log.is_open]
        over = len(holding) - self._context.open_log_count_max
        for appender in nsmallest(max(over, 0), holding, key=lambda one: one.used_at):
            appender.rest()

    async def _note_rebuild(self) -> None:
        """After coordination was rebuilt all that lies here is to be claimed again."""
        lease = self._owner.lease
        if lease.generation == self._generation or lease.regressed:
            return
        generation = lease.generation
        if self._generation is not None:
            for stream_id in await self._opener.local_ids():
                self._unopened.add(stream_id, self._context.clocks.elapsed())
        self._generation = generation

    async def _confirm_again(self) -> None:
        """After a lapse of the lease, find out of every stream whether it is still owned here:
        until then it is neither written, nor read, nor uploaded, and nobody else may touch it."""
        lease = self._owner.lease
        term = lease.term
        if term == self._confirmed_term or not lease.is_live():
            return
        for appender in list(self.opened()):
            try:
                confirmed = await self.get(appender.stream_id)
            except StoreError as error:
                log.warning("a stream was lost", stream_id=appender.stream_id, error=str(error))
                continue
            if confirmed.log.committed_next > confirmed.published_next:
                self._changed(confirmed)
        if lease.term == term and all(appender.claim.held for appender in self.opened()):
            # Else coordination did not answer for some, and is asked again.
            self._confirmed_term = term
