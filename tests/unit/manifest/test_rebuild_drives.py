"""A rebuild of a stream whose fragments lie on several drives: all of them are looked at."""

from dataclasses import replace

import pytest
from support import guards
from support.drives import register
from support.manifest import NODE
from support.moving import COLD, HOT, Moving, a_moving_stream
from support.rebuilding import put_registry, rebuild
from unit.manifest.test_first_tier import POLICY, give, intended, put

from bottomless_server.manifest.tree.resolver import root_object_key
from bottomless_server.stores.streams import deletes_key


async def put_and_not_published() -> Moving:
    """A fragment on drive 0 is published; the next one lies on the first tier's, and no root names it."""
    moving = await a_moving_stream(1)
    await register(moving.harness.drive, COLD)
    await give(moving, POLICY)
    await put(moving, await intended(moving, COLD), COLD)
    return await lost(moving)


async def lost(moving: Moving) -> Moving:
    """Coordination forgets everything, and the bucket has the stream's newest registry object."""
    record = await moving.harness.record()
    newest = replace(record, registry_version=record.registry_version + 1, home=NODE)
    await put_registry(moving.harness, newest)
    moving.harness.coordination.lose()
    return moving


async def firsts_and_drives(moving: Moving) -> list[tuple[int, int]]:
    return [(info.first_offset, info.drive) for info in await moving.leaves()]


async def test_a_rebuild_adopts_what_lies_on_the_first_tiers_drive() -> None:
    moving = await put_and_not_published()
    result = await rebuild(moving.harness)
    assert result["adopted_fragments"] == 1
    # It is put once more under a uid that nobody knew, on drive 0; the policy moves it.
    assert await firsts_and_drives(moving) == [(0, HOT), (10, HOT)]
    assert await moving.harness.coordination.member_count(deletes_key(COLD)) == 1


async def test_without_all_drives_a_rebuild_does_not_find_what_is_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def drive_0(*_: object) -> list[int]:
        return [HOT]

    guards.remove(monkeypatch, "all drives in the look of a rebuild", drive_0)
    moving = await put_and_not_published()
    await rebuild(moving.harness)
    assert await firsts_and_drives(moving) == [(0, HOT)]


async def test_copies_are_found_where_the_root_is_lost_that_named_them() -> None:
    moving = await a_moving_stream(3)
    await register(moving.harness.drive, COLD)
    await moving.move(0, 20)
    await moving.after_the_grace()
    assert len(await moving.fragments(HOT)) == 1
    for key in await moving.keys(HOT):
        if "/metadata/" in key:
            await moving.harness.drive.delete([key])
    await lost(moving)

    await rebuild(moving.harness)

    assert [first for first, _ in await firsts_and_drives(moving)] == [0, 10, 20]
    await moving.check_all_named_is_there()


async def test_a_source_and_its_copy_are_one_fragment() -> None:
    moving = await a_moving_stream(3)
    await register(moving.harness.drive, COLD)
    await moving.copy(await moving.enter(0, 20))
    await moving.harness.drive.delete([root_object_key(await moving.harness.record())])
    for key in await moving.keys(HOT):
        if "/metadata/" in key:
            await moving.harness.drive.delete([key])
    await lost(moving)

    result = await rebuild(moving.harness)

    assert "unreadable_streams" not in result or not result["unreadable_streams"]
    assert [first for first, _ in await firsts_and_drives(moving)] == [0, 10, 20]
    await moving.after_the_grace()
    await moving.check_all_named_is_there()
