"""A verification does not wait for ever for a drive that is away, and says what it has not looked at."""

from typing import Any

import pytest
from support.drives import register
from support.guards import remove
from support.moving import COLD, Moving, a_moving_stream
from unit.manifest.test_verify import begin

from bottomless.drives.base import DriveUnavailable
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.streams import verify
from bottomless_server.manifest.streams.away_drives import LOOK_AGAIN_MS, WAIT_MS
from bottomless_server.stores.operations import Operation, OperationState


class Mount:
    """Whether the drive is there, which every look at an object asks."""

    there = False


async def whose_middle_is_away(monkeypatch: pytest.MonkeyPatch) -> tuple[Moving, Mount]:
    """Of six fragments three lie on a drive that is away."""
    moving = await a_moving_stream(6)
    await register(moving.harness.drive, COLD)
    await moving.move(10, 40)
    mount, drive = Mount(), moving.harness.context.drives.marked(COLD).unmarked
    head = drive.head

    async def head_if_there(object_key: str, *, checksum: bool = False) -> ObjectFacts:
        if not mount.there:
            raise DriveUnavailable("it is away")
        return await head(object_key, checksum=checksum)

    monkeypatch.setattr(drive, "head", head_if_there)
    return moving, mount


async def after(moving: Moving, operations: Operations, begun: Operation, ms: int) -> Operation:
    """The verification, when it has had so long."""
    for _ in range(ms // LOOK_AGAIN_MS + 1):
        await operations.make_pass()
        await operations.settled()
        moving.harness.clock.now += LOOK_AGAIN_MS
    return await operations.find(begun.operation_id)


def faults_of(operation: Operation) -> list[tuple[str, int, int]]:
    assert operation.result is not None
    found: list[Any] = list(operation.result["faults"])
    return [(one["kind"], one["first_offset"], one["last_offset"]) for one in found]


@pytest.mark.parametrize("step_count", [2, verify.STEP_COUNT])
@pytest.mark.parametrize("guarded", [True, False])
async def test_a_drive_that_stays_away_is_told_and_all_else_is_looked_at(
    step_count: int, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "STEP_COUNT", step_count)
    if not guarded:
        remove(monkeypatch, "the end of a wait for a drive that is verified", lambda _: True)
    moving, _ = await whose_middle_is_away(monkeypatch)
    moving.harness.drive.flip((await moving.fragments(0))[-1], -1)
    operations, begun = await begin(moving.harness, checksums=True)

    found = await after(moving, operations, begun, 2 * WAIT_MS)

    assert (found.state is OperationState.SUCCEEDED) is guarded
    if guarded:
        assert faults_of(found) == [("drive-away", 10, 39), ("fragment-checksum", 50, 59)]
        assert found.result is not None
        assert not found.result["sound"]
        told = [(one["drive"], one["copy"]) for one in found.result["faults"]]
        assert told == [(f"d{COLD}", None), ("default", None)]


@pytest.mark.parametrize("step_count", [1, verify.STEP_COUNT])
async def test_of_two_drives_that_are_away_each_is_told(
    step_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "STEP_COUNT", step_count)
    attic = COLD + 1
    moving = await a_moving_stream(4, attic)
    await register(moving.harness.drive, COLD, attic)
    await moving.move(0, 20)
    await moving.move(20, 40, target=attic)

    async def away(_: str, *, checksum: bool = False) -> ObjectFacts:
        del checksum
        raise DriveUnavailable("it is away")

    for number in (COLD, attic):
        monkeypatch.setattr(moving.harness.context.drives.marked(number).unmarked, "head", away)
    operations, begun = await begin(moving.harness, checksums=False)

    found = await after(moving, operations, begun, 3 * WAIT_MS)

    assert faults_of(found) == [("drive-away", 0, 19), ("drive-away", 20, 39)]
    assert found.result is not None
    assert [one["drive"] for one in found.result["faults"]] == [f"d{COLD}", f"d{attic}"]


async def test_a_drive_that_is_back_soon_enough_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving, mount = await whose_middle_is_away(monkeypatch)
    operations, begun = await begin(moving.harness, checksums=True)
    waits = await after(moving, operations, begun, WAIT_MS // 2)
    assert waits.state is OperationState.RUNNING
    assert waits.error is not None

    mount.there = True
    found = await after(moving, operations, begun, LOOK_AGAIN_MS)

    assert found.result is not None
    assert (found.result["sound"], found.result["fragments"]) == (True, 6)
