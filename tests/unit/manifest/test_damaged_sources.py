"""Fragments that cannot be moved are left alone for longer and longer, and keep nothing else waiting."""

import pytest
from support import guards
from support.moving import COLD, HOT, Moving
from unit.manifest.test_policy_moves import newest, with_policy

from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import StreamId, Uid
from bottomless_server.manifest.common.damaged_sources import (
    COUNT_MAX,
    FIRST_MS,
    LATEST_MS,
    LONGEST_MS,
    DamagedSources,
)
from bottomless_server.manifest.mutators.moves import finish
from bottomless_server.manifest.mutators.range_moves import move_range
from bottomless_server.manifest.mutators.tiering import evaluate, preview

STREAM = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
OTHER = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12")


def a_fragment(first_offset: int) -> FragmentInfo:
    return FragmentInfo(
        uid=Uid(f"{first_offset:032x}"),
        first_offset=first_offset,
        next_offset=first_offset + 10,
        first_timestamp=0,
        last_timestamp=0,
        epoch=1,
        record_count=10,
        size=100,
        index_size=50,
        crc=0,
    )


class Time:
    """Milliseconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def test_each_try_that_fails_is_waited_for_twice_as_long_up_to_a_bound() -> None:
    time = Time()
    known = DamagedSources(time)
    waits = []
    for _ in range(7):
        known.note(STREAM, [a_fragment(0)])
        (one,) = known.of(STREAM, 0)
        waits.append(known.wait_ms(one))
        time.now += waits[-1]
        assert known.waiting(STREAM, 0) == []

    assert waits == [min(FIRST_MS * 2**n, LONGEST_MS) for n in range(7)]
    assert one.tries == 7


def test_what_was_moved_or_lies_below_the_floor_is_forgotten() -> None:
    known = DamagedSources(lambda: 0)
    known.note(STREAM, [a_fragment(20), a_fragment(0), a_fragment(10)])
    known.forget(STREAM, [a_fragment(10).uid])

    assert [one.first_offset for one in known.of(STREAM, 0)] == [0, 20]
    assert [one.first_offset for one in known.waiting(STREAM, 10)] == [20]
    assert len(known) == 1


def test_no_more_are_remembered_than_there_is_room_for() -> None:
    known = DamagedSources(lambda: 0)
    known.note(STREAM, (a_fragment(10 * number) for number in range(COUNT_MAX + 5)))

    assert len(known) == COUNT_MAX
    assert known.of(STREAM, 0)[0].first_offset == 50


@pytest.mark.parametrize("guarded", [True, False])
def test_what_nobody_tries_any_more_is_forgotten_an_hour_after_its_time_has_come(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        name = "what is damaged, forgotten when nobody tries it"
        guards.remove(monkeypatch, name, lambda *_: False)
    time = Time()
    known = DamagedSources(time)
    known.note(STREAM, [a_fragment(0)])
    time.now = FIRST_MS + LATEST_MS - 1
    assert (len(known), len(known.of(STREAM, 0))) == (1, 1)
    time.now += 1
    assert len(known) == (0 if guarded else 1)
    assert known.of(STREAM, 0) == [] or not guarded


def test_what_a_deleted_stream_or_a_lost_drive_had_is_forgotten() -> None:
    known = DamagedSources(lambda: 0)
    known.note(STREAM, [a_fragment(0), a_fragment(10)._replace(drive=2)])
    known.note(OTHER, [a_fragment(0)])
    known.forget_drive(STREAM, 2)
    assert [one.first_offset for one in known.of(STREAM, 0)] == [0]
    known.forget_stream(STREAM)
    assert (known.of(STREAM, 0), len(known.of(OTHER, 0)), len(known)) == ([], 1, 1)


async def all_but_one(moving: Moving, damaged: Uid) -> int:
    """Carry out what the policy wants, of which one fragment is damaged; how many moves there were."""
    context, committer = moving.harness.context, moving.committer
    entered = await evaluate(context, committer)
    for move in entered:
        claimed = await moving.copy(move.copy)
        uids = {info.uid for info in claimed.fragments}
        await finish(context, committer, move.copy, "m1", uids - {damaged}, uids & {damaged})
    return len(entered)


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_damaged_fragment_is_moved_again_when_its_time_has_come_and_not_before(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        guards.remove(monkeypatch, "the pause of what cannot be moved", lambda _: False)
    moving = await with_policy(6, await newest(1), {"drive": f"d{COLD}"})
    context = moving.harness.context
    damaged = (await moving.leaves())[2]

    await all_but_one(moving, damaged.uid)
    again = await all_but_one(moving, damaged.uid)

    assert [info.drive for info in await moving.leaves()] == [COLD, COLD, HOT, COLD, COLD, HOT]
    assert (again == 0) is guarded, "else it takes a place of the four, and is read, each minute"
    if guarded:
        seen = await preview(context, moving.committer)
        assert seen is not None
        assert seen.waiting == {}
        by_hand = await move_range(context, moving.committer, 0, 60, COLD)
        assert [move[1:3] for move in by_hand.moves] == [(50, 60)]
        moving.harness.clock.now += FIRST_MS
        assert await all_but_one(moving, damaged.uid) == 1
        (one,) = context.damaged_sources.of(moving.committer.record.stream_id, 0)
        assert one.tries == 2
