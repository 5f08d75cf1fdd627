from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unit.ingest.house import House


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A started service with one empty stream."""
    made = await House(tmp_path / "ingest").declare()
    await made.start()
    yield made
    await made.aclose()
