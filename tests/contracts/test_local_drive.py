"""What a directory drive does to its disk: the order of its calls, faults, and a kill."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.sources import Bytes

from bottomless.drives.base import (
    DriveAmbiguous,
    DriveFull,
    DriveRefused,
    DriveUnavailable,
    Location,
    ObjectExists,
)
from bottomless.errors import StoreError
from bottomless.formats.checks import crc32c
from bottomless_server.drives.drive_calls import DriveCalls
from bottomless_server.drives.local import THREAD_COUNT, LocalDrive

BODY = b"body"


class RecordedCalls(DriveCalls):
    """Writes down every call, and lets those in `faults` fail."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: list[str] = []
        self.faults: dict[str, int] = {}

    def create(self, path: Path) -> int:
        self._note("create")
        return super().create(path)

    def write(self, file: int, parts: Sequence[memoryview], crc: int = 0) -> int:
        self._note("write")
        return super().write(file, parts, crc)

    def sync_file(self, file: int) -> None:
        self._note("sync file")
        super().sync_file(file)

    def link(self, source: Path, target: Path) -> None:
        self._note("link", target)
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._note("unlink", None if path.parent.name == ".tmp" else path)
        super().unlink(path)

    def make_directory(self, path: Path) -> None:
        self._note("make", path)
        super().make_directory(path)

    def remove_directory(self, path: Path) -> None:
        self._note("remove", path)
        super().remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        self._note("sync", path)
        super().sync_directory(path)

    def _note(self, call: str, path: Path | None = None) -> None:
        self.seen.append(f"{call} {os.path.relpath(path, self.root)}" if path else call)
        if number := self.faults.get(call):
            raise OSError(number, os.strerror(number))


@asynccontextmanager
async def a_drive(root: Path) -> AsyncIterator[tuple[LocalDrive, RecordedCalls]]:
    calls = RecordedCalls(root)
    drive = LocalDrive(root, calls)
    yield drive, calls
    await drive.aclose()


async def put(drive: LocalDrive, object_key: str) -> None:
    await drive.put(object_key, [BODY], crc32c(BODY))


async def test_bytes_are_durable_before_they_have_a_name_and_the_name_before_the_return(
    tmp_path: Path,
) -> None:
    async with a_drive(tmp_path / "store") as (drive, calls):
        await put(drive, "a/b/one")

        assert calls.seen == [
            "make .",
            "sync ..",
            "make .tmp",
            "sync .",
            "make a",
            "sync .",
            "make a/b",
            "sync a",
            "create",
            "write",
            "sync file",
            "link a/b/one",
            "sync a/b",
            "unlink",
        ]


async def test_directories_known_to_be_durable_are_not_synced_again(tmp_path: Path) -> None:
    async with a_drive(tmp_path) as (drive, calls):
        await put(drive, "a/b/one")
        calls.seen.clear()
        await put(drive, "a/b/two")

        assert calls.seen == ["create", "write", "sync file", "link a/b/two", "sync a/b", "unlink"]


async def test_an_object_of_a_dead_process_is_synced_before_it_is_said_to_exist(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_bytes(BODY)
    async with a_drive(tmp_path) as (drive, calls):
        with pytest.raises(ObjectExists):
            await put(drive, "a/one")

        assert calls.seen[-5:] == ["write", "sync file", "link a/one", "sync a", "unlink"]
        assert calls.seen[-8:-6] == ["make a", "sync ."]


async def test_a_delete_is_synced_also_where_nothing_was_left_to_delete(tmp_path: Path) -> None:
    async with a_drive(tmp_path) as (drive, calls):
        await put(drive, "a/one")
        await put(drive, "b/one")
        calls.seen.clear()
        await drive.delete(["a/one", "b/one", "a/two"])

        assert calls.seen == ["unlink a/one", "unlink b/one", "unlink a/two", "sync a", "sync b"]


@pytest.mark.parametrize(
    ("call", "number", "wanted"),
    [
        ("write", errno.ENOSPC, DriveFull),
        ("create", errno.EDQUOT, DriveFull),
        ("sync file", errno.EIO, DriveUnavailable),
        ("create", errno.EROFS, DriveRefused),
        ("link", errno.EOPNOTSUPP, DriveRefused),
        ("link", errno.EIO, DriveAmbiguous),
    ],
)
async def test_a_put_that_fails_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, call: str, number: int, wanted: type[StoreError]
) -> None:
    async with a_drive(tmp_path) as (drive, calls):
        await put(drive, "a/one")
        calls.faults = {call: number}
        with pytest.raises(wanted) as raised:
            await put(drive, "a/two")

        assert type(raised.value) is wanted
        assert [facts.object_key async for facts in drive.list()] == ["a/one"]
        assert list((tmp_path / ".tmp").iterdir()) == []


async def test_a_name_that_could_not_be_synced_is_an_unknown_outcome(tmp_path: Path) -> None:
    async with a_drive(tmp_path) as (drive, calls):
        await put(drive, "a/one")
        calls.faults = {"sync": errno.EIO}
        with pytest.raises(DriveAmbiguous):
            await put(drive, "a/two")


async def test_keys_that_could_not_be_deleted_are_named(tmp_path: Path) -> None:
    async with a_drive(tmp_path) as (drive, calls):
        await put(drive, "a/one")
        calls.faults = {"unlink": errno.EIO}
        failures = await drive.delete(["a/one"])
        calls.faults = {"sync": errno.EIO}
        unsynced = await drive.delete(["a/one", "a/two"])

        assert {key: type(error) for key, error in failures.items()} == {"a/one": DriveUnavailable}
        assert sorted(unsynced) == ["a/one", "a/two"]


async def test_only_temp_files_older_than_an_hour_are_swept(tmp_path: Path) -> None:
    scratch = tmp_path / ".tmp"
    scratch.mkdir()
    (scratch / "young").touch()
    (scratch / "old").touch()
    os.utime(scratch / "old", (1, 1))
    async with a_drive(tmp_path) as (drive, _):
        await put(drive, "a/one")

        assert [path.name for path in scratch.iterdir()] == ["young"]


async def test_reading_makes_nothing(tmp_path: Path) -> None:
    async with a_drive(tmp_path / "store") as (drive, calls):
        assert [facts async for facts in drive.list()] == []
        assert drive.location == Location("file", str(tmp_path / "store"))
        assert calls.seen == []
        assert not (tmp_path / "store").exists()


async def test_foreign_names_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "ä").touch()
    (tmp_path / "lost+found").mkdir()
    async with a_drive(tmp_path) as (drive, _):
        await put(drive, "a")

        assert [facts.object_key async for facts in drive.list()] == ["a"]


PUTTER = """
import asyncio, itertools, sys
from pathlib import Path
from bottomless_server.drives.local import THREAD_COUNT, LocalDrive
from bottomless.formats.checks import crc32c

async def main() -> None:
    drive = LocalDrive(Path(sys.argv[1]))
    async def put(worker: int) -> None:
        for number in itertools.count():
            key = f"a/{worker}/{number}"
            data = key.encode() * 50_000
            await drive.put(key, [data[:100], data[100:]], crc32c(data))
            print(key, flush=True)
    await asyncio.gather(*(put(worker) for worker in range(4)))

asyncio.run(main())
"""


def kill_during_puts(root: Path) -> list[str]:
    """The keys whose put returned in a process that was killed while it went on putting."""
    putter = subprocess.Popen(
        [sys.executable, "-c", PUTTER, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert putter.stdout is not None
    with putter, putter.stdout as output:
        answered = [output.readline().strip() for _ in range(20)]
        putter.kill()
        return answered + [line.strip() for line in output if line.endswith("\n")]


async def test_a_process_that_is_killed_during_puts_leaves_whole_objects_only(
    tmp_path: Path,
) -> None:
    answered = kill_during_puts(tmp_path)

    async with a_drive(tmp_path) as (drive, _):
        found = [facts.object_key async for facts in drive.list()]
        assert set(answered) <= set(found)
        bodies = await asyncio.gather(*(drive.get(key) for key in found))
        assert all(body == key.encode() * 50_000 for key, body in zip(found, bodies, strict=True))


def below(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*"))


async def test_streams_that_come_and_go_leave_no_directories_and_no_table(tmp_path: Path) -> None:
    drive = LocalDrive(tmp_path, durable_count_max=8)
    for number in range(20):
        keys = [f"t/{number}/data/a", f"t/{number}/metadata/b", f"t/{number}/c"]
        for key in keys:
            await put(drive, key)
        await drive.delete(keys)
        await drive.tidy(f"t/{number}/")
        # As after a crash before the next step.
        await drive.tidy(f"t/{number}/")
    assert below(tmp_path) == [".tmp", "t"]
    for number in range(20):
        await put(drive, f"u/{number}/data/a")
    assert drive.directories.known_count == 8
    await drive.aclose()


async def test_a_put_whose_directories_another_process_has_removed_makes_them_again(
    tmp_path: Path,
) -> None:
    """It knows them to be durable, and must sync them once more."""
    async with a_drive(tmp_path) as (drive, calls), a_drive(tmp_path) as (other, _):
        await put(drive, "a/b/one")
        await other.delete(["a/b/one"])
        await other.tidy("a/")
        calls.seen.clear()
        await put(drive, "a/b/two")
        assert calls.seen[-8:] == [
            *("link a/b/two", "make a", "sync .", "make a/b", "sync a"),
            *("link a/b/two", "sync a/b", "unlink"),
        ]
        await other.delete(["a/b/two"])
        await other.tidy("a/")
        await put(drive, "a/c/three")
        assert await drive.get("a/c/three") == BODY


async def test_a_directory_that_cannot_be_removed_is_an_error_and_is_removed_later(
    tmp_path: Path,
) -> None:
    async with a_drive(tmp_path) as (drive, calls):
        await put(drive, "a/b/one")
        await drive.delete(["a/b/one"])
        calls.faults["remove"] = errno.EIO
        with pytest.raises(DriveUnavailable):
            await drive.tidy("a/")
        calls.faults.clear()
        await drive.tidy("a/")
        assert not (tmp_path / "a").exists()


SOURCE = Bytes(bytes(range(256)) * 10_000)
SUM = crc32c(SOURCE.data)


async def test_a_source_is_written_whole_and_synced_before_it_has_a_name(tmp_path: Path) -> None:
    async with a_drive(tmp_path) as (drive, calls):
        await put(drive, "a/one")
        calls.seen.clear()
        await drive.put("a/two", SOURCE, SUM)

        writes = ["write"] * 3
        ends = ["sync file", "link a/two", "sync a", "unlink"]
        assert calls.seen == ["create", *writes, *ends]
        assert (tmp_path / "a/two").read_bytes() == SOURCE.data


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [
        ("write", errno.ENOSPC, DriveFull),
        ("sync file", errno.EIO, DriveUnavailable),
        ("create", errno.EACCES, DriveRefused),
        ("link", errno.EIO, DriveAmbiguous),
    ],
)
async def test_a_disk_that_fails_under_a_source_keeps_nothing_of_it(
    tmp_path: Path, call: str, number: int, error: type[StoreError]
) -> None:
    async with a_drive(tmp_path) as (drive, calls):
        calls.faults[call] = number
        with pytest.raises(error):
            await drive.put("a/one", SOURCE, SUM)
    assert list((tmp_path / ".tmp").iterdir()) == []
    assert not (tmp_path / "a/one").exists()


class HeldCalls(RecordedCalls):
    """A disk on which writes take as long as a test wants."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun, self.gate = threading.Event(), threading.Event()

    def write(self, file: int, parts: Sequence[memoryview], crc: int = 0) -> int:
        self.begun.set()
        assert self.gate.wait(60)
        os.fstat(file)
        return super().write(file, parts, crc)


async def test_a_put_of_a_source_that_is_given_up_ends_after_the_write_that_runs(
    tmp_path: Path,
) -> None:
    """A descriptor that is closed under a write may be another file's by then."""
    calls = HeldCalls(tmp_path)
    drive = LocalDrive(tmp_path, calls)
    putting = asyncio.create_task(drive.put("a/one", SOURCE, SUM))
    await asyncio.to_thread(calls.begun.wait, 60)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert len(list((tmp_path / ".tmp").iterdir())) == 1, "it is written to"
    calls.gate.set()
    await drive.aclose()

    assert calls.seen[-2:] == ["write", "unlink"]
    assert list((tmp_path / ".tmp").iterdir()) == []
    assert not (tmp_path / "a/one").exists()


async def test_a_put_that_is_given_up_after_its_drive_was_closed_is_told_as_that(
    tmp_path: Path,
) -> None:
    """Its temp file goes as that of a process that died: there are no threads any more that would
    take it away. It was told as an error of these threads."""
    drive = LocalDrive(tmp_path)
    source = Bytes(bytes(2 * 2**20))
    source.held_from = 0
    putting = asyncio.create_task(drive.put("a/b", source, crc32c(source.data)))
    await source.held.wait()
    await drive.aclose()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting


async def test_of_many_sources_no_more_blocks_are_kept_than_are_written_at_a_time(
    tmp_path: Path,
) -> None:
    drive, all_there = LocalDrive(tmp_path), asyncio.Barrier(3 * THREAD_COUNT)

    class Together(Bytes):
        async def read_into(self, position: int, buffer: memoryview) -> None:
            await all_there.wait()
            await super().read_into(position, buffer)

    await asyncio.gather(
        *(drive.put(f"a/{n}", Together(BODY), crc32c(BODY)) for n in range(3 * THREAD_COUNT))
    )
    await drive.aclose()
    assert len(drive.kept_blocks) == THREAD_COUNT
