"""Moves to another drive, with what comes between: crashes, cuts, other sessions, late deletes."""

import pytest
from support import guards
from support.manifest import STREAM, Crash
from support.moving import COLD, GRACE_MS, HOT, Moving, a_moving_stream

from bottomless.errors import Fenced, InvalidRequest, NotServed, Overloaded
from bottomless.formats.stream_record import SERVED, TIERS, decode_record
from bottomless.model.limits import MOVE_COUNT_MAX
from bottomless.model.stream import Lease
from bottomless.model.tiers import Move
from bottomless_server.manifest.common.held_moves import TAKE_OVER_MS
from bottomless_server.manifest.mutators import moves, retention
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.removal.range_leases import give_back, grant
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.stores.streams import deletes_key, stream_key
from bottomless_server.tree.relocate import Relocation


async def trim(moving: Moving, offset: int) -> None:
    await retention.trim(moving.harness.context, moving.committer, offset, allow_empty=False)


async def queued(moving: Moving, number: int) -> list[str]:
    dues = await moving.harness.coordination.due(deletes_key(number), 2**52, 999)
    return sorted(due.member.decode() for due in dues)


async def test_what_was_moved_is_read_from_the_other_drive_and_goes_from_the_first() -> None:
    moving = await a_moving_stream(7)
    before = await moving.leaves()

    await moving.move(10, 50)

    assert [info.drive for info in await moving.leaves()] == [0, COLD, COLD, COLD, COLD, 0, 0]
    same = [info._replace(drive=0, copy=0) for info in await moving.leaves()]
    assert same == before
    assert len(await moving.fragments(HOT)) == 7, "readers of older roots read on"
    assert (await moving.harness.record()).moves == ()
    await moving.after_the_grace()
    await moving.check_nothing_else_is_there()
    assert await queued(moving, HOT) == await queued(moving, COLD) == []


async def test_a_record_is_of_version_1_before_its_first_move_and_never_after_it() -> None:
    """An older release would forget the copies, so it may not touch the stream any more."""
    moving = await a_moving_stream(2)
    before = await moving.harness.coordination.get(stream_key(STREAM))
    assert before is not None
    assert b'"tiers"' not in before

    await moving.move(0, 10)

    value = await moving.harness.coordination.get(stream_key(STREAM))
    assert value is not None
    with pytest.raises(NotServed):
        decode_record(value, frozenset())
    assert decode_record(value, SERVED | {TIERS}).moves == ()


async def test_a_move_back_is_a_move_under_a_key_of_its_own() -> None:
    moving = await a_moving_stream(3)
    first = await moving.fragments(HOT)

    await moving.move(0, 30)
    await moving.move(0, 30, COLD, HOT)

    assert set(first).isdisjoint(await moving.named(HOT))
    await moving.after_the_grace()
    await moving.check_nothing_else_is_there()


async def test_moves_of_the_same_fragments_and_too_many_are_refused() -> None:
    moving = await a_moving_stream(6)
    await moving.enter(0, 10)
    with pytest.raises(Overloaded, match="some of these"):
        await moving.enter(9, 60)
    for number in range(1, MOVE_COUNT_MAX):
        await moving.enter(10 * number, 10 * number + 10)
    with pytest.raises(Overloaded, match="as many moves"):
        await moving.enter(50, 60)


@pytest.mark.parametrize(
    "wanted", [(0, 31, HOT, COLD), (10, 10, HOT, COLD), (0, 10, COLD, COLD), (0, 10, HOT, 255)]
)
async def test_a_move_that_means_nothing_is_refused(wanted: tuple[int, int, int, int]) -> None:
    moving = await a_moving_stream(3)
    with pytest.raises(InvalidRequest):
        await moving.enter(*wanted)


async def taken_over_by_a_set_clock(moving: Moving) -> bool:
    """Whether another session gets a live one's move when the wall clock was set forward."""
    number = await moving.enter(0, 30)
    await moving.copy(number, "m1")
    moving.harness.clock.skew_ms += 10 * TAKE_OVER_MS
    try:
        await moving.copy(number, "m2")
    except Fenced:
        return False
    return True


async def test_a_clock_that_was_set_gives_nobody_the_move_of_another_session() -> None:
    assert not await taken_over_by_a_set_clock(await a_moving_stream(3))


async def test_a_clock_that_was_set_back_leaves_a_move_to_a_dead_session_no_longer() -> None:
    moving = await a_moving_stream(3)
    number = await moving.enter(0, 30)
    await moving.copy(number, "m1")
    moving.harness.clock.skew_ms -= 10 * TAKE_OVER_MS
    moving.harness.clock.now += TAKE_OVER_MS
    await moving.copy(number, "m2")


async def test_without_the_time_that_a_move_is_left_to_its_session_two_are_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards.remove(monkeypatch, "the time that a move is left to its session", lambda _: True)
    assert await taken_over_by_a_set_clock(await a_moving_stream(3))


async def test_another_session_takes_a_move_over_after_a_minute_and_not_before() -> None:
    moving = await a_moving_stream(3)
    number = await moving.enter(0, 30)
    await moving.copy(number, "m1")
    moving.harness.clock.now += TAKE_OVER_MS - 1
    with pytest.raises(Fenced):
        await moving.copy(number, "m2")
    await moving.copy(number, "m1")
    moving.harness.clock.now += TAKE_OVER_MS
    await moving.copy(number, "m2")

    with pytest.raises(Fenced):
        await moving.finish(number, "m1")
    await moving.finish(number, "m2")
    assert len(await moving.named(COLD)) == 3
    with pytest.raises(Fenced, match="has ended"):
        await moving.finish(number, "m2")


async def test_a_move_that_is_given_up_leaves_nothing_also_of_a_late_put() -> None:
    moving = await a_moving_stream(3)
    number = await moving.enter(0, 20)
    claimed = await moving.copy(number)

    await moving.delete()
    assert len(await moving.fragments(COLD)) == 2, "they are of a move that is under way"
    await moves.give_up(moving.harness.context, moving.committer, number)
    with pytest.raises(Fenced):
        await moving.finish(number)
    await moving.put_copies(claimed)

    await moving.after_the_grace()
    assert await moving.fragments(COLD) == []
    await moving.check_nothing_else_is_there()


async def given_up_in_the_middle() -> Moving:
    """A move is given up between the put of its root and the EXEC that would name it."""
    moving = await a_moving_stream(3)
    number = await moving.enter(0, 30)
    await moving.copy(number)
    other = await Committer.open(moving.harness.context, STREAM)

    async def give_up() -> None:
        await moves.give_up(moving.harness.context, other, number)

    moving.harness.coordination.before_transact = give_up
    with pytest.raises(Fenced, match="has ended"):
        await moving.finish(number)
    return moving


async def half_copied() -> Moving:
    """A mover copies some of a move's fragments, and says that it is done."""
    moving = await a_moving_stream(4)
    number = await moving.enter(0, 40)
    claimed = await moves.claim(moving.harness.context, moving.committer, number, "m1")
    await moving.put_copies(claimed._replace(fragments=claimed.fragments[1:3]))
    await moving.finish(number)
    return moving


async def test_what_a_mover_has_not_copied_stays_where_it_is() -> None:
    moving = await half_copied()
    assert [info.drive for info in await moving.leaves()] == [HOT, COLD, COLD, HOT]
    assert (await moving.harness.record()).moves == ()
    await moving.after_the_grace()
    await moving.check_nothing_else_is_there()


async def test_without_what_a_mover_has_copied_a_copy_is_named_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_of_it(move: Move, _: object) -> Relocation:
        return Relocation(*move[1:5], copy=move.copy)

    guards.remove(monkeypatch, "what a mover has copied", all_of_it)
    moving = await half_copied()
    with pytest.raises(AssertionError):
        await moving.check_all_named_is_there()


async def test_copies_of_a_move_that_was_given_up_are_never_named() -> None:
    moving = await given_up_in_the_middle()
    assert await moving.named(COLD) == []
    await moving.after_the_grace()
    await moving.check_all_named_is_there()
    assert await moving.fragments(COLD) == []


async def test_without_the_move_in_the_exec_what_was_given_up_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards.remove(
        monkeypatch,
        "the move and its session in the EXEC of a relocation",
        lambda *_: True,
    )
    with pytest.raises(pytest.fail.Exception):
        await given_up_in_the_middle()


async def moved_back_while_the_first_is_deleted() -> Moving:
    """There and back, and there; and back again just when the deleter has looked at what is doomed."""
    moving = await a_moving_stream(1)
    await moving.move(0, 10)
    await moving.move(0, 10, COLD, HOT)
    (there,) = await moving.named(HOT)
    await moving.move(0, 10)

    async def move_back() -> None:
        await moving.move(0, 10, COLD, HOT)

    moving.harness.drive.before_delete_of = there
    moving.harness.drive.before_delete = move_back
    moving.harness.clock.now += GRACE_MS
    await Deleter(moving.harness.context).make_pass()
    assert moving.harness.drive.before_delete is None
    assert len(await moving.named(HOT)) == 1
    return moving


async def test_a_delete_that_lands_late_does_nothing_to_what_was_moved_back() -> None:
    moving = await moved_back_while_the_first_is_deleted()
    await moving.check_all_named_is_there()


async def test_without_a_key_of_its_own_what_was_moved_back_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards.remove(monkeypatch, "a key of its own for each move", lambda *_: 1)
    moving = await moved_back_while_the_first_is_deleted()
    assert await moving.fragments(HOT) == []


async def test_without_the_drive_in_its_look_the_deleter_leaves_what_was_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards.remove(monkeypatch, "the drive in the deleter's look", lambda *_: True)
    moving = await a_moving_stream(2)
    await moving.move(0, 10)
    moving.harness.clock.now += GRACE_MS
    await Deleter(moving.harness.context).make_pass()
    assert len(await moving.fragments(HOT)) == 2


async def leased(moving: Moving, first: int) -> None:
    """Somebody holds what is at or above an offset, from before the move on."""
    streams, now = moving.harness.streams, moving.harness.clock.now
    await grant(streams, STREAM, Lease("l", first, 30, now + 10 * GRACE_MS, "spark"), now)


@pytest.mark.parametrize(("first", "left"), [(9, 2), (10, 1)])
async def test_what_was_moved_stays_for_a_lease_that_begins_below_its_end(
    first: int, left: int
) -> None:
    moving = await a_moving_stream(3)
    await leased(moving, first)
    await moving.move(0, 20)

    await moving.after_the_grace()

    assert len(await moving.fragments(HOT)) == 1 + left
    await give_back(moving.harness.streams, STREAM, "l", moving.harness.clock.now)
    await moving.after_the_grace()
    await moving.check_nothing_else_is_there()


async def test_without_a_look_at_leases_what_was_moved_goes_under_a_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards.remove(monkeypatch, "the leases of what was moved", lambda *_: False)
    moving = await a_moving_stream(3)
    await leased(moving, 0)
    await moving.move(0, 20)
    await moving.after_the_grace()
    assert len(await moving.fragments(HOT)) == 1


async def test_what_is_cut_during_a_move_leaves_no_copy() -> None:
    moving = await a_moving_stream(5)
    number = await moving.enter(0, 40)
    await moving.copy(number)
    await trim(moving, 20)
    await moving.finish(number)
    assert len(await moving.named(COLD)) == 2
    await moving.after_the_grace()
    await moving.check_nothing_else_is_there()


async def test_a_move_of_which_all_is_cut_ends_without_a_root() -> None:
    moving = await a_moving_stream(3)
    number = await moving.enter(0, 20)
    await moving.copy(number)
    await trim(moving, 20)
    root = (await moving.harness.record()).root
    await moving.finish(number)
    assert (await moving.harness.record()).moves == ()
    assert (await moving.harness.record()).root == root
    await moving.after_the_grace()
    await moving.check_nothing_else_is_there()


async def cut_and_made_anew() -> Moving:
    """The front of a group is cut, and the group goes before what was queued of it: a lease has held
    that until now."""
    moving = await a_moving_stream(4)
    await leased(moving, 0)
    await trim(moving, 10)
    await moving.move(10, 20)
    await moving.after_the_grace()
    await give_back(moving.harness.streams, STREAM, "l", moving.harness.clock.now)
    await moving.after_the_grace()
    return moving


async def test_what_was_cut_from_a_group_goes_also_if_the_group_is_made_anew() -> None:
    moving = await cut_and_made_anew()
    await moving.check_nothing_else_is_there()


async def test_without_its_cut_a_group_that_is_made_anew_leaves_what_was_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards.remove(monkeypatch, "the cut of a group that is made anew", lambda *_: False)
    moving = await cut_and_made_anew()
    assert len(await moving.fragments(HOT)) == len(await moving.named(HOT)) + 1


async def test_a_crash_at_any_step_of_a_move_leaves_it_done_or_not() -> None:
    for left in range(100):
        moving = await a_moving_stream(3)
        moving.harness.fuse.left = left
        try:
            await moving.move(0, 20)
        except Crash:
            moving.harness.fuse.left = None
            await moving.check_all_named_is_there()
            await moving.reopen()
            for move in (await moving.harness.record()).moves:
                # From when somebody else sees the move its session has a minute.
                moving.harness.context.held_moves.note(move)
                moving.harness.clock.now += TAKE_OVER_MS
                await moving.copy(move.copy, "m2")
                await moving.finish(move.copy, "m2")
            if not await moving.named(COLD):
                await moving.move(0, 20)
            crashed = True
        else:
            moving.harness.fuse.left = None
            crashed = False
        assert [info.drive for info in await moving.leaves()] == [COLD, COLD, HOT]
        await moving.after_the_grace()
        await moving.check_all_named_is_there()
        assert await moving.fragments(COLD) == await moving.named(COLD)
        assert await moving.fragments(HOT) == await moving.named(HOT)
        if not crashed:
            return
    raise AssertionError("it never ends")


async def test_a_source_stays_where_its_copy_is_gone() -> None:
    moving = await a_moving_stream(3)
    await moving.move(0, 30)
    lost, *_ = await moving.fragments(COLD)
    await moving.drive(COLD).delete([lost])

    await moving.after_the_grace()

    assert len(await moving.fragments(HOT)) == 1
    assert len(await queued(moving, HOT)) == 1


async def test_without_its_guard_a_source_goes_whose_copy_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def is_there(*_: object) -> None:
        pass

    guards.remove(monkeypatch, "the copy before its source goes", is_there)
    moving = await a_moving_stream(1)
    await moving.move(0, 10)
    await moving.drive(COLD).delete(await moving.fragments(COLD))

    await moving.after_the_grace()

    assert await moving.fragments(HOT) == []
