"""How a drive is retired on which nothing lies, and that nothing comes onto it meanwhile."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from support.drives import register
from support.guards import remove
from support.manifest import NEIGHBOUR, STREAM, Crash, a_record, of_a_later_release
from support.moving import COLD, HOT, Moving, a_moving_stream

from bottomless.errors import Code, Exists, InvalidRequest, Unavailable
from bottomless.formats.drive_objects import DRIVE_MARKER_KEY
from bottomless.model.config import parse_stored_config
from bottomless.model.drive import MIXED, RegisteredDrive
from bottomless.model.names import StreamName, Uid
from bottomless.model.stream import Intent, StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.drives.configured import ConfiguredDrive
from bottomless_server.drives.table import DriveTable, load_registry
from bottomless_server.manifest.mutators import sessions
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Failed
from bottomless_server.manifest.registry.drive_registration import DriveRegistration
from bottomless_server.manifest.removal.drive_retirement import DriveRetirement
from bottomless_server.stores.operations import Operation, OperationState, operation_key
from bottomless_server.stores.streams import delete_later

NAME = f"d{COLD}"
UPLOADED = Uid("e" * 32)


class Retiring:
    """A stream over two drives, and a process that retires the second one."""

    def __init__(self, moving: Moving) -> None:
        self.moving = moving
        self.restart()

    def restart(self) -> None:
        """The parts of another process; one that was at an operation is gone, and its lease too."""
        self.operations = Operations(self.moving.harness.context)
        self.retirement = DriveRetirement(
            self.moving.harness.context, self.operations, page_count=1
        )

    async def begin(self) -> Operation:
        return await self.retirement.begin(NAME, "default")

    async def work(self) -> None:
        self.moving.harness.clock.now += 120_000
        await self.operations.make_pass()
        await self.operations.settled()

    async def step(self, operation: Operation) -> Operation:
        """Do one step, and say what has come of it."""
        outcome = await self.retirement.step(self.moving.harness.context, operation)
        assert isinstance(outcome, Again), outcome
        return replace(operation, progress=outcome.progress)

    async def retire(self) -> Operation:
        """All of it."""
        operation = await self.begin()
        await self.work()
        return await self.operations.find(operation.operation_id)

    async def drive(self) -> RegisteredDrive:
        (drive,) = (await load_registry(self.moving.harness.drive)).drives
        return drive


async def a_retiring() -> Retiring:
    moving = await a_moving_stream(6)
    await register(moving.harness.drive, COLD)
    return Retiring(moving)


async def test_a_drive_on_which_nothing_lies_is_retired_and_again_changes_nothing() -> None:
    there = await a_retiring()

    operation = await there.retire()

    assert operation.state is OperationState.SUCCEEDED
    assert operation.result == {"number": COLD, "state": "retired", "streams": 1}
    assert (await there.drive()).retired
    assert await there.moving.keys(COLD) == []
    await there.moving.drive(COLD).get(DRIVE_MARKER_KEY)
    before = await load_registry(there.moving.harness.drive)
    assert (await there.retire()).state is OperationState.SUCCEEDED
    assert await load_registry(there.moving.harness.drive) == before


async def test_a_drive_that_is_away_can_be_retired_if_nothing_is_named_there() -> None:
    there = await a_retiring()
    there.moving.harness.use_drives(DriveTable.of_one(there.moving.harness.drive))
    there.restart()
    assert (await there.retire()).state is OperationState.SUCCEEDED


async def test_a_drive_from_which_all_was_moved_is_retired_once_the_grace_is_over() -> None:
    there = await a_retiring()
    await there.moving.move(0, 60)
    await there.moving.move(0, 60, source=COLD, target=HOT)
    failed = await there.retire()
    assert failed.error is not None
    assert "objects wait to be deleted from it" in failed.error["detail"]

    await there.moving.after_the_grace()

    assert (await there.retire()).state is OperationState.SUCCEEDED


async def with_a_policy(there: Retiring) -> None:
    config = parse_stored_config(
        {"tiers": [{"drive": "default", "max_age": "1D"}, {"drive": NAME}]}
    )
    await there.moving.committer.change(lambda record: replace(record, config=config))


async def with_a_move(there: Retiring) -> None:
    await there.moving.enter(0, 10)


async def with_a_fragment(there: Retiring) -> None:
    await there.moving.move(50, 60)
    await there.moving.after_the_grace()


async def with_one_in_a_mixed_group(there: Retiring) -> None:
    await there.moving.move(0, 10)
    await there.moving.after_the_grace()
    entries = there.moving.committer.keeper.root.entries
    assert MIXED in entries["drive"]
    assert COLD not in entries["drive"]


async def with_an_intent(there: Retiring) -> None:
    intent = Intent(UPLOADED, 60, "s1", COLD)
    await there.moving.committer.change(lambda record: replace(record, intents=(intent,)))


async def with_one_that_was_given_up(there: Retiring) -> None:
    await with_an_intent(there)
    await sessions.give_up(there.moving.harness.context, there.moving.committer, {UPLOADED})


async def with_a_deletion(there: Retiring) -> None:
    await there.moving.harness.streams.update(
        STREAM, lambda record: replace(record, drives=(COLD,), state=StreamState.DELETING)
    )


async def with_a_record_of_a_later_release(there: Retiring) -> None:
    await there.moving.harness.streams.create(
        a_record(stream_id=NEIGHBOUR, name=StreamName("later"))
    )
    await of_a_later_release(there.moving.harness)


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (with_a_policy, "has a policy that names it"),
        (with_a_move, "has moves or uploads"),
        (with_a_fragment, "has fragments on it"),
        (with_one_in_a_mixed_group, "has fragments on it"),
        (with_an_intent, "has moves or uploads"),
        (with_one_that_was_given_up, "has moves or uploads"),
        (with_a_deletion, "is being deleted"),
        (with_a_record_of_a_later_release, "cannot be read"),
    ],
)
async def test_a_drive_that_a_stream_uses_is_not_retired_and_used_on(
    use: Callable[[Retiring], Awaitable[None]], why: str
) -> None:
    there = await a_retiring()
    await use(there)

    operation = await there.retire()

    assert operation.state is OperationState.FAILED
    assert operation.error is not None
    assert operation.error["code"] == Code.DRIVE_IN_USE.value
    assert why in operation.error["detail"]
    assert operation.progress["stream_id"] in (STREAM, NEIGHBOUR)
    assert (await there.drive()).is_open


async def test_one_that_nobody_registered_is_unknown() -> None:
    there = await a_retiring()
    with pytest.raises(InvalidRequest) as raised:
        await there.retirement.begin("frost", "default")
    assert raised.value.code is Code.DRIVE_UNKNOWN


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("changes", range(14))
async def test_a_death_at_any_change_leaves_what_another_process_goes_on_with(
    changes: int, used: bool
) -> None:
    there = await a_retiring()
    if used:
        await with_a_fragment(there)
    operation = await there.begin()
    there.moving.harness.fuse.left = changes
    with suppress(Crash):
        await there.work()
    there.moving.harness.fuse.left = None

    there.restart()
    await there.work()

    found = await there.operations.find(operation.operation_id)
    assert found.state is (OperationState.FAILED if used else OperationState.SUCCEEDED)
    assert (await there.drive()).is_open is used


async def marked(there: Retiring) -> Operation:
    """An operation from whose first step on nothing new comes onto the drive."""
    return await there.step(await there.begin())


async def test_nothing_new_is_put_on_a_drive_that_is_about_to_be_retired() -> None:
    there = await a_retiring()
    await marked(there)

    with pytest.raises(Exists) as raised:
        await there.moving.enter(0, 10)

    assert raised.value.code is Code.DRIVE_IN_USE
    assert (await there.moving.harness.record()).moves == ()


async def a_move_that_comes_after_the_look(there: Retiring) -> int:
    """Its drive was open when that was looked at, and is retired when it is entered."""

    async def all_of_the_retirement() -> None:
        assert (await there.retire()).state is OperationState.SUCCEEDED

    there.moving.harness.coordination.before_transact = all_of_the_retirement
    number = await there.moving.enter(0, 10)
    assert (await there.drive()).retired
    return number


async def test_a_move_that_is_entered_after_the_look_is_handed_to_nobody_and_ends() -> None:
    there = await a_retiring()
    number = await a_move_that_comes_after_the_look(there)

    with pytest.raises(Exists):
        await there.moving.copy(number)

    assert (await there.moving.harness.record()).moves == ()
    assert await there.moving.keys(COLD) == []


async def intend_on_the_drive(there: Retiring, at: int) -> int:
    """Ask for a uid as an uploader does that reaches the drive; returns the drive that it is given."""
    context, committer = there.moving.harness.context, there.moving.committer
    (uid,) = await sessions.intend(context, committer, "s1", [at], [COLD])
    return next(one.drive for one in committer.record.intents if one.uid == uid)


async def test_new_fragments_go_to_drive_0_where_that_of_the_first_tier_is_retired() -> None:
    there = await a_retiring()
    config = parse_stored_config(
        {"tiers": [{"drive": NAME, "max_age": "1D"}, {"drive": "default"}]}
    )
    await there.moving.committer.change(lambda record: replace(record, config=config))
    assert await intend_on_the_drive(there, 60) == COLD
    await marked(there)

    with pytest.raises(Unavailable):
        await intend_on_the_drive(there, 70)

    given_up = (await there.moving.harness.record()).quarantine
    assert [(one.first_offset, one.drive) for one in given_up] == [(70, COLD)]
    assert await intend_on_the_drive(there, 70) == HOT


async def test_without_its_guard_copies_lie_on_a_drive_that_was_retired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def is_open(*_: object) -> None:
        pass

    remove(monkeypatch, "a drive that is retired takes nothing new", is_open)
    there = await a_retiring()
    number = await a_move_that_comes_after_the_look(there)

    await there.moving.copy(number)

    assert len(await there.moving.fragments(COLD)) == 1


async def test_a_move_that_somebody_was_at_before_is_found_and_goes_on() -> None:
    there = await a_retiring()
    number = await there.moving.enter(0, 10)
    await there.moving.copy(number)
    operation = await marked(there)

    await there.moving.copy(number)
    there.restart()
    await there.work()

    found = await there.operations.find(operation.operation_id)
    assert found.state is OperationState.FAILED
    await there.moving.finish(number)
    assert len(await there.moving.named(COLD)) == 1


async def test_a_move_that_nobody_was_at_ends_once_its_drive_is_about_to_be_retired() -> None:
    there = await a_retiring()
    number = await there.moving.enter(0, 10)
    operation = await marked(there)

    with pytest.raises(Exists):
        await there.moving.copy(number)
    there.restart()
    await there.work()

    assert (await there.moving.harness.record()).moves == ()
    found = await there.operations.find(operation.operation_id)
    assert found.state is OperationState.SUCCEEDED


async def test_one_that_is_registered_meanwhile_is_used_on_and_the_retirement_fails() -> None:
    there = await a_retiring()
    operation = await marked(there)
    table = there.moving.harness.context.drives
    assert table.configured[0] == ConfiguredDrive(NAME, COLD, f"file:///d{COLD}")
    registration = DriveRegistration(there.moving.harness.context)

    assert (await registration.register(NAME)).is_open
    await with_a_fragment(there)
    at_its_end = replace(operation, progress={**operation.progress, "phase": "ending"})
    outcome = await there.retirement.step(there.moving.harness.context, at_its_end)

    assert isinstance(outcome, Failed)
    assert (await there.drive()).is_open


async def test_who_asks_again_is_told_of_the_retirement_that_is_under_way() -> None:
    there = await a_retiring()
    operation = await marked(there)
    assert (await there.begin()).operation_id == operation.operation_id


async def test_one_of_an_operation_that_is_lost_is_retired_by_another() -> None:
    there = await a_retiring()
    operation = await marked(there)
    harness = there.moving.harness
    assert (await DriveRegistration(harness.context).describe())[1]["state"] == "retiring"
    harness.coordination.write(Changes({operation_key(operation.operation_id): None}))
    lost = await there.retire()
    assert lost.state is OperationState.SUCCEEDED


async def test_what_waits_to_be_deleted_keeps_a_drive() -> None:
    there = await a_retiring()
    key = f"default/{STREAM}/data/x"
    there.moving.harness.coordination.write(Changes(queued=[delete_later(key, 2**50, COLD)]))
    assert (await there.retire()).state is OperationState.FAILED
    assert (await there.drive()).is_open
