"""An older root that a rebuild believes begins where the newest one does: what was removed stays removed.

Seed 69 of the model of tiers found that it began where it always had. The newest root named the copy of
a moved fragment, which was lost; an older one named the fragment where it had been, and beside it a
group of fragments that retention had removed and that were deleted since.
"""

import numpy as np
import pytest
from support import guards
from support.drives import register
from support.manifest import a_fragment
from support.moving import COLD, HOT, Moving, a_moving_stream
from support.rebuilding import publish, put, rebuild
from unit.manifest.test_rebuild_drives import firsts_and_drives, lost
from unit.manifest.test_rebuild_floor import a_node

from bottomless.formats.keys import RootKey
from bottomless.model.manifest import fragment_entry, no_entries
from bottomless.model.names import Uid
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.recovery.root_search import cut_as
from bottomless_server.manifest.tree.core.rebuild_decision import RootCandidate, RootSeen

COUNT = 6
FLOORS = [40, 30]
"""Groups hold two fragments each, so one of them is between two groups, and the other within one."""
GUARD = "the floor of a newer root, in the place of an older one's"


async def moved_after_a_trim(floor: int) -> Moving:
    """The root of a publish that died names all six fragments where they were at first, and one more. What
    is below the floor was removed and is deleted, but for its groups, which go last; the others were
    moved, and their sources are there."""
    moving = await a_moving_stream(COUNT)
    await register(moving.harness.drive, COLD)
    await publish(moving.harness, 10 * COUNT, in_vain=True)
    await moving.reopen()
    assert await trim(moving.harness.context, moving.committer, floor, allow_empty=False) == floor
    groups = [key for key in await moving.keys(HOT) if key.endswith(".g1")]
    kept = [*groups, *await moving.named(HOT)]
    sources = {key: bytes(await moving.drive(HOT).get(key)) for key in kept}
    await moving.move(floor, 10 * COUNT)
    await moving.after_the_grace()
    for key, data in sources.items():
        # A lease may have held them, or the deleter had not come to them yet.
        if not moving.harness.drive.has(key):
            await put(moving.harness, key, data)
    return moving


async def lose_a_copy(moving: Moving) -> None:
    """The last one: the root itself names it, and no group."""
    assert await moving.drive(COLD).delete((await moving.named(COLD))[-1:]) == {}
    await lost(moving)


async def floor_of(moving: Moving) -> int:
    await moving.reopen()
    return moving.committer.keeper.root.first_offset


@pytest.mark.parametrize("floor", FLOORS)
async def test_what_was_removed_does_not_come_back_with_an_older_root(floor: int) -> None:
    moving = await moved_after_a_trim(floor)
    await lose_a_copy(moving)

    result = await rebuild(moving.harness)

    assert result["damaged_streams"] == 0
    named = [(first, HOT) for first in range(floor, 10 * COUNT, 10)]
    assert (await firsts_and_drives(moving))[: len(named)] == named
    assert await floor_of(moving) == floor
    await moving.check_all_named_is_there()
    await moving.after_the_grace()
    await moving.check_all_named_is_there()


async def test_without_its_guard_a_rebuild_names_what_retention_has_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def uncut(_: object, __: object, older: RootSeen, ___: object) -> RootSeen:
        return older

    guards.remove(monkeypatch, GUARD, uncut)
    moving = await moved_after_a_trim(FLOORS[0])
    await lose_a_copy(moving)

    await rebuild(moving.harness)

    assert await floor_of(moving) == 0
    with pytest.raises(AssertionError):
        await moving.check_all_named_is_there()


async def test_where_no_older_root_can_be_cut_the_newest_stays_and_is_called_damaged() -> None:
    """The group that goes on above the floor is gone."""
    moving = await moved_after_a_trim(30)
    await lose_a_copy(moving)
    groups = [
        key for key in await moving.keys(HOT) if key.endswith(".g1") and f"/{20:020d}." in key
    ]
    assert len(groups) == 2, "one of the older root, and the newest one's"
    assert await moving.drive(HOT).delete([min(groups)]) == {}

    result = await rebuild(moving.harness)

    assert result["damaged_streams"] == 1
    assert await floor_of(moving) == 30


def seen(floor: int, *firsts: int, end: int) -> RootSeen:
    run = [fragment_entry(a_fragment(at, at + 10, uid=Uid(f"{at:032x}"))) for at in firsts]
    node = a_node(floor, end, np.concatenate([no_entries(), *run]), "7")
    return RootSeen(RootCandidate(RootKey(0, 2, 7, node.uid), node), frozenset())


@pytest.mark.parametrize(
    ("floor", "left"),
    [(0, [0, 10, 20]), (10, [10, 20]), (20, [20]), (30, []), (15, None), (31, None)],
)
async def test_an_older_root_is_cut_where_the_newer_one_begins_or_not_at_all(
    floor: int, left: list[int] | None
) -> None:
    moving = await a_moving_stream(0)
    context, record = moving.harness.context, await moving.harness.record()

    cut = await cut_as(context, record, seen(0, 0, 10, 20, end=30), seen(floor, end=floor))

    if left is None:
        assert cut is None
    else:
        assert cut is not None
        root = cut.found.root
        assert (root.first_offset, root.next_offset) == (floor, 30)
        assert root.entries["first_offset"].tolist() == left
        assert len(cut.missing) == len(left)
