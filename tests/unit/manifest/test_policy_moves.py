"""The moves that a stream's policy wants, entered and carried out."""

from dataclasses import replace
from typing import Any

import pytest
from support.moving import COLD, HOT, Moving, a_moving_stream

from bottomless.drives.base import DriveUnavailable
from bottomless.model.config import parse_stored_config
from bottomless.model.limits import MOVE_COUNT_MAX
from bottomless.model.stream import StreamRecord
from bottomless.model.tiers import Promotion
from bottomless_server.manifest.mutators.tiering import evaluate, preview


async def with_policy(count: int, *tiers: dict[str, Any], **changes: Any) -> Moving:
    """A stream with so many fragments, and a policy that it got afterwards."""
    moving = await a_moving_stream(count)
    config = parse_stored_config({"tiers": list(tiers)})

    def change(record: StreamRecord) -> StreamRecord:
        return replace(record, config=config, **changes)

    await moving.committer.change(change)
    return moving


async def newest(count: int) -> dict[str, Any]:
    """A tier with room for so many fragments on drive 0."""
    moving = await a_moving_stream(1)
    (one,) = await moving.leaves()
    return {"drive": "default", "max_bytes": count * one.size + one.size // 2}


async def carry_out(moving: Moving) -> int:
    """Evaluate and move until nothing is wanted any more; returns how many moves there were."""
    count = 0
    while entered := await evaluate(moving.harness.context, moving.committer):
        for move in entered:
            await moving.copy(move.copy)
            await moving.finish(move.copy)
        count += len(entered)
    return count


async def test_what_exceeds_the_first_tier_moves_to_the_second() -> None:
    moving = await with_policy(9, await newest(3), {"drive": f"d{COLD}"})
    seen = await preview(moving.harness.context, moving.committer)

    assert seen is not None
    assert seen.waiting[HOT, COLD].fragment_count == 6
    assert await carry_out(moving) >= 1
    assert [info.drive for info in await moving.leaves()] == [COLD] * 6 + [HOT] * 3
    await moving.after_the_grace()
    await moving.check_nothing_else_is_there()


async def test_what_is_entered_is_what_the_preview_shows_and_there_is_room_for() -> None:
    moving = await with_policy(40, await newest(1), {"drive": f"d{COLD}"})
    context, committer = moving.harness.context, moving.committer
    seen = await preview(context, committer)
    assert seen is not None

    entered = await evaluate(context, committer)

    assert [move[1:5] for move in entered] == [move[:4] for move in seen.moves]
    assert len(entered) == MOVE_COUNT_MAX
    assert await evaluate(context, committer) == []


async def test_what_was_promoted_stays_until_its_time_is_over() -> None:
    until = 2_000_000
    promoted = (Promotion(0, 20, until),)
    moving = await with_policy(4, await newest(1), {"drive": f"d{COLD}"}, promoted=promoted)

    await carry_out(moving)
    assert [info.drive for info in await moving.leaves()] == [HOT, HOT, COLD, HOT]
    moving.harness.clock.now = until
    await carry_out(moving)
    assert [info.drive for info in await moving.leaves()] == [COLD, COLD, COLD, HOT]


async def test_without_a_policy_and_with_an_unknown_drive_nothing_is_entered() -> None:
    moving = await a_moving_stream(2)
    assert await evaluate(moving.harness.context, moving.committer) == []
    unknown = await with_policy(2, await newest(1), {"drive": "nowhere"})
    with pytest.raises(DriveUnavailable):
        await evaluate(unknown.harness.context, unknown.committer)
    assert (await unknown.harness.record()).moves == ()
