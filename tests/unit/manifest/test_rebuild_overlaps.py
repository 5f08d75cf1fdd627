"""Rebuilds that overlap, that are given up, and that come back: nothing of a generation counts before
bucket and coordination agree on it.

A process is stopped at each of its requests to a store in turn, and while it stands there something
else happens. The checks before these ended a process, and began the next one; so a process that goes
on beside the next one, or after it, was tested at the two places where somebody had thought of it
(seed by seed the simulation kills, too). And a rebuild that began was always finished.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
from support.guards import remove
from support.manifest import STREAM, ManifestHarness
from support.object_keys import fragment_key
from support.rebuilders import RebuildHarness, carry_out, goes_on, paused
from support.rebuilding import doomed, firsts, nothing

from bottomless.errors import Code, StoreError
from bottomless.formats.keys import GENERATION_PREFIX
from bottomless.model.names import TENANT_DEFAULT
from bottomless_server.coordination.base import Values
from bottomless_server.manifest.keys.key_reconciling import reconcile_keys
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.rebuild import KIND, Rebuild
from bottomless_server.manifest.removal.garbage import gc_arguments, register_gc
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.stores.generation import is_regressed
from bottomless_server.stores.operations import OPERATIONS_KEY, OperationState
from bottomless_server.stores.rebuild_step import RebuildStep

STEPS = 200
"""More requests than a rebuild has."""


async def objects(harness: RebuildHarness) -> set[str]:
    return {one.object_key async for one in harness.manifest.drive.list("")}


async def serves(harness: RebuildHarness) -> None:
    """Every stream can be opened by another process, and no key is set back."""
    await Committer.open(harness.manifest.context, STREAM)
    assert await reconcile_keys(harness.manifest.context) == 0
    await harness.all_is_there()


async def survives(harness: RebuildHarness) -> None:
    """After one more loss and rebuild all is still there, and nothing of it is to be deleted."""
    harness.lose()
    await harness.rebuild()
    await harness.all_is_there()
    named = {
        fragment_key(STREAM, one.first_offset, one.uid) for one in await harness.manifest.leaves()
    }
    assert not named & await doomed(harness.manifest)


@pytest.mark.parametrize("older", [False, True], ids=["emptied", "of an older generation"])
async def test_who_wakes_up_after_a_rebuild_changes_nothing_that_is_served(older: bool) -> None:
    """It put a root far above the live record, forgot operations and queues, and gave an API key a
    number that nobody had given out."""
    for at in range(0, STEPS, 3 if older else 1):
        harness = await RebuildHarness.begin()
        if older:
            before = harness.manifest.coordination.copy()
            harness.lose()
            await harness.rebuild()
            harness.manifest.coordination.put_back(before)
        else:
            harness.lose()
        async with paused(harness.manifest, at, partial(carry_out, harness.manifest)) as process:
            if process is None:
                assert at > 20
                return
            if await harness.has_generation():
                # It has only to note that.
                return
            await harness.rebuild()
            await harness.live()
            seen, bucket = harness.seen(), await objects(harness)

            await goes_on(*process)

        assert harness.seen() == seen, process[0].request
        if not process[0].request.startswith("put "):
            assert await objects(harness) == bucket, process[0].request
        await serves(harness)
        await survives(harness)
    raise AssertionError("it never ends")


async def test_a_root_that_is_put_late_is_above_no_record_that_is_served() -> None:
    """Two processes restore one stream: the second has seen what the first one put, and goes on when
    that has ended. Its version was a million above: 503 `coordination-regressed` for ever, or, with
    one more loss, all that was published since then was deleted."""
    harness = await RebuildHarness.begin()
    harness.lose()
    restore, work = r"transact \['bottomless:stream:", partial(carry_out, harness.manifest)
    async with paused(harness.manifest, 0, work, restore) as first:
        assert first is not None
        async with paused(harness.manifest, 0, work, "put .*/root") as second:
            assert second is not None
            done = await goes_on(*first)
            assert done.state is OperationState.SUCCEEDED
            assert await harness.has_generation()

            await goes_on(*second)

    roots = [one async for one in harness.manifest.drive.list("") if "/root." in one.object_key]
    assert len(roots) == 4
    await serves(harness)
    await harness.live()
    await survives(harness)


@pytest.mark.parametrize("seen", ["by nobody", "by both", "by the second alone"])
@pytest.mark.parametrize("lived", [False, True], ids=["at once", "after others have published"])
async def test_a_root_of_before_the_loss_that_is_put_late_changes_no_version(
    seen: str, lived: bool
) -> None:
    """A publish of the generation before is under way when coordination is lost, and its root comes
    between the looks of two processes that restore the stream. Overlaps were only of rebuilds, so what
    is older stood still in all of them."""
    harness = await RebuildHarness.begin()
    # A collection, a decided reply and the fence of a takeover raise the version without a root.
    raised = partial(replace, version=(await harness.manifest.record()).version + 3)
    await harness.manifest.streams.update(STREAM, raised)
    restore, work = "put .*/root", partial(carry_out, harness.manifest)
    async with paused(harness.manifest, 0, harness.trim, restore) as old:
        assert old is not None
        harness.lose()
        if seen == "by both":
            await goes_on(*old)
        async with paused(harness.manifest, 0, work, restore) as first:
            assert first is not None
            if seen == "by the second alone":
                await goes_on(*old)
            async with paused(harness.manifest, 0, work, restore) as second:
                assert second is not None
                await goes_on(*first)
                assert await harness.has_generation()
                if lived:
                    await harness.live()
                await goes_on(*second)
        await goes_on(*old)

    await Committer.open(harness.manifest.context, STREAM)
    await harness.live()
    harness.lose()
    await harness.rebuild()
    published = await firsts(harness.manifest)
    assert published in (harness.published, harness.published[1:])


async def test_a_rebuild_that_is_given_up_leaves_nothing_that_counts() -> None:
    """Valkey's own data comes back, as the runbook has it first. Roots and API keys of a generation
    that never came stopped every publish, and made secrets good again that had been replaced."""
    for at in range(0, STEPS, 2):
        harness = await RebuildHarness.begin()
        own = harness.manifest.coordination.copy()
        harness.lose()
        async with paused(harness.manifest, at, partial(carry_out, harness.manifest)) as process:
            if process is None:
                assert at > 20
                return
        harness.manifest.coordination.put_back(own)
        # Where the bucket has the next generation already, what came back is refused as a whole.
        await harness.recover()
        await serves(harness)
        await harness.live()
        await serves(harness)
        await collected(harness.manifest)
        await serves(harness)
        await survives(harness)
    raise AssertionError("it never ends")


async def collected(manifest: ManifestHarness) -> None:
    operations = Operations(manifest.context)
    register_gc(operations)
    arguments = gc_arguments(dry_run=False, minimum_age_ms=1, tenant=None)
    operation = await operations.begin("gc", tenant=TENANT_DEFAULT, arguments=arguments)
    while not operation.finished:
        manifest.clock.now += 600_000
        await operations.make_pass()
        await operations.settled()
        operation = await operations.find(operation.operation_id)
    assert operation.result is not None
    assert not any("skipped" in name and count for name, count in operation.result.items())


async def test_who_wakes_up_after_a_rebuild_was_given_up_changes_nothing_that_is_served() -> None:
    """Only a generation that it is just about to put comes too late to be held back: that, and no
    more, is left out here."""
    for at in range(1, STEPS, 2):
        harness = await RebuildHarness.begin()
        own = harness.manifest.coordination.copy()
        harness.lose()
        async with paused(harness.manifest, at, partial(carry_out, harness.manifest)) as process:
            if process is None:
                assert at > 20
                return
            harness.manifest.coordination.put_back(own)
            if (
                f"put {GENERATION_PREFIX}" in process[0].request
                or not await harness.has_generation()
            ):
                continue
            await harness.live()
            seen = harness.seen()

            await goes_on(*process)

        assert harness.seen() == seen, process[0].request
        await serves(harness)
        await survives(harness)
    raise AssertionError("it never ends")


async def test_the_data_of_a_valkey_that_was_lost_in_a_rebuild_goes_on_with_nothing() -> None:
    """It was found by its own operation, which went on to a generation that was over, and deleted what
    had been published under it."""
    for at in range(STEPS):
        harness = await RebuildHarness.begin()
        harness.lose()
        async with paused(harness.manifest, at, partial(carry_out, harness.manifest)) as process:
            if process is None:
                assert at > 20
                return
            lost = harness.manifest.coordination.copy()
        harness.lose()
        await harness.rebuild()
        await harness.live()
        harness.manifest.coordination.put_back(lost)
        harness.manifest.streams.generation = None
        bucket = await objects(harness)

        await left_alone(harness.manifest)

        assert await is_regressed(harness.manifest.drive, harness.manifest.coordination) is not None
        assert await objects(harness) == bucket
        await harness.rebuild()
        await serves(harness)
    raise AssertionError("it never ends")


async def left_alone(manifest: ManifestHarness) -> None:
    """A manifest process serves nothing, and carries out what it finds."""
    operations = Operations(manifest.context)
    operations.only = KIND
    Rebuild(manifest.context, operations, nothing)
    for _ in range(8):
        manifest.clock.now += 120_000
        await operations.make_pass()
        await operations.settled()


async def test_of_two_that_ask_for_a_rebuild_at_once_both_are_told_the_same_one() -> None:
    """Each forgot the other's operation, and nothing was rebuilt; asked for one by one they never met."""
    for at in range(STEPS):
        harness = await RebuildHarness.begin()
        harness.lose()
        first, second = [
            Rebuild(harness.manifest.context, Operations(harness.manifest.context), nothing)
            for _ in range(2)
        ]
        async with paused(harness.manifest, at, partial(first.begin, TENANT_DEFAULT)) as process:
            if process is None:
                assert at > 2
                return
            theirs = await second.begin(TENANT_DEFAULT)

            mine = await goes_on(*process)

        assert mine == theirs
        assert (await carry_out(harness.manifest, theirs)).state is OperationState.SUCCEEDED
        assert await harness.has_generation()
        await serves(harness)
    raise AssertionError("it never ends")


async def test_a_rebuild_whose_generation_somebody_else_may_have_put_fails() -> None:
    """After a crash between the bucket's generation and coordination's it cannot be told from one that
    another coordination has: it says so, and the next one that is asked for ends."""
    for at in range(STEPS):
        harness = await RebuildHarness.begin()
        harness.lose()
        async with paused(harness.manifest, at, partial(carry_out, harness.manifest)) as process:
            if process is None:
                assert at > 20
                return
        if not await generation_is_put(harness.manifest) or await harness.has_generation():
            continue
        operations = Operations(harness.manifest.context)
        operation_id = (await harness.manifest.coordination.due(OPERATIONS_KEY, 2**52, 1))[0].member

        await left_alone(harness.manifest)

        told = await operations.find(operation_id.decode())
        assert (told.kind, told.state) == (KIND, OperationState.FAILED)
        assert told.error is not None
        assert told.error["code"] == Code.COORDINATION_REGRESSED.value
        assert (await harness.rebuild()).arguments["generation"] == 2
        await serves(harness)
    raise AssertionError("it never ends")


async def generation_is_put(manifest: ManifestHarness) -> bool:
    return [one async for one in manifest.drive.list(f"{GENERATION_PREFIX}0")] != []


_OPERATION = "the operation and the generation that each transaction of a rebuild watches"


def _without_the_operation(patch: pytest.MonkeyPatch) -> None:
    def anything(_: RebuildStep, found: Values) -> None:
        pass

    remove(patch, _OPERATION, anything)


def _with_any_version(patch: pytest.MonkeyPatch) -> None:
    attempts = count(1_000_000, 1_000_000)

    def any_version(generation: int) -> int:
        del generation
        return next(attempts)

    remove(patch, "one version for all who restore a stream", any_version)


def _with_any_generation(patch: pytest.MonkeyPatch) -> None:
    def as_begun(step: RebuildStep, stored: int) -> bool:
        del step, stored
        return True

    remove(patch, "the bucket's generation, at each step of a rebuild", as_begun)


Check = Callable[[], Awaitable[None]]
GUARDS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Check]] = {
    "the operation that a step watches": (
        _without_the_operation,
        test_who_wakes_up_after_a_rebuild_was_given_up_changes_nothing_that_is_served,
    ),
    "one version for all who restore a stream": (
        _with_any_version,
        test_a_root_that_is_put_late_is_above_no_record_that_is_served,
    ),
    "the bucket's generation": (
        _with_any_generation,
        test_the_data_of_a_valkey_that_was_lost_in_a_rebuild_goes_on_with_nothing,
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
async def test_without_a_guard_its_test_fails(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, check = GUARDS[guard]
    remove(monkeypatch)

    with pytest.raises((AssertionError, StoreError)):
        await check()
