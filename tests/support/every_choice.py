"""Chance that is not left to chance: every way in which a few choices can go, one after the other."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class EveryChoice(random.Random):
    """One way: its first choices are given, and later ones are the first that there is each time."""

    def __init__(self, given: Sequence[int]) -> None:
        super().__init__(0)
        self._given = given
        self.made: list[tuple[int, int]] = []
        """What was chosen, and among how many."""

    def _choose(self, count: int) -> int:
        place = len(self.made)
        chosen = self._given[place] if place < len(self._given) else 0
        self.made.append((chosen, count))
        return chosen

    def random(self) -> float:
        return 0.75 * self._choose(2)

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        assert stop is None
        assert step == 1
        return self._choose(start)

    def randint(self, a: int, b: int) -> int:
        return a + self._choose(b - a + 1)

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[self._choose(len(seq))]


def every_way(run: Callable[[random.Random], T]) -> Iterator[T]:
    """What `run` returns, for each way in which its choices can go; it must make the same ones again."""
    given: list[int] | None = []
    while given is not None:
        chance = EveryChoice(given)
        yield run(chance)
        made = chance.made
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        given = [chosen for chosen, _ in made]
        if given:
            given[-1] += 1
        else:
            given = None
