"""What is whole on another drive is not given up with a drive that is lost: it is named there."""

from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drives import bring_back, register, take_away
from support.guards import remove
from support.moving import COLD, GRACE_MS, HOT, Moving, a_moving_stream
from unit.manifest.test_lost_drives import NAME, Losing, a_losing, ranges, take_it_away

from bottomless.drives.base import Drive, DriveUnavailable
from bottomless.errors import Exists, StoreError
from bottomless.formats.checks import crc32c
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Changes
from bottomless_server.drives.table import DriveTable, load_registry
from bottomless_server.manifest.registry.drive_registration import DriveRegistration
from bottomless_server.manifest.registry.drive_versions import change_registry
from bottomless_server.manifest.removal import deleter
from bottomless_server.manifest.removal.expansion import Expansion, expand
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget, parse_delete_target
from bottomless_server.stores.streams import delete_later


async def just_moved() -> Losing:
    """Three of six fragments went to the other drive a moment ago, so their sources wait for their grace."""
    moving = await a_moving_stream(6)
    await register(moving.harness.drive, COLD)
    await moving.move(10, 40)
    return Losing(moving)


async def half_moved_back() -> Losing:
    """Three of six fragments are on the other drive, and two of these have copies on drive 0 again."""
    there = await a_losing()
    await there.moving.copy(await there.moving.enter(10, 30, COLD, HOT))
    return there


async def gaps(there: Losing) -> list[int]:
    return [first for first, _, is_gap in await ranges(there) if is_gap]


async def check_all_named_stays(moving: Moving) -> None:
    await moving.after_the_grace()
    assert await moving.fragments(HOT) == await moving.named(HOT)
    assert moving.harness.context.counts.refused_deletes == 0


async def test_sources_of_a_move_that_wait_for_their_grace_are_named_again() -> None:
    there = await just_moved()
    await take_it_away(there)

    operation = await there.lose()

    assert operation.result is not None
    assert (operation.result["fragment_count"], operation.result["with_gaps"]) == (0, [])
    assert operation.result["kept_fragment_count"] == 3
    assert [info.drive for info in await there.moving.leaves()] == [HOT] * 6
    await check_all_named_stays(there.moving)


async def test_copies_of_a_move_that_did_not_come_to_its_end_are_named() -> None:
    there = await half_moved_back()
    await take_it_away(there)

    operation = await there.lose()

    assert operation.result is not None
    assert (operation.result["fragment_count"], operation.result["record_count"]) == (1, 10)
    assert (operation.result["kept_fragment_count"], await gaps(there)) == (2, [30])
    assert (await there.moving.harness.record()).moves == ()
    await check_all_named_stays(there.moving)


async def test_without_that_look_what_is_whole_elsewhere_is_given_up_and_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> dict[object, object]:
        return {}

    remove(monkeypatch, "what is whole elsewhere before it is given up", nothing)
    there = await just_moved()
    await take_it_away(there)
    await there.lose()
    await there.moving.after_the_grace()
    assert await gaps(there) == [10, 20, 30]
    assert len(await there.moving.fragments(HOT)) == 3


async def test_an_object_of_another_size_is_no_copy() -> None:
    there = await just_moved()
    drive = there.moving.harness.drive
    source = (await there.moving.fragments(HOT))[1]
    data = bytes(await drive.get(source))[:-1]
    await drive.delete([source])
    await drive.put(source, [data], crc32c(data))
    await take_it_away(there)
    await there.lose()
    assert await gaps(there) == [10]


async def test_the_source_stays_while_its_copy_is_on_a_lost_drive_that_comes_back() -> None:
    there = await just_moved()
    await take_it_away(there)
    context = there.moving.harness.context
    operation = await there.loss.begin(NAME, NAME, "default")
    await there.loss.step(context, operation)
    await bring_back(context.drives, COLD)

    await there.moving.after_the_grace()

    assert len(await there.moving.fragments(HOT)) == 6


SHELF = 3


async def test_a_stream_of_which_another_drive_is_away_is_left_until_that_one_says() -> None:
    moving = await a_moving_stream(3, SHELF)
    await register(moving.harness.drive, SHELF, COLD)
    await moving.move(0, 20, HOT, SHELF)
    await moving.move(0, 20, SHELF, COLD)
    there = Losing(moving)
    await take_away(moving.harness.context.drives, SHELF)
    await take_it_away(there)

    left = (await there.lose()).result
    await bring_back(moving.harness.context.drives, SHELF)
    again = Losing(moving)
    kept = (await again.lose()).result

    assert left is not None
    assert (left["left_count"], left["fragment_count"]) == (1, 0)
    assert kept is not None
    assert (kept["kept_fragment_count"], kept["fragment_count"]) == (2, 0)


async def left_with_copies() -> Losing:
    """A move away from the lost drive did not come to its end, and another drive is away for so long that
    all is deleted which waits for nothing but time."""
    moving = await a_moving_stream(4, SHELF)
    await register(moving.harness.drive, SHELF, COLD)
    await moving.move(0, 20)
    await moving.move(20, 30, HOT, SHELF)
    await moving.after_the_grace()
    await moving.copy(await moving.enter(0, 20, COLD, HOT))
    there = Losing(moving)
    await take_away(moving.harness.context.drives, SHELF)
    await take_it_away(there)
    left = (await there.lose()).result
    assert left is not None
    assert left["left_count"] == 1
    await moving.after_the_grace()
    await bring_back(moving.harness.context.drives, SHELF)
    return Losing(moving)


async def test_copies_that_nobody_has_named_yet_stay_while_a_stream_is_left() -> None:
    there = await left_with_copies()
    kept = (await there.lose()).result
    assert kept is not None
    assert (kept["kept_fragment_count"], kept["fragment_count"]) == (2, 0)
    await check_all_named_stays(there.moving)


async def test_without_a_look_at_what_is_named_copies_go_that_are_all_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> None:
        pass

    remove(monkeypatch, "what is named before a copy of it goes", nothing)
    kept = (await (await left_with_copies()).lose()).result
    assert kept is not None
    assert kept["fragment_count"] == 2


async def waiting_as_strays() -> Losing:
    """Sources of a move wait in the form of what nobody names, as what a rebuild passes over does: it names
    one of two objects of one uid, and takes the other for a stray."""
    there = await just_moved()
    harness = there.moving.harness
    source = set(await there.moving.fragments(HOT)) - set(await there.moving.named(HOT))
    queued = [delete_later(key, harness.clock.now) for key in sorted(source)]
    harness.coordination.write(Changes(queued=queued))
    return there


async def test_a_stray_that_has_the_bytes_of_what_is_lost_stays_until_the_stream_is_told() -> None:
    there = await waiting_as_strays()
    await take_it_away(there)
    operation = await there.loss.begin(NAME, NAME, "default")
    await there.loss.step(there.moving.harness.context, operation)
    await there.moving.delete()

    await there.lose()

    assert await gaps(there) == []
    await check_all_named_stays(there.moving)


async def test_a_stray_that_is_named_again_while_it_is_to_be_deleted_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = await waiting_as_strays()
    there.moving.harness.clock.now -= GRACE_MS
    assert await delete_while_the_drive_is_lost(there, monkeypatch) == []
    await check_all_named_stays(there.moving)


async def test_who_does_not_know_a_drive_does_not_say_that_it_is_away() -> None:
    there = await a_losing()
    harness = there.moving.harness
    harness.use_drives(DriveTable.of_one(harness.drive))
    older = Losing(there.moving)
    with pytest.raises(DriveUnavailable):
        await older.lose()
    (drive,) = (await load_registry(harness.drive)).drives
    assert not drive.lost


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_registration_that_looked_before_does_not_take_a_loss_back(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        remove(monkeypatch, "a drive is lost for ever", lambda _: None)
    there = await a_losing()
    context = there.moving.harness.context
    await change_registry(context, lambda found: found.drives[0]._replace(retiring=Uid("ab" * 16)))
    drive = context.drives.marked(COLD)
    look = drive.look

    async def look_and_be_late() -> None:
        await look()
        await change_registry(context, lambda found: found.drives[0]._replace(lost=True))

    monkeypatch.setattr(drive, "look", look_and_be_late)
    with pytest.raises(Exists) if guarded else nullcontext():
        await DriveRegistration(context).register(NAME)
    assert (await there.drive()).lost is guarded


steps = st.lists(
    st.tuples(
        st.sampled_from(["out", "back", "half-back", "grace"]),
        st.integers(0, 4),
        st.integers(1, 3),
    ),
    max_size=5,
)


@settings(deadline=None, max_examples=12)
@given(steps)
async def test_given_up_is_what_is_whole_nowhere_else_whatever_moved_before(
    taken: list[tuple[str, int, int]],
) -> None:
    moving = await a_moving_stream(6)
    await register(moving.harness.drive, COLD)
    for what, first, count in taken:
        if what == "grace":
            await moving.after_the_grace()
            continue
        source, target = (HOT, COLD) if what == "out" else (COLD, HOT)
        try:
            number = await moving.enter(10 * first, 10 * (first + count), source, target)
        except StoreError:
            # As many are under way as may be, or one of these offsets.
            continue
        await moving.copy(number)
        if what != "half-back":
            await moving.finish(number)
    there = Losing(moving)
    whole = [parse_delete_target(key.encode()) for key in await moving.fragments(HOT)]
    uids = {one.uid for one in whole if one is not None}
    only_there = [
        one.first_offset
        for one in await moving.leaves()
        if one.drive == COLD and one.uid not in uids
    ]
    await take_it_away(there)

    await there.lose()

    assert await gaps(there) == only_there
    await check_all_named_stays(moving)


async def delete_while_the_drive_is_lost(
    there: Losing, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """A deleter stands still between its look and its deletions, and the registry says meanwhile that the
    drive of the copies is lost; returns the gaps, once the stream was told."""
    moving, losses = there.moving, iter([there.loss])

    async def slow(drive: Drive, target: DeleteTarget) -> Expansion:
        for loss in losses:
            await take_it_away(there)
            await loss.begin(NAME, NAME, "default")
        return await expand(drive, target)

    monkeypatch.setattr(deleter, "expand", slow)
    moving.harness.clock.now += GRACE_MS
    await deleter.Deleter(moving.harness.context).make_pass()
    await there.lose()
    return await gaps(there)


async def test_sources_whose_copies_are_lost_while_they_are_to_be_deleted_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = await just_moved()
    assert await delete_while_the_drive_is_lost(there, monkeypatch) == []
    await check_all_named_stays(there.moving)


async def test_without_that_second_look_sources_go_that_are_all_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "drives that are lost between the look and a delete", lambda *_: False)
    assert await delete_while_the_drive_is_lost(await just_moved(), monkeypatch) == [10, 20, 30]
