"""Sequences are in the registry before a message has one of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import guarded

from bottomless.guards import GUARDS
from bottomless_server.queues.core.reserving import AHEAD, BLOCK, reserved_below


@given(st.lists(st.integers(1, AHEAD), max_size=50))
def test_what_a_round_uses_was_reserved_in_a_round_before(rounds: list[int]) -> None:
    use(rounds)


def use(rounds: list[int]) -> None:
    """As many messages as a round can have, each time; the registry is written after the round."""
    following, written = 0, BLOCK
    for count in rounds:
        following += count
        assert following <= written
        below = guarded("sequences are reserved before they are used")(following, written)
        if below is not None:
            assert below > written
            assert below % BLOCK == 0
            written = below


def test_without_its_guard_a_message_has_a_number_that_nobody_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(GUARDS, "sequences are reserved before they are used", lambda *_: None)
    with pytest.raises(AssertionError):
        use([AHEAD, AHEAD, 1])


def test_a_queue_that_has_enough_reserves_nothing() -> None:
    assert reserved_below(0, BLOCK) is None
    assert reserved_below(AHEAD, BLOCK) is None
    assert reserved_below(AHEAD + 1, BLOCK) == 2 * BLOCK
