"""What waits for one stream's manifest has a bound, and another stream is not asked to wait for it."""

import asyncio

import pytest
from support.manifest import STREAM, World

from bottomless.errors import Overloaded
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.mutator import MAILBOX_COUNT_MAX, Mutators


async def test_beyond_the_bound_work_is_refused_and_what_waits_is_done() -> None:
    world = World()
    await world.open()
    mutators = Mutators(world.context)
    go, begun = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    async def slow(_: Committer) -> None:
        begun.set()
        await go.wait()

    async def quick(_: Committer) -> None:
        done.append(1)

    mutator = mutators.at(STREAM)
    first = asyncio.create_task(mutator.ask(slow))
    await begun.wait()
    waiting = [asyncio.create_task(mutator.ask(quick)) for _ in range(MAILBOX_COUNT_MAX)]
    await asyncio.sleep(0)

    with pytest.raises(Overloaded) as refused:
        await mutator.ask(quick)

    assert refused.value.retry_after_seconds == 1
    go.set()
    await asyncio.gather(first, *waiting)
    assert len(done) == MAILBOX_COUNT_MAX
    await mutators.aclose()
