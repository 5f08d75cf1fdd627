"""How long a row will take, by how long it took: numbers alone, so that they can be tested."""

from collections.abc import Mapping
from typing import Any, Final

FIXED_SHARE: Final = 0.5
"""Of a row's time that does not grow with its rounds: servers start, streams are made and filled."""


def seconds_of(kept: Mapping[str, Any] | None, guess: float, rounds: int, seconds: float) -> float:
    """Of one row with so many rounds of so many seconds; the guess if it was never measured."""
    if kept is None:
        return guess
    longer: float = (rounds * seconds) / (kept["rounds"] * kept["seconds"])
    return float(kept["took_seconds"]) * (FIXED_SHARE + (1 - FIXED_SHARE) * longer)
