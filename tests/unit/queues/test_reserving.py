"""Sequences are in the registry before a message has one of them."""

from hypothesis import given
from hypothesis import strategies as st

from bottomless_server.queues.core.reserving import AHEAD, BLOCK, reserved_below


@given(st.lists(st.integers(1, AHEAD), max_size=50))
def test_what_a_round_uses_was_reserved_in_a_round_before(rounds: list[int]) -> None:
    """As many as a round can have, each time; the registry is written after the round."""
    following, written = 0, BLOCK
    for count in rounds:
        following += count
        assert following <= written
        below = reserved_below(following, written)
        if below is not None:
            assert below > written
            assert below % BLOCK == 0
            written = below


def test_a_queue_that_has_enough_reserves_nothing() -> None:
    assert reserved_below(0, BLOCK) is None
    assert reserved_below(AHEAD, BLOCK) is None
    assert reserved_below(AHEAD + 1, BLOCK) == 2 * BLOCK
