"""A mount that hangs: whoever waits is told, no further call is made, and it is used when it is back."""

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from support import guards
from support.waiting import eventually

from bottomless.drives.base import DriveUnavailable, Location
from bottomless.errors import Code
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import DRIVE_MARKER_KEY, encode_marker
from bottomless.model.drive import DriveMarker
from bottomless.model.names import Uid
from bottomless_server.drives.answering import HANGING_MAX, AnsweringDrive
from bottomless_server.drives.drive_calls import DriveCalls
from bottomless_server.drives.local import THREAD_COUNT, LocalDrive
from bottomless_server.drives.marked import marked_drive
from bottomless_server.drives.memory import MemoryDrive


class Mount(MemoryDrive):
    """A directory of which reads hang until it answers again."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.asked = 0

    @property
    def location(self) -> Location:
        return Location("file", "/mount")

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> Any:
        self.asked += 1
        await self.answers.wait()
        return await super().get(object_key, start, size)


async def asked_of_a_hanging(mount: Mount, count: int) -> AnsweringDrive:
    """A drive that was read so often in vain."""
    await mount.put("a", [b"x"], crc32c(b"x"))
    drive = AnsweringDrive(mount, answer_seconds=0.0)
    for _ in range(count):
        with pytest.raises(DriveUnavailable) as refused:
            await drive.get("a")
        assert refused.value.code is Code.OBJECT_STORE_UNAVAILABLE
    return drive


async def test_a_read_of_a_mount_that_hangs_ends_and_later_ones_are_not_made() -> None:
    mount = Mount()
    await asked_of_a_hanging(mount, 3 * HANGING_MAX)
    await eventually(lambda: mount.asked == HANGING_MAX)
    mount.answers.set()


async def test_without_that_bound_each_read_takes_a_thread_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards.remove(monkeypatch, "no more calls than may hang", lambda _: True)
    mount = Mount()
    await asked_of_a_hanging(mount, 3 * HANGING_MAX)
    await eventually(lambda: mount.asked == 3 * HANGING_MAX)
    mount.answers.set()


async def test_when_the_mount_is_back_it_is_used_again() -> None:
    mount = Mount()
    drive = await asked_of_a_hanging(mount, 2 * HANGING_MAX)
    mount.answers.set()

    async def read() -> bytes | None:
        try:
            return bytes(await AnsweringDrive(mount).get("a"))
        except DriveUnavailable:
            return None

    assert await read() == b"x"
    await eventually(lambda: not drive.hanging_count)
    assert [facts.object_key async for facts in drive.list()] == ["a"]


async def test_a_marked_directory_that_hangs_is_away() -> None:
    mount = Mount()
    marker = DriveMarker(2, Uid("5a" * 16))
    data = encode_marker(marker)
    await mount.put(DRIVE_MARKER_KEY, [data], crc32c(data))
    drive = marked_drive(AnsweringDrive(mount, answer_seconds=0.0), marker)
    with pytest.raises(DriveUnavailable):
        await drive.look()
    mount.answers.set()
    await marked_drive(mount, marker).look()


async def test_who_is_cancelled_leaves_no_call_behind_that_counts_as_hanging() -> None:
    mount = Mount()
    drive = AnsweringDrive(mount)
    for _ in range(2 * HANGING_MAX):
        await ask_and_be_cancelled(mount, drive)
    assert drive.hanging_count == 0


async def ask_and_be_cancelled(mount: Mount, drive: AnsweringDrive) -> None:
    before = mount.asked
    asking = asyncio.ensure_future(drive.get("a"))
    await eventually(lambda: mount.asked > before or asking.done())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


class HangingCalls(DriveCalls):
    """System calls that hang until they may go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun: list[str] = []

    async def reach(self, count: int) -> None:
        """Wait until so many calls have begun."""
        await eventually(lambda: len(self.begun) == count)

    def sync_file(self, file: int) -> None:
        self.begun.append("sync")
        self.go_on.wait()
        super().sync_file(file)


@pytest.mark.parametrize("put_seconds", [0.0, 3_600.0])
async def test_a_thread_that_hangs_counts_though_who_asked_was_cancelled(
    tmp_path: Path, put_seconds: float
) -> None:
    """A put that a slow disk takes its time for does not, though a read would long have hung."""
    calls = HangingCalls()
    mount = LocalDrive(tmp_path, calls)
    drive = AnsweringDrive(mount, 0.0, put_seconds)
    made = AnsweringDrive(mount)
    try:
        for number in range(HANGING_MAX):
            asking = asyncio.ensure_future(made.put(f"d/{number}", [b"x"], crc32c(b"x")))
            await calls.reach(number + 1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        assert len(mount.left_puts) == HANGING_MAX
        if put_seconds:
            assert drive.hanging_count == 0, "they may come back in time"
        else:
            assert drive.hanging_count == HANGING_MAX
            with pytest.raises(DriveUnavailable, match="calls of before hang"):
                await drive.head("d/0")
    finally:
        calls.go_on.set()
    await eventually(lambda: not mount.left_puts)
    assert drive.hanging_count == 0
    await mount.aclose()


async def test_a_call_that_was_cancelled_before_it_had_a_thread_is_not_left(tmp_path: Path) -> None:
    calls = HangingCalls()
    mount = LocalDrive(tmp_path, calls)
    puts = [
        asyncio.ensure_future(mount.put(f"d/{number}", [b"x"], crc32c(b"x")))
        for number in range(THREAD_COUNT)
    ]
    await calls.reach(THREAD_COUNT)
    asking = asyncio.ensure_future(mount.head("d/0"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert (mount.left_calls, mount.left_puts) == ((), ())

    calls.go_on.set()
    await asyncio.gather(*puts)
    await mount.aclose()


class FailsLate(Mount):
    """A directory of which a read that is cancelled fails."""

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> Any:
        try:
            return await super().get(object_key, start, size)
        except asyncio.CancelledError:
            raise DriveUnavailable("it failed meanwhile") from None


async def test_what_a_call_raises_after_who_asked_was_cancelled_is_not_told_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mount = FailsLate()
    before = asyncio.all_tasks()
    await ask_and_be_cancelled(mount, AnsweringDrive(mount))
    await eventually(lambda: asyncio.all_tasks() == before)
    # The round of the loop in which they ended holds them until it is over.
    await asyncio.sleep(0)
    gc.collect()

    assert caplog.text == ""
