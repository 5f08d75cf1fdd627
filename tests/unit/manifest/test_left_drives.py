"""Intents on a drive that is away: they hold their stream up while it is the first tier, and no longer."""

import pytest
from support.drives import bring_back, take_away
from support.manifest import STREAM
from support.moving import COLD, HOT, Moving
from unit.manifest.test_first_tier import POLICY, a_stream_with, give, intended, put

from bottomless.drives.base import DriveUnavailable
from bottomless.model.names import Uid
from bottomless_server.manifest.mutators.sessions import begin


async def with_an_intent_on_a_drive_that_is_away() -> tuple[Moving, Uid]:
    moving = await a_stream_with(POLICY)
    uid = await intended(moving, COLD)
    await take_away(moving.harness.context.drives, COLD)
    return moving, uid


async def test_a_session_waits_while_the_drive_is_the_first_tier() -> None:
    moving, _ = await with_an_intent_on_a_drive_that_is_away()
    with pytest.raises(DriveUnavailable):
        await begin(moving.harness.context, moving.committer, "s2")


@pytest.mark.parametrize("tiers", [[], list(reversed(POLICY))])
async def test_a_session_begins_once_the_stream_puts_nothing_there_any_more(
    tiers: list[dict[str, object]],
) -> None:
    moving, _ = await with_an_intent_on_a_drive_that_is_away()
    last = {"drive": f"d{COLD}"}
    await give(moving, tiers and [{"drive": "default", "max_bytes": "1 GiB"}, last])

    await begin(moving.harness.context, moving.committer, "s2")

    record = await moving.harness.record()
    assert record.intents == ()
    assert [one.drive for one in record.quarantine] == [COLD]


async def test_what_was_given_up_without_a_look_goes_when_the_drive_is_back() -> None:
    moving, uid = await with_an_intent_on_a_drive_that_is_away()
    await give(moving, [])
    await begin(moving.harness.context, moving.committer, "s2")
    assert len((await moving.harness.record()).quarantine) == 1

    await bring_back(moving.harness.context.drives, COLD)
    await put(moving, uid, COLD)
    await moving.after_the_grace()

    assert await moving.fragments(COLD) == []
    assert (await moving.harness.record()).quarantine == ()


async def test_what_lies_on_a_drive_that_is_there_is_still_adopted() -> None:
    moving, uid = await with_an_intent_on_a_drive_that_is_away()
    await bring_back(moving.harness.context.drives, COLD)
    await put(moving, uid, COLD)
    await give(moving, [])
    moving.harness.owners.committed[STREAM] = 20
    await begin(moving.harness.context, moving.committer, "s2")
    assert [one.drive for one in await moving.leaves()] == [HOT, COLD]
