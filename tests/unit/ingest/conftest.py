import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bottomless_server.ingest.local import handover
from unit.ingest.harness import IngestHarness


@pytest.fixture(autouse=True)
def nobody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No uploader is on its way, so a drain need not wait for one."""
    monkeypatch.setattr(handover, "FOLLOWER_SECONDS", 0.0)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    """A started service with one empty stream."""
    made = await IngestHarness(tmp_path / "ingest").declare()
    await made.start()
    yield made
    try:
        await made.aclose()
    except asyncio.CancelledError as error:
        # Which pytest takes for its own end: it would leave this test's directory to all others.
        raise AssertionError("a stop was cancelled by what it had cancelled") from error
