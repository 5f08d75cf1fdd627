"""Local files of streams that are no more: removed where a tombstone says so, else set aside.

Manifest is asked, and not coordination: it answers only while coordination shows the
generation that the bucket shows, so a store that was emptied, or went back, is an error here
and nothing is touched. What it answers decides:

    deleting        this stream's tombstone, which nothing ever takes back: the files go
    no such stream  deleted long ago, most likely; but nothing proves it: they are set aside
    error           they stay
    active          they stay as long as this node owns the stream or holds it, and until object
                    storage has all that lies here: then other nodes go on without it, and they go

Removing a log, and what is there after a crash that follows each step:

1. Its directory is renamed to `streams-aside/{id}.deleted`, and both directories are synced:
   it is no log any more, and whatever lies under such a name was given up by a tombstone.
   What was staged for it is removed before, while the log still brings the sweep here again.
2. Its files are removed, then the directory: what is left is removed at the next sweep.

Setting aside is one rename, to `streams-aside/{id}.gone`: an operator may look at it, and
remove it; nobody here ever does.
"""

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol

import structlog

from bottomless.errors import InvalidRequest, StoreError
from bottomless.model.names import StreamId, parse_stream_id
from bottomless.model.stream import StreamState
from bottomless_server.ingest.log.layout import (
    aside_dir,
    stream_dir,
    streams_dir,
)
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.on_loop import in_thread

log = structlog.get_logger(__name__)

SWEEP_SECONDS: Final = 60.0
SWEEP_COUNT_MAX: Final = 256
"""Streams asked about in one sweep; the others have their turn in the next."""
DELETED: Final = ".deleted"
PUBLISHED: Final = ".published"
GONE: Final = ".gone"


class LocalStreams(Protocol):
    """What has files open here; `OwnedStreams` is one."""

    def in_use(self, stream_id: StreamId) -> bool: ...

    def forget(self, stream_id: StreamId) -> None: ...


class Leftovers:
    """Looks after logs that nobody opened."""

    def __init__(
        self,
        files: FileCalls,
        data_dir: Path,
        executor: Executor,
        streams: LocalStreams,
        state_of: Callable[[StreamId], Awaitable[StreamState | None]],
        drop_staged: Callable[[StreamId], Awaitable[None]],
        part_with: Callable[[StreamId], Awaitable[bool]] | None = None,
    ) -> None:
        """`part_with` removes the log of a stream that lives, if this node has nothing to do with it any
        more, and returns whether it did."""
        self._files = files
        self._data_dir = data_dir
        self._executor = executor
        self._streams = streams
        self._state_of = state_of
        self._drop_staged = drop_staged
        self._part_with = part_with
        self._turn = 0
        """How many of those that rest were asked about and stayed."""

    async def run(self) -> None:
        """Sweep for ever."""
        await endless("ingest-leftovers", self._sweep_once)

    async def _sweep_once(self) -> float:
        try:
            await self.sweep()
        except (StoreError, OSError) as error:
            log.warning("local logs were not swept", error=str(error))
        return SWEEP_SECONDS

    async def sweep(self) -> None:
        """Put away what is no stream's log any more.

        Raises:
            Unavailable: what became of a stream cannot be told now; its log stays.
            OSError: the same again is right.
        """
        files, data_dir = self._files, self._data_dir
        await in_thread(self._executor, finish_removals, files, data_dir)
        found = await in_thread(self._executor, local_ids, files, data_dir)
        resting = [stream_id for stream_id in found if not self._streams.in_use(stream_id)]
        start = self._turn if self._turn < len(resting) else 0
        self._turn = start
        for stream_id in resting[start : start + SWEEP_COUNT_MAX]:
            state = await self._state_of(stream_id)
            # Somebody may have begun to open it meanwhile.
            if state is StreamState.ACTIVE or self._streams.in_use(stream_id):
                self._turn += not await self._is_parted_with(stream_id)
                continue
            self._streams.forget(stream_id)
            if state is not None:
                # Before the log: as long as that is there this is asked again.
                await self._drop_staged(stream_id)
            await in_thread(self._executor, put_away, files, data_dir, stream_id, state)

    async def _is_parted_with(self, stream_id: StreamId) -> bool:
        if self._part_with is None or self._streams.in_use(stream_id):
            return False
        try:
            return await self._part_with(stream_id)
        except StoreError as error:
            # Of one log that is damaged the others do not wait.
            log.info("a former log stays", stream_id=stream_id, error=str(error))
            return False


def local_ids(files: FileCalls, data_dir: Path) -> list[StreamId]:
    """Streams that have a directory here, in order."""
    found = []
    for name in sorted(files.names(streams_dir(data_dir))):
        try:
            found.append(parse_stream_id(name))
        except InvalidRequest:
            continue
    return found


def stored_size(files: FileCalls, directory: Path) -> int:
    """Bytes of the segments and indexes of a log that nobody has open. Blocking.

    Raises:
        OSError
    """
    size = 0
    for name in files.names(directory):
        if name.endswith((".segment", ".index")):
            fd = files.open(directory / name)
            try:
                size += files.size(fd)
            finally:
                files.close(fd)
    return size


def put_away(
    files: FileCalls, data_dir: Path, stream_id: StreamId, state: StreamState | None
) -> None:
    """Do with a log that nobody has open what the end of its stream asks for.

    None is a stream that manifest does not know. Blocking.

    Raises:
        OSError: the same again is right.
    """
    assert state is not StreamState.ACTIVE
    suffix = GONE if state is None else DELETED
    target = aside_dir(data_dir) / f"{stream_id}{suffix}"
    files.rename(stream_dir(data_dir, stream_id), target)
    files.fsync_dir(target.parent)
    files.fsync_dir(streams_dir(data_dir))
    if state is None:
        log.warning("the log of a stream that is not known was set aside", stream_id=stream_id)
        return
    _remove(files, target)
    log.info("the log of a deleted stream was removed", stream_id=stream_id)


def give_up(
    files: FileCalls, data_dir: Path, stream_id: StreamId, epoch: int, *, published: bool
) -> None:
    """Put away the log of a stream that another node has owned since, up to its `epoch`.

    One that is published whole is in object storage, and goes as that of a deleted stream does;
    of any other an operator may want what nobody else has. Blocking.

    Raises:
        OSError: the same again is right.
    """
    suffix = PUBLISHED if published else ""
    target = aside_dir(data_dir) / f"{stream_id}.{epoch}{suffix}"
    files.rename(stream_dir(data_dir, stream_id), target)
    files.fsync_dir(target.parent)
    files.fsync_dir(streams_dir(data_dir))
    if published:
        _remove(files, target)
        log.info("the log of a stream that moved was removed", stream_id=stream_id)
    else:
        log.warning("an older local log was set aside", stream_id=stream_id, epoch=epoch)


def finish_removals(files: FileCalls, data_dir: Path) -> None:
    """Remove what earlier removals have left.

    Raises:
        OSError: the same again is right.
    """
    for name in files.names(aside_dir(data_dir)):
        if name.endswith((DELETED, PUBLISHED)):
            _remove(files, aside_dir(data_dir) / name)


def _remove(files: FileCalls, directory: Path) -> None:
    for name in files.names(directory):
        files.unlink(directory / name)
    files.remove_dir(directory)
    files.fsync_dir(directory.parent)
