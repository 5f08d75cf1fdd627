"""The timer of tiers: it enters the moves that policies want, and does so in one process."""

from dataclasses import replace

import pytest
from support.manifest import damage_a_neighbour
from support.moving import COLD, HOT, Moving, a_moving_stream

from bottomless.model.config import parse_stored_config
from bottomless.model.limits import MOVE_COUNT_MAX
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.tier_timer import TierTimer


async def with_tiers(count: int, drive: str = f"d{COLD}") -> Moving:
    """A stream of so many fragments of which all but the newest belong on a drive."""
    moving = await a_moving_stream(count)
    tiers = [{"drive": "default", "max_bytes": 1}, {"drive": drive}]
    config = parse_stored_config({"tiers": tiers})

    def change(record: StreamRecord) -> StreamRecord:
        return replace(record, config=config)

    await moving.committer.change(change)
    return moving


async def walked(moving: Moving) -> tuple[int, TierTimer]:
    mutators = Mutators(moving.harness.context)
    timer = TierTimer(moving.harness.context, mutators)
    try:
        return await timer.walk(), timer
    finally:
        await mutators.aclose()


async def test_a_walk_enters_what_a_policy_wants_and_counts_it() -> None:
    moving = await with_tiers(3)
    evaluated, timer = await walked(moving)
    (move,) = (await moving.harness.record()).moves
    assert (evaluated, timer.move_count, timer.failing_count) == (1, 1, 0)
    assert move[1:5] == (0, 20, HOT, COLD)
    await moving.reopen()
    await moving.copy(move.copy)
    await moving.finish(move.copy)
    assert [info.drive for info in await moving.leaves()] == [COLD, COLD, HOT]


async def test_what_is_on_its_way_is_entered_no_second_time() -> None:
    moving = await with_tiers(40)
    mutators = Mutators(moving.harness.context)
    timer = TierTimer(moving.harness.context, mutators)
    for _ in range(2):
        assert await timer.walk() == 1
        assert timer.move_count == len((await moving.harness.record()).moves)
    assert timer.move_count <= MOVE_COUNT_MAX
    await mutators.aclose()


async def test_one_process_walks() -> None:
    moving = await with_tiers(3)
    assert (await walked(moving))[0] == 1
    assert (await walked(moving))[0] == 0


async def test_a_stream_without_tiers_is_left_alone() -> None:
    moving = await a_moving_stream(3)
    evaluated, timer = await walked(moving)
    assert (evaluated, timer.move_count, timer.failing_count) == (0, 0, 0)
    assert (await moving.harness.record()).moves == ()


@pytest.mark.parametrize("drive", ["nowhere"])
async def test_a_policy_that_cannot_be_evaluated_is_counted(drive: str) -> None:
    moving = await with_tiers(3, drive)
    evaluated, timer = await walked(moving)
    assert (evaluated, timer.failing_count) == (1, 1)


async def test_a_record_that_cannot_be_read_ends_no_walk() -> None:
    moving = await with_tiers(3)
    await damage_a_neighbour(moving.harness)
    assert (await walked(moving))[0] == 1
    assert len((await moving.harness.record()).moves) == 1
