"""What waits for one stream's manifest has a bound, and another stream is not asked to wait for it."""

import asyncio

import pytest
from support.collected import left_to_the_collector, only_what_is_new
from support.manifest import STREAM, ManifestHarness

from bottomless.errors import Outcome, Overloaded, Unavailable
from bottomless_server.manifest.mutators.stream_task import MAILBOX_COUNT_MAX, StreamTask
from bottomless_server.manifest.tree.committer import Committer


async def test_beyond_the_bound_work_is_refused_and_what_waits_is_done() -> None:
    harness = ManifestHarness()
    await harness.open()
    task = StreamTask(harness.context, STREAM)
    go, begun = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    async def slow(_: Committer) -> None:
        begun.set()
        await go.wait()

    async def quick(_: Committer) -> None:
        done.append(1)

    first = asyncio.create_task(task.run(slow))
    await begun.wait()
    waiting = [asyncio.create_task(task.run(quick)) for _ in range(MAILBOX_COUNT_MAX)]
    await asyncio.sleep(0)

    with pytest.raises(Overloaded) as refused:
        await task.run(quick)

    assert refused.value.retry_after_seconds == 1
    go.set()
    await asyncio.gather(first, *waiting)
    assert len(done) == MAILBOX_COUNT_MAX
    await task.aclose()


async def test_who_is_ended_hears_whether_its_work_had_begun() -> None:
    """A stop falls anywhere: what had begun may be done, what still waited is not."""
    harness = ManifestHarness()
    await harness.open()
    task = StreamTask(harness.context, STREAM)
    begun = asyncio.Event()

    async def never(_: Committer) -> None:
        begun.set()
        await asyncio.Event().wait()

    asked = [asyncio.create_task(task.run(never)) for _ in range(2)]
    await begun.wait()
    await task.aclose()

    told = await asyncio.gather(*asked, return_exceptions=True)
    assert [one.outcome for one in told if isinstance(one, Unavailable)] == [
        Outcome.UNKNOWN,
        Outcome.NONE,
    ]


async def test_a_task_that_is_closed_leaves_nothing_to_the_collector() -> None:
    """With five thousand streams the tasks that made room for others were all kept by their own
    cancellations, with what each knew of its manifest."""
    harness = ManifestHarness()
    await harness.open()
    with only_what_is_new():
        task = StreamTask(harness.context, STREAM)
        await task.run(Committer.refresh)
        left_to_the_collector()
        await task.aclose()
        del task
        # The loop holds what woke this task until its next turn.
        await asyncio.sleep(0)

        assert not left_to_the_collector()
