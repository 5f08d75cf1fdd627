"""A root that names a source again, since the drive of its copy is lost, is no root of a lost attempt: a
deleter that looked before leaves it. The manifest of the stream would be gone with it."""

import asyncio
from typing import Any

import pytest
from support.drives import take_away
from support.guards import remove
from support.moving import COLD, GRACE_MS, HOT
from unit.manifest.test_kept_of_lost_drives import check_all_named_stays, gaps, just_moved
from unit.manifest.test_lost_drives import NAME, Losing

from bottomless.drives.base import Body
from bottomless.errors import Corrupt
from bottomless_server.manifest.removal import deleter
from bottomless_server.manifest.removal.deleter import Deleter

BEFORE = ["claim", "named_by_strays"]
"""What the deleter calls next when it stands still."""


async def lost_after_the_look(
    monkeypatch: pytest.MonkeyPatch, before: str, *, published: bool
) -> Losing:
    """A deleter has looked at sources of a move, and stands still. Meanwhile the drive of their copies is lost,
    and the root that names them again is put, and is `published` before or after the deleter goes on."""
    there = await just_moved()
    moving, drive, goes_on = there.moving, there.moving.harness.drive, getattr(deleter, before)
    put, root_is_put = drive.put, asyncio.Event()

    async def lose() -> None:
        await take_away(moving.harness.context.drives, COLD)
        await there.lose(NAME, NAME)

    async def late_put(object_key: str, body: Body, crc: int) -> None:
        await put(object_key, body, crc)
        if "/metadata/root." in object_key and not root_is_put.is_set():
            root_is_put.set()
            if not published:
                await deleting

    async def stand_still(*arguments: Any) -> Any:
        monkeypatch.setattr(deleter, before, goes_on)
        losing.append(asyncio.create_task(lose()))
        await (losing[0] if published else root_is_put.wait())
        return await goes_on(*arguments)

    losing: list[asyncio.Task[None]] = []
    moving.harness.clock.now += GRACE_MS
    monkeypatch.setattr(drive, "put", late_put)
    monkeypatch.setattr(deleter, before, stand_still)
    deleting = asyncio.create_task(Deleter(moving.harness.context).make_pass())
    await deleting
    await losing[0]
    return there


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("published", [True, False])
async def test_a_root_that_names_what_was_to_be_deleted_stays(
    published: bool, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = await lost_after_the_look(monkeypatch, before, published=published)
    assert await gaps(there) == []
    assert [info.drive for info in await there.moving.leaves()] == [HOT] * 6
    await check_all_named_stays(there.moving)


async def test_without_a_look_at_lost_drives_a_root_goes_that_is_about_to_be_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "drives that are lost between the look and a delete", lambda *_: False)
    with pytest.raises(Corrupt, match="missing"):
        await lost_after_the_look(monkeypatch, "claim", published=False)
