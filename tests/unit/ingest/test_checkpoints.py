"""When a checkpoint is due: by what came since the last one, and by its age."""

import pytest

from bottomless_server.ingest.local.freeing import FreeingBounds, is_checkpoint_due

KIB = 1_024
BOUNDS = FreeingBounds(60_000, 0, checkpoint_bytes=64 * KIB * KIB, checkpoint_ms=30_000)


@pytest.mark.parametrize(
    ("grown", "age_ms", "due"),
    [
        (0, 10**9, False),
        (64 * KIB * KIB, 0, True),
        (64 * KIB * KIB - 1, 29_999, False),
        (256 * KIB, 29_999, False),
        (256 * KIB, 30_000, True),
        # A stream with ten KB every thirty seconds saved one with each append, which cost two syncs.
        (10 * KIB, 30_000, False),
        (70 * KIB, 239_999, False),
        (70 * KIB, 240_000, True),
        (1, 240_000, True),
    ],
)
def test_a_checkpoint_is_due_after_much_or_after_long(grown: int, age_ms: int, due: bool) -> None:
    assert is_checkpoint_due(grown, age_ms, BOUNDS) is due
