"""A verification that takes longer than the grace calls nothing missing that was moved meanwhile."""

from collections.abc import Awaitable, Callable

import pytest
from support.drives import register
from support.moving import COLD, HOT, Moving, a_moving_stream
from unit.manifest.test_verify import places, report

from bottomless.model.object_facts import ObjectFacts


def before_head(
    moving: Moving, number: int, happen: Callable[[], Awaitable[None]], patch: pytest.MonkeyPatch
) -> None:
    """Let something happen once, before the third look at an object of a drive."""
    table = moving.harness.context.drives
    drive = moving.harness.drive if number == HOT else table.marked(number).unmarked
    head, asked = drive.head, list[str]()

    async def slow(object_key: str, *, checksum: bool = False) -> ObjectFacts:
        asked.append(object_key)
        if len(asked) == 3:
            await happen()
        return await head(object_key, checksum=checksum)

    patch.setattr(drive, "head", slow)


@pytest.mark.parametrize("checksums", [False, True])
async def test_what_is_moved_during_a_verification_is_not_missing(
    checksums: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it came to after the move was called missing."""
    moving = await a_moving_stream(6)
    await register(moving.harness.drive, COLD)

    async def move_all() -> None:
        await moving.move(0, 60)
        await moving.after_the_grace()
        assert await moving.fragments(HOT) == []

    before_head(moving, HOT, move_all, monkeypatch)
    found = await report(moving.harness, checksums=checksums)
    assert places(found) == []
    assert found["fragments"] == 6


async def test_what_is_lost_from_where_it_was_moved_to_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = await a_moving_stream(6)
    await register(moving.harness.drive, COLD)

    async def move_all_and_lose_one() -> None:
        await moving.move(0, 60)
        await moving.after_the_grace()
        await moving.drive(COLD).delete([(await moving.named(COLD))[2]])

    before_head(moving, HOT, move_all_and_lose_one, monkeypatch)
    found = await report(moving.harness)
    assert places(found) == [("fragment-missing", 20, 29)]
    # It is the copy that is missing, and that is where to put it back.
    (fault,) = found["faults"]
    assert fault["drive"] == f"d{COLD}"
    assert (await moving.named(COLD))[2].endswith(f".{fault['copy']}.fragment")
