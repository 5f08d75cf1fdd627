"""Rounds of many streams, written and synced together: each has its own outcome, and a slow one
holds nobody who is not in its share."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.waiting import eventually

from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.ingest.log.core.batcher import seal_round
from bottomless_server.ingest.log.rounds import RoundWriter
from bottomless_server.ingest.log.segments import (
    LogBroken,
    RollBounds,
    SegmentLog,
    WriteRefused,
    Written,
)
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.file_calls import RealFileCalls
from unit.ingest.harness import (
    DEADLINE_SECONDS,
    STREAM,
    IngestHarness,
    RecordedFiles,
    broken_disk,
    no_space,
)

ROLL = RollBounds(size_max=10**9, age_ms_max=10**9, chunk_count_max=10**6)


class Disk(RealFileCalls):
    """Real calls on the files of streams, by stream; some fail, and some wait at a gate."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.faults: dict[tuple[str, str], BaseException] = {}
        """By call and stream; each happens once."""
        self.held: set[str] = set()
        """Streams whose syncs wait until the gate is open."""
        self.gate = threading.Event()
        self.waiting: list[str] = []
        self.threads: dict[str, int] = {}
        """By stream, the thread that synced it last."""
        self._streams: dict[int, str] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self._streams[fd] = path.parent.name if path.suffix == ".segment" else "-"
        return fd

    def pwritev(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        self._meet("pwritev", fd)
        return super().pwritev(fd, parts, position)

    def fdatasync(self, fd: int) -> None:
        stream = self._streams[fd]
        if stream in self.held:
            self.waiting.append(stream)
            assert self.gate.wait(2 * DEADLINE_SECONDS)
        self._meet("fdatasync", fd)
        super().fdatasync(fd)
        self.threads[stream] = threading.get_ident()

    def _meet(self, call: str, fd: int) -> None:
        stream = self._streams[fd]
        self.calls.append((call, stream))
        if (fault := self.faults.pop((call, stream), None)) is not None:
            raise fault


class Bench:
    """Logs of streams named a, b, c, ..., each with one round, and the writer of all of them."""

    def __init__(self, directory: Path, thread_count: int) -> None:
        self.disk = Disk()
        self.executor = ThreadPoolExecutor(thread_count)
        self.writer = RoundWriter(self.executor, thread_count)
        self.logs: dict[str, SegmentLog] = {}
        self._directory = directory

    async def begin(self, stream: str) -> None:
        """A log that is open, so that what follows is one write and one sync."""
        directory = self._directory / stream
        directory.mkdir()
        self.logs[stream] = SegmentLog(
            self.disk, directory, STREAM, ROLL, segments=[], next_offset=0, last_timestamp=0
        )
        await self.append(stream)
        self.disk.calls.clear()

    async def append(self, stream: str) -> None:
        log = self.logs[stream]
        log.commit(await self.write(stream))

    def write(self, stream: str) -> asyncio.Task[Written]:
        log = self.logs[stream]
        rows = Rows([stream.encode() * 100], [Content.BYTES])
        sealed = seal_round(
            [Append(1, rows.size, 7, rows)],
            next_offset=log.next_offset,
            timestamp=1_000,
            epoch=3,
            chunk_size_max=8_192,
        )
        return asyncio.create_task(self.writer.write(log, sealed, 3, 0, lambda: None))

    async def hold(self, stream: str) -> asyncio.Task[Written]:
        """Have the sync of a stream wait at the gate, with the thread that makes it."""
        self.disk.held.add(stream)
        task = self.write(stream)
        await eventually(lambda: stream in self.disk.waiting)
        return task

    def size(self, stream: str) -> int:
        (path,) = (self._directory / stream).glob("*.segment")
        return path.stat().st_size


@pytest.fixture
async def one_thread(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, 1)
    for stream in "abcd":
        await made.begin(stream)
    yield made
    made.disk.gate.set()
    made.executor.shutdown()


@pytest.fixture
async def two_threads(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, 2)
    for stream in "abcd":
        await made.begin(stream)
    yield made
    made.disk.gate.set()
    made.executor.shutdown()


async def test_a_slow_sync_holds_no_stream_that_is_not_in_it(two_threads: Bench) -> None:
    slow = await two_threads.hold("a")

    for _ in range(5):
        for stream in "bcd":
            await two_threads.append(stream)

    assert not slow.done()
    two_threads.disk.gate.set()
    await slow


async def test_rounds_that_wait_together_share_a_thread_and_come_back_in_one_turn(
    one_thread: Bench,
) -> None:
    first = await one_thread.hold("a")
    done: list[str] = []
    turns: dict[str, int] = {}
    turn = 0

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(turns) < 3:
            asyncio.get_running_loop().call_soon(count)

    for stream in "bcd":
        task = one_thread.write(stream)
        task.add_done_callback(lambda _, stream=stream: turns.setdefault(stream, turn))
        done.append(stream)
    await asyncio.sleep(0)
    one_thread.disk.gate.set()
    await first
    count()
    await eventually(lambda: len(turns) == 3)

    assert len(set(turns.values())) == 1
    expected = [("pwritev", one) for one in "bcd"] + [("fdatasync", one) for one in "bcd"]
    assert [call for call in one_thread.disk.calls if call[1] in done] == expected


async def test_each_round_of_a_share_has_its_own_outcome(one_thread: Bench) -> None:
    first = await one_thread.hold("a")
    before = one_thread.size("b"), one_thread.size("c")
    tasks = [one_thread.write(stream) for stream in "bcd"]
    one_thread.disk.faults["pwritev", "b"] = no_space()
    one_thread.disk.faults["fdatasync", "c"] = broken_disk()
    one_thread.disk.gate.set()

    await first
    refused, broken, well = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(refused, WriteRefused)
    assert isinstance(broken, LogBroken)
    assert isinstance(well, Written)
    assert (one_thread.size("b"), one_thread.size("c")) == before
    await one_thread.append("b")


async def test_an_error_that_is_none_of_the_disk_is_that_of_its_stream_alone(
    one_thread: Bench,
) -> None:
    first = await one_thread.hold("a")
    tasks = [one_thread.write(stream) for stream in "bcd"]
    one_thread.disk.faults["pwritev", "b"] = ZeroDivisionError("a bug")
    one_thread.disk.faults["fdatasync", "c"] = MemoryError()
    one_thread.disk.gate.set()

    await first
    b, c, d = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(b, ZeroDivisionError)
    assert isinstance(c, MemoryError)
    assert isinstance(d, Written)


async def test_what_ends_a_thread_is_told_to_all_of_its_share_and_the_next_one_goes_on(
    one_thread: Bench,
) -> None:
    class Ended(BaseException):
        pass

    first = await one_thread.hold("a")
    tasks = [one_thread.write(stream) for stream in "bcd"]
    one_thread.disk.faults["fdatasync", "c"] = Ended()
    one_thread.disk.gate.set()

    await first
    assert all(
        isinstance(one, Ended) for one in await asyncio.gather(*tasks, return_exceptions=True)
    )
    await one_thread.append("a")


async def test_who_is_cancelled_while_it_waits_writes_nothing_and_holds_nobody(
    one_thread: Bench,
) -> None:
    first = await one_thread.hold("a")
    size = one_thread.size("b")
    gone, stays = one_thread.write("b"), one_thread.write("c")
    await asyncio.sleep(0)
    gone.cancel()
    one_thread.disk.gate.set()

    assert isinstance(await stays, Written)
    await first
    assert gone.cancelled()
    assert one_thread.size("b") == size


async def test_who_is_cancelled_while_it_is_written_holds_nobody(one_thread: Bench) -> None:
    gone = await one_thread.hold("a")
    stays = one_thread.write("b")
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    one_thread.disk.gate.set()

    assert isinstance(await stays, Written)


async def test_when_no_thread_takes_anything_any_more_everybody_hears_it(
    one_thread: Bench,
) -> None:
    one_thread.executor.shutdown()

    tasks = [one_thread.write(stream) for stream in "ab"]
    heard = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(one) for one in heard] == [RuntimeError, RuntimeError]
    assert one_thread.disk.calls == []


class HeldFiles(RecordedFiles):
    """Files whose segments' syncs wait at a gate, once it is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def fdatasync(self, fd: int) -> None:
        if self._paths[fd].endswith(".segment"):
            assert self.gate.wait(2 * DEADLINE_SECONDS)
        super().fdatasync(fd)

    def close(self, fd: int) -> None:
        super().close(fd)
        self.note("close", self._paths[fd])


async def test_a_stream_that_is_closed_while_it_is_synced_answers_and_closes_its_files_after_it(
    tmp_path: Path,
) -> None:
    files = HeldFiles()
    harness = await IngestHarness(tmp_path / "ingest", files=files).declare()
    await harness.start()
    await harness.append("before")
    appender = harness.appender
    files.gate.clear()
    files.calls.clear()
    append = asyncio.create_task(harness.append("a"))
    await eventually(lambda: any(call.name == "pwritev" for call in files.calls))

    closing = asyncio.create_task(appender.close(not_owner(), leave=False))
    await asyncio.sleep(0)
    assert not closing.done()
    files.gate.set()

    await closing
    assert (await append).status_code == 200
    of_segment = [call.name for call in files.calls if call.path.endswith(".segment")]
    assert of_segment == ["pwritev", "fdatasync", "close"]
    await harness.aclose()
