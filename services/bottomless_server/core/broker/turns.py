"""Turns: where an answer has no room for all partitions, each of them is first in its turn. Pure.

A client that asks for the same partitions again and again is served from another one each time. So
the first of its list, which may always have more than an answer takes, starves none of the others.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

CLIENT_COUNT_MAX: Final = 10_000
"""Clients whose turns are remembered, some hundred bytes each; the one that was silent for the
longest is forgotten first."""


class Turns:
    """The turns of clients, each of whom is known by what it asks for."""

    def __init__(self, client_count_max: int = CLIENT_COUNT_MAX) -> None:
        self._client_count_max = client_count_max
        self._next: OrderedDict[Hashable, int] = OrderedDict()
        self._begun = 0

    def __len__(self) -> int:
        return len(self._next)

    def take(self, client: Hashable) -> int:
        """The number of a client's turn: one more with each. One that is new, or was forgotten, begins
        where no one client always would."""
        turn = self._next.pop(client, None)
        if turn is None:
            turn, self._begun = self._begun, self._begun + 1
            while len(self._next) >= self._client_count_max:
                self._next.popitem(last=False)
        self._next[client] = turn + 1
        return turn


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """All items in their order, from another one on with each turn."""
    first = turn % len(items) if items else 0
    return [*items[first:], *items[:first]]
