from collections.abc import AsyncIterator

import pytest
from unit.reader.harness import ReaderHarness
from unit.reader.leaderless import LeaderlessHarness


@pytest.fixture
async def harness() -> AsyncIterator[ReaderHarness]:
    made = ReaderHarness()
    yield made
    await made.aclose()


@pytest.fixture
async def leaderless() -> AsyncIterator[LeaderlessHarness]:
    made = LeaderlessHarness()
    yield made
    await made.aclose()


TIERS = ("local", "stored", "both", "groups", "half freed")


@pytest.fixture(params=[*TIERS, *(f"leaderless, {tier}" for tier in TIERS)])
async def hundred(request: pytest.FixtureRequest) -> AsyncIterator[ReaderHarness]:
    """100 records in chunks of 10, in one tier or the other or both; a stream of each profile."""
    profile, _, tier = request.param.rpartition(", ")
    made = LeaderlessHarness() if profile else ReaderHarness()
    yield await _filled(made, tier)
    await made.aclose()


async def _filled(harness: ReaderHarness, tier: str) -> ReaderHarness:
    harness.fill(100)
    if tier == "stored":
        await harness.upload(10, free=True)
    if tier == "both":
        await harness.upload(4, free=True)
        await harness.upload(3)
    if tier == "groups":
        for _ in range(10):
            await harness.upload(1, free=True)
        assert len(harness.node.entries) < 10
    if tier == "half freed":
        await harness.upload(3, free=True)
    return harness
