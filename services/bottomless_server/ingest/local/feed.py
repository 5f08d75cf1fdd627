"""Give out what is committed: which streams have news, and chunks as they lie on disk.

Nothing is given out beyond what is durable, and nothing when the lease may have run out:
a fenced owner's tail may differ from the stream's.

On the record's path: after appender.py, before uploader/core/cutter.py and, for the
tail, the reader.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import Executor
from typing import Final

from bottomless.formats.segment import HEADER_SIZE
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.log.run_reads import Wanted, read_found
from bottomless_server.ingest.log.segments import Segment
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.pulse import Pulse, wait_for
from bottomless_server.protocol.places import TailPlace
from bottomless_server.protocol.tail import (
    Bounds,
    ChunkRun,
    Commit,
    Commits,
    moved,
)
from bottomless_server.runtime.base.on_loop import in_thread

FOLLOWED_SECONDS: Final = 6.0
"""A caller that did not ask for so long follows no more. Between two questions hardly any time
passes, but on a machine that has too much to do; and a stream that is taken for one that nobody
uploads waits for this node's return."""
_CHANGED_COUNT_MAX: Final = 10_000
"""Streams named in one answer; the token then stands at the last of them."""


class CommitFeed:
    """Remembers which streams changed and are not published yet, in the order of their last change.

    A stream leaves when all of it is published, and when it is closed: until then whoever
    follows has to hear of it, and afterwards there is nothing to hear.
    """

    def __init__(self, instance: str) -> None:
        self._instance = instance
        """Tokens of another process mean nothing here."""
        self._changes: OrderedDict[StreamId, tuple[int, LocalAppender]] = OrderedDict()
        self._count = 0
        self._pulse = Pulse()
        self.hurried = False
        """Whether all is to be uploaded now, since this node drains."""
        self._ended = False
        self._waiting_count = 0
        self._asked_at = float("-inf")

    @property
    def followed(self) -> bool:
        """Whether somebody asks for what is new."""
        since = asyncio.get_running_loop().time() - self._asked_at
        return self._waiting_count > 0 or since < FOLLOWED_SECONDS

    def hurry(self) -> None:
        """Treat everything as old enough to be uploaded from now on, also what was told of before."""
        self.hurried = True
        for _, appender in list(self._changes.values()):
            if appender.log.committed_next > appender.published_next:
                self.note(appender)

    def note(self, appender: LocalAppender) -> None:
        self._count += 1
        self._changes[appender.stream_id] = (self._count, appender)
        self._changes.move_to_end(appender.stream_id)
        self._pulse.fire()

    def settle(self, appender: LocalAppender) -> None:
        """Forget a stream of which nothing is left to be uploaded from here."""
        _, known = self._changes.get(appender.stream_id, (0, None))
        published = appender.log.committed_next <= appender.published_next
        # Another appender of the same stream has news of its own.
        if known is appender and (published or appender.stopped is not None):
            del self._changes[appender.stream_id]

    def end(self) -> None:
        """At a stop: nobody waits any more, and whoever asks yet is answered at once."""
        self._ended = True
        self._pulse.fire()

    async def wait(self, token: str | None, wait_seconds: float) -> Commits:
        """Streams that changed since `token`, at once or when there are any."""
        self._waiting_count += 1
        try:
            return await self._wait(token, wait_seconds)
        finally:
            self._waiting_count -= 1
            self._asked_at = asyncio.get_running_loop().time()

    async def _wait(self, token: str | None, wait_seconds: float) -> Commits:
        after = self._parse(token)
        if after is None:
            # A new follower hears of everything that is not published yet.
            waiting = [
                a for _, a in self._changes.values() if a.log.committed_next > a.published_next
            ]
            return self._answer(self._count, waiting)
        changed = self._pulse.next()
        found = self._since(after)
        if not found and not self._ended:
            await wait_for(changed, wait_seconds)
            found = self._since(after)
        if len(found) > _CHANGED_COUNT_MAX:
            found = found[:_CHANGED_COUNT_MAX]
        return self._answer(found[-1][0] if found else after, [appender for _, appender in found])

    def _since(self, after: int) -> list[tuple[int, LocalAppender]]:
        found = []
        for change in reversed(self._changes.values()):
            if change[0] <= after:
                break
            found.append(change)
        return found[::-1]

    def _parse(self, token: str | None) -> int | None:
        instance, _, number = (token or "").partition(".")
        if instance != self._instance or not number.isdecimal() or int(number) > self._count:
            return None
        return int(number)

    def _answer(self, count: int, appenders: list[LocalAppender]) -> Commits:
        streams = tuple(
            Commit(
                stream_id=appender.stream_id,
                epoch=appender.claim.epoch,
                committed_next=appender.log.committed_next,
                published_next=appender.published_next,
                log_end=appender.log.committed_end,
                target_bytes=appender.config.fragment.target_bytes,
                max_age_ms=0 if self.hurried else appender.config.fragment.max_age_ms,
            )
            for appender in appenders
            # One whose claim is in doubt is told of again when it is confirmed.
            if appender.stopped is None and appender.claim.held
        )
        return Commits(f"{self._instance}.{count}", streams)


def bounds_of(appender: LocalAppender) -> Bounds:
    """What every answer says of a stream beside its bytes."""
    return Bounds(
        epoch=appender.claim.epoch,
        local_first_offset=appender.log.first_offset,
        committed_next=appender.log.committed_next,
        published_next=appender.published_next,
        version=appender.version,
        last_chunk_offset=appender.log.last_chunk_offset,
        last_timestamp=appender.log.last_record_timestamp or 0,
    )


def locate(appender: LocalAppender, timestamp: int) -> int | None:
    """First offset of the first local chunk with this timestamp or a later one.

    Raises:
        Unavailable: `not-owner`.
    """
    _require_owned(appender)
    for segment in appender.log.segments:
        number = segment.index.since(timestamp)
        if number < len(segment.index):
            offset = segment.index.place(number).first_offset
            # A chunk without records may stand at the end.
            return offset if offset < appender.log.committed_next else None
    return None


def place_of(appender: LocalAppender, offset: int) -> TailPlace | None:
    """How old a record is that lies here, and how many bytes come from its chunk on; None of what
    is not here.

    Raises:
        Unavailable: `not-owner`.
    """
    _require_owned(appender)
    log = appender.log
    if not log.first_offset <= offset < log.committed_next:
        return None
    segment = _segment_of(appender, offset)
    place = segment.index.place(segment.index.holding(offset))
    before = segment.log_start + place.position - HEADER_SIZE
    return TailPlace(place.timestamp, max(0, log.committed_end - before))


def _require_owned(appender: LocalAppender) -> None:
    appender.claim.require()
    require_found_shown(appender)


@guard("what was found at a claim, before it is said where a log ends")
def require_found_shown(appender: LocalAppender) -> None:
    """Say nothing of a log as long as what it held at its claim waits for other nodes: the owner before
    may have shown it, and whoever read it would hear that the stream ends before.

    Raises:
        Unavailable: `not-owner`: it is not known yet what the stream holds.
    """
    if appender.awaits_found or appender.log.committed_next < appender.claim.first_offset:
        raise not_owner()


async def read_run(
    files: FileCalls,
    executor: Executor,
    appender: LocalAppender,
    first_offset: int,
    size_max: int,
    wait_seconds: float,
    *,
    by_file: bool = False,
) -> ChunkRun:
    """Read whole chunks from the one that holds `first_offset`; at least one, if there is one.

    They end at the end of a segment at the latest, and never within a group. With `by_file`, a run
    that is long enough is not read: it is said where it lies.

    Raises:
        OffsetGone: `moved`: below what lies here.
        Unavailable: `not-owner`.
        Corrupt: the file does not hold what was written.
    """
    _require_owned(appender)
    advanced = appender.advanced.next()
    if first_offset == appender.log.committed_next:
        await wait_for(advanced, wait_seconds)
        appender.claim.require()
    if first_offset >= appender.log.committed_next:
        bounds, log_end = bounds_of(appender), appender.log.committed_end
        others = appender.in_sync_others
        return ChunkRun(bounds, first_offset, first_offset, log_end, b"", None, others)
    if first_offset < appender.log.first_offset:
        raise moved(bounds_of(appender))
    segment = _segment_of(appender, first_offset)
    try:
        found = await in_thread(
            executor,
            read_found,
            files,
            appender.log,
            segment,
            Wanted(first_offset, size_max, appender.log.committed_count(segment), by_file),
        )
    except FileNotFoundError:
        # It was freed meanwhile.
        raise moved(bounds_of(appender)) from None
    appender.claim.require()
    # As they are now: what was committed and freed during the read is in them.
    return ChunkRun(bounds_of(appender), *found, appender.in_sync_others)


def _segment_of(appender: LocalAppender, offset: int) -> Segment:
    for segment in reversed(appender.log.segments):
        if segment.first_offset <= offset:
            return segment
    raise moved(bounds_of(appender))
