"""What a writer committed and could not note, before it died, is noted by the vacuum."""

from typing import Any

import pytest
from support.leaderless import (
    WalWriter,
    a_leaderless_harness,
    a_leaderless_stream,
    publish_all,
)
from support.manifest import NEIGHBOUR, STREAM, ManifestHarness
from support.rebuilding import put_registry, rebuild
from unit.manifest.test_rebuild_wal import a_stream, a_writer, found

from bottomless.drives.base import DriveUnavailable
from bottomless.errors import Code, Corrupt, Unavailable
from bottomless.formats.keys import wal_key
from bottomless.formats.wal import pack_wal
from bottomless_server.leaderless.instance import RESERVED_COUNT
from bottomless_server.leaderless.noted import UNDECIDED_COUNT
from bottomless_server.manifest.leaderless.vacuum import Vacuum
from bottomless_server.stores import notes_of_dead
from bottomless_server.stores.noted_entries import is_noted
from bottomless_server.stores.notes_of_dead import note_for_dead
from bottomless_server.stores.other_writers import show_life
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.wal import require_newest, settle
from bottomless_server.stores.wal_check import check_wal

LAST = RESERVED_COUNT - 1


async def a_dead_writer() -> tuple[ManifestHarness, WalWriter]:
    """Two flushes, of which the second was never noted."""
    harness = await a_leaderless_harness()
    await a_stream(harness)
    await put_registry(harness, await a_leaderless_stream(harness, NEIGHBOUR, "neighbours"))
    writer = await a_writer(harness)
    await writer.flush(STREAM, count=5)
    await writer.flush(NEIGHBOUR, STREAM, STREAM, count=5)
    await writer.lapse()
    return harness, writer


async def test_its_commits_survive_a_loss_of_coordination_long_after_it() -> None:
    harness, writer = await a_dead_writer()
    await Vacuum(harness.context).make_pass()
    assert await writer.objects() == [0, 1, LAST]
    assert await is_noted(harness.drive, harness.coordination, STREAM, 0, 0, 30)
    harness.coordination.lose()

    await rebuild(harness)

    # Nobody says that nothing else was committed of its last object.
    assert await found(harness) == [("leaf", 0, 30), ("gap", 30, 30 + UNDECIDED_COUNT)]


async def test_without_the_vacuum_they_do_not() -> None:
    harness, _ = await a_dead_writer()
    harness.coordination.lose()
    await rebuild(harness)
    assert await found(harness) == [("leaf", 0, 10), ("gap", 10, 10 + UNDECIDED_COUNT)]


async def test_it_is_done_once_and_goes_with_the_instance() -> None:
    harness, writer = await a_dead_writer()
    for vacuum in (Vacuum(harness.context), Vacuum(harness.context)):
        await vacuum.make_pass()
        await vacuum.make_pass()
    assert await writer.objects() == [0, 1, LAST]

    for stream_id in (STREAM, NEIGHBOUR):
        await publish_all(harness, stream_id)
    await writer.release()
    await Vacuum(harness.context).make_pass()
    assert (await writer.objects(), writer.record()) == ([], None)


async def test_two_vacuums_at_once_put_the_same_notes_and_neither_takes_the_others_for_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each says when it was put. A put whose reply is late met an object of the other, and was told that
    another object has its key."""
    harness, writer = await a_dead_writer()
    record = await settle(harness.coordination, writer.instance, 0)
    assert record is not None

    async def note(clock: int) -> int:
        stores = harness.drive, harness.coordination
        return await note_for_dead(*stores, writer.instance, record, clock)

    async def after_another(*given: Any, **named: Any) -> None:
        monkeypatch.undo()
        assert await note(1) == 2
        await put_object(*given, **named)

    monkeypatch.setattr(notes_of_dead, "put_object", after_another)
    assert await note(2) == 2
    assert await writer.objects() == [0, 1, LAST]


async def test_a_writer_that_lives_after_all_does_not_make_its_record_an_older_copy() -> None:
    """It showed life, and put an object that says so, after the vacuum had read its record: that counted
    as proof that coordination had gone back. Seed 11 of the model of producers found it."""
    harness, writer = await a_dead_writer()
    record = await settle(harness.coordination, writer.instance, 0)
    assert record is not None
    await show_life(harness.coordination, writer.numbers)
    await writer.put(STREAM)
    now = writer.record()
    assert now is not None
    assert now.attempt > record.attempt

    await note_for_dead(harness.drive, harness.coordination, writer.instance, record, 2)
    await require_newest(harness.drive, harness.coordination, writer.instance, record)


async def test_an_object_without_those_notes_in_their_place_is_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, writer = await a_dead_writer()
    record = await settle(harness.coordination, writer.instance, 0)
    assert record is not None

    async def after_another(*given: Any, **named: Any) -> None:
        other = pack_wal(
            writer.instance, LAST, [], [], noted_below=0, attempt=0, created_at=0, generation=0
        )
        await harness.drive.put(wal_key(writer.instance, LAST), other.parts, other.crc)
        await put_object(*given, **named)

    monkeypatch.setattr(notes_of_dead, "put_object", after_another)
    with pytest.raises(Corrupt):
        await note_for_dead(harness.drive, harness.coordination, writer.instance, record, 2)


async def test_more_notes_than_fit_into_an_object_get_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pass may die after any of its puts; the next one goes on."""
    harness, writer = await a_dead_writer()
    monkeypatch.setattr(notes_of_dead, "NOTE_COUNT_MAX", 1)

    async def die(*given: Any, **named: Any) -> None:
        await put_object(*given, **named)
        raise DriveUnavailable("the process is gone")

    with monkeypatch.context() as patch:
        patch.setattr(notes_of_dead, "put_object", die)
        await Vacuum(harness.context).make_pass()
    assert await writer.objects() == [0, 1, LAST - 1]
    await Vacuum(harness.context).make_pass()
    assert await writer.objects() == [0, 1, LAST - 1, LAST]
    harness.coordination.lose()
    await rebuild(harness)
    assert await found(harness) == [("leaf", 0, 30), ("gap", 30, 30 + UNDECIDED_COUNT)]


async def test_a_note_of_another_stream_at_the_same_offset_is_none_of_theirs() -> None:
    """An object is committed by several EXECs, and the writer dies after the note of the first."""
    harness = await a_leaderless_harness()
    await a_stream(harness)
    await put_registry(harness, await a_leaderless_stream(harness, NEIGHBOUR, "neighbours"))
    writer = await a_writer(harness)
    packed = await writer.put(NEIGHBOUR, STREAM, count=5)
    await writer.commit(packed, only=NEIGHBOUR)
    await writer.put()
    await writer.commit(packed, only=STREAM)
    await writer.lapse()

    await Vacuum(harness.context).make_pass()
    harness.coordination.lose()
    await rebuild(harness)
    assert await found(harness) == [("leaf", 0, 10), ("gap", 10, 10 + UNDECIDED_COUNT)]


async def test_of_a_writer_that_noted_everything_nothing_is_put() -> None:
    harness = await a_leaderless_harness()
    await a_stream(harness)
    writer = await a_writer(harness)
    await writer.flush(STREAM)
    await writer.put()
    await writer.lapse()

    await Vacuum(harness.context).make_pass()
    assert await writer.objects() == [0, 1]


async def test_an_older_copy_of_coordination_is_noticed_and_not_hidden() -> None:
    """What the vacuum puts would be the newest object of the instance."""
    harness = await a_leaderless_harness()
    await a_stream(harness)
    writer = await a_writer(harness)
    await writer.flush(STREAM)
    older = harness.coordination.copy()
    await writer.flush(STREAM)
    await writer.flush(STREAM)
    harness.coordination.put_back(older)
    await writer.lapse()

    await Vacuum(harness.context).make_pass()

    assert await writer.objects() == [0, 1, 2]
    with pytest.raises(Unavailable) as error:
        await check_wal(harness.drive, harness.coordination, 0)
    assert error.value.code is Code.COORDINATION_REGRESSED
