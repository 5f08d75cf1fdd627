"""Rounds of many streams, written and synced together: each has its own outcome, and a slow one
holds nobody who is not in its share."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from support.power_loss import OWN
from support.waiting import eventually

from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.ingest.log.core import round_shares
from bottomless_server.ingest.log.core.batcher import seal_round
from bottomless_server.ingest.log.rounds import RoundWriter
from bottomless_server.ingest.log.segments import (
    LogBroken,
    RollBounds,
    SegmentLog,
    Unsynced,
    WriteRefused,
    Written,
)
from bottomless_server.ingest.log.whole_syncs import WholeSyncs
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.core.file_systems import FileSystem
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
        self.faults: dict[tuple[str, str], list[BaseException | None]] = {}
        """What the next calls of a kind on a stream meet."""
        self.held: set[str] = set()
        """Streams whose syncs wait until the gate is open."""
        self.gate = threading.Event()
        self.waiting: list[str] = []
        self.handles: list[int] = []
        """Those of the file system, in the order in which something was synced by them."""
        self.closed: list[str] = []
        self.lies_on: FileSystem | None = None
        self._written: dict[int, list[str]] = {}
        """By thread, the streams that its next sync of everything covers."""
        self._streams: dict[int, str] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self._streams[fd] = path.parent.name if path.suffix == ".segment" else "-"
        return fd

    def pwritev(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        self._meet("pwritev", fd)
        self._written.setdefault(threading.get_ident(), []).append(self._streams[fd])
        return super().pwritev(fd, parts, position)

    def fdatasync(self, fd: int) -> None:
        self._wait(self._streams[fd])
        self._meet("fdatasync", fd)
        super().fdatasync(fd)

    def open_dir(self, path: Path) -> int:
        fd = super().open_dir(path)
        self._streams[fd] = "all"
        return fd

    def syncfs(self, fd: int) -> None:
        # Not of the real one: who else writes there, and how much, is nothing that a test knows.
        self.handles.append(fd)
        for stream in self._written.pop(threading.get_ident(), []):
            self._wait(stream)
        self._meet("syncfs", fd)

    def close(self, fd: int) -> None:
        super().close(fd)
        self.closed.append(self._streams[fd])

    def file_system(self, _: Path) -> FileSystem | None:
        return self.lies_on

    def _wait(self, stream: str) -> None:
        if stream in self.held:
            self.waiting.append(stream)
            assert self.gate.wait(2 * DEADLINE_SECONDS)

    def _meet(self, call: str, fd: int) -> None:
        stream = self._streams[fd]
        if stream != "-":
            self.calls.append((call, stream))
        if (faults := self.faults.get((call, stream))) and (fault := faults.pop(0)) is not None:
            raise fault


class Bench:
    """Logs of streams named a, b, c, ..., each with one round, and the writer of all of them."""

    def __init__(self, directory: Path, thread_count: int, lies_on: FileSystem | None) -> None:
        self.disk = Disk()
        self.disk.lies_on = lies_on
        self.executor = ThreadPoolExecutor(thread_count)
        whole = WholeSyncs(self.disk, directory, "auto")
        self.writer = RoundWriter(self.executor, thread_count, whole)
        self.writer.open()
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
        log.extend(await self.write(stream))

    def write(
        self, stream: str, send: Callable[[Unsynced], None] | None = None
    ) -> asyncio.Task[Written]:
        log = self.logs[stream]
        rows = Rows([stream.encode() * 100], [Content.BYTES])
        sealed = seal_round(
            [Append(1, rows.size, 7, rows)],
            next_offset=log.synced_next,
            timestamp=1_000,
            epoch=3,
            chunk_size_max=8_192,
        )
        return asyncio.create_task(self.writer.write(log, sealed, 3, 0, lambda: None, send))

    async def hold(
        self, stream: str, send: Callable[[Unsynced], None] | None = None
    ) -> asyncio.Task[Written]:
        """Have the sync of a stream wait at the gate, with the thread that makes it."""
        self.disk.held.add(stream)
        task = self.write(stream, send)
        await eventually(lambda: stream in self.disk.waiting)
        return task

    @property
    def syncs_all(self) -> bool:
        return self.disk.lies_on is not None

    def size(self, stream: str) -> int:
        return len(self.bytes_of(stream))

    def bytes_of(self, stream: str) -> bytes:
        (path,) = (self._directory / stream).glob("*.segment")
        return path.read_bytes()

    async def aclose(self) -> None:
        self.disk.gate.set()
        self.executor.shutdown()
        self.writer.close()


WAYS = {"each": None, "all": OWN}


@pytest.fixture(params=WAYS)
async def one_thread(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    """With files that are synced one by one, and with single rounds synced as the many are."""
    async with _bench(tmp_path, 1, WAYS[request.param], monkeypatch) as made:
        yield made


@pytest.fixture(params=WAYS)
async def more_threads(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    async with _bench(tmp_path, 3, WAYS[request.param], monkeypatch) as made:
        yield made


@pytest.fixture
async def syncing_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with _bench(tmp_path, 1, OWN, monkeypatch) as made:
        yield made


@asynccontextmanager
async def _bench(
    directory: Path, thread_count: int, lies_on: FileSystem | None, patch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    patch.setattr(round_shares, "ALL_FROM", 1)
    # However slow this machine is, a test knows what is synced how.
    patch.setattr(round_shares, "SLOW_SECONDS", 10**6)
    made = Bench(directory, thread_count, lies_on)
    for stream in "abcd":
        await made.begin(stream)
    yield made
    await made.aclose()


async def test_slow_syncs_hold_no_stream_that_is_not_in_them(more_threads: Bench) -> None:
    slow = [await more_threads.hold("a"), await more_threads.hold("b")]

    for _ in range(3):
        for stream in "cd":
            await more_threads.append(stream)

    assert not any(task.done() for task in slow)
    more_threads.disk.gate.set()
    await asyncio.gather(*slow)


async def test_rounds_that_wait_together_share_a_thread_and_come_back_in_one_turn(
    one_thread: Bench,
) -> None:
    first = await one_thread.hold("a")
    turns: dict[str, int] = {}
    turn = 0

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(turns) < 3:
            asyncio.get_running_loop().call_soon(count)

    def note(stream: str, _: asyncio.Task[Written]) -> None:
        turns[stream] = turn

    for stream in "bcd":
        one_thread.write(stream).add_done_callback(partial(note, stream))
    await asyncio.sleep(0)
    one_thread.disk.gate.set()
    await first
    count()
    await eventually(lambda: len(turns) == 3)

    assert len(set(turns.values())) == 1
    syncs = [("syncfs", "all")] if one_thread.syncs_all else [("fdatasync", one) for one in "bcd"]
    expected = [("pwritev", one) for one in "bcd"] + syncs
    assert one_thread.disk.calls[-len(expected) :] == expected


async def test_a_round_is_sent_as_it_lies_in_its_file_while_it_is_being_synced(
    one_thread: Bench,
) -> None:
    before, sent = one_thread.size("a"), list[Unsynced]()
    held = await one_thread.hold("a", sent.append)
    await eventually(lambda: bool(sent))

    [first] = sent
    assert b"".join(first.buffers) == one_thread.bytes_of("a")[before:]
    assert (first.places[0].position, first.size) == (before, one_thread.size("a"))
    assert not held.done()
    one_thread.disk.gate.set()
    assert (await held).round is first


async def test_rounds_of_a_share_are_sent_in_one_turn_whatever_becomes_of_one_of_them(
    one_thread: Bench,
) -> None:
    first = await one_thread.hold("a")
    sent, in_turn = list[str](), list[list[str]]()

    def send(stream: str, _: Unsynced) -> None:
        if not sent:
            asyncio.get_running_loop().call_soon(lambda: in_turn.append(list(sent)))
        sent.append(stream)
        if stream == "c":
            raise RuntimeError("a bug")

    tasks = [one_thread.write(stream, partial(send, stream)) for stream in "bcd"]
    one_thread.disk.gate.set()
    await asyncio.gather(first, *tasks)
    assert in_turn == [["b", "c", "d"]]


async def test_rounds_that_are_not_written_are_not_sent(one_thread: Bench) -> None:
    """The bytes at their places are others soon, under the same epoch."""
    first = await one_thread.hold("a")
    sent = list[Unsynced]()
    tasks = [one_thread.write(stream, sent.append) for stream in "bcd"]
    one_thread.disk.faults["pwritev", "b"] = [no_space()]
    tasks[1].cancel()
    one_thread.disk.gate.set()

    await first
    refused, _, well = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(refused, WriteRefused)
    assert isinstance(well, Written)
    assert sent == [well.round]


async def test_each_round_of_a_share_has_its_own_outcome(one_thread: Bench) -> None:
    """Also where everything is synced at once and that fails: then each file says what it lost."""
    first = await one_thread.hold("a")
    before = one_thread.size("b"), one_thread.size("c")
    tasks = [one_thread.write(stream) for stream in "bcd"]
    faults = one_thread.disk.faults
    faults["pwritev", "b"] = [no_space()]
    faults["fdatasync", "c"] = [broken_disk()]
    faults["syncfs", "all"] = [None, broken_disk()]
    # Of the round that is refused, the end is cut and synced.
    faults["fdatasync", "b"] = [None]
    one_thread.disk.gate.set()

    await first
    refused, broken, well = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(refused, WriteRefused)
    assert isinstance(broken, LogBroken)
    assert isinstance(well, Written)
    assert (one_thread.size("b"), one_thread.size("c")) == before
    assert one_thread.disk.calls[-2:] == [("fdatasync", "c"), ("fdatasync", "d")]
    await one_thread.append("b")


async def test_an_error_that_is_none_of_the_disk_is_that_of_its_stream_alone(
    one_thread: Bench,
) -> None:
    first = await one_thread.hold("a")
    tasks = [one_thread.write(stream) for stream in "bcd"]
    one_thread.disk.faults["pwritev", "b"] = [ZeroDivisionError("a bug")]
    one_thread.disk.faults["syncfs", "all"] = [None, broken_disk()]
    one_thread.disk.faults["fdatasync", "c"] = [MemoryError()]
    one_thread.disk.gate.set()

    await first
    b, c, d = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(b, ZeroDivisionError)
    assert isinstance(c, MemoryError)
    assert isinstance(d, Written)


class Ended(BaseException):
    """What nobody catches on its way out of a thread."""


@pytest.mark.parametrize("end", [Ended(), ZeroDivisionError("a bug")])
async def test_of_a_sync_of_everything_that_nobody_understands_nothing_is_believed(
    syncing_all: Bench, end: BaseException
) -> None:
    first = await syncing_all.hold("a")
    tasks = [syncing_all.write(stream) for stream in "bcd"]
    syncing_all.disk.faults["syncfs", "all"] = [None, end]
    syncing_all.disk.gate.set()

    await first
    assert await asyncio.gather(*tasks, return_exceptions=True) == [end] * 3


async def test_what_ends_a_thread_is_told_to_all_of_its_share_and_the_next_one_goes_on(
    one_thread: Bench,
) -> None:
    first = await one_thread.hold("a")
    tasks = [one_thread.write(stream) for stream in "bcd"]
    end = Ended()
    one_thread.disk.faults["pwritev", "c"] = [end]
    one_thread.disk.gate.set()

    first_written = await first
    assert await asyncio.gather(*tasks, return_exceptions=True) == [end] * 3
    one_thread.logs["a"].extend(first_written)
    await one_thread.append("a")


async def test_two_syncs_of_everything_at_once_have_handles_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _bench(tmp_path, 3, OWN, monkeypatch) as bench:
        slow = await bench.hold("a")
        del bench.disk.handles[:-1]
        await bench.append("b")
        bench.disk.gate.set()
        await slow
        await bench.append("c")
    assert len(set(bench.disk.handles[:2])) == 2
    assert set(bench.disk.handles[2:]) <= set(bench.disk.handles[:2])
    assert bench.disk.closed.count("all") == 2, "what was opened is closed at the end"


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
