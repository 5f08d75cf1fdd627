"""Decide how rounds that wait are dealt out among threads: each takes a share, which it writes and
syncs file by file.

As long as threads are free each round goes by itself, at once. What comes while all are busy
waits, and is dealt out evenly when one becomes free: one hop into a thread and back serves many
rounds then. A large round is the last of its share, so that no other one waits for its sync.
"""

from collections.abc import Sequence
from typing import Final

from bottomless.model.limits import KIB

LARGE: Final = 256 * KIB
"""Bytes of rounds that end a share: the sync of as many takes longer than that of a small file."""


class RoundShares:
    """Counts the shares that are being written; `thread_count` of them are at once."""

    def __init__(self, thread_count: int) -> None:
        self._thread_count = thread_count
        self._busy_count = 0

    @property
    def is_full(self) -> bool:
        """Whether every thread has a share."""
        return self._busy_count >= self._thread_count

    def deal(self, sizes: Sequence[int]) -> list[int]:
        """Begin shares of rounds with so many bytes, the oldest first; returns how many rounds each
        share has. Those that are in none of them wait on.
        """
        # By all threads, not by the free ones: the one that is free just now must not take it all.
        count_max = -(-len(sizes) // self._thread_count)
        counts: list[int] = []
        taken = 0
        while taken < len(sizes) and not self.is_full:
            counts.append(_share(sizes[taken : taken + count_max]))
            taken += counts[-1]
            self._busy_count += 1
        return counts

    def end(self) -> None:
        """Note that a share is written and synced, or has failed."""
        assert self._busy_count > 0
        self._busy_count -= 1


def _share(sizes: Sequence[int]) -> int:
    """How many of these go together."""
    size = 0
    for number, one in enumerate(sizes, 1):
        size += one
        if size >= LARGE:
            return number
    return len(sizes)
