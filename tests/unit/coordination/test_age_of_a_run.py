"""How long a run of Valkey is said to be there: whoever waits for what came before it waits less by that."""

import pytest

from bottomless_server.coordination.redis import sure_age_ms


@pytest.mark.parametrize(
    ("told_seconds", "up_ms"),
    [
        # Begun at 10.99 and asked at 11.00, or nearly two seconds ago: what is told is the same.
        (1, 0),
        (31, 30_000),
        (0, 0),
        # Its clock was set back since.
        (-5, 0),
    ],
)
def test_a_run_is_never_told_to_be_older_than_it_is(told_seconds: int, up_ms: int) -> None:
    assert sure_age_ms(told_seconds) == up_ms
