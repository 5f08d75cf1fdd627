"""What it would be to do without guards of drives and moves, and the seeds that miss them."""

from typing import Any, Final, NamedTuple


class TierGuard(NamedTuple):
    """A guard of drives, without which these seeds fail."""

    variant: Any
    """Stands in its place."""
    seeds: list[int]
    troubles: str = "moves"


def _nothing(*_: Any) -> None:
    pass


def _yes(*_: Any) -> bool:
    return True


TIER_GUARDS: Final[dict[str, TierGuard]] = {
    "the marker of a mount": TierGuard(_nothing, [2]),
    "a key of its own for each move": TierGuard(lambda *_: 1, [8, 17]),
    "the drive in the deleter's look": TierGuard(_yes, [1]),
}
