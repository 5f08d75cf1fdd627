from collections.abc import AsyncIterator

import pytest
from unit.reader.harness import ReaderHarness


@pytest.fixture
async def harness() -> AsyncIterator[ReaderHarness]:
    made = ReaderHarness()
    yield made
    await made.aclose()


@pytest.fixture(params=["local", "stored", "both", "groups", "half freed"])
async def hundred(request: pytest.FixtureRequest, harness: ReaderHarness) -> ReaderHarness:
    """100 records in chunks of 10, in one tier or the other or both."""
    harness.fill(100)
    if request.param == "stored":
        await harness.upload(10, free=True)
    if request.param == "both":
        await harness.upload(4, free=True)
        await harness.upload(3)
    if request.param == "groups":
        for _ in range(10):
            await harness.upload(1, free=True)
        assert len(harness.node.entries) < 10
    if request.param == "half freed":
        await harness.upload(3, free=True)
    return harness
