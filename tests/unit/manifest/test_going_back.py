"""Coordination comes back from a backup that has the bucket's generation.

The tests of a lost coordination emptied it, or gave it an older generation; a backup of an
installation that was never rebuilt has the same one, and only garbage collection looked further.
"""

from dataclasses import replace

import pytest
from support.manifest import NODE, STREAM, Crash, World
from support.rebuilding import a_world, firsts, publish, rebuild
from unit.manifest.test_manifest_api import running

from bottomless.errors import Code, Unavailable
from bottomless.model.names import NodeId
from bottomless_server.manifest.tree import committer as committers
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.going_back import has_gone_back

OTHER = NodeId(NODE[::-1])


async def from_a_backup() -> World:
    """Two publishes, of which a coordination that came back from a backup knows nothing."""
    world = await a_world(0, 10)
    backup = world.coordination.copy()
    await publish(world, 20)
    await publish(world, 30)
    world.coordination.put_back(backup)
    return world


async def test_a_stream_whose_record_is_older_than_its_roots_is_not_published_into() -> None:
    world = await from_a_backup()

    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            await publish(world, 20)
        assert caught.value.code is Code.COORDINATION_REGRESSED
        assert not caught.value.retryable


async def test_without_that_look_offsets_are_published_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def passes(*_: object) -> None:
        pass

    monkeypatch.setattr(committers, "require_not_gone_back", passes)
    world = await from_a_backup()

    await publish(world, 20)

    assert await firsts(world) == [0, 10, 20]


async def test_no_node_that_claims_it_hears_that_the_bucket_knows() -> None:
    """A node acknowledges nothing of a stream that was not its own before it has heard that."""
    world = await from_a_backup()
    await world.streams.update(STREAM, lambda r: replace(r, home=OTHER, dirty=False))

    async with running(world) as service:
        answer = await service.internal.put(f"/internal/v1/streams/{STREAM}/registry")

    assert (answer.status_code, answer.json()["code"]) == (503, "coordination-regressed")


async def test_an_attempt_that_was_cut_off_is_no_such_root() -> None:
    for left in range(100):
        world = await a_world(0, 10)
        world.fuse.left = left
        try:
            await publish(world, 20)
        except Crash:
            assert not await has_gone_back(world.context, await world.record())
            await Committer.open(world.context, STREAM)
        else:
            assert left > 4
            return
    raise AssertionError("it never ends")


async def test_emptied_and_rebuilt_it_is_all_there() -> None:
    world = await from_a_backup()
    world.coordination.lose()

    await rebuild(world)

    await publish(world, 40)
    assert await firsts(world) == [0, 10, 20, 30, 40]
