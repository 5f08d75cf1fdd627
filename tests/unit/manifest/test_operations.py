"""Operations: steps that are written down, one process at a time, retried, resumed, forgotten."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.manifest import ManifestHarness
from support.waiting import eventually

from bottomless.errors import Code, Corrupt, NotFound, Overloaded, Unavailable
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done
from bottomless_server.stores.operations import (
    OPERATIONS_KEY,
    Operation,
    OperationState,
    OperationStore,
    decode_operation,
    operation_key,
    operation_lease_key,
)

HOUR = 3_600_000


class OperationsHarness:
    """A manifest, and processes in it that carry out operations of the kind `count`."""

    def __init__(self, **settings: object) -> None:
        self.manifest = ManifestHarness(**settings)
        self.seen: list[int] = []
        self.meets: list[Exception | Callable[[], Any]] = []
        """What the next steps meet instead of counting on."""

    def process(self, *, endless: bool = False) -> Operations:
        operations = Operations(self.manifest.context)
        operations.register("count", self.step, endless=endless)
        return operations

    async def step(self, context: Context, operation: Operation) -> Again | Done:
        if self.meets:
            met = self.meets.pop(0)
            if isinstance(met, Exception):
                raise met
            await met()
        done = int(operation.progress.get("done", 0)) + 1
        self.seen.append(done)
        if done == operation.arguments["to"]:
            return Done({"counted": done})
        pause = operation.arguments.get("pause", 0)
        return Again({"done": done, "_next": done}, context.clock() + pause if pause else 0)


async def work(operations: Operations) -> None:
    await operations.make_pass()
    await operations.settled()


@pytest.fixture
def harness() -> OperationsHarness:
    return OperationsHarness()


async def test_an_operation_is_carried_out_step_by_step(harness: OperationsHarness) -> None:
    process = harness.process()
    begun = await process.begin("count", tenant="default", arguments={"to": 3})
    assert (await process.find(begun.operation_id)).state is OperationState.PENDING

    await work(process)

    found = await process.find(begun.operation_id)
    assert (found.state, found.result, found.error) == ("succeeded", {"counted": 3}, None)
    assert harness.seen == [1, 2, 3]
    assert begun.operation_id.startswith("op_")


async def test_a_step_for_later_waits_for_its_time(harness: OperationsHarness) -> None:
    process = harness.process()
    begun = await process.begin("count", tenant="default", arguments={"to": 2, "pause": 500})
    await work(process)
    found = await process.find(begun.operation_id)
    assert (found.state, found.progress["done"]) == ("running", 1)

    harness.manifest.clock.now += 499
    await work(process)
    assert harness.seen == [1]
    harness.manifest.clock.now += 1
    await work(process)
    assert harness.seen == [1, 2]


@pytest.mark.parametrize("ahead_ms", [3 * HOUR, 3_650 * 24 * HOUR])
async def test_what_a_clock_that_was_ahead_has_entered_or_moved_is_done_all_the_same(
    harness: OperationsHarness, ahead_ms: int
) -> None:
    """No check looked at what lasts too long: it waited until the right clock came there, or for
    ten years."""
    manifest = harness.manifest
    manifest.one_machine = True
    await manifest.context.time.look()
    process = harness.process()
    moved = await process.begin("count", tenant="default", arguments={"to": 2, "pause": 1_000})
    manifest.clock.skew_ms = ahead_ms
    entered = await process.begin("count", tenant="default", arguments={"to": 1})
    harness.meets = [Unavailable("the clock is ahead")] * 2
    await work(process)
    manifest.clock.skew_ms = 0
    for _ in range(4):
        manifest.clock.now += 60_000
        await work(process)

    for operation in (moved, entered):
        found = await process.find(operation.operation_id)
        assert found.state is OperationState.SUCCEEDED


async def test_a_clock_that_is_ahead_for_a_moment_forgets_no_result(
    harness: OperationsHarness,
) -> None:
    process, manifest = harness.process(), harness.manifest
    manifest.one_machine = True
    await manifest.context.time.look()
    begun = await process.begin("count", tenant="default", arguments={"to": 1})
    await work(process)
    manifest.clock.skew_ms = 30 * 24 * HOUR
    for _ in range(2):
        await work(process)
    assert (await process.find(begun.operation_id)).finished
    later = await process.begin("count", tenant="default", arguments={"to": 1})
    await work(process)
    assert (await process.find(later.operation_id)).finished
    manifest.clock.skew_ms = 0
    await work(process)

    assert (await process.find(begun.operation_id)).finished
    manifest.clock.now += manifest.context.settings.manifest_operation_keep_ms
    for _ in range(2):
        await work(process)
    with pytest.raises(NotFound):
        await process.find(begun.operation_id)


async def test_what_is_not_available_is_tried_again_with_backoff(
    harness: OperationsHarness,
) -> None:
    process = harness.process()
    begun = await process.begin("count", tenant="default", arguments={"to": 1})
    harness.meets = [Unavailable("not now"), Overloaded("full"), Unavailable("not now")]
    for pause in (1_000, 2_000, 4_000):
        await work(process)
        found = await process.find(begun.operation_id)
        assert found.state is OperationState.RUNNING
        assert found.error is not None
        harness.manifest.clock.now += pause - 1
        await work(process)
        assert harness.seen == []
        harness.manifest.clock.now += 1
    await work(process)
    found = await process.find(begun.operation_id)
    assert (found.state, found.error) == ("succeeded", None)


@pytest.mark.parametrize(
    ("met", "code"), [(Corrupt("damaged"), "data-corrupt"), (RuntimeError("a bug"), "internal")]
)
async def test_what_time_does_not_mend_fails_an_operation_but_an_endless_one(
    harness: OperationsHarness, met: Exception, code: str
) -> None:
    process, endless = harness.process(), harness.process(endless=True)
    begun = await process.begin("count", tenant="default", arguments={"to": 1})
    harness.meets = [met, met]
    await work(process)
    found = await process.find(begun.operation_id)
    assert found.state is OperationState.FAILED
    assert found.error is not None
    assert found.error["code"] == code
    assert "bug" not in found.error["detail"]

    second = await endless.begin("count", tenant="default", arguments={"to": 1})
    await work(endless)
    assert (await endless.find(second.operation_id)).state is OperationState.RUNNING
    harness.manifest.clock.now += 1_000
    await work(endless)
    assert (await endless.find(second.operation_id)).state is OperationState.SUCCEEDED


async def test_two_processes_never_work_on_one_operation_at_once(
    harness: OperationsHarness,
) -> None:
    first, second = harness.process(), harness.process()
    await first.begin("count", tenant="default", arguments={"to": 2})
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        entered.set()
        await leave.wait()

    harness.meets = [wait]
    await first.make_pass()
    await entered.wait()
    await work(second)
    assert harness.seen == []
    leave.set()
    await first.settled()
    assert harness.seen == [1, 2]


async def test_without_the_lease_two_processes_do_work_at_once(harness: OperationsHarness) -> None:
    """The twin: with the guard gone, what it guards against happens."""
    first, second = harness.process(), harness.process()
    begun = await first.begin("count", tenant="default", arguments={"to": 2})
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        entered.set()
        await leave.wait()

    harness.meets = [wait]
    await first.make_pass()
    await entered.wait()
    key = operation_lease_key(begun.operation_id)
    harness.manifest.coordination.write(Changes({key: None}))
    await work(second)
    leave.set()
    await first.settled()
    assert harness.seen == [1, 2, 1]
    # What the one that came late did is not written down over the other's.
    assert (await first.find(begun.operation_id)).result == {"counted": 2}


async def test_who_comes_after_a_crash_goes_on_with_the_step_under_way(
    harness: OperationsHarness,
) -> None:
    dead, next_one = harness.process(), harness.process()
    begun = await dead.begin("count", tenant="default", arguments={"to": 3, "pause": 1})
    await work(dead)

    async def die() -> None:
        raise asyncio.CancelledError

    harness.meets = [die]
    harness.manifest.clock.now += 1
    running = asyncio.create_task(dead.run())
    await eventually(lambda: not harness.meets)
    # A killed process gives nothing back: its lease is there until it runs out.
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    harness.manifest.coordination.write(Changes({operation_lease_key(begun.operation_id): b"dead"}))
    await work(next_one)
    assert harness.seen == [1]
    harness.manifest.coordination.write(Changes({operation_lease_key(begun.operation_id): None}))

    for _ in range(2):
        await work(next_one)
        harness.manifest.clock.now += 1
    assert harness.seen == [1, 2, 3]


async def test_who_loses_the_lease_stops(harness: OperationsHarness) -> None:
    harness = OperationsHarness(manifest_operation_lease_ms=100)
    process = harness.process()
    begun = await process.begin("count", tenant="default", arguments={"to": 1})
    stopped = asyncio.Event()

    async def wait() -> None:
        key = operation_lease_key(begun.operation_id)
        harness.manifest.coordination.write(Changes({key: b"another"}))
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    harness.meets = [wait]
    await process.make_pass()
    async with asyncio.timeout(60):
        await stopped.wait()
    await process.settled()
    assert (await process.find(begun.operation_id)).state is OperationState.PENDING


async def test_finished_operations_are_kept_for_a_while_and_then_forgotten() -> None:
    harness = OperationsHarness(manifest_operation_keep_ms=1_000)
    process = harness.process()
    begun = await process.begin("count", tenant="default", arguments={"to": 1})
    await work(process)
    harness.manifest.clock.now += 999
    await work(process)
    assert (await process.find(begun.operation_id)).finished

    harness.manifest.clock.now += 1
    await work(process)
    with pytest.raises(NotFound) as caught:
        await process.find(begun.operation_id)
    assert caught.value.code is Code.OPERATION_NOT_FOUND
    assert await harness.manifest.coordination.member_count(OPERATIONS_KEY) == 0


async def test_what_another_process_has_finished_since_the_look_at_the_queue_is_kept(
    harness: OperationsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found with two manifests under chaos, seed 2: a collection that had succeeded was unknown."""
    one, other = harness.process(), harness.process()
    begun = await one.begin("count", tenant="default", arguments={"to": 1})
    find = other._store.find

    async def find_late(operation_id: str) -> Operation:
        await work(one)
        return await find(operation_id)

    monkeypatch.setattr(other._store, "find", find_late)
    await work(other)

    assert (await one.find(begun.operation_id)).state is OperationState.SUCCEEDED


async def test_too_many_make_the_oldest_finished_ones_go_and_nothing_else() -> None:
    harness = OperationsHarness(manifest_operation_count_max=2)
    process = harness.process()
    first = await process.begin("count", tenant="default", arguments={"to": 1})
    await work(process)
    second = await process.begin("count", tenant="default", arguments={"to": 9, "pause": 1})
    third = await process.begin("count", tenant="default", arguments={"to": 9, "pause": 1})

    with pytest.raises(NotFound):
        await process.find(first.operation_id)
    with pytest.raises(Overloaded):
        await process.begin("count", tenant="default", arguments={"to": 1})
    for kept in (second, third):
        assert not (await process.find(kept.operation_id)).finished


async def test_unfinished_ones_do_not_hide_finished_ones_that_may_go() -> None:
    """Only the 64 that are due first were looked at. Unfinished ones are due before finished
    ones, so 64 that waited refused every other one, for days."""
    harness = OperationsHarness(manifest_operation_count_max=201)
    process = harness.process()
    done = await process.begin("count", tenant="default", arguments={"to": 1})
    await work(process)
    for _ in range(200):
        await process.begin("count", tenant="default", arguments={"to": 1})

    begun = await process.begin("count", tenant="default", arguments={"to": 1})

    with pytest.raises(NotFound):
        await process.find(done.operation_id)
    assert (await process.find(begun.operation_id)).state is OperationState.PENDING
    with pytest.raises(Overloaded):
        await process.begin("count", tenant="default", arguments={"to": 1})
    harness.manifest.clock.now += 1_000
    await work(process)
    await process.begin("count", tenant="default", arguments={"to": 1})


@asynccontextmanager
async def running(operations: Operations) -> AsyncIterator[None]:
    task = asyncio.create_task(operations.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_operations_without_an_end_keep_no_other_one_waiting(
    harness: OperationsHarness,
) -> None:
    """Operations were tested one or two at a time: eight that went on at once, step by step, had
    all places for as long as they lasted."""
    process = harness.process()
    endless = [
        await process.begin("count", tenant="acme", arguments={"to": 2**40}) for _ in range(100)
    ]
    async with running(process):
        await eventually(lambda: len(harness.seen) > 50)
        one = await process.begin("count", tenant="default", arguments={"to": 3})
        async with asyncio.timeout(60):
            while not (await process.find(one.operation_id)).finished:
                await asyncio.sleep(0)
            # Nor do they starve each other.
            for operation in endless:
                while not (await process.find(operation.operation_id)).progress:
                    await asyncio.sleep(0)


async def test_one_that_is_alone_keeps_its_place_from_step_to_step(
    harness: OperationsHarness,
) -> None:
    process = harness.process()
    for _ in range(8):
        await process.begin("count", tenant="acme", arguments={"to": 20})
    await work(process)
    assert len(harness.seen) == 8 * 20


async def test_steps_of_long_operations_keep_no_short_one_waiting(
    harness: OperationsHarness,
) -> None:
    process = harness.process()
    leave = asyncio.Event()

    async def long(_: Context, __: Operation) -> Done:
        await leave.wait()
        return Done({})

    process.register("long", long, long=True)
    many = [await process.begin("long", tenant="acme") for _ in range(200)]
    await process.make_pass()
    one = await process.begin("count", tenant="default", arguments={"to": 1})
    await process.make_pass()
    async with asyncio.timeout(60):
        while not (await process.find(one.operation_id)).finished:
            await asyncio.sleep(0)
    leave.set()
    async with running(process), asyncio.timeout(60):
        for operation in many:
            while not (await process.find(operation.operation_id)).finished:
                await asyncio.sleep(0)


async def test_where_only_one_kind_may_go_on_the_others_end_with_their_step(
    harness: OperationsHarness,
) -> None:
    process = harness.process()

    async def mend(_: Context, __: Operation) -> Done:
        return Done({})

    process.register("mend", mend, endless=True)
    for _ in range(20):
        await process.begin("count", tenant="acme", arguments={"to": 2**40})
    async with running(process):
        await eventually(lambda: len(harness.seen) > 50)
        process.only = "mend"
        one = await process.begin("mend", tenant="default")
        async with asyncio.timeout(60):
            while not (await process.find(one.operation_id)).finished:
                await asyncio.sleep(0)
        await eventually(lambda: not process._working)
        done = len(harness.seen)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(harness.seen) == done
        process.only = None
        process.wake()
        await eventually(lambda: len(harness.seen) > done)


async def test_what_another_process_works_on_is_asked_for_once_in_an_interval(
    harness: OperationsHarness,
) -> None:
    """Who found it leased looked at the queue again at once, and found it again: without a pause,
    for as long as the other process had it."""
    one, other = harness.process(), harness.process()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        entered.set()
        await leave.wait()

    harness.meets = [wait]
    begun = await one.begin("count", tenant="default", arguments={"to": 1})
    await one.make_pass()
    await entered.wait()
    asked = 0
    hold = harness.manifest.coordination.hold

    async def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return await hold(*arguments)

    harness.manifest.coordination.hold = counted  # type: ignore[method-assign, assignment]
    async with running(other):
        await eventually(lambda: asked > 0)
        for _ in range(500):
            await asyncio.sleep(0)
        assert asked == 1
        harness.manifest.coordination.write(
            Changes({operation_lease_key(begun.operation_id): None})
        )
        harness.manifest.clock.now += 1_000
        other.wake()
        await eventually(lambda: asked == 2)
    leave.set()
    await one.settled()


async def test_operations_of_an_unknown_kind_are_left_for_who_knows_it(
    harness: OperationsHarness,
) -> None:
    old, new = Operations(harness.manifest.context), harness.process()
    begun = await old.begin("count", tenant="default", arguments={"to": 1})
    await work(old)
    assert (await old.find(begun.operation_id)).state is OperationState.PENDING
    await work(new)
    assert (await old.find(begun.operation_id)).state is OperationState.SUCCEEDED


async def test_a_queue_entry_without_its_operation_goes(harness: OperationsHarness) -> None:
    process = harness.process()
    begun = await process.begin("count", tenant="default", arguments={"to": 1})
    harness.manifest.coordination.write(Changes({operation_key(begun.operation_id): None}))
    await work(process)
    assert await harness.manifest.coordination.member_count(OPERATIONS_KEY) == 0


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"7", b'{"state": "odd"}'])
def test_what_is_no_operation_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_operation(data)


async def begun_by(harness: OperationsHarness, *tenants: str) -> list[str]:
    """Ids of operations that were begun one after the other, a millisecond apart."""
    operations, ids = harness.process(), list[str]()
    for tenant in tenants:
        harness.manifest.clock.now += 1
        begun = await operations.begin("count", tenant=tenant, arguments={"to": 1})
        ids.append(begun.operation_id)
    return ids


async def test_operations_of_a_tenant_are_listed_the_newest_first_a_page_at_a_time() -> None:
    harness = OperationsHarness()
    first, _, third, fourth = await begun_by(harness, "a", "b", "a", "a")
    store = OperationStore(harness.manifest.context.coordination)

    newest, before = await store.listed("a", None, 2)
    assert [one.operation_id for one in newest] == [fourth, third]
    assert before == third
    # That of another tenant takes its place on the page, and is not shown.
    oldest, before = await store.listed("a", before, 2)
    assert ([one.operation_id for one in oldest], before) == ([first], None)
    assert await store.listed("c", None, 10) == ([], None)


async def test_an_operation_that_cannot_be_read_is_not_listed_and_hides_no_other() -> None:
    harness = OperationsHarness()
    first, second, third = await begun_by(harness, "a", "a", "a")
    coordination = harness.manifest.coordination
    coordination.write(Changes({operation_key(second): b"{"}))

    found, before = await OperationStore(coordination).listed("a", None, 10)
    assert ([one.operation_id for one in found], before) == ([third, first], None)


async def test_without_an_operation_nothing_is_listed() -> None:
    store = OperationStore(OperationsHarness().manifest.context.coordination)
    assert await store.listed("a", None, 10) == ([], None)
