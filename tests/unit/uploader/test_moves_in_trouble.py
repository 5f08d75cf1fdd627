"""Moves that cannot be made keep no other from being made, and are tried again without reading all anew."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.drives import a_table
from support.guards import remove
from support.manifest import STREAM
from support.moving import HOT
from unit.uploader.test_carried_moves import ATTIC, COUNT, SHELF, Stage, a_stage
from unit.uploader.test_mover import COLD, a_move

from bottomless.drives.base import Body, DriveUnavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import DRIVE_MARKER_KEY
from bottomless.model.drive import DriveMarker
from bottomless.model.names import Uid
from bottomless_server.drives.marked import marked_drive
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable
from bottomless_server.protocol.moves import FINISH
from bottomless_server.protocol.paths import of_stream
from bottomless_server.stores.put_retries import PutWaits


def reads_of(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of fragments that are read from drive 0 from now on."""
    drive, keys = stage.moving.harness.drive, list[str]()
    get = drive.get

    async def counted(object_key: str, *span: Any) -> Any:
        keys.extend([object_key] if "/data/" in object_key else [])
        return await get(object_key, *span)

    monkeypatch.setattr(drive, "get", counted)
    return keys


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_move_to_a_drive_that_is_away_reads_nothing_and_others_are_made(
    tmp_path: Path, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:

        async def never(*_: object) -> None:
            return None

        remove(monkeypatch, "moves to other drives than one in trouble", never)
    async with a_stage(tmp_path) as stage:
        assert await stage.shelf.delete([DRIVE_MARKER_KEY]) == {}
        await stage.moving.enter(0, 20, HOT, SHELF)
        await stage.moving.enter(20, 30, HOT, ATTIC)
        read = reads_of(stage, monkeypatch)
        moves = stage.moves("m1")

        await stage.carry_out(moves)

        await stage.moving.reopen()
        assert await stage.where() == [HOT, HOT, ATTIC]
        assert (moves.counts.failures, len(moves.report())) == (1, 1)
        assert (len(read) == 1) is guarded, "what cannot be put is not read"


async def test_a_damaged_fragment_keeps_no_neighbour_from_moving_and_is_told(
    tmp_path: Path,
) -> None:
    async with a_stage(tmp_path) as stage:
        damaged = (await stage.moving.fragments(HOT))[1]
        stage.moving.harness.drive.flip(damaged, -1)
        await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        moves = stage.moves("m1")

        await stage.carry_out(moves)

        await stage.moving.reopen()
        assert await stage.where() == [SHELF, HOT, SHELF]
        assert (await stage.moving.harness.record()).moves == ()
        assert (moves.counts.moves, moves.counts.failures) == (1, 1)
        (told,) = stage.moving.harness.context.damaged_sources.of(STREAM, 0)
        assert told[:4] == (10, 20, HOT, 1)

        # Mended, it is moved as any other, and is forgotten.
        stage.moving.harness.drive.flip(damaged, -1)
        await stage.moving.enter(10, 20, HOT, SHELF)
        await stage.carry_out(moves)
        await stage.check_moved_to(SHELF)
        assert stage.moving.harness.context.damaged_sources.of(STREAM, 0) == []


async def test_a_move_of_nothing_but_what_is_damaged_ends_and_leaves_its_place(
    tmp_path: Path,
) -> None:
    async with a_stage(tmp_path) as stage:
        for key in await stage.moving.fragments(HOT):
            stage.moving.harness.drive.flip(key, -1)
        await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        moves = stage.moves("m1")

        await stage.carry_out(moves)

        await stage.moving.reopen()
        assert await stage.where() == [HOT] * COUNT
        assert (await stage.moving.harness.record()).moves == ()
        assert (moves.counts.moves, moves.counts.failures) == (0, 1)
        assert len(stage.moving.harness.context.damaged_sources.of(STREAM, 0)) == COUNT


async def test_a_move_that_failed_for_a_drive_reads_nothing_again_that_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_stage(tmp_path) as stage:
        last = (await stage.moving.fragments(HOT))[-1]
        await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        moves = stage.moves("m1")
        away = {last}
        read = reads_of(stage, monkeypatch)
        drive = stage.moving.harness.drive
        get = drive.get

        async def fails_once(object_key: str, *span: Any) -> Any:
            if object_key in away:
                away.discard(object_key)
                raise DriveUnavailable("it does not answer")
            return await get(object_key, *span)

        monkeypatch.setattr(drive, "get", fails_once)
        await stage.carry_out(moves)
        assert (moves.counts.failures, len(read)) == (1, COUNT - 1)

        read.clear()
        await stage.carry_out(moves)
        assert read == [last]
        await stage.check_moved_to(SHELF)


async def test_a_copy_that_somebody_has_removed_is_made_once_more(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        number = await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        moves = stage.moves("m1")
        stage.peer.fails_at = of_stream(FINISH, STREAM)
        await stage.carry_out(moves)
        assert (await stage.moving.harness.record()).moves[0].copy == number
        (gone, *_) = await stage.moving.fragments(SHELF)
        assert await stage.shelf.delete([gone]) == {}

        stage.peer.fails_at = None
        await stage.carry_out(moves)
        await stage.check_moved_to(SHELF)


class Refusing(MemoryDrive):
    """Shows its marker, and takes nothing else."""

    asked = 0

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        if object_key == DRIVE_MARKER_KEY:
            await super().put(object_key, body, crc)
            return
        self.asked += 1
        raise DriveUnavailable("it takes nothing")


async def test_a_copy_is_not_tried_for_long_and_says_which_drive_failed() -> None:
    moving = await a_move()
    refusing, marker = Refusing(), DriveMarker(COLD, Uid(f"{COLD:032x}"))
    known = (await a_table(moving.default, COLD)).marked(COLD).unmarked
    data = bytes(await known.get(DRIVE_MARKER_KEY))
    await refusing.put(DRIVE_MARKER_KEY, [data], crc32c(data))
    moving.table = DriveTable(moving.default, {COLD: marked_drive(refusing, marker)})
    mover = replace(moving.mover, put_waits=PutWaits(0, 0, 0))

    with pytest.raises(DriveUnavailable):
        await mover.copy_all(moving.copies[:1])

    assert refusing.asked == 4
    assert list(mover.trouble) == [COLD]
