"""New fragments go to the first tier's drive: the manifest says it, and looks there ever after."""

from dataclasses import replace
from typing import Any

import pytest
from support import guards
from support.manifest import STREAM
from support.moving import COLD, GRACE_MS, HOT, Moving, a_moving_stream

from bottomless.errors import Fenced
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import fragment_place
from bottomless.model.config import parse_config
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.mutators import sessions
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.sessions import abandon, begin, intend
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.committer import Committer

POLICY = [{"drive": f"d{COLD}", "max_bytes": "1 GiB"}, {"drive": "default"}]


async def a_stream_with(tiers: list[dict[str, Any]]) -> Moving:
    """A stream with a fragment on drive 0, and a policy that it got afterwards."""
    moving = await a_moving_stream(1)
    await give(moving, tiers)
    return moving


async def give(moving: Moving, tiers: list[dict[str, Any]]) -> None:
    config = parse_config({"tiers": tiers}, tiered=True)

    def change(record: StreamRecord) -> StreamRecord:
        return replace(record, config=config)

    await moving.committer.change(change)


async def intended(moving: Moving, *able: int, at: int = 10) -> Uid:
    (uid,) = await intend(moving.harness.context, moving.committer, "s1", [at], able)
    return uid


async def put(moving: Moving, uid: Uid, number: int, at: int = 10) -> FragmentInfo:
    """Put the object of an intent on a drive; what is returned is what an uploader tells of it."""
    info = await moving.harness.put_fragment(uid, at)
    key = fragment_place(STREAM, info, "default").object_key
    if number != HOT:
        data = bytes(await moving.drive(HOT).get(key))
        await moving.drive(number).put(key, [data], crc32c(data))
        assert await moving.drive(HOT).delete([key]) == {}
    return info


async def test_a_new_fragment_lies_and_is_named_on_the_drive_of_the_first_tier() -> None:
    moving = await a_stream_with(POLICY)
    info = await put(moving, await intended(moving, COLD), COLD)
    assert await moving.committer.register("s1", [info]) == ()
    await moving.committer.flush()

    assert [one.drive for one in await moving.leaves()] == [HOT, COLD]
    await moving.check_all_named_is_there()
    assert await moving.committer.register("s1", [info]) == (), "what is told again is applied"


async def test_an_uploader_is_told_the_drive_with_the_uids() -> None:
    moving = await a_stream_with(POLICY)
    mutators = Mutators(moving.harness.context)
    try:
        mutator = mutators.of(STREAM)
        assert (await mutator.intend("s1", [10, 20], [COLD])).drive == COLD
        assert (await mutator.intend("s1", [30])).drive == HOT
        await give(moving, [])
        assert (await mutator.intend("s1", [40], [COLD])).drive == HOT
    finally:
        await mutators.aclose()
    drives = [intent.drive for intent in (await moving.harness.record()).intents]
    assert drives == [COLD, COLD, HOT, HOT]


async def test_an_uploader_whose_uids_were_given_up_meanwhile_is_told_no_drive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = await a_stream_with(POLICY)
    mutators = Mutators(moving.harness.context)
    asked: list[Committer] = []

    async def note_who_asks(committer: Committer, _: str) -> None:
        asked.append(committer)

    async def take_over(*_: object) -> None:
        # In another process; of which this one hears before it has answered.
        other = await Committer.open(moving.harness.context, STREAM)
        await begin(moving.harness.context, other, "s2")
        await asked[0].refresh()

    monkeypatch.setattr(sessions, "put_first_root", note_who_asks)
    monkeypatch.setattr(sessions, "note_drives", take_over)
    try:
        with pytest.raises(Fenced):
            await mutators.of(STREAM).intend("s1", [10], [COLD])
    finally:
        await mutators.aclose()
    assert [intent.drive for intent in (await moving.harness.record()).quarantine] == [COLD]


async def by_one_who_reaches_drive_0_alone() -> Moving:
    moving = await a_stream_with(POLICY)
    info = await put(moving, await intended(moving), HOT)
    await moving.committer.register("s1", [info])
    await moving.committer.flush()
    return moving


async def test_who_does_not_reach_the_first_tier_puts_on_drive_0() -> None:
    moving = await by_one_who_reaches_drive_0_alone()
    await moving.check_all_named_is_there()
    assert [one.drive for one in await moving.leaves()] == [HOT, HOT]


async def test_without_the_look_at_what_an_uploader_reaches_a_fragment_is_named_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def whatever(tiers: Any, *_: Any) -> int:
        return COLD if tiers else HOT

    guards.remove(monkeypatch, "the drives that an uploader reaches", whatever)
    moving = await by_one_who_reaches_drive_0_alone()
    with pytest.raises(AssertionError):
        await moving.check_all_named_is_there()


async def test_the_next_session_adopts_what_lies_on_the_first_tier() -> None:
    moving = await a_stream_with(POLICY)
    await put(moving, await intended(moving, COLD), COLD)
    moving.harness.owners.committed[STREAM] = 20
    await begin(moving.harness.context, moving.committer, "s2")
    assert [one.drive for one in await moving.leaves()] == [HOT, COLD]
    await moving.check_all_named_is_there()


async def test_what_was_given_up_goes_from_the_drive_of_its_intent() -> None:
    moving = await a_stream_with(POLICY)
    uid = await intended(moving, COLD)
    await put(moving, uid, COLD)
    await abandon(moving.harness.context, moving.committer, "s1", [uid])
    # Whatever becomes of the policy meanwhile.
    await give(moving, [])
    assert len(await moving.fragments(COLD)) == 1

    moving.harness.clock.now += GRACE_MS
    deleter = Deleter(moving.harness.context)
    while await deleter.make_pass():
        pass

    assert await moving.fragments(COLD) == []
    record = await moving.harness.record()
    assert (record.quarantine, record.drives) == ((), (COLD,))
