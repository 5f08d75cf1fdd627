"""What is done with message files in the background: removal of those of which nothing is needed, compaction.

Both are generators of steps (`store/`), which say what is on disk after a crash in each of them. Here
each step is done where it belongs: changes of the ledger in rounds, file calls in a thread, and what
waits for readers waits. A step that was begun is always ended, also at a stop; what is left undone is
done after the next start.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from bottomless.errors import Code, Outcome, StoreError
from bottomless.formats.message_file import HEADER_SIZE
from bottomless.model.backoff import backoff
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.queues.core.compaction_plan import is_candidate
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import FileRow, Ledger
from bottomless_server.queues.ports import WriteFailed
from bottomless_server.queues.rounds.rounds import Rounds
from bottomless_server.queues.rounds.work import Look, Work
from bottomless_server.queues.settings import EngineSettings
from bottomless_server.queues.store.compaction import CompactionResult, Ended, compact
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.pins import Pins
from bottomless_server.queues.store.removal import remove_doomed
from bottomless_server.queues.store.rewriting import rewrite
from bottomless_server.queues.store.steps import Done, InRound, OnDisk, Step
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)
T = TypeVar("T")

_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0
"""Pauses before a change of the ledger is tried again that was refused."""
LATER_SECONDS: Final = 60.0
"""After which a removal or a compaction that did not work is tried again."""


class _GivenUp(Exception):
    """The engine stops, and a change was refused so long: the next start ends what was begun."""


@dataclass
class _InLedger:
    """A change of rows of files, as a change of a round."""

    change: Callable[[Ledger], Any]
    size: int = 0
    done: Done | None = None

    def apply(self, work: Work) -> Done:
        self.done = Done(self.change(work.ledger), work.number)
        return self.done


class _Quiet(NamedTuple):
    valid: int
    since: float
    """Since when it is so, on the loop's clock."""


class Place(NamedTuple):
    """The message files of a store."""

    files: FileCalls
    directory: Path
    descriptors: Descriptors
    pins: Pins
    free_bytes: Callable[[], int]


class Housekeeping:
    """Looks after message files. `start` begins, `stop` ends it."""

    def __init__(
        self, rounds: Rounds, place: Place, threads: ThreadPoolExecutor, settings: EngineSettings
    ) -> None:
        self._rounds = rounds
        self._place = place
        self._threads = threads
        self._settings = settings
        self._quiet: dict[int, _Quiet] = {}
        self._asked: set[int] = set()
        """Files that somebody wants to be compacted now."""
        self._later: dict[tuple[int, FileState], float] = {}
        """Files with which something did not work in the state that they had, and until when they are
        left alone in it: one that did not compact is removed at once when nothing in it is needed."""
        self._is_more = False
        """Whether to look again although nothing changes."""
        self._looked_at = 0.0
        """When all files were looked at last, on the loop's clock."""
        self._turn = asyncio.Event()
        self._stopping = asyncio.Event()
        self._tending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.disk_bytes = 0
        """Bytes of all message files, as of the last look."""
        self.ended: Counter[Ended] = Counter()
        """How compactions and rewrites ended, since the start."""
        self.moved_bytes = 0

    def start(self) -> None:
        self._turn.set()
        self._task = asyncio.create_task(endless("queue files", self._step))

    async def stop(self) -> None:
        """Return when the step that is under way has ended."""
        self._stopping.set()
        self._turn.set()
        if self._task is not None:
            await self._task

    def wake(self) -> None:
        """Say that rows may have changed."""
        self._turn.set()

    async def ask(self) -> int:
        """Have all sealed files with a gap compacted, without a pause; returns how many there are."""
        rows, _ = await self._look()
        found = {row.number for row in rows if _has_gap(row)}
        self._asked |= found
        self._turn.set()
        return len(found)

    async def _step(self) -> float | None:
        await self._turn.wait()
        if self._stopping.is_set():
            return None
        self._turn.clear()
        try:
            await self.tend()
        except (StoreError, _GivenUp) as error:
            log.info("message files are left alone", error=str(error))
            self._is_more = True
        if self._is_more:
            self._turn.set()
        await self._is_stopped_within(self._settings.housekeeping_ms / 1000)
        return 0

    async def tend(self) -> bool:
        """Remove and compact what is due; returns whether there was anything.

        Raises:
            StoreError: the ledger does not say what is there.
        """
        async with self._tending:
            return await self._tend()

    async def _look(self) -> tuple[list[FileRow], int]:
        """All files, and the highest number of version 1; -1 where none is."""

        def look(there: Look) -> tuple[list[FileRow], int]:
            last_v1 = there.ledger.store().last_v1_file
            return there.ledger.files(), -1 if last_v1 is None else last_v1

        return await self._rounds.look(look)

    async def _tend(self) -> bool:
        rows, did = await self._look_and_remove()
        now = asyncio.get_running_loop().time()
        candidates = [row for row in rows if self._is_wanted(row)]
        self._asked &= {row.number for row in candidates}
        quiet = {row.number: self._quiet_since(row, now) for row in candidates}
        self._quiet = quiet
        for row in candidates:
            is_quiet = now - quiet[row.number].since >= self._settings.compact_quiet_ms / 1000
            is_due = row.number in self._asked or (is_quiet and not self._is_left(row))
            if is_due and not self._stopping.is_set():
                self._asked.discard(row.number)
                moved = self.moved_bytes
                did |= await self._compact(row)
                did |= await self._pause_after(self.moved_bytes - moved)
        self._is_more = bool(candidates or self._later)
        return did

    async def _look_and_remove(self) -> tuple[list[FileRow], bool]:
        """All files, after those are removed that nobody needs, and whether there was one."""
        rows, last_v1 = await self._look()
        self.disk_bytes = sum(row.size for row in rows)
        now = self._looked_at = asyncio.get_running_loop().time()
        self._later = {what: until for what, until in self._later.items() if until > now}
        did = False
        for row in rows:
            is_due = row.state is FileState.DOOMED and not self._is_left(row)
            if is_due and not self._stopping.is_set():
                did |= await self._remove(row.number, is_version_1=row.number <= last_v1)
        return rows, did

    async def _pause_after(self, moved_bytes: int) -> bool:
        """Wait for as long as moving so much has to take, and go on looking and removing meanwhile: many
        compactions take minutes, in which files become empty, and the disk fuller.
        """
        rate = self._settings.compact_bytes_per_second
        every = self._settings.housekeeping_ms / 1000
        loop = asyncio.get_running_loop()
        until = loop.time() + (moved_bytes / rate if rate else 0)
        did = False
        while (left := until - loop.time()) > 0 and not self._stopping.is_set():
            await self._is_stopped_within(min(left, every))
            if loop.time() >= self._looked_at + every:
                did |= (await self._look_and_remove())[1]
        return did

    def _is_wanted(self, row: FileRow) -> bool:
        return _has_gap(row) and (row.number in self._asked or self._is_candidate(row))

    def _is_candidate(self, row: FileRow) -> bool:
        return is_candidate(row.valid, row.size, self._settings.compact_live_share)

    def _quiet_since(self, row: FileRow, now: float) -> _Quiet:
        seen = self._quiet.get(row.number)
        return seen if seen is not None and seen.valid == row.valid else _Quiet(row.valid, now)

    async def _remove(self, number: int, *, is_version_1: bool) -> bool:
        files, directory, descriptors, *_ = self._place
        steps = remove_doomed(files, directory, number, descriptors, is_version_1=is_version_1)
        try:
            await self._drive(steps)
        except OSError as error:
            log.warning("a message file is not removed", file=number, error=str(error))
            self._leave(number, FileState.DOOMED)
            return False
        return True

    async def _compact(self, row: FileRow) -> bool:
        files, directory, *_ = self._place
        share, has_room = self._settings.compact_live_share, True
        if not self._is_candidate(row):
            # Somebody asked for it: what can be saved in place is, and no file is written anew for it.
            share, has_room = 1.0, False
        elif not self._has_room(row.valid):
            has_room = False
        result = await self._drive(
            compact(files, directory, row.number, live_share=share, has_room=has_room)
        )
        self._note(row.number, result)
        if result.ended is Ended.REWRITE:
            result = await self._drive(rewrite(files, directory, row.number))
            self._note(row.number, result)
        return result.ended is Ended.COMPACTED

    def _has_room(self, size: int) -> bool:
        """Whether the disk has room for a file of so many bytes, and for the rounds beside."""
        try:
            return self._place.free_bytes() >= self._settings.free_bytes_min + size
        except WriteFailed:
            return False

    def _is_left(self, row: FileRow) -> bool:
        return (row.number, row.state) in self._later

    def _leave(self, file: int, state: FileState) -> None:
        """Leave a file alone for a while: what did not work now would not work at once either."""
        self._later[file, state] = asyncio.get_running_loop().time() + LATER_SECONDS

    def _note(self, file: int, result: CompactionResult) -> None:
        self.ended[result.ended] += 1
        self.moved_bytes += result.moved_bytes
        if result.ended in (Ended.FAILED, Ended.NOT_NEEDED):
            self._leave(file, FileState.SEALED)
        if result.ended in (Ended.DAMAGED, Ended.FAILED):
            log.error(
                "a message file could not be compacted",
                file=file,
                ended=result.ended.value,
                error=str(result.error),
            )

    # Steps

    async def _drive(self, steps: Generator[Step, Any, T]) -> T:
        """Do steps one after the other, each where it belongs; returns what the generator returns."""
        sent: Any = None
        error: Exception | None = None
        while not self._rounds.is_over:
            try:
                step = steps.send(sent) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            sent = error = None
            if isinstance(step, InRound):
                sent = await self._in_round(step.change)
            elif isinstance(step, OnDisk):
                sent, error = await self._on_disk(step.call)
            else:
                await self._until_unpinned(step.file, step.up_to)
        raise _GivenUp

    async def _in_round(self, call: Callable[[Ledger], Any]) -> Done:
        change = _InLedger(call)
        failures = 0
        while not self._rounds.is_over:
            try:
                done: Done = await self._rounds.do(change)
            except StoreError as failed:
                if failed.outcome is Outcome.COMMITTED and change.done is not None:
                    return change.done
                if failed.outcome is not Outcome.NONE or failed.code is Code.DRAINING:
                    break
                pause = backoff(failures, _PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX)
                failures += 1
                if await self._is_stopped_within(pause):
                    break
            else:
                return done
        raise _GivenUp

    async def _on_disk(self, call: Callable[[], Any]) -> tuple[Any, Exception | None]:
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, call), None
        except Exception as error:  # noqa: BLE001 the generator says what it makes of it
            return None, error

    async def _until_unpinned(self, file: int, up_to: int) -> None:
        pins = self._place.pins
        loop = asyncio.get_running_loop()
        freed = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(freed.set)

        pins.on_release = wake
        try:
            while not pins.is_free(file, up_to):
                await freed.wait()
                freed.clear()
        finally:
            pins.on_release = None

    async def _is_stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True


def _has_gap(row: FileRow) -> bool:
    return row.state is FileState.SEALED and row.valid + HEADER_SIZE < row.size
