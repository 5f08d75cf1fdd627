"""The clock of a node is held to that of coordination, without asking it each time."""

import pytest

from bottomless.errors import Code, Unavailable
from bottomless_server.ingest.leaderless.core.store_clock import StoreClock

BOUND_MS = 10_000
WALL = 1_750_000_000_000


def test_nothing_is_known_before_it_was_asked() -> None:
    with pytest.raises(Unavailable):
        StoreClock(BOUND_MS).read(WALL, 0)


def test_a_clock_that_is_close_is_believed() -> None:
    clock = StoreClock(BOUND_MS)
    clock.hear(WALL, 1_000, 1_200)

    assert clock.read(WALL + 9_000, 1_100) == WALL + 9_000
    assert clock.read(WALL + 60_000, 61_000) == WALL + 60_000


@pytest.mark.parametrize("difference_ms", [-10_101, 10_101])
def test_one_that_is_far_away_is_refused_until_it_is_back(difference_ms: int) -> None:
    clock = StoreClock(BOUND_MS)
    clock.hear(WALL, 1_000, 1_000)

    with pytest.raises(Unavailable) as raised:
        clock.read(WALL + difference_ms, 1_000)
    assert raised.value.code is Code.CLOCK_SKEW
    assert raised.value.facts == {"difference_ms": difference_ms, "bound_ms": BOUND_MS}
    clock.hear(WALL + difference_ms, 2_000, 2_000)
    assert clock.read(WALL + difference_ms, 2_000) == WALL + difference_ms
