"""Garbage, a deleted stream, given-up uploads and a rebuild's look, where there are several drives."""

from dataclasses import replace

import pytest
from support.drives import a_table, register, take_away
from support.guards import remove
from support.manifest import STREAM
from support.moving import COLD, HOT, TENANT, Moving, a_moving_stream
from support.object_keys import fragment_key, registry_key
from unit.manifest.test_deletion import DEADLINE, NAME, DeletionHarness
from unit.manifest.test_garbage import collect
from unit.manifest.test_moves import trim

from bottomless.drives.base import DriveRefused, DriveUnavailable, ObjectMissing
from bottomless.errors import Corrupt, StoreError, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import drives_key, encode_drives
from bottomless.formats.keys import stream_prefix
from bottomless.formats.stream_record import SERVED, TIERS, decode_registry, encode_registry
from bottomless.model.drive import DriveRegistry, RegisteredDrive
from bottomless.model.names import Uid, uid_from_bytes
from bottomless.model.stream import Intent, StreamRecord
from bottomless_server.drives.table import DriveTable
from bottomless_server.manifest.common.registry_objects import note_drives
from bottomless_server.manifest.mutators.sessions import give_up
from bottomless_server.manifest.recovery.rebuilt_registry import find_registry
from bottomless_server.manifest.recovery.root_search import objects_there
from bottomless_server.manifest.tree.resolver import intended_place, load_root, look_under
from bottomless_server.stores.streams import deletes_key

STRAY = Uid("f" * 32)


async def of_two_drives() -> Moving:
    """Three of six fragments are on the other drive, and nothing waits to be deleted."""
    moving = await a_moving_stream(6)
    await register(moving.harness.drive, COLD)
    await moving.move(0, 30)
    await moving.after_the_grace()
    return moving


async def put(moving: Moving, number: int, object_key: str) -> str:
    await moving.drive(number).put(object_key, [b"x"], crc32c(b"x"))
    return object_key


async def test_garbage_is_collected_on_each_drive_and_what_is_named_there_stays() -> None:
    moving = await of_two_drives()
    (first, *_) = await moving.leaves()
    strays = [
        await put(moving, COLD, fragment_key(STREAM, 10, STRAY)),
        await put(moving, COLD, fragment_key(STREAM, 0, first.uid)),
        await put(moving, COLD, fragment_key(STREAM, 0, first.uid, copy=1)),
        await put(moving, HOT, fragment_key(STREAM, 0, first.uid)),
        await put(moving, HOT, fragment_key(STREAM, 0, first.uid, copy=first.copy)),
    ]

    report = await collect(moving.harness, page_count=3)
    assert report["orphans"]["fragment"]["objects"] == len(strays)
    await moving.delete()

    await moving.check_nothing_else_is_there()
    assert len(await moving.fragments(COLD)) == 3


async def test_what_was_moved_is_no_garbage_before_its_grace_is_over() -> None:
    moving = await a_moving_stream(3)
    await register(moving.harness.drive, COLD)
    await moving.move(0, 20)

    await collect(moving.harness)
    await moving.delete()

    assert len(await moving.fragments(HOT)) == 3


async def test_what_was_cut_on_another_drive_is_no_garbage_before_its_grace_is_over() -> None:
    moving = await of_two_drives()
    there = await moving.fragments(COLD)
    await trim(moving, 20)

    await collect(moving.harness)
    await moving.delete()
    assert await moving.fragments(COLD) == there

    await moving.after_the_grace()
    await moving.check_nothing_else_is_there()


async def test_copies_of_a_move_that_is_under_way_are_no_garbage() -> None:
    moving = await a_moving_stream(3)
    await register(moving.harness.drive, COLD)
    number = await moving.enter(0, 20)
    await moving.copy(number)

    await collect(moving.harness)
    await moving.delete()

    assert len(await moving.fragments(COLD)) == 2


async def test_a_drive_that_is_away_holds_up_no_collection_of_the_others() -> None:
    moving = await of_two_drives()
    await put(moving, HOT, fragment_key(STREAM, 0, STRAY))
    moving.harness.use_drives(DriveTable.of_one(moving.harness.drive))

    report = await collect(moving.harness)

    assert report["orphans"]["fragment"]["objects"] == 1
    assert [one["drive"] for one in report["skipped_drives"]] == [COLD]


@pytest.mark.parametrize("error", [DriveRefused("no"), Corrupt("no"), DriveUnavailable("no")])
async def test_a_drive_that_refuses_holds_up_no_collection_of_the_others(
    error: StoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = await of_two_drives()
    await put(moving, HOT, fragment_key(STREAM, 0, STRAY))

    async def look() -> None:
        raise error

    monkeypatch.setattr(moving.harness.context.drives.marked(COLD), "look", look)
    report = await collect(moving.harness)

    assert report["orphans"]["fragment"]["objects"] == 1
    assert report["skipped_drives"] == [{"drive": COLD, "code": error.code.value}]


async def test_what_is_given_up_goes_from_the_drive_of_its_intent() -> None:
    moving = await a_moving_stream(1)
    await moving.committer.change(
        lambda record: replace(record, intents=(Intent(STRAY, 10, "s1", COLD),))
    )
    await put(moving, COLD, fragment_key(STREAM, 10, STRAY))

    await give_up(moving.harness.context, moving.committer, {STRAY})

    assert [one.drive for one in (await moving.harness.record()).quarantine] == [COLD]
    assert await moving.harness.coordination.member_count(deletes_key(COLD)) == 1
    await moving.after_the_grace()
    assert await moving.fragments(COLD) == []
    assert (await moving.harness.record()).quarantine == ()


async def test_what_lies_under_an_intent_is_looked_for_on_its_drive() -> None:
    moving = await a_moving_stream(0)
    intent = Intent(STRAY, 0, "s1", COLD)
    await moving.harness.put_fragment(STRAY, 0)
    record = await moving.harness.record()
    place = intended_place(record, intent)
    assert place.drive == COLD
    assert (await look_under(moving.harness.context, record, intent)).fragment is None

    data = bytes(await moving.drive(HOT).get(place.object_key))
    await moving.drive(COLD).put(place.object_key, [data], crc32c(data))
    found = (await look_under(moving.harness.context, record, intent)).fragment

    assert found is not None
    assert (found.drive, found.copy) == (COLD, 0)


async def test_a_rebuild_looks_for_what_a_root_names_where_it_is_named() -> None:
    moving = await of_two_drives()
    record, root = await load_root(moving.harness.context, await moving.harness.record())
    uids = {uid_from_bytes(entry["uid"].tobytes()) for entry in root.entries}
    directly = [info for info in await moving.leaves() if info.uid in uids]
    there = await objects_there(moving.harness.context, record, root)
    assert {info.uid for info in directly} <= there

    for key in await moving.fragments(COLD):
        await moving.drive(COLD).delete([key])
    left = await objects_there(moving.harness.context, record, root)
    assert {info.uid for info in directly if info.drive == COLD}.isdisjoint(left)
    assert {info.uid for info in directly if info.drive == HOT} <= left


async def a_deletion_with_a_drive() -> tuple[DeletionHarness, DriveTable]:
    """A stream, and a drive that is registered."""
    harness = DeletionHarness(served=SERVED | {TIERS})
    default, made = harness.manifest.drive, await a_table(harness.manifest.drive, COLD)
    await register(default, COLD)
    harness.manifest.use_drives(made)
    harness.restart()
    return await harness.declare(), made


async def test_a_deleted_stream_is_swept_from_each_of_its_drives() -> None:
    """And one that this process does not know holds up the end of it."""
    harness, made = await a_deletion_with_a_drive()
    default = harness.manifest.drive
    await harness.manifest.streams.update(
        harness.stream_id, lambda record: replace(record, drives=(COLD,))
    )
    key = fragment_key(harness.stream_id, 1, STRAY, copy=5)
    await made.of(COLD).put(key, [b"x"], crc32c(b"x"))
    operation = await harness.deletions.begin(NAME, None)

    harness.manifest.use_drives(DriveTable.of_one(default))
    harness.restart()
    await harness.work(2 * DEADLINE)
    assert await harness.phase(operation) == "sweeping"
    harness.manifest.use_drives(made)
    harness.restart()
    await harness.work(2 * DEADLINE)

    assert await harness.phase(operation) == "succeeded"
    assert [facts.object_key async for facts in made.of(COLD).list("default/")] == []
    await harness.mutators.aclose()


async def test_a_drive_that_a_stream_never_was_on_does_not_hold_up_its_deletion() -> None:
    harness, _ = await a_deletion_with_a_drive()
    operation = await harness.deletions.begin(NAME, None)

    harness.manifest.use_drives(DriveTable.of_one(harness.manifest.drive))
    harness.restart()
    await harness.work(2 * DEADLINE)
    await harness.work(2 * DEADLINE)

    assert await harness.phase(operation) == "succeeded"
    await harness.mutators.aclose()


async def test_a_drive_that_was_retired_does_not_hold_up_a_deletion() -> None:
    harness, _ = await a_deletion_with_a_drive()
    await harness.manifest.streams.update(
        harness.stream_id, lambda record: replace(record, drives=(COLD,))
    )
    gone = RegisteredDrive(f"d{COLD}", COLD, Uid(f"{COLD:032x}"), retired=True)
    data = encode_drives(DriveRegistry(2, (gone,)))
    await harness.manifest.drive.put(drives_key(2), [data], crc32c(data))
    operation = await harness.deletions.begin(NAME, None)

    harness.manifest.use_drives(DriveTable.of_one(harness.manifest.drive))
    harness.restart()
    await harness.work(2 * DEADLINE)
    await harness.work(2 * DEADLINE)

    assert await harness.phase(operation) == "succeeded"
    await harness.mutators.aclose()


async def test_a_drive_that_is_lost_while_a_deletion_waits_for_it_holds_it_up_no_more() -> None:
    """Seed 13 of the simulation: the sweep had come to the drive before."""
    harness, made = await a_deletion_with_a_drive()
    await harness.manifest.streams.update(
        harness.stream_id, lambda record: replace(record, drives=(COLD,))
    )
    await take_away(made, COLD)
    operation = await harness.deletions.begin(NAME, None)
    await harness.work(2 * DEADLINE)
    assert await harness.phase(operation) == "sweeping"

    gone = RegisteredDrive(f"d{COLD}", COLD, Uid(f"{COLD:032x}"), retired=False, lost=True)
    data = encode_drives(DriveRegistry(2, (gone,)))
    await harness.manifest.drive.put(drives_key(2), [data], crc32c(data))
    await harness.work(2 * DEADLINE)
    await harness.work(2 * DEADLINE)

    assert await harness.phase(operation) == "succeeded"
    await harness.mutators.aclose()


async def lasting(moving: Moving) -> StreamRecord:
    """What the newest registry object of the stream says."""
    record = await moving.harness.record()
    key = registry_key(STREAM, record.registry_version)
    return decode_registry(bytes(await moving.drive(HOT).get(key)), SERVED | {TIERS})


async def test_the_bucket_names_a_drive_before_a_copy_is_put_there_and_for_ever() -> None:
    moving = await a_moving_stream(2)
    number = await moving.enter(0, 10)
    assert (await moving.harness.record()).drives == (COLD,)

    await moving.copy(number)
    assert (await lasting(moving)).drives == (COLD,)
    await moving.finish(number)
    await moving.move(0, 10, source=COLD, target=HOT)

    assert (await moving.harness.record()).drives == (COLD,)
    assert (await lasting(moving)).drives == (COLD,)


async def test_a_move_is_not_handed_out_before_the_bucket_names_its_drive() -> None:
    moving = await a_moving_stream(1)
    number = await moving.enter(0, 10)
    moving.harness.drive.failing = True

    with pytest.raises(DriveUnavailable):
        await moving.copy(number)
    moving.harness.drive.failing = False
    assert await moving.fragments(COLD) == []

    await moving.copy(number)
    assert (await lasting(moving)).drives == (COLD,)


async def test_without_its_guard_a_rebuild_does_not_hear_of_the_drive_of_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def note_nothing(*_: object) -> None:
        pass

    remove(
        monkeypatch,
        "the drives of a stream, in the bucket before anything is on them",
        note_nothing,
    )
    moving = await a_moving_stream(1)
    await moving.copy(await moving.enter(0, 10))

    assert len(await moving.fragments(COLD)) == 1
    with pytest.raises(ObjectMissing):
        await lasting(moving)


async def test_a_record_of_before_a_rebuild_notes_no_drive_that_the_rebuilt_one_lacks() -> None:
    moving = await a_moving_stream(1)

    def next_version(record: StreamRecord) -> StreamRecord:
        return replace(record, registry_version=record.registry_version + 1)

    objects = moving.harness.context.registry_objects
    # Two processes of two generations: both say something under the next version.
    before = next_version(replace(await moving.harness.record(), drives=(COLD,)))
    await objects.ensure(await moving.harness.streams.update(STREAM, next_version))

    with pytest.raises(Unavailable, match="was rebuilt"):
        await note_drives(objects, before)
    assert (await lasting(moving)).drives == ()


async def found_by_a_rebuild(moving: Moving) -> tuple[int, ...]:
    """The drives that a rebuild believes, where the newest registry object is damaged."""
    record = await moving.harness.record()
    drive = moving.drive(HOT)
    data = encode_registry(record)
    await drive.put(registry_key(STREAM, record.registry_version), [data], crc32c(data))
    await drive.put(registry_key(STREAM, record.registry_version + 1), [b"x"], crc32c(b"x"))
    found = await find_registry(drive, stream_prefix(STREAM, TENANT), 5, SERVED | {TIERS})
    assert found is not None
    return found.record.drives


async def test_a_rebuild_asks_all_drives_where_it_cannot_tell_which_they_are() -> None:
    moving = await a_moving_stream(1)
    await register(moving.drive(HOT), COLD)
    assert await found_by_a_rebuild(moving) == (COLD,)


async def test_without_its_guard_a_drive_that_a_damaged_object_named_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "drives that are lost", lambda drives, _: drives)
    moving = await a_moving_stream(1)
    await register(moving.drive(HOT), COLD)
    assert await found_by_a_rebuild(moving) == ()
