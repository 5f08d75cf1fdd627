"""The streams that this node owns: opened at the start or at first touch, each once.

Opening a stream: recover its directory, claim it with the next epoch, note the claim in
the checkpoint, take appends. After a crash between any two of these the next opening does
them all again, with a higher epoch.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from heapq import nsmallest
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from cachetools import TTLCache

from bottomless.errors import (
    Code,
    Corrupt,
    Fenced,
    NotFound,
    Outcome,
    StoreError,
    Unavailable,
)
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.appender import Appender
from bottomless_server.ingest.core.ownership import (
    LocalView,
    OwnedElsewhere,
    is_outdated,
    not_owner,
)
from bottomless_server.ingest.core.tracking import Tracking
from bottomless_server.ingest.file_calls import FileCalls
from bottomless_server.ingest.layout import aside_dir, stream_dir, streams_dir
from bottomless_server.ingest.leftovers import give_up, local_ids
from bottomless_server.ingest.owner import Claim, Owner
from bottomless_server.ingest.producer_log import read_tracking, take_left
from bottomless_server.ingest.recovery import Recovered, recover
from bottomless_server.ingest.segments import LogBroken, RollBounds, SegmentLog
from bottomless_server.ingest.surroundings import Surroundings, restated
from bottomless_server.runtime.endless import endless

log = structlog.get_logger(__name__)
_T = TypeVar("_T")

_CLAIM_AGAIN_COUNT: Final = 60
_ELSEWHERE_COUNT_MAX: Final = 100_000
_ELSEWHERE_SECONDS: Final = 1.0
"""For so long it is remembered that another node owns a stream: less costs coordination a
question with each request that is passed on, more lets a stream wait that was released."""
TICK_SECONDS: Final = 0.5
"""How often streams are asked whether their files need looking after."""


class OwnedStreams:
    """All appenders of this process, by stream id."""

    def __init__(
        self,
        files: FileCalls,
        data_dir: Path,
        owner: Owner,
        around: Surroundings,
        roll: RollBounds,
        changed: Callable[[Appender], None],
        closed: Callable[[Appender], None],
    ) -> None:
        self._files = files
        self._data_dir = data_dir
        self._owner = owner
        self._around = around
        self._roll = roll
        self._changed = changed
        self._closed = closed
        self._open: dict[StreamId, Appender] = {}
        self._opening: dict[StreamId, asyncio.Task[Appender]] = {}
        self._damaged: dict[StreamId, Corrupt] = {}
        self._elsewhere: TTLCache[StreamId, str] = TTLCache(
            _ELSEWHERE_COUNT_MAX, _ELSEWHERE_SECONDS, around.clocks.monotonic
        )
        """Internal addresses of other nodes, by the streams that they own."""
        self._stopping = False
        self._generation: int | None = None
        """Of coordination when these streams were claimed."""
        self._confirmed_term = 0
        """Of the lease under which all claims were last confirmed."""
        self._to_claim: dict[StreamId, int] = {}
        """Streams to be claimed again, and how often that is still tried."""
        self._ticking: list[asyncio.Task[None]] = []

    async def start(self, open_count: int) -> None:
        """Open every stream that has a directory here, some at once.

        One that cannot be opened now is tried again when it is touched.
        """
        await self._in_thread(self._make_dirs)
        room = asyncio.Semaphore(open_count)

        async def open_one(stream_id: StreamId) -> None:
            async with room:
                try:
                    await self.get(stream_id)
                except NotFound:
                    pass  # leftovers.py says what becomes of it.
                except StoreError as error:
                    log.warning("a stream is not open", stream_id=stream_id, error=str(error))

        await asyncio.gather(*(open_one(stream_id) for stream_id in self._local_ids()))
        self._generation = self._owner.lease.generation
        self._confirmed_term = self._owner.lease.term
        self._ticking = [
            asyncio.create_task(endless("ingest-files", self._tick), name="ingest-files"),
            asyncio.create_task(endless("ingest-claims", self._claim_due), name="ingest-claims"),
        ]

    async def stop(self) -> None:
        """Close every stream; those that object storage holds whole are left clean."""
        self._stopping = True
        for ticking in self._ticking:
            ticking.cancel()
        await asyncio.gather(*self._ticking, return_exceptions=True)
        for opening in list(self._opening.values()):
            with suppress(StoreError):
                await opening
        draining = Unavailable("this node stops", code=Code.DRAINING, retry_after_seconds=1)
        await asyncio.gather(
            *(appender.close(draining, leave=True) for appender in self._open.values())
        )

    def opened(self) -> Iterator[Appender]:
        """Those that are open and take appends."""
        return (appender for appender in self._open.values() if appender.stopped is None)

    def find(self, stream_id: StreamId) -> Appender | None:
        """The appender of a stream that is open, without opening it."""
        return self._open.get(stream_id)

    async def get(self, stream_id: StreamId) -> Appender:
        """The appender of a stream, under a claim that was good just now.

        Raises:
            NotFound: there is no such stream.
            Corrupt: what lies here of it is damaged.
            OwnedElsewhere: another node owns it.
            Unavailable: it cannot be owned now; outcome none.
        """
        damaged = self._damaged.get(stream_id)
        if damaged is not None:
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

    def forget_owner(self, owner_url: str) -> None:
        """A node that owned streams may not do so any more; coordination is asked again."""
        for stream_id, url in list(self._elsewhere.items()):
            if url == owner_url:
                self._elsewhere.pop(stream_id, None)

    async def close(self, stream_id: StreamId) -> None:
        """Stop a stream for its deletion or its handover; returns when nothing runs any more."""
        with suppress(KeyError, StoreError):
            await self._opening[stream_id]
        appender = self._open.get(stream_id)
        if appender is not None:
            await appender.close(not_owner(), leave=True)
            await self._let_go(appender)

    async def _opened(self, stream_id: StreamId) -> Appender:
        if self._stopping:
            raise Unavailable("this node stops", code=Code.DRAINING, retry_after_seconds=1)
        owner_url = self._elsewhere.get(stream_id)
        if owner_url is not None:
            raise OwnedElsewhere(owner_url)
        opening = self._opening.get(stream_id)
        if opening is None:
            opening = asyncio.create_task(self._open_stream(stream_id))
            self._opening[stream_id] = opening
            opening.add_done_callback(lambda _: self._opening.pop(stream_id, None))
        # One caller's leaving must not cancel what others wait for.
        return await asyncio.shield(opening)

    async def _open_stream(self, stream_id: StreamId) -> Appender:
        before = self._open.pop(stream_id, None)
        cut_at = None
        if before is not None:
            await before.close(not_owner(), leave=False)
            self._forget_state(before)
            cut_at = before.log.synced_place()
        directory = stream_dir(self._data_dir, stream_id)
        elapsed = self._around.clocks.elapsed()
        try:
            found = await self._in_thread(
                recover, self._files, directory, stream_id, elapsed, cut_at
            )
            tracking = await self._in_thread(
                read_tracking, self._files, directory, found.segments, self._around.tracking
            )
        except Corrupt as error:
            log.exception("a local log is damaged", stream_id=stream_id)
            self._damaged[stream_id] = Corrupt("this node's log of the stream is damaged")
            raise restated(self._damaged[stream_id]) from error
        except OSError as error:
            raise _storage_failed() from error
        if found.cut_size:
            log.warning("a torn end was cut", stream_id=stream_id, bytes=found.cut_size)
        appender = await self._claim(stream_id, directory, found, tracking)
        self._open[stream_id] = appender
        with suppress(Unavailable):
            # Where the clock is not believed, what lies here is as old as it was when it was.
            self._around.read_clock()
        self._around.tracking_room.join(appender.tracking)
        if appender.log.next_offset > appender.published_next:
            self._changed(appender)
        return appender

    async def _claim(
        self, stream_id: StreamId, directory: Path, found: Recovered, tracking: Tracking
    ) -> Appender:
        local, segments = _local_view(found), found.segments
        try:
            if segments or found.checkpoint is not None:
                record = await self._owner.load(stream_id)
                if is_outdated(record, self._owner.node_id, local):
                    await self._in_thread(self._give_up, stream_id, record.epoch, local.published)
                    local, segments = replace(local, next_offset=0, empty=True), []
                    tracking = Tracking(self._around.tracking)
            try:
                record, claim = await self._owner.claim(stream_id, local)
            except OwnedElsewhere as owner:
                self._elsewhere[stream_id] = owner.owner_url
                raise
            # One may lie here without a chunk, and then says nothing of producers.
            if not any(len(segment.index) for segment in segments):
                await self._take_left(record, claim, tracking)
            await self._in_thread(self._make_dir, directory)
            appender = Appender(
                self._around,
                claim,
                SegmentLog(
                    self._files,
                    directory,
                    stream_id,
                    self._roll,
                    segments=segments,
                    next_offset=claim.first_offset,
                    last_timestamp=max(found.last_timestamp, record.last_timestamp),
                ),
                record,
                tracking,
                self._changed,
            )
            await appender.start()
        except OSError as error:
            raise _storage_failed() from error
        return appender

    def _make_dirs(self) -> None:
        for path in (streams_dir(self._data_dir), aside_dir(self._data_dir)):
            self._files.make_dir(path)
        self._files.fsync_dir(self._data_dir)

    def _make_dir(self, directory: Path) -> None:
        self._files.make_dir(directory)
        self._files.fsync_dir(directory.parent)

    def _give_up(self, stream_id: StreamId, epoch: int, published: bool) -> None:
        give_up(self._files, self._data_dir, stream_id, epoch, published=published)

    async def _take_left(self, record: StreamRecord, claim: Claim, tracking: Tracking) -> None:
        """Take up what the last owner knew of producers, where nothing lies here that says it."""
        left = await self._owner.left_producers(record)
        try:
            if left is not None and not take_left(tracking, left, claim.first_offset):
                log.warning("producers are not known any more", stream_id=record.stream_id)
        except Corrupt as error:
            log.exception("what was left of producers is damaged", stream_id=record.stream_id)
            raise Unavailable("what is known of producers is damaged", retryable=False) from error

    def _local_ids(self) -> list[StreamId]:
        return local_ids(self._files, self._data_dir)

    def in_use(self, stream_id: StreamId) -> bool:
        """Whether anything here reads or writes its files."""
        appender = self._open.get(stream_id)
        return stream_id in self._opening or (appender is not None and not appender.closed)

    def forget(self, stream_id: StreamId) -> None:
        """Its files are not here any more."""
        appender = self._open.pop(stream_id, None)
        if appender is not None:
            self._forget_state(appender)
        self._damaged.pop(stream_id, None)

    async def _let_go(self, appender: Appender) -> None:
        """Forget one that has stopped, with all that it knows.

        One whose log failed stays, since it knows up to where its file was synced: whoever opens
        the stream again cuts there.
        """
        self._closed(appender)
        if isinstance(appender.stopped, LogBroken):
            return
        await appender.close(not_owner(), leave=False)
        if self._open.get(appender.stream_id) is appender:
            del self._open[appender.stream_id]
            self._forget_state(appender)

    def _forget_state(self, appender: Appender) -> None:
        self._closed(appender)
        self._around.tracking_room.leave(appender.tracking)

    async def _tick(self) -> float:
        await asyncio.sleep(TICK_SECONDS)
        for appender in list(self._open.values()):
            if appender.stopped is None:
                appender.tick()
            elif appender.closed:
                await self._let_go(appender)
        self._rest_oldest()
        return 0

    async def _claim_due(self) -> float:
        await asyncio.sleep(TICK_SECONDS)
        await self._claim_again()
        await self._confirm_again()
        return 0

    def _rest_oldest(self) -> None:
        """Keep the number of open files bounded: of ten thousand streams few are written at once."""
        holding = [appender for appender in self.opened() if appender.log.is_open]
        over = len(holding) - self._around.open_log_count_max
        for appender in nsmallest(max(over, 0), holding, key=lambda one: one.used_at):
            appender.rest()

    async def _claim_again(self) -> None:
        """Claim what lies here after coordination was rebuilt: nobody may ever touch it again.

        It is tried some times, since the manifest takes up its work a moment later.
        """
        lease = self._owner.lease
        if lease.generation != self._generation and not lease.regressed:
            if self._generation is not None:
                local = await self._in_thread(self._local_ids)
                self._to_claim = dict.fromkeys(local, _CLAIM_AGAIN_COUNT)
            self._generation = lease.generation
        for stream_id, left in list(self._to_claim.items()):
            try:
                await self.get(stream_id)
            except Unavailable:
                self._to_claim[stream_id] = left - 1
            except StoreError as error:
                log.warning("a stream is not open", stream_id=stream_id, error=str(error))
                self._to_claim[stream_id] = 0
            else:
                self._to_claim[stream_id] = 0
            if self._to_claim[stream_id] == 0:
                del self._to_claim[stream_id]

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
            if confirmed.log.next_offset > confirmed.published_next:
                self._changed(confirmed)
        if lease.term == term and all(appender.claim.held for appender in self.opened()):
            # Else coordination did not answer for some, and is asked again.
            self._confirmed_term = term

    async def _in_thread(self, call: Callable[..., _T], *arguments: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._around.executor, call, *arguments)


def _local_view(found: Recovered) -> LocalView:
    point = found.checkpoint
    return LocalView(
        next_offset=found.next_offset,
        empty=not found.segments,
        epoch=found.epoch,
        version=0 if point is None else point.version,
        published_next=0 if point is None else point.published_next,
    )


def _storage_failed() -> LogBroken:
    return LogBroken("the local disk does not work", outcome=Outcome.NONE)
