"""A drive that an operator has said to be lost: what lay there becomes gaps, and nothing waits for it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.drives import register, take_away
from support.guards import remove
from support.manifest import GapRange
from support.moving import COLD, HOT, Moving, a_moving_stream
from support.rebuilding import rebuild
from unit.manifest.test_drive_retirement import Retiring
from unit.manifest.test_first_tier import POLICY, give, intended, put
from unit.manifest.test_garbage import collect
from unit.manifest.test_rebuild_drives import lost

from bottomless.errors import Code, Exists, Fenced, InvalidRequest, Unavailable
from bottomless.model.drive import RegisteredDrive
from bottomless_server.drives.table import load_registry
from bottomless_server.manifest.mutators.moves import finish
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again
from bottomless_server.manifest.registry.drive_registration import DriveRegistration
from bottomless_server.manifest.removal.drive_loss import DriveLoss
from bottomless_server.stores.operations import Operation, OperationState
from bottomless_server.stores.streams import deletes_key

NAME = f"d{COLD}"


class Losing:
    """A stream over two drives of which the second one is away, and a process that gives it up."""

    def __init__(self, moving: Moving) -> None:
        self.moving = moving
        self.operations = Operations(moving.harness.context)
        self.mutators = Mutators(moving.harness.context)
        self.loss = DriveLoss(moving.harness.context, self.operations, self.mutators, page_count=1)

    async def lose(self, name: str = NAME, confirmed: str = NAME) -> Operation:
        operation = await self.loss.begin(name, confirmed, "default")
        self.moving.harness.clock.now += 120_000
        await self.operations.make_pass()
        await self.operations.settled()
        await self.mutators.aclose()
        await self.moving.reopen()
        return await self.operations.find(operation.operation_id)

    async def drive(self) -> RegisteredDrive:
        (drive,) = (await load_registry(self.moving.harness.drive)).drives
        return drive


async def a_losing(count: int = 6) -> Losing:
    """The middle of the stream is on a drive that is away."""
    moving = await a_moving_stream(count)
    await register(moving.harness.drive, COLD)
    await moving.move(10, 40)
    await moving.after_the_grace()
    return Losing(moving)


async def take_it_away(there: Losing) -> None:
    await take_away(there.moving.harness.context.drives, COLD)


async def ranges(there: Losing) -> list[tuple[int, int, bool]]:
    """First and next offset of each leaf, and whether it is a gap."""
    return [
        (one.first_offset, one.next_offset, isinstance(one, GapRange))
        for one in await there.moving.harness.entries()
    ]


async def test_what_lay_there_becomes_a_gap_and_the_rest_is_read_as_before() -> None:
    there = await a_losing()
    await take_it_away(there)

    operation = await there.lose()

    assert operation.state is OperationState.SUCCEEDED
    assert operation.result is not None
    assert (operation.result["state"], operation.result["with_gaps"]) == ("lost", ["orders"])
    assert (operation.result["fragment_count"], operation.result["record_count"]) == (3, 30)
    assert await ranges(there) == [
        (first, first + 10, 10 <= first < 40) for first in range(0, 60, 10)
    ]
    assert (await there.drive()).lost


async def test_once_more_finds_nothing_more_to_give_up() -> None:
    there = await a_losing()
    await take_it_away(there)
    await there.lose()
    version = (await there.moving.harness.record()).version

    again = Losing(there.moving)
    operation = await again.lose()

    assert operation.result is not None
    assert operation.result["fragment_count"] == 0
    assert (await there.moving.harness.record()).version == version


async def test_a_drive_that_is_there_is_not_given_up() -> None:
    there = await a_losing()
    with pytest.raises(Exists) as refused:
        await there.lose()
    assert refused.value.code is Code.DRIVE_IN_USE
    assert not (await there.drive()).lost


@pytest.mark.parametrize(
    ("name", "confirmed"), [("default", "default"), (NAME, ""), (NAME, "d8"), ("d8", "d8")]
)
async def test_what_is_no_confirmed_name_of_another_drive_is_refused(
    name: str, confirmed: str
) -> None:
    there = await a_losing()
    await take_it_away(there)
    with pytest.raises(InvalidRequest):
        await there.lose(name, confirmed)


async def test_uploads_that_were_under_way_there_are_given_up_and_go_to_drive_0() -> None:
    there = await a_losing()
    await give(there.moving, POLICY)
    await intended(there.moving, COLD, at=60)
    await take_it_away(there)
    with pytest.raises(Unavailable):
        await begin(there.moving.harness.context, there.moving.committer, "s2")

    operation = await there.lose()

    assert operation.result is not None
    assert operation.result["named_by_policy"] == ["orders"]
    record = await begin(there.moving.harness.context, there.moving.committer, "s2")
    assert (record.intents, record.quarantine) == ((), ())
    context, committer = there.moving.harness.context, there.moving.committer
    with pytest.raises(Unavailable):
        # Who has not heard of the loss hears of it now.
        await intend(context, committer, "s2", [60], [COLD])
    await intend(context, committer, "s2", [60], [COLD])
    assert [one.drive for one in (await there.moving.harness.record()).intents] == [HOT]
    await there.moving.after_the_grace()
    assert (await there.moving.harness.record()).quarantine == ()


async def test_what_was_put_there_is_not_registered_any_more() -> None:
    there = await a_losing()
    await give(there.moving, POLICY)
    info = await put(there.moving, await intended(there.moving, COLD, at=60), COLD, at=60)
    await take_it_away(there)
    await there.lose()
    assert await there.moving.committer.register("s1", [info]) == (info.uid,)
    assert (await there.moving.harness.record()).published_next == 60


async def test_a_move_from_or_to_the_drive_ends() -> None:
    there = await a_losing()
    out = await there.moving.enter(10, 20, COLD, HOT)
    await there.moving.copy(out)
    into = await there.moving.enter(40, 50, HOT, COLD)
    await take_it_away(there)

    await there.lose()

    assert (await there.moving.harness.record()).moves == ()
    for number in (out, into):
        with pytest.raises(Fenced):
            await finish(there.moving.harness.context, there.moving.committer, number, "m1", ())
    await there.moving.after_the_grace()
    assert await there.moving.fragments(HOT) == await there.moving.named(HOT)


async def test_deletes_there_wait_no_more_and_the_quarantine_is_empty() -> None:
    there = await a_losing()
    harness = there.moving.harness
    await trim(harness.context, there.moving.committer, 20, allow_empty=False)
    await take_it_away(there)
    await there.lose()
    await there.moving.after_the_grace()
    assert await harness.coordination.member_count(deletes_key(COLD)) == 0
    record = await harness.record()
    assert record.quarantine == ()


async def test_what_retention_finds_there_later_counts_as_deleted() -> None:
    there = await a_losing(8)
    await take_it_away(there)
    await there.lose()
    await trim(there.moving.harness.context, there.moving.committer, 60, allow_empty=False)
    await there.moving.after_the_grace()
    assert await there.moving.harness.coordination.member_count(deletes_key(COLD)) == 0
    assert await there.moving.fragments(HOT) == await there.moving.named(HOT)


async def test_garbage_is_collected_without_a_look_at_a_lost_drive() -> None:
    there = await a_losing()
    await take_it_away(there)
    await there.lose()
    report = await collect(there.moving.harness)
    assert not report.get("skipped_drives")


async def test_a_rebuild_after_the_loss_waits_for_nothing() -> None:
    there = await a_losing()
    await take_it_away(there)
    await there.lose()
    before = await ranges(there)
    await lost(there.moving)
    await rebuild(there.moving.harness)
    assert await ranges(there) == before


async def test_a_rebuild_believes_a_root_that_names_what_is_lost_and_the_loss_goes_on() -> None:
    there = await a_losing(4)
    await take_it_away(there)
    context = there.moving.harness.context
    # Coordination is lost after the drive was entered as lost, before any stream was looked at.
    operation = await there.loss.begin(NAME, NAME, "default")
    await there.loss.step(context, operation)
    await lost(there.moving)
    await rebuild(there.moving.harness)

    again = Losing(there.moving)
    await again.lose()

    assert [gap for _, _, gap in await ranges(again)] == [False, True, True, True]


async def test_a_rebuild_takes_no_older_root_for_want_of_what_is_lost() -> None:
    """Else the end goes back to it, and its offsets are given a second time."""
    there = await a_losing()
    moving = there.moving
    await give(moving, POLICY)
    for at in (60, 70):
        info = await put(moving, await intended(moving, COLD, at=at), COLD, at=at)
        assert await moving.committer.register("s1", [info]) == ()
        await moving.committer.flush()
    await take_it_away(there)
    await there.loss.step(moving.harness.context, await there.loss.begin(NAME, NAME, "default"))
    await lost(moving)
    await rebuild(moving.harness)
    assert (await moving.harness.record()).published_next == 80

    again = Losing(moving)
    await again.lose()

    assert [(first, gap) for first, _, gap in await ranges(again)] == [
        (first, first >= 10 and not 40 <= first < 60) for first in range(0, 80, 10)
    ]


async def rebuilt_after_a_move(count: int, *, floor: int = 0) -> Losing:
    """A part of a stream was moved a moment ago, perhaps others were cut; then the drive is lost, and
    coordination with the queue in which the sources wait. Garbage is collected before anything else."""
    moving = await a_moving_stream(count)
    await register(moving.harness.drive, COLD)
    await moving.move(10, 40)
    if floor:
        await trim(moving.harness.context, moving.committer, floor, allow_empty=False)
    there = Losing(moving)
    await take_it_away(there)
    await there.loss.step(moving.harness.context, await there.loss.begin(NAME, NAME, "default"))
    await lost(moving)
    await rebuild(moving.harness)
    await moving.reopen()
    await moving.after_the_grace()
    await collect(moving.harness)
    await moving.after_the_grace()
    return Losing(moving)


@pytest.mark.parametrize("count", [4, 8])
async def test_sources_that_a_rebuild_knows_nothing_of_are_kept_for_a_drive_that_is_lost(
    count: int,
) -> None:
    """The root itself names the fragments, or its groups do."""
    there = await rebuilt_after_a_move(count)
    await there.lose()
    assert [gap for _, _, gap in await ranges(there)] == [False] * count
    await there.moving.after_the_grace()
    assert await there.moving.fragments(HOT) == await there.moving.named(HOT)
    assert there.moving.harness.context.counts.refused_deletes == 0


async def test_without_a_look_at_what_is_named_a_collection_takes_the_last_that_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> None:
        pass

    remove(monkeypatch, "what is named before a copy of it goes", nothing)
    there = await rebuilt_after_a_move(4)
    await there.lose()
    assert sum(gap for _, _, gap in await ranges(there)) == 3


@pytest.mark.parametrize("count", [4, 8])
async def test_what_was_cut_stays_cut_whatever_an_older_root_has_of_a_lost_drive(
    count: int,
) -> None:
    there = await rebuilt_after_a_move(count, floor=20)
    wanted = [(first, first + 10, False) for first in range(20, 10 * count, 10)]
    assert await ranges(there) == wanted
    await there.lose()
    assert await ranges(there) == wanted


async def test_a_lost_drive_can_be_retired_and_is_never_registered_again() -> None:
    there = await a_losing()
    await take_it_away(there)
    await there.lose()
    registration = DriveRegistration(there.moving.harness.context)
    assert {"name": NAME, "number": COLD, "state": "lost"} in await registration.describe()
    with pytest.raises(Exists):
        await registration.register(NAME)

    assert (await Retiring(there.moving).retire()).state is OperationState.SUCCEEDED

    with pytest.raises(Exists):
        await registration.register(NAME)


async def test_a_loss_that_died_between_two_streams_is_finished_by_its_next_step() -> None:
    there = await a_losing()
    await take_it_away(there)
    operation = await there.loss.begin(NAME, NAME, "default")
    marked = replace(operation, progress=await progress_after(there, operation))
    marked = replace(marked, progress=await progress_after(there, marked))
    await progress_after(there, marked)

    # The progress of that step was not noted.
    again = await progress_after(there, marked)

    await there.mutators.aclose()
    assert sum(gap for _, _, gap in await ranges(there)) == 3
    assert again["streams"] == 1
    assert again["with_gaps"] == ["orders"], "whoever asked for it hears of all streams"


async def progress_after(there: Losing, operation: Operation) -> Mapping[str, object]:
    """The progress that one step leads to."""
    outcome = await there.loss.step(there.moving.harness.context, operation)
    assert isinstance(outcome, Again)
    return outcome.progress
