"""Each house of a test ends with it."""

from collections.abc import Iterator

import pytest

from unit.ingest.leaderless.harness import Stores


@pytest.fixture(autouse=True)
def _houses_end() -> Iterator[None]:
    yield
    while Stores.opened:
        Stores.opened[-1].close()
