"""A directory as a drive: local, or a network file system that is mounted.

One object is one file; its key is its path below the root. What a crash leaves
behind at each step of a put:

    1. temp file made, written        a stale temp file, swept an hour later; no object. Bytes
                                      whose checksum is wrong come no further than this
    2. temp file synced               the same
    3. linked to its name             the object, whole, or no object: never a part of it,
                                      since its bytes were synced before it had a name
    4. directories synced             the object, whole
    5. temp name removed              nothing else; before it, a stale temp name

The bytes of a source go the same way, a block at a time: 1. is many writes then, and bytes that are
missing or wrong come no further than that either.

A delete unlinks and then syncs the directory; between the two a crash may bring the
object back, and the caller, who has not been told that it is gone, deletes it again.
Directories are removed by `tidy` alone, which is for streams that are gone, and only where they
are empty. A put that loses its own in this moment makes it once more. What such a put leaves may
be lost with the power, where a third process made the directory and did not sync it yet: nobody
relies on it, since the stream is gone.
"""

import asyncio
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from bottomless.drives.base import (
    Body,
    DriveAmbiguous,
    Location,
    ObjectExists,
    ObjectMissing,
    Source,
)
from bottomless.errors import StoreError
from bottomless.formats.checks import crc32c
from bottomless.guards import guard
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.checked_parts import require_sum, views_of
from bottomless_server.drives.directories import DURABLE_COUNT_MAX, Directories
from bottomless_server.drives.drive_calls import DriveCalls
from bottomless_server.drives.local_errors import ABSENT, FULL, REFUSED, absent_is_fine, translated
from bottomless_server.drives.object_key import SCRATCH_DIRECTORY, check_object_key
from bottomless_server.drives.past_cache import aligned_block
from bottomless_server.drives.temp_file import TempFile

_Args = ParamSpec("_Args")
_Answer = TypeVar("_Answer")

THREAD_COUNT: Final = 8
"""Calls that block at the same time; more wait. Enough to keep one disk busy."""
STALE_SECONDS: Final = 3600
"""A temp file older than this belongs to a put that died: no put takes an hour."""
READ_SIZE_MAX: Final = 8 * 1024 * 1024
"""Bytes read at once where a whole object is checked."""


class LocalDrive:
    """Objects as files below `root`, which the first put makes if it is absent."""

    def __init__(
        self,
        root: Path,
        calls: DriveCalls | None = None,
        *,
        durable_count_max: int = DURABLE_COUNT_MAX,
    ) -> None:
        self._root = root.absolute()
        self._scratch = self._root / SCRATCH_DIRECTORY
        self._calls = calls or DriveCalls()
        self._threads = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="drive")
        self.directories = Directories(self._root, self._calls, durable_count_max)
        self._prepared = False
        self.kept_blocks: list[memoryview] = []
        """Blocks that nobody uses now, and that need not be made anew: no more than are written at a
        time."""
        self._left: dict[Future[Any], float] = {}
        self._left_puts: dict[Future[Any], float] = {}

    @property
    def location(self) -> Location:
        return Location("file", str(self._root))

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        """Store an object. Cancelling it leaves the attempt running; the object may appear. Of a
        source it does so only once all was written."""
        check_object_key(object_key)
        if isinstance(body, Sequence):
            await self._run_put(self._put, object_key, body, crc)
        else:
            await self._put_source(object_key, body, crc)

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        check_object_key(object_key)
        assert start >= 0
        assert size is None or size >= 0
        return await self._run(self._get, object_key, start, size)

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        check_object_key(object_key)
        return await self._run(self._head, object_key, checksum)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        """List objects; one directory at a time is read, and held in memory."""
        # A directory sorts as its name with a slash, which is where its keys begin:
        # `a.b` comes before `a/b`, though the name `a` comes before `a.b`.
        top = prefix.rpartition("/")[0]
        waiting: list[Iterator[ObjectFacts | str]] = [iter([f"{top}/" if top else ""])]
        while waiting:
            found = next(waiting[-1], None)
            if found is None:
                waiting.pop()
            elif isinstance(found, str):
                waiting.append(iter(await self._run(self._scan, found, prefix, after)))
            else:
                yield found

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        for object_key in object_keys:
            check_object_key(object_key)
        return await self._run(self._delete, object_keys)

    async def tidy(self, prefix: str) -> None:
        assert prefix.endswith("/")
        check_object_key(prefix[:-1])
        await self._run(self.directories.remove_empty, self._root / prefix)

    @property
    def has_own_clock(self) -> bool:
        """It has not: whoever sets the clock of the machine sets both."""
        return False

    async def clock(self) -> int:
        """Tell the time; a directory has the clock of the machine that mounts it."""
        return time.time_ns() // 1_000_000

    @property
    def left_calls(self) -> tuple[float, ...]:
        """When calls but puts began whose callers were cancelled and that have not come back, by the clock
        of the loop: a thread cannot be ended. With those of puts there are no more than threads."""
        return tuple(self._left.values())

    @property
    def left_puts(self) -> tuple[float, ...]:
        """When puts, or parts of them, began whose callers were cancelled and that have not come back."""
        return tuple(self._left_puts.values())

    async def aclose(self) -> None:
        """Wait for what still runs, and end the threads."""
        await asyncio.to_thread(self._threads.shutdown)

    async def _run(
        self,
        call: Callable[_Args, _Answer],
        *args: _Args.args,
        **kwargs: _Args.kwargs,
    ) -> _Answer:
        return await self._awaited(self._threads.submit(call, *args, **kwargs), self._left)

    async def _run_put(
        self, call: Callable[_Args, _Answer], *args: _Args.args, **kwargs: _Args.kwargs
    ) -> _Answer:
        return await self._awaited(self._threads.submit(call, *args, **kwargs), self._left_puts)

    async def _awaited(self, running: Future[_Answer], left: dict[Future[Any], float]) -> _Answer:
        began = asyncio.get_running_loop().time()
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if not running.done():
                left[running] = began
                # In its thread, at its end; at once if that has come meanwhile.
                running.add_done_callback(lambda ended: left.pop(ended, None))
            raise

    async def _put_source(self, object_key: str, source: Source, crc: int) -> None:
        path = self._root / object_key
        temp = TempFile(self._calls, self._scratch / secrets.token_hex(16))
        block = self.kept_blocks.pop() if self.kept_blocks else aligned_block()
        try:
            await self._run_put(self._begin, temp, path)
            for position in range(0, source.size, block.nbytes):
                part = block[: min(block.nbytes, source.size - position)]
                await source.read_into(position, part)
                await self._run_put(self._write, temp, part)
            await self._run_put(self._finish, temp, path, crc)
        except BaseException:
            # Not at once: a call for it may be running in a thread. And not the block again. A
            # drive that was closed meanwhile has no threads: its temp files go as those of the dead.
            with suppress(RuntimeError):
                self._threads.submit(temp.discard)
            raise
        if len(self.kept_blocks) < THREAD_COUNT:
            self.kept_blocks.append(block)

    # What follows blocks, and runs in a thread.

    def _begin(self, temp: TempFile, path: Path) -> None:
        with translated():
            self._prepare()
            self.directories.make_ready(path.parent)
            temp.create()

    def _write(self, temp: TempFile, part: memoryview) -> None:
        with translated():
            temp.write(part)

    def _finish(self, temp: TempFile, path: Path, crc: int) -> None:
        with translated():
            temp.close_durably(crc)
            try:
                self._link(temp.path, path)
            finally:
                temp.discard()

    def _put(self, object_key: str, parts: Sequence[bytes | memoryview], crc: int) -> None:
        views = views_of(parts)
        path = self._root / object_key
        with translated():
            self._prepare()
            self.directories.make_ready(path.parent)
            temp = self._scratch / secrets.token_hex(16)
            try:
                self._write_durably(temp, views, crc)
                self._link(temp, path)
            finally:
                with suppress(OSError):
                    self._calls.unlink(temp)

    def _write_durably(self, temp: Path, views: Sequence[memoryview], crc: int) -> None:
        file = self._calls.create(temp)
        try:
            # Summed on their way to the disk, not before: then they come from memory once.
            require_sum(self._calls.write(file, views), crc)
            self._calls.sync_file(file)
        finally:
            os.close(file)

    def _link(self, temp: Path, path: Path) -> None:
        try:
            self._link_durably(temp, path)
        except FileNotFoundError:
            self.directories.make_ready(path.parent, anew=True)
            self._link_durably(temp, path)

    def _link_durably(self, temp: Path, path: Path) -> None:
        exists = False
        try:
            self._calls.link(temp, path)
        except FileExistsError:
            exists = True
        except FileNotFoundError:
            raise
        except OSError as error:
            # A network file system may have done it and lost the reply.
            if error.errno in FULL | REFUSED:
                raise
            raise DriveAmbiguous("the object may have got its name") from error
        # Also for an object that was there: whoever put it may have died before this
        # sync, and who hears that it exists will rely on it.
        sync_name(self._calls, path)
        if exists:
            raise ObjectExists("an object of this key exists")

    def _prepare(self) -> None:
        """Before the first put: make the root, and sweep what dead puts left."""
        if self._prepared:
            return
        self.directories.make(self._scratch)
        oldest = time.time() - STALE_SECONDS
        for entry in os.scandir(self._scratch):
            # Another process may sweep at the same time.
            with suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    self._calls.unlink(Path(entry.path))
        self._prepared = True

    def _get(self, object_key: str, start: int, size: int | None) -> bytes:
        with translated(), self._opened(object_key) as file:
            # Bounded by what is there: pread makes room for all it is asked for.
            rest = max(0, os.fstat(file).st_size - start)
            size = rest if size is None else min(size, rest)
            pieces = []
            while size and (piece := os.pread(file, size, start)):
                pieces.append(piece)
                start += len(piece)
                size -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _head(self, object_key: str, checksum: bool) -> ObjectFacts:
        with translated(), self._opened(object_key) as file:
            crc = _checksum(file) if checksum else None
            return _facts(object_key, os.fstat(file), crc)

    @contextmanager
    def _opened(self, object_key: str) -> Iterator[int]:
        try:
            file = os.open(self._root / object_key, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in ABSENT:
                raise ObjectMissing("no object has this key") from error
            raise
        try:
            if stat.S_ISDIR(os.fstat(file).st_mode):
                raise ObjectMissing("no object has this key")
            yield file
        finally:
            os.close(file)

    def _scan(self, directory: str, prefix: str, after: str) -> Sequence[ObjectFacts | str]:
        """Objects and directories (their keys end in a slash) of one directory, in key order."""
        found: list[tuple[str, ObjectFacts | str]] = []
        with translated():
            try:
                entries = list(os.scandir(self._root / directory))
            except OSError as error:
                if error.errno in ABSENT:
                    return []
                raise
            for entry in entries:
                key = directory + entry.name
                if key == SCRATCH_DIRECTORY or not key.isascii():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    below = f"{key}/"
                    wanted = below.startswith(prefix) or prefix.startswith(below)
                    if wanted and (below > after or after.startswith(below)):
                        found.append((below, below))
                elif key.startswith(prefix) and key > after:
                    # It may have been deleted since the directory was read.
                    with suppress(FileNotFoundError):
                        found.append((key, _facts(key, entry.stat(follow_symlinks=False), None)))
        found.sort(key=lambda item: item[0])
        return [item for _, item in found]

    def _delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        failures: dict[str, StoreError] = {}
        by_directory: dict[Path, list[str]] = {}
        for object_key in object_keys:
            path = self._root / object_key
            by_directory.setdefault(path.parent, []).append(object_key)
            try:
                with translated(), absent_is_fine():
                    self._calls.unlink(path)
            except StoreError as error:
                failures[object_key] = error
        for directory, keys in by_directory.items():
            # Also where every object was absent: it may have been unlinked, but not synced,
            # by a process that died.
            try:
                with translated(), absent_is_fine():
                    self._calls.sync_directory(directory)
            except StoreError as error:
                failures.update(dict.fromkeys(keys, error))
        return failures


def _checksum(file: int) -> int:
    crc, position = 0, 0
    while piece := os.pread(file, READ_SIZE_MAX, position):
        crc = crc32c(piece, crc)
        position += len(piece)
    return crc


def _facts(object_key: str, found: os.stat_result, crc: int | None) -> ObjectFacts:
    return ObjectFacts(object_key, found.st_size, found.st_mtime_ns // 1_000_000, crc)


@guard("sync of the directory of an object (directory drive)")
def sync_name(calls: DriveCalls, path: Path) -> None:
    """Return when an object keeps its name, whatever loses power.

    Raises:
        DriveAmbiguous: it has its name, and may lose it again.
    """
    try:
        calls.sync_directory(path.parent)
    except OSError as error:
        raise DriveAmbiguous("the object has its name, but may lose it again") from error
