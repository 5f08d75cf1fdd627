"""Know how long a session has said nothing of its move, by a clock that nobody sets.

The record says who is at a move and when that was said last, by the wall clock of the process that wrote
it. Another clock may be fast or slow, so that time says nothing about how long it was: it only tells
one word from the next. How long the same word stands there counts each process for itself, from when it
saw it first; so a process that has just begun takes a move over a minute later than it might.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from bottomless.guards import guard
from bottomless.model.tiers import Move

TAKE_OVER_MS: Final = 60_000
"""After so long without a word of its session another one may take up a move."""
MOVE_COUNT_MAX: Final = 16_384
"""Moves that are remembered; one that was forgotten is taken over later."""


class HeldMoves:
    """The last words of sessions, and since when this process knows them."""

    def __init__(self, elapsed: Callable[[], int]) -> None:
        """`elapsed` tells ms that nobody can set."""
        self._elapsed = elapsed
        self._seen: OrderedDict[int, tuple[tuple[str | None, int], int]] = OrderedDict()

    def is_held(self, move: Move, session: str) -> bool:
        """Whether another session than this one is at a move."""
        since = self.note(move)
        return move.session not in (None, session) and not is_silent(self._elapsed() - since)

    def note(self, move: Move) -> int:
        """Take notice of what a record says of a move; tells since when this process knows it, in ms."""
        word = (move.session, move.at)
        seen = self._seen.pop(move.copy, None)
        if seen is None or seen[0] != word:
            seen = (word, self._elapsed())
        self._seen[move.copy] = seen
        if len(self._seen) > MOVE_COUNT_MAX:
            self._seen.popitem(last=False)
        return seen[1]


@guard("the time that a move is left to its session")
def is_silent(ms: int) -> bool:
    """Whether a session whose last word is known for so long may be at its move no more."""
    return ms >= TAKE_OVER_MS
