"""Give out what is committed: which streams have news, and chunks as they lie on disk.

Nothing is given out beyond what is durable, and nothing when the lease may have run out:
a fenced owner's tail may differ from the stream's.

On the record's path: after appender.py, before uploader/core/cutter.py and, for the
tail, the reader.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.chunk import decode_header
from bottomless.formats.segment import HEADER_SIZE, decode_segment_header
from bottomless.guards import guard
from bottomless.model.chunk import ChunkFlags, ChunkPlace
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.log.core.chunk_index import ChunkIndex
from bottomless_server.ingest.log.layout import segment_path
from bottomless_server.ingest.log.segments import Segment
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.file_calls import FileCalls, read_exactly
from bottomless_server.node.pulse import Pulse, wait_for
from bottomless_server.protocol.places import TailPlace
from bottomless_server.protocol.tail import (
    BY_FILE_SIZE_MIN,
    Bounds,
    ChunkRun,
    Commit,
    Commits,
    SegmentPart,
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
        return ChunkRun(bounds, first_offset, first_offset, log_end, b"")
    if first_offset < appender.log.first_offset:
        raise moved(bounds_of(appender))
    segment = _segment_of(appender, first_offset)
    try:
        found = await in_thread(
            executor,
            _read,
            files,
            appender,
            segment,
            _Wanted(first_offset, size_max, appender.log.committed_count(segment), by_file),
        )
    except FileNotFoundError:
        # It was freed meanwhile.
        raise moved(bounds_of(appender)) from None
    appender.claim.require()
    # As they are now: what was committed and freed during the read is in them.
    return ChunkRun(bounds_of(appender), *found)


class _Wanted(NamedTuple):
    first_offset: int
    size_max: int
    visible_count: int
    """Chunks of the segment that are visible."""
    by_file: bool


class _Found(NamedTuple):
    """What was read of a file: the rest of a `ChunkRun`, after its bounds."""

    first_offset: int
    next_offset: int
    log_end: int
    data: bytes
    part: SegmentPart | None


def _segment_of(appender: LocalAppender, offset: int) -> Segment:
    for segment in reversed(appender.log.segments):
        if segment.first_offset <= offset:
            return segment
    raise moved(bounds_of(appender))


def _read(files: FileCalls, appender: LocalAppender, segment: Segment, wanted: _Wanted) -> _Found:
    index = segment.index
    number = index.holding(wanted.first_offset)
    first = index.place(number)
    last = max(
        min(index.before(first.position + wanted.size_max), wanted.visible_count - 1), number
    )
    place = index.place(last)
    if last > number and place.position + place.size > first.position + wanted.size_max:
        last -= 1
    # Nor does a run end with chunks that hold no record: whoever asked has no use for them.
    while last > number and not index.place(last).record_count:
        last -= 1
    path = segment_path(appender.log.directory, segment.first_offset)
    fd = files.open(path)
    try:
        place = index.place(last)
        run = place.position + place.size - first.position
        part = None
        if wanted.by_file and run >= BY_FILE_SIZE_MIN:
            part, data = _part(files, fd, path, index, number, last), b""
        if part is None:
            data = _read_run(files, fd, index, number, last)
    finally:
        files.close(fd)
    size = len(data) if part is None else part.size
    end = first.position + size
    place = index.place(index.before(end))
    log_end = segment.log_start + end - HEADER_SIZE
    return _Found(first.first_offset, place.next_offset, log_end, data, part)


def _read_run(files: FileCalls, fd: int, index: ChunkIndex, number: int, last: int) -> bytes:
    """The chunks from `number` to `last`, and those with which the last one makes a group."""
    place = index.place(last)
    data = _read_places(files, fd, index.place(number).position, place.position + place.size)
    parts = [data]
    # A group is committed as a whole, so its end is there.
    while _more_follows(parts[-1], place.size):
        last += 1
        place = index.place(last)
        parts.append(_read_places(files, fd, place.position, place.position + place.size))
    return data if len(parts) == 1 else b"".join(parts)


def _part(
    files: FileCalls, fd: int, path: Path, index: ChunkIndex, number: int, last: int
) -> SegmentPart | None:
    """Where the same chunks lie; only headers are read."""
    try:
        header = decode_segment_header(_read_places(files, fd, 0, HEADER_SIZE))
    except Corrupt:
        # Its chunks may be good, but nobody could see that it is the file meant.
        return None
    place = index.place(last)
    while _more_follows(_read_header(files, fd, place), CHUNK_HEADER_SIZE):
        last += 1
        place = index.place(last)
    position = index.place(number).position
    size = place.position + place.size - position
    return SegmentPart(str(path.absolute()), position, size, header.first_offset, header.epoch)


def _read_header(files: FileCalls, fd: int, place: ChunkPlace) -> bytes:
    return _read_places(files, fd, place.position, place.position + CHUNK_HEADER_SIZE)


def _read_places(files: FileCalls, fd: int, start: int, end: int) -> bytes:
    data = read_exactly(files, fd, end - start, start)
    if len(data) != end - start:
        raise Corrupt("the log is shorter than what was written")
    return data


def _more_follows(data: bytes, last_size: int) -> bool:
    """Whether the chunk that begins so many bytes before the end of the data belongs to the next."""
    try:
        header = decode_header(data, len(data) - last_size)
    except Corrupt:
        # Whoever takes the run verifies each chunk that he needs: those before it are good.
        return False
    return ChunkFlags.MORE_FOLLOWS in header.flags
