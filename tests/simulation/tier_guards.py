"""What it would be to do without guards of drives and moves, and the seeds that miss them."""

from typing import Any, Final, NamedTuple

from bottomless_server.manifest.mutators.moves import relocation_of


class TierGuard(NamedTuple):
    """A guard of drives, without which these seeds fail."""

    variant: Any
    """Stands in its place."""
    seeds: list[int]
    troubles: str = "moves"


def _nothing(*_: Any) -> None:
    pass


async def _believe(*_: Any) -> None:
    pass


def _yes(*_: Any) -> bool:
    return True


_relocation: Final = relocation_of

TIER_GUARDS: Final[dict[str, TierGuard]] = {
    "the marker of a mount": TierGuard(_nothing, [1, 2, 4]),
    "what was put, looked for on its mount": TierGuard(_believe, [4]),
    "a key of its own for each move": TierGuard(lambda *_: 1, [1, 2]),
    "what a mover has copied": TierGuard(lambda move, _: _relocation(move, None), [1, 2]),
    "the drive in the deleter's look": TierGuard(_yes, [1, 2]),
    "the move and its session in the EXEC of a relocation": TierGuard(_yes, [1, 2]),
}
