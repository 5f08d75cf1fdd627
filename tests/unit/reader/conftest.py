from collections.abc import AsyncIterator

import pytest
from unit.reader.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.aclose()


@pytest.fixture(params=["local", "stored", "both", "groups", "half freed"])
async def hundred(request: pytest.FixtureRequest, world: World) -> World:
    """100 records in chunks of 10, in one tier or the other or both."""
    world.fill(100)
    if request.param == "stored":
        await world.upload(10, free=True)
    if request.param == "both":
        await world.upload(4, free=True)
        await world.upload(3)
    if request.param == "groups":
        for _ in range(10):
            await world.upload(1, free=True)
        assert len(world.node.entries) < 10
    if request.param == "half freed":
        await world.upload(3, free=True)
    return world
