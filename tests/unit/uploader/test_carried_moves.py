"""Moves by an uploader and a manifest over HTTP: crashes, lost replies, another session, uploads first."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from support import guards
from support.asgi import on_tcp
from support.manifest import STREAM, ManifestHarness
from support.moving import HOT, TENANT, Moving
from support.waiting import eventually

from bottomless.drives.base import Body
from bottomless.errors import Fenced, Outcome, StoreError, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import DRIVE_MARKER_KEY, encode_marker
from bottomless.formats.keys import fragment_place
from bottomless.formats.stream_record import SERVED, TIERS
from bottomless.model.drive import DriveMarker
from bottomless.model.names import Uid
from bottomless.model.object_facts import ObjectFacts
from bottomless.model.stream import StreamState
from bottomless_server.drives.local import LocalDrive
from bottomless_server.drives.marked import marked_drive
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable
from bottomless_server.manifest.common.held_moves import TAKE_OVER_MS
from bottomless_server.manifest.front.internal_routes import internal_api
from bottomless_server.manifest.keys.keys import Keys
from bottomless_server.manifest.keys.root_key import RootKey
from bottomless_server.manifest.mutators import retention
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.protocol.moves import CLAIM, FINISH
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.stores.generation import check_generation
from bottomless_server.uploader.app import create_service
from bottomless_server.uploader.budget import ByteBudget
from bottomless_server.uploader.calls import ManifestCalls
from bottomless_server.uploader.core.moving import Pace
from bottomless_server.uploader.mover import Mover
from bottomless_server.uploader.moves import Moves
from bottomless_server.uploader.settings import UploaderSettings

SHELF, ATTIC = 1, 2
COUNT: Final = 3
"""Fragments of the stream, of ten records each."""
MEMORY: Final = 1_000_000


class LosingPeer(Peer):
    """Loses the reply of the next call of a path, once the other side has done it; or never calls it, or fails."""

    lost_path: str | None = None
    stands_at: str | None = None
    fails_at: str | None = None

    def __init__(self, url: str) -> None:
        super().__init__(url, name="manifest")
        self.stands = asyncio.Event()

    async def call(self, method: str, path: str, **asked: Any) -> PeerAnswer:
        if path == self.stands_at:
            self.stands.set()
            await asyncio.Event().wait()
        if path == self.fails_at:
            raise Unavailable("it does not answer")
        # No verdict depends on how fast the machine answers.
        asked["timeout_seconds"] = 600
        answer = await super().call(method, path, **asked)
        if path == self.lost_path:
            self.lost_path = None
            raise Unavailable("the reply was lost", outcome=Outcome.UNKNOWN)
        return answer


class Stage:
    """A manifest of a stream over drive 0 and two directories, and any number of uploaders."""

    def __init__(self, moving: Moving, table: DriveTable, shelf: LocalDrive, url: str) -> None:
        self.moving = moving
        self.shelf = shelf
        self.table = table
        self.budget = ByteBudget(MEMORY)
        self.peer = LosingPeer(url)
        self.manifest = ManifestCalls(self.peer)

    def moves(
        self,
        session: str,
        *,
        renew_seconds: float = 600.0,
        table: DriveTable | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Moves:
        """Another run of an uploader."""
        mover = Mover(
            drives=table or self.table,
            budget=self.budget,
            share=ByteBudget(MEMORY),
            pace=Pace(10**9),
            objects_in_flight=asyncio.Semaphore(1),
            clock=lambda: 0.0,
            put_seconds=600,
        )
        return Moves(
            self.manifest,
            mover,
            session,
            in_flight=2,
            renew_seconds=renew_seconds,
            clock=clock,
        )

    async def carry_out(self, moves: Moves) -> None:
        await moves.look()
        await moves.settle()

    async def where(self) -> list[int]:
        """The drives that the manifest names, fragment by fragment."""
        return [info.drive for info in await self.moving.leaves()]

    async def check_moved_to(self, number: int) -> None:
        """All is read on a drive, and after the grace nothing is left anywhere else."""
        await self.moving.reopen()
        assert await self.where() == [number] * COUNT
        assert (await self.moving.harness.record()).moves == ()
        await self.moving.after_the_grace()
        for other in (HOT, SHELF, ATTIC):
            assert await self.moving.fragments(other) == await self.moving.named(other)
        for info in await self.moving.leaves():
            key = fragment_place(STREAM, info, TENANT).object_key
            assert crc32c(bytes(await self.table.of(number).get(key))) == info.crc


async def a_directory(root: Path, number: int) -> tuple[LocalDrive, DriveMarker]:
    marker = DriveMarker(number, Uid(f"{number:032x}"))
    drive = LocalDrive(root)
    data = encode_marker(marker)
    await drive.put(DRIVE_MARKER_KEY, [data], crc32c(data))
    return drive, marker


@asynccontextmanager
async def a_stage(folder: Path) -> AsyncIterator[Stage]:
    harness = ManifestHarness()
    directories = {one: await a_directory(folder / str(one), one) for one in (SHELF, ATTIC)}
    others = {one: marked_drive(*directories[one]) for one in directories}
    table = DriveTable(harness.drive, others)
    harness.use_drives(table)
    await check_generation(harness.drive, harness.coordination)
    moving = Moving(harness, await harness.open())
    await moving.add(COUNT)
    context = harness.context
    mutators = Mutators(context)
    api = internal_api(context, Registry(context), mutators, Keys(context), RootKey(None))
    async with on_tcp(wrap(api)) as port:
        stage = Stage(moving, table, directories[SHELF][0], f"http://127.0.0.1:{port}")
        try:
            yield stage
        finally:
            await stage.manifest.aclose()
            await mutators.aclose()
            await table.aclose()


async def test_a_move_is_copied_named_and_its_sources_go_after_the_grace(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        moves = stage.moves("m1")
        await stage.carry_out(moves)
        assert moves.counts.moves == 0
        for source, target in ((HOT, SHELF), (SHELF, ATTIC), (ATTIC, HOT)):
            await stage.moving.enter(0, 10 * COUNT, source, target)
            await stage.carry_out(moves)
            await stage.moving.reopen()
            assert len(await stage.moving.fragments(source)) == COUNT, "older roots are read on"
            await stage.check_moved_to(target)
        assert moves.counts.moves == 3
        assert moves.report() == {}


async def test_two_moves_of_a_stream_are_carried_out_by_one_look(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        await stage.moving.enter(0, 10, HOT, SHELF)
        await stage.moving.enter(10, 30, HOT, ATTIC)
        await stage.carry_out(stage.moves("m1"))
        await stage.moving.reopen()
        assert await stage.where() == [SHELF, ATTIC, ATTIC]


class DyingDrive(MemoryDrive):
    """A directory that takes so many objects; then whoever puts stands still, until it is killed."""

    def __init__(self, of: LocalDrive, left: int) -> None:
        super().__init__()
        self._of = of
        self._left = left
        self.stands = asyncio.Event()

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> Any:
        return await self._of.get(object_key, start, size)

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        return await self._of.head(object_key, checksum=checksum)

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        if self._left == 0:
            self.stands.set()
            await asyncio.Event().wait()
        self._left -= 1
        await self._of.put(object_key, body, crc)


@pytest.mark.parametrize("count", range(COUNT))
async def test_after_a_crash_after_any_object_another_session_goes_on(
    tmp_path: Path, count: int
) -> None:
    async with a_stage(tmp_path) as stage:
        await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        dying = DyingDrive(stage.shelf, count)
        marked = marked_drive(dying, DriveMarker(SHELF, Uid(f"{SHELF:032x}")))
        died = stage.moves("m1", table=DriveTable(stage.table.of(HOT), {SHELF: marked}))
        run = asyncio.create_task(died.run())
        await dying.stands.wait()
        await end_tasks(run)
        assert len(await stage.moving.fragments(SHELF)) == count
        await _go_on(stage)


async def test_after_a_crash_before_it_told_that_all_is_copied_another_session_goes_on(
    tmp_path: Path,
) -> None:
    async with a_stage(tmp_path) as stage:
        await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        stage.peer.stands_at = of_stream(FINISH, STREAM)
        run = asyncio.create_task(stage.moves("m1").run())
        await stage.peer.stands.wait()
        await end_tasks(run)
        stage.peer.stands_at = None
        assert len(await stage.moving.fragments(SHELF)) == COUNT
        await _go_on(stage)


async def _go_on(stage: Stage) -> None:
    second = stage.moves("m2")
    await stage.carry_out(second)
    assert second.counts.moves == 0, "the first may still be at it"
    stage.moving.harness.clock.now += TAKE_OVER_MS
    await stage.carry_out(second)
    assert second.counts.moves == 1
    await stage.check_moved_to(SHELF)


@pytest.mark.parametrize("step", [CLAIM, FINISH])
async def test_a_lost_reply_is_gone_on_with_by_the_same_session(tmp_path: Path, step: str) -> None:
    async with a_stage(tmp_path) as stage:
        await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        moves = stage.moves("m1")
        stage.peer.lost_path = of_stream(step, STREAM)
        await stage.carry_out(moves)
        assert stage.peer.lost_path is None
        assert len(moves.report()) == 1
        await stage.carry_out(moves)
        assert moves.report() == {}
        await stage.check_moved_to(SHELF)


async def test_what_is_told_again_has_ended(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        copy = await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        await stage.carry_out(stage.moves("m1"))
        for told in (
            stage.manifest.finish_move(STREAM, copy, "m1", []),
            stage.manifest.claim_move(STREAM, copy, "m1"),
            stage.manifest.give_up_move(STREAM, copy),
        ):
            with pytest.raises(Fenced):
                await told


async def test_who_was_taken_over_names_nothing_and_its_bytes_are_the_same(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        copy = await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        claimed = await stage.manifest.claim_move(STREAM, copy, "m1")
        assert [info.crc for info in claimed.fragments] == [
            info.crc for info in await stage.moving.leaves()
        ]
        stage.moving.harness.clock.now += TAKE_OVER_MS
        found = await stage.manifest.find_moves("m2")
        assert [one.copy for one in found.moves] == [copy]
        await stage.manifest.claim_move(STREAM, copy, "m2")
        with pytest.raises(Fenced):
            await stage.manifest.finish_move(STREAM, copy, "m1", [])
        await stage.carry_out(stage.moves("m2"))
        await stage.check_moved_to(SHELF)


async def test_a_session_that_is_no_more_at_a_move_stops_copying(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        copy = await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        ticket = stage.budget.add(MEMORY)
        moves = stage.moves("m1", renew_seconds=0.01)
        await moves.look()
        await stage.manifest.give_up_move(STREAM, copy)
        await moves.settle()
        stage.budget.free(ticket)
        assert moves.counts.moves == 0
        assert moves.report() == {}
        await stage.moving.reopen()
        await stage.moving.after_the_grace()
        assert await stage.moving.fragments(HOT) == await stage.moving.named(HOT)
        assert await stage.where() == [HOT] * COUNT
        assert await stage.moving.fragments(SHELF) == []


async def test_a_session_stops_copying_of_a_stream_that_is_deleted(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        stage.budget.add(MEMORY)
        moves = stage.moves("m1", renew_seconds=0.01)
        await moves.look()
        await stage.moving.harness.streams.update(
            STREAM, lambda record: replace(record, state=StreamState.DELETING)
        )
        # Whenever there were memory it would put copies, also after all was swept.
        await moves.settle()
        assert await stage.moving.fragments(SHELF) == []


async def test_a_copy_waits_as_long_as_an_upload_waits_for_memory(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        held = stage.budget.add(MEMORY - 10_000)
        upload = asyncio.create_task(stage.budget.take(20_000))
        await eventually(lambda: stage.budget.waiting_count == 1)
        # There is room for a copy, and none is made: the upload would wait for its end.
        assert stage.budget.take_last(1) is None
        moves = stage.moves("m1")
        await moves.look()
        assert await stage.moving.fragments(SHELF) == []
        stage.budget.free(held)
        stage.budget.free(await upload)
        await moves.settle()
        assert moves.counts.moves == 1
        assert stage.budget.size == 0


async def test_a_move_of_which_all_was_cut_is_given_up(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        await stage.moving.enter(0, 10, HOT, SHELF)
        context, committer = stage.moving.harness.context, stage.moving.committer
        await retention.trim(context, committer, 10, allow_empty=False)
        moves = stage.moves("m1")
        await stage.carry_out(moves)
        assert (await stage.moving.harness.record()).moves == ()
        assert (moves.counts.moves, moves.report()) == (0, {})


async def test_an_uploader_moves_what_its_release_serves(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        drive = stage.moving.harness.drive
        settings = UploaderSettings(manifest_url=stage.peer.base_url)
        for served in (SERVED - {TIERS}, SERVED):
            service = create_service(settings, drive, served=served, table=stage.table)
            moves = service.moves
            assert (moves is not None) is (TIERS in served)
            await service.start()
            if moves is not None:
                while (await stage.moving.harness.record()).moves:
                    await asyncio.sleep(0.01)
            assert ("moves" in await service.report()) is (TIERS in served)
            await service.stop()
        await stage.check_moved_to(SHELF)


async def test_where_no_stream_can_have_a_move_none_is_looked_at() -> None:
    harness = ManifestHarness()
    context = harness.context
    mutators = Mutators(context)
    api = internal_api(context, Registry(context), mutators, Keys(context), RootKey(None))
    async with on_tcp(wrap(api)) as port:
        manifest = ManifestCalls(Peer(f"http://127.0.0.1:{port}", name="manifest"))
        assert await manifest.find_moves("m1") == ((), None)
        with pytest.raises(StoreError):
            await manifest.claim_move(STREAM, 1, "m1")
        await manifest.aclose()
    await mutators.aclose()


async def test_a_move_between_drives_that_an_uploader_does_not_know_is_left_to_others(
    tmp_path: Path,
) -> None:
    async with a_stage(tmp_path) as stage:
        await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
        without = DriveTable(stage.table.of(HOT), {ATTIC: stage.table.marked(ATTIC)})
        moves = stage.moves("m1", table=without)

        await stage.carry_out(moves)

        (move,) = (await stage.moving.harness.record()).moves
        assert move.session is None
        assert moves.counts.failures == 0
        await stage.carry_out(stage.moves("m2"))
        await stage.check_moved_to(SHELF)


async def copies_while_nobody_answers(stage: Stage, passed_seconds: float) -> bool:
    """Whether an uploader still copies after so long without a manifest."""
    await stage.moving.enter(0, 10 * COUNT, HOT, SHELF)
    standing = DyingDrive(stage.shelf, 0)
    marked = marked_drive(standing, DriveMarker(SHELF, Uid(f"{SHELF:032x}")))
    now = 0.0
    moves = stage.moves(
        "m1",
        renew_seconds=0.001,
        table=DriveTable(stage.table.of(HOT), {SHELF: marked}),
        clock=lambda: now,
    )
    peer = stage.peer
    asked = 0
    call = peer.call

    async def unanswered(*_: Any, **__: Any) -> PeerAnswer:
        nonlocal asked
        asked += 1
        raise Unavailable("nobody answers")

    await moves.look()
    await asyncio.wait_for(standing.stands.wait(), 240)
    peer.call = unanswered  # type: ignore[method-assign]
    now = passed_seconds
    before = asked
    await eventually(lambda: asked >= before + 2 or not moves.is_busy)
    busy = moves.is_busy
    peer.call = call  # type: ignore[method-assign]
    if busy:
        await moves.end()
    return busy


async def test_a_mover_that_nobody_hears_stops_when_another_may_be_at_its_move(
    tmp_path: Path,
) -> None:
    async with a_stage(tmp_path) as stage:
        assert not await copies_while_nobody_answers(stage, 60.0)


async def test_a_mover_goes_on_while_its_word_still_counts(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        assert await copies_while_nobody_answers(stage, 59.9)


async def test_without_that_end_it_copies_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.remove(monkeypatch, "the end of a mover that nobody hears", lambda _: False)
    async with a_stage(tmp_path) as stage:
        assert await copies_while_nobody_answers(stage, 10_000.0)
