"""What is about to be deleted is claimed, and nobody names it again however late its deletion lands."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.drives import register, take_away
from support.guards import remove
from support.manifest import STREAM
from support.moving import COLD, GRACE_MS, HOT, Moving, a_moving_stream
from unit.manifest.test_kept_of_lost_drives import check_all_named_stays, gaps, just_moved
from unit.manifest.test_lost_drives import NAME, Losing, take_it_away

from bottomless.drives.base import DriveRefused
from bottomless.errors import Corrupt, StoreError
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import FragmentPlace
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Changes, Coordination, Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators import losing
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.removal import claims, deleter
from bottomless_server.manifest.removal.claims import Places
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.core.delete_queue import moved_member
from bottomless_server.stores.going import decode_going, encode_going, going_key
from bottomless_server.stores.streams import deletes_key, stream_key
from bottomless_server.tree.drive_loss import Elsewhere

Meanwhile = Callable[[], Awaitable[object]]


def meanwhile(there: Losing, monkeypatch: pytest.MonkeyPatch, happens: Meanwhile) -> None:
    """The next deletion on drive 0 that takes fragments stands still until something has happened."""
    drive = there.moving.drive(HOT)
    delete, left = drive.delete, [happens]

    async def late(object_keys: Sequence[str]) -> dict[str, StoreError]:
        if left and any(key.endswith(".fragment") for key in object_keys):
            await left.pop()()
        return await delete(object_keys)

    monkeypatch.setattr(drive, "delete", late)


async def lose_before_it_lands(there: Losing, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A deletion lands when the drive of the copies is lost already; returns what is named and gone."""

    async def lose() -> None:
        await take_it_away(there)
        await there.lose()

    meanwhile(there, monkeypatch, lose)
    there.moving.harness.clock.now += GRACE_MS
    await Deleter(there.moving.harness.context).make_pass()
    return sorted(set(await there.moving.named(HOT)) - set(await there.moving.fragments(HOT)))


async def test_a_deletion_that_lands_late_takes_nothing_that_is_named_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = await just_moved()
    assert await lose_before_it_lands(there, monkeypatch) == []
    assert await gaps(there) == []
    await check_all_named_stays(there.moving)


async def test_without_a_claim_a_late_deletion_takes_the_last_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def all_of_it(_: Coordination, wanted: Places) -> dict[StreamId, set[FragmentPlace]]:
        return {stream_id: set(places) for stream_id, places in wanted.items()}

    remove(monkeypatch, "a claim before a delete", all_of_it)
    assert len(await lose_before_it_lands(await just_moved(), monkeypatch)) == 3


async def test_where_what_is_going_is_named_again_a_late_deletion_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "what is going is not named again", lambda _: frozenset())
    assert len(await lose_before_it_lands(await just_moved(), monkeypatch)) == 3


async def test_what_is_gone_or_damaged_when_the_drive_is_lost_becomes_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = await just_moved()
    drive, sources = there.moving.drive(HOT), (await there.moving.fragments(HOT))[1:3]
    delete = drive.delete

    async def lose() -> None:
        data = bytearray(await drive.get(sources[1]))
        data[-1] ^= 1
        await delete(sources)
        await drive.put(sources[1], [bytes(data)], crc32c(bytes(data)))
        await take_it_away(there)
        await there.lose()

    meanwhile(there, monkeypatch, lose)
    there.moving.harness.clock.now += GRACE_MS
    await Deleter(there.moving.harness.context).make_pass()
    assert await gaps(there) == [10, 20]
    await check_all_named_stays(there.moving)


SHELF = 3


async def moved_on_after_the_loss(*others: int) -> tuple[Losing, Meanwhile]:
    """A move to a drive ends after an operator has said that the drive is lost, and its stream was not told
    yet. The first drive has a source that is due; what is named in place of it lies on a third one until then."""
    moving = await a_moving_stream(3, SHELF, *others)
    await register(moving.harness.drive, SHELF, COLD, *others)
    await moving.move(0, 20, HOT, SHELF)
    number = await moving.enter(0, 20, SHELF, COLD)
    await moving.copy(number)
    moving.harness.clock.now += GRACE_MS
    there = Losing(moving)
    await take_it_away(there)
    await there.loss.begin(NAME, NAME, "default")

    async def finish_and_lose() -> None:
        await moving.finish(number)
        await there.lose()

    return there, finish_and_lose


async def named_between_look_and_claim(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is named and gone, where sources are named again before they are claimed."""
    there, finish_and_lose = await moved_on_after_the_loss()
    claim = claims.claim

    async def late(
        coordination: Coordination, wanted: Places
    ) -> dict[StreamId, set[FragmentPlace]]:
        await finish_and_lose()
        monkeypatch.setattr(deleter, "claim", claim)
        return await claim(coordination, wanted)

    monkeypatch.setattr(deleter, "claim", late)
    await Deleter(there.moving.harness.context).make_pass()
    assert await gaps(there) == []
    return sorted(set(await there.moving.named(HOT)) - set(await there.moving.fragments(HOT)))


async def test_what_was_named_before_it_is_claimed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await named_between_look_and_claim(monkeypatch) == []


async def test_without_a_look_after_the_claim_what_names_it_by_then_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> set[Due]:
        return set()

    remove(monkeypatch, "a look after the claim", nothing)
    with pytest.raises(Corrupt, match="manifest of the stream is missing"):
        await named_between_look_and_claim(monkeypatch)


async def claimed_before_the_exec(monkeypatch: pytest.MonkeyPatch) -> tuple[Losing, list[str]]:
    """What is named and gone, where sources are claimed after the loss of a drive has found them, and before
    it names them."""
    there, finish_and_lose = await moved_on_after_the_loss()
    claim, find = claims.claim, losing.whole_elsewhere
    looked, found = asyncio.Event(), asyncio.Event()

    async def late(
        coordination: Coordination, wanted: Places
    ) -> dict[StreamId, set[FragmentPlace]]:
        looked.set()
        await found.wait()
        return await claim(coordination, wanted)

    async def slow(
        context: Context, record: StreamRecord, entries: Sequence[np.void]
    ) -> dict[Uid, Elsewhere]:
        elsewhere = await find(context, record, entries)
        found.set()
        await deleting
        return elsewhere

    monkeypatch.setattr(deleter, "claim", late)
    monkeypatch.setattr(losing, "whole_elsewhere", slow)
    deleting = asyncio.create_task(Deleter(there.moving.harness.context).make_pass())
    await looked.wait()
    await finish_and_lose()
    moving = there.moving
    return there, sorted(set(await moving.named(HOT)) - set(await moving.fragments(HOT)))


async def test_what_the_loss_of_a_drive_has_found_before_it_is_claimed_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, gone = await claimed_before_the_exec(monkeypatch)
    assert gone == []
    assert await gaps(there) == []
    await check_all_named_stays(there.moving)


async def test_without_a_look_after_the_claim_what_was_found_is_named_and_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> set[Due]:
        return set()

    remove(monkeypatch, "a look after the claim", nothing)
    _, gone = await claimed_before_the_exec(monkeypatch)
    assert len(gone) == 2


FAR = 5


async def moved_twice_after_the_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Losing, list[str]]:
    """A deleter has claimed what the loss of a drive has named a moment before, and stands still. Another one
    finds it named; and then it moves elsewhere. Returns what is named and gone once the first one is done,
    and `FAR` was lost when its deletion lands."""
    there, finish_and_lose = await moved_on_after_the_loss(FAR)
    moving, claim = there.moving, claims.claim

    async def late(
        coordination: Coordination, wanted: Places
    ) -> dict[StreamId, set[FragmentPlace]]:
        await finish_and_lose()
        monkeypatch.setattr(deleter, "claim", claim)
        claimed = await claim(coordination, wanted)
        await moving.delete()
        await moving.move(0, 20, HOT, FAR)
        return claimed

    async def lose() -> None:
        await take_away(moving.harness.context.drives, FAR)
        await Losing(moving).lose(f"d{FAR}", f"d{FAR}")

    monkeypatch.setattr(deleter, "claim", late)
    meanwhile(there, monkeypatch, lose)
    await Deleter(moving.harness.context).make_pass()
    return there, sorted(set(await moving.named(HOT)) - set(await moving.fragments(HOT)))


async def test_what_moved_twice_since_it_was_claimed_waits_for_its_new_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, gone = await moved_twice_after_the_claim(monkeypatch)
    assert gone == []
    assert len(await there.moving.fragments(HOT)) == 3


async def test_without_a_look_at_its_place_in_the_queue_it_goes_though_it_is_the_last_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> set[Due]:
        return set()

    remove(monkeypatch, "the place in the queue after the claim", nothing)
    _, gone = await moved_twice_after_the_claim(monkeypatch)
    assert len(gone) == 2


async def moved_twice_before_the_look(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A deleter has read what is due, and stands still. Meanwhile its drive is lost, the sources are named again,
    and move once more. Returns which of them are there when the first one is done."""
    there, finish_and_lose = await moved_on_after_the_loss(FAR)
    moving, coordination = there.moving, there.moving.harness.coordination
    sources = (await moving.fragments(HOT))[:2]
    due = coordination.due

    async def late(redis_key: str, now: int, limit: int) -> list[Due]:
        dues = await due(redis_key, now, limit)
        assert {one.member for one in dues} >= {moved_member(key) for key in sources}
        monkeypatch.setattr(coordination, "due", due)
        await finish_and_lose()
        await moving.move(0, 20, HOT, FAR)
        return dues

    monkeypatch.setattr(coordination, "due", late)
    await Deleter(moving.harness.context).make_pass()
    left = [key for key in sources if key in await moving.fragments(HOT)]
    await moving.after_the_grace()
    assert await moving.fragments(HOT) == await moving.named(HOT)
    return left


async def test_what_moved_twice_since_it_was_due_waits_for_its_new_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(await moved_twice_before_the_look(monkeypatch)) == 2


async def test_without_a_look_at_the_queue_after_the_manifest_it_goes_before_its_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> set[Due]:
        return set()

    remove(monkeypatch, "the place in the queue after the look", nothing)
    assert await moved_twice_before_the_look(monkeypatch) == []


async def found_named_long_ago(
    monkeypatch: pytest.MonkeyPatch, stands_still: Callable[[Sequence[str]], bool]
) -> list[str]:
    """A deleter has found something named, and stands still before it says so to the queue. Meanwhile it moves
    on, and another deleter claims it. Returns what is named and gone, where `FAR` is lost when that one's
    deletion lands."""
    there, finish_and_lose = await moved_on_after_the_loss(FAR)
    moving, coordination = there.moving, there.moving.harness.coordination
    await finish_and_lose()
    sources = [FragmentPlace(HOT, key) for key in (await moving.fragments(HOT))[:2]]
    coordination.write(Changes({going_key(STREAM): encode_going(sources)}))
    stands, goes_on, patch = asyncio.Event(), asyncio.Event(), pytest.MonkeyPatch()
    get_many, transact = coordination.get_many, coordination.transact

    async def until_it_goes_on(redis_keys: Sequence[str]) -> None:
        if stands_still(redis_keys):
            patch.undo()
            stands.set()
            await goes_on.wait()

    async def late_get(redis_keys: Sequence[str]) -> list[bytes | None]:
        await until_it_goes_on(redis_keys)
        return await get_many(redis_keys)

    async def late_transact(redis_keys: Sequence[str], *more: Any) -> Any:
        await until_it_goes_on(redis_keys)
        return await transact(redis_keys, *more)

    patch.setattr(coordination, "get_many", late_get)
    patch.setattr(coordination, "transact", late_transact)
    standing = asyncio.create_task(Deleter(moving.harness.context).make_pass())
    waiting = asyncio.create_task(stands.wait())
    await asyncio.wait({standing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert stands.is_set()
    await moving.move(0, 20, HOT, FAR)
    moving.harness.clock.now += GRACE_MS

    async def lose() -> None:
        goes_on.set()
        await standing
        await take_away(moving.harness.context.drives, FAR)
        await Losing(moving).lose(f"d{FAR}", f"d{FAR}")

    meanwhile(there, monkeypatch, lose)
    await Deleter(moving.harness.context).make_pass()
    assert await gaps(there) == []
    return sorted(set(await moving.named(HOT)) - set(await moving.fragments(HOT)))


def before_it_asks_what_is_claimed(redis_keys: Sequence[str]) -> bool:
    return [*redis_keys] == [going_key(STREAM)]


def before_it_takes_the_claim_out(redis_keys: Sequence[str]) -> bool:
    return [*redis_keys] == [going_key(STREAM), stream_key(STREAM)]


@pytest.mark.parametrize(
    "stands_still", [before_it_asks_what_is_claimed, before_it_takes_the_claim_out]
)
async def test_a_deleter_that_comes_late_takes_out_no_claim_of_what_has_moved_on(
    stands_still: Callable[[Sequence[str]], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await found_named_long_ago(monkeypatch, stands_still) == []


async def test_without_a_look_in_that_exec_a_claim_goes_that_is_needed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "what is named in the EXEC that takes its claim out", lambda *_: True)
    assert len(await found_named_long_ago(monkeypatch, before_it_takes_the_claim_out)) == 2


async def test_claims_of_what_is_named_go_with_its_member_or_with_the_next_ones() -> None:
    there, finish_and_lose = await moved_on_after_the_loss()
    moving = there.moving
    await finish_and_lose()
    # Two wait in the queue; of the third one no member is there.
    sources = [FragmentPlace(HOT, key) for key in await moving.fragments(HOT)]
    moving.harness.coordination.write(Changes({going_key(STREAM): encode_going(sources)}))
    await moving.delete()
    assert await going_of(moving) == frozenset()
    assert await moving.fragments(HOT) == await moving.named(HOT)
    queued = [moved_member(place.object_key) for place in sources]
    assert await moving.harness.coordination.due_at(deletes_key(HOT), queued) == [None] * 3


async def test_of_several_that_are_going_one_that_is_whole_is_copied() -> None:
    moving = await a_moving_stream(3, SHELF)
    await register(moving.harness.drive, SHELF, COLD)
    await moving.move(0, 20, HOT, SHELF)
    await moving.move(0, 20, SHELF, COLD)
    sources = [
        FragmentPlace(number, key)
        for number in (HOT, SHELF)
        for key in (await moving.fragments(number))[:2]
    ]
    moving.harness.coordination.write(Changes({going_key(STREAM): encode_going(sources)}))
    # One copy of each is damaged.
    for number, key in sources[1:3]:
        drive = moving.drive(number)
        data = bytearray(await drive.get(key))
        data[-1] ^= 1
        await drive.delete([key])
        await drive.put(key, [bytes(data)], crc32c(bytes(data)))
    there = Losing(moving)
    await take_it_away(there)

    await there.lose()

    assert await gaps(there) == []
    await check_all_named_stays(moving)


async def going_of(moving: Moving) -> frozenset[FragmentPlace]:
    return decode_going(await moving.harness.coordination.get(going_key(STREAM)))


class Died(BaseException):
    """The end of a process."""


@pytest.mark.parametrize(
    ("step", "left"), [("after-claim", 6), ("after-delete", 3), ("before-settle", 3)]
)
async def test_a_deleter_that_died_leaves_a_claim_until_the_next_one_is_done(
    step: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = (await just_moved()).moving

    async def die(name: str) -> None:
        if name == f"manifest.deleter.{step}" and await going_of(moving):
            raise Died

    moving.harness.clock.now += GRACE_MS
    with monkeypatch.context() as patch:
        patch.setattr(deleter, "reach", die)
        with pytest.raises(Died):
            await Deleter(moving.harness.context).make_pass()
    assert len(await going_of(moving)) == 3
    assert len(await moving.fragments(HOT)) == left
    await moving.delete()
    await moving.check_all_named_is_there()
    assert await moving.fragments(HOT) == await moving.named(HOT)
    assert await moving.harness.coordination.get(going_key(STREAM)) is None
    assert await moving.harness.coordination.member_count(deletes_key(HOT)) == 0


async def test_a_claim_of_what_waits_in_no_queue_goes_with_the_next_ones() -> None:
    moving = (await just_moved()).moving
    left = FragmentPlace(HOT, (await moving.fragments(HOT))[0])
    moving.harness.coordination.write(Changes({going_key(STREAM): encode_going([left])}))
    await moving.after_the_grace()
    assert await moving.harness.coordination.get(going_key(STREAM)) is None


async def test_what_cannot_be_deleted_stays_claimed_and_others_wait_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "GOING_COUNT_MAX", 2)
    moving = (await just_moved()).moving
    drive, asked = moving.drive(HOT), list[str]()

    async def refuse(object_keys: Sequence[str]) -> dict[str, StoreError]:
        asked.extend(key for key in object_keys if key.endswith(".fragment"))
        return {key: DriveRefused("no") for key in object_keys}

    moving.harness.clock.now += GRACE_MS
    with monkeypatch.context() as patch, capture_logs() as told:
        patch.setattr(drive, "delete", refuse)
        await Deleter(moving.harness.context).make_pass()
    assert [one["count"] for one in told if one["event"].startswith("objects wait")] == [1]
    assert {place.object_key for place in await going_of(moving)} == set(asked)
    assert len(asked) == 2
    for _ in range(3):
        await moving.after_the_grace()
    assert await moving.fragments(HOT) == await moving.named(HOT)
    assert await going_of(moving) == frozenset()


async def test_claims_of_what_waits_in_no_queue_take_no_room_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a release before has left them, which takes members out and knows of no claim."""
    monkeypatch.setattr(claims, "GOING_COUNT_MAX", 3)
    moving = (await just_moved()).moving
    gone = [FragmentPlace(HOT, f"gone-{number}") for number in range(3)]
    moving.harness.coordination.write(Changes({going_key(STREAM): encode_going(gone)}))
    for _ in range(2):
        await moving.after_the_grace()
    assert await moving.fragments(HOT) == await moving.named(HOT)
    assert await going_of(moving) == frozenset()


async def test_claims_that_cannot_be_read_keep_what_they_are_about() -> None:
    there = await just_moved()
    coordination = there.moving.harness.coordination
    coordination.write(Changes({going_key(STREAM): b"{}"}))
    await there.moving.after_the_grace()
    assert len(await there.moving.fragments(HOT)) == 6
    await take_it_away(there)
    operation = await there.lose()
    assert operation.result is not None
    assert (operation.result["left_count"], operation.result["fragment_count"]) == (1, 0)


async def transactions(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The keys of each transaction of a pass that has something to do."""
    coordination, seen = moving.harness.coordination, list[list[str]]()
    transact = coordination.transact

    async def watched(redis_keys: Sequence[str], *more: Any, **named: Any) -> Any:
        seen.append([*redis_keys])
        return await transact(redis_keys, *more, **named)

    moving.harness.clock.now += GRACE_MS
    with monkeypatch.context() as patch:
        patch.setattr(coordination, "transact", watched)
        assert await Deleter(moving.harness.context).make_pass()
    return seen


async def test_a_pass_has_one_transaction_more_for_all_that_it_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = (await just_moved()).moving
    seen = await transactions(moving, monkeypatch)
    assert seen == [[going_key(STREAM)]] * 2  # the second one takes the members out of the queue


async def test_of_a_stream_of_one_tier_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = await a_moving_stream(3)
    await trim(moving.harness.context, moving.committer, 20, allow_empty=False)
    seen = await transactions(moving, monkeypatch)
    assert not [key for keys in seen for key in keys if "going" in key]
    assert await moving.fragments(HOT) == await moving.named(HOT)


async def test_claims_go_with_the_record_of_their_stream() -> None:
    moving = (await just_moved()).moving
    left = FragmentPlace(HOT, (await moving.fragments(HOT))[0])
    moving.harness.coordination.write(Changes({going_key(STREAM): encode_going([left])}))
    await moving.harness.streams.forget(await moving.harness.record())
    assert await moving.harness.coordination.get(going_key(STREAM)) is None


places = st.builds(FragmentPlace, st.integers(0, 254), st.text("abc/.", min_size=1, max_size=9))


@given(st.frozensets(places, max_size=8))
def test_what_is_going_is_read_as_it_was_written(going: frozenset[FragmentPlace]) -> None:
    assert decode_going(encode_going(going)) == going


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b"[[0]]", b'[["0","a"]]', b'[[255,"a"]]'])
def test_what_is_no_such_value_is_refused(value: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_going(value)
