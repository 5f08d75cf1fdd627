"""What a tool finds that is not as it should be: counted by its kind, and the first ones named."""

from collections import Counter
from typing import Final

NAMED_COUNT_MAX: Final = 20
"""Findings of one kind that are named; all of them are counted."""


class Findings:
    """Findings of several kinds, in the order in which the kinds were met."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._named: dict[str, list[str]] = {}

    def add(self, kind: str, what: str, count: int = 1) -> None:
        """Note that `count` things of a kind were found; `what` says where, and why."""
        self.counts[kind] += count
        named = self._named.setdefault(kind, [])
        if len(named) < NAMED_COUNT_MAX:
            named.append(what)

    def named(self, kind: str) -> list[str]:
        return list(self._named.get(kind, ()))

    def as_json(self) -> dict[str, dict[str, object]]:
        """How many there are of each kind, and the first ones."""
        return {
            kind: {"count": count, "first": self.named(kind)} for kind, count in self.counts.items()
        }
