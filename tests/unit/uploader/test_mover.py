"""The copies of a move: whole, of what the manifest knows, under keys that only the move names."""

import asyncio
import threading
from dataclasses import dataclass, field, replace

import pytest
from support.drives import a_table
from support.guards import guarded, remove

from bottomless.drives.base import Drive, DriveUnavailable, ObjectExists, ObjectMissing
from bottomless.formats.checks import crc32c
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId, Uid
from bottomless.model.tiers import Move
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.uploader.budget import ByteBudget
from bottomless_server.uploader.core.moving import (
    OBJECT_BYTES_PER_SECOND_MIN,
    Copying,
    Pace,
    copies_of,
)
from bottomless_server.uploader.mover import HeldObject, Mover

STREAM = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
TENANT, COLD = "default", 7
MOVE = Move(0xFEED, 10, 40, 0, COLD, "session", 0)


def a_fragment(first_offset: int, drive: int = 0) -> FragmentInfo:
    data = bytes([first_offset]) * (100 + first_offset)
    return FragmentInfo(
        uid=Uid(f"{first_offset:032x}"),
        first_offset=first_offset,
        next_offset=first_offset + 10,
        first_timestamp=0,
        last_timestamp=0,
        epoch=1,
        record_count=10,
        size=len(data),
        index_size=50,
        crc=crc32c(data),
        drive=drive,
    )


async def put(drive: Drive, object_key: str, data: bytes) -> None:
    await drive.put(object_key, [data], crc32c(data))


@dataclass
class Moving:
    """Three fragments on drive 0 that are to go to another one."""

    default: MemoryDrive
    table: DriveTable
    in_flight: int = 2
    now: float = 0.0
    waits: list[float] = field(default_factory=list)

    @property
    def mover(self) -> Mover:
        return Mover(
            drives=self.table,
            budget=ByteBudget(1_000),
            share=ByteBudget(1_000),
            pace=Pace(1_000),
            objects_in_flight=asyncio.Semaphore(self.in_flight),
            clock=lambda: self.now,
            sleep=self._sleep,
            put_seconds=60,
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    @property
    def copies(self) -> list[Copying]:
        return copies_of(STREAM, TENANT, MOVE, [a_fragment(first) for first in (10, 20, 30)])

    async def copied(self) -> list[bool]:
        found = []
        for copying in self.copies:
            try:
                data = await self.table.of(COLD).get(copying.target.object_key)
            except ObjectMissing:
                found.append(False)
            else:
                assert crc32c(data) == copying.crc, "a copy is whole or not there"
                found.append(True)
        return found


async def a_move() -> Moving:
    default = MemoryDrive()
    moving = Moving(default, await a_table(default, COLD))
    for copying, first in zip(moving.copies, (10, 20, 30), strict=True):
        await put(default, copying.source.object_key, bytes([first]) * copying.size)
    return moving


def test_what_lies_whole_in_the_move_and_on_its_drive_is_copied_under_a_key_of_its_own() -> None:
    there = [a_fragment(0), a_fragment(10), a_fragment(20, drive=3), a_fragment(30), a_fragment(40)]
    across = a_fragment(35)

    copies = copies_of(STREAM, TENANT, MOVE, [*there, across])

    assert [copying.crc for copying in copies] == [there[1].crc, there[3].crc]
    assert {copying.source.drive for copying in copies} == {0}
    assert {copying.target.drive for copying in copies} == {COLD}
    for copying in copies:
        assert copying.source.object_key != copying.target.object_key
        assert f".{MOVE.copy:016x}" in copying.target.object_key


def test_objects_follow_each_other_as_fast_as_was_said_and_no_time_is_saved_up() -> None:
    pace = Pace(100)
    assert [pace.wait_of(50, 1.0), pace.wait_of(200, 1.0), pace.wait_of(10, 1.0)] == [0.0, 0.5, 2.5]
    assert pace.wait_of(100, 60.0) == 0.0
    assert pace.wait_of(100, 60.0) == 1.0


async def test_the_blocks_of_a_copy_are_spread_over_the_time_that_it_may_take() -> None:
    now, data = 0.0, bytes(range(256)) * 3 * 4096

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    held = HeldObject(data, Pace(64 * MIB).of_one_object(), lambda: now, sleep)
    block, times = memoryview(bytearray(MIB)), list[float]()
    for position in range(0, held.size, MIB):
        await held.read_into(position, block)
        assert block == data[position : position + MIB]
        times.append(now)
    assert times == pytest.approx([0, 1 / 64, 2 / 64])


def test_a_copy_is_put_fast_enough_for_its_deadline_however_slow_moves_are() -> None:
    pace = Pace(1).of_one_object()
    pace.wait_of(MIB, 0)
    assert pace.wait_of(MIB, 0) == MIB / OBJECT_BYTES_PER_SECOND_MIN


async def test_copies_are_the_bytes_that_the_manifest_knows_and_sources_stay() -> None:
    moving = await a_move()

    copied = await moving.mover.copy_all(moving.copies)

    assert copied.size == sum(copying.size for copying in moving.copies)
    assert await moving.copied() == [True, True, True]
    for copying in moving.copies:
        assert crc32c(await moving.default.get(copying.source.object_key)) == copying.crc
    assert moving.waits == pytest.approx([0.11, 0.23])


async def test_a_move_that_was_cut_off_anywhere_is_gone_on_with() -> None:
    moving = await a_move()
    for count in range(len(moving.copies)):
        await moving.mover.copy_all(moving.copies[:count])
    await moving.mover.copy_all(moving.copies)
    assert await moving.copied() == [True, True, True]


async def test_another_object_under_the_key_of_a_copy_is_an_alarm_and_stays() -> None:
    moving = await a_move()
    key = moving.copies[1].target.object_key
    await put(moving.table.of(COLD), key, b"of nobody")

    copied = await moving.mover.copy_all(moving.copies)

    assert [str(error).partition(":")[0] for error in copied.errors] == [
        "another object has the key of one that is to be put"
    ]
    assert len(copied.made) == 2
    assert copied.damaged == [], "another move has another key"
    assert await moving.table.of(COLD).get(key) == b"of nobody"


async def damaged(moving: Moving) -> Copying:
    copying = moving.copies[1]
    await moving.default.delete([copying.source.object_key])
    await put(moving.default, copying.source.object_key, b"x" * copying.size)
    return copying


async def test_a_damaged_source_is_not_copied_and_its_neighbours_are() -> None:
    moving = await a_move()
    copying = await damaged(moving)

    copied = await moving.mover.copy_all(moving.copies)

    assert copied.damaged == [copying]
    assert "a fragment that is to be moved is damaged: drive=0" in str(copied.errors[0])
    assert await moving.copied() == [True, False, True]
    assert {one.uid for one in copied.made} == {moving.copies[0].uid, moving.copies[2].uid}


async def test_without_the_guard_damage_is_found_only_after_the_copy_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the CRC of a copy", lambda *_: None)
    moving = await a_move()
    copying = await damaged(moving)
    copied = await moving.mover.copy_all([copying])
    assert copied.damaged == []
    assert "to be moved" not in str(copied.errors[0]), "nobody says which source is damaged"


async def test_a_source_that_is_gone_is_told_and_a_drive_that_is_not_known_ends_a_move() -> None:
    moving = await a_move()
    await moving.default.delete([moving.copies[0].source.object_key])
    copied = await moving.mover.copy_all(moving.copies)
    assert copied.damaged == moving.copies[:1]
    assert isinstance(copied.errors[0], ObjectMissing)
    assert await moving.copied() == [False, True, True]

    moving.table = DriveTable.of_one(moving.default)
    with pytest.raises(DriveUnavailable):
        await moving.mover.copy_all(moving.copies[1:])


class Watched(MemoryDrive):
    """Counts the puts that are under way at once."""

    most = under_way = 0

    async def put(self, object_key: str, body: object, crc: int) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        try:
            await super().put(object_key, body, crc)  # type: ignore[arg-type]
        except ObjectExists:
            raise AssertionError from None
        finally:
            self.under_way -= 1


async def test_no_more_objects_are_under_way_than_were_said() -> None:
    moving = await a_move()
    watched = Watched()
    back = [
        copying._replace(
            source=copying.source, target=copying.target._replace(drive=0, object_key=f"copy/{n}")
        )
        for n, copying in enumerate(moving.copies)
    ]
    for copying, first in zip(back, (10, 20, 30), strict=True):
        await put(watched, copying.source.object_key, bytes([first]) * copying.size)
    moving.table, watched.most = DriveTable.of_one(watched), 0
    await moving.mover.copy_all(back)
    assert watched.most == moving.in_flight


class Standing(MemoryDrive):
    """A drive that takes nothing, however long it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def put(self, *_: object, **__: object) -> None:
        self.asked.set()
        await asyncio.Event().wait()


async def test_copies_that_a_drive_does_not_take_leave_memory_to_uploads() -> None:
    moving = await a_move()
    standing = Standing()
    for copying, first in zip(moving.copies, (10, 20, 30), strict=True):
        await put(moving.table.of(COLD), copying.source.object_key, bytes([first]) * copying.size)
    moving.table = DriveTable(standing, {COLD: moving.table.marked(COLD)})
    back = [
        copying._replace(
            source=copying.source._replace(drive=COLD), target=copying.target._replace(drive=0)
        )
        for copying in moving.copies
    ]
    moving.in_flight = len(back)
    sizes = sorted(copying.size for copying in back)
    mover = replace(moving.mover, budget=ByteBudget(sum(sizes)), share=ByteBudget(sizes[-1]))

    task = asyncio.create_task(mover.copy_all(back))
    await standing.asked.wait()
    await mover.budget.take(sum(sizes) - sizes[-1])
    assert mover.share.waiting_count == len(back) - 1
    await end_tasks(task)


@pytest.mark.parametrize(("size", "beside"), [(1 << 20, False), ((1 << 20) + 1, True)])
async def test_the_checksum_of_a_large_object_keeps_no_append_of_the_process_waiting(
    monkeypatch: pytest.MonkeyPatch, size: int, beside: bool
) -> None:
    threads = []
    check = guarded("the CRC of a copy")

    def noted(copying: Copying, data: bytes) -> None:
        threads.append(threading.current_thread())
        check(copying, data)

    remove(monkeypatch, "the CRC of a copy", noted)
    moving = await a_move()
    data = bytes(size)
    info = a_fragment(10)._replace(size=size, crc=crc32c(data), uid=Uid("f" * 32))
    (copying,) = copies_of(STREAM, TENANT, MOVE, [info])
    await put(moving.default, copying.source.object_key, data)
    roomy = ByteBudget(4 * size)

    await replace(moving.mover, budget=roomy, share=roomy).copy_all([copying])

    assert [one is not threading.main_thread() for one in threads] == [beside]
    assert await moving.table.of(COLD).get(copying.target.object_key) == data
