"""Pins: who reads a message file still, so that nothing is taken away from under a reader.

A round says where bodies lie, and they are read after it, in other threads. Until then each of these
files has a pin with the number of the round. What a later round leaves without a meaning is written
over, cut or removed only when all pins of rounds up to it are gone. Pins are in memory alone: after a
crash nobody reads.
"""

from collections import Counter
from collections.abc import Callable
from threading import Lock

from bottomless.guards import guard


class Pins:
    """All pins of a store, for any number of threads: the writer pins, and readers let go."""

    def __init__(self) -> None:
        self._pins: dict[int, Counter[int]] = {}
        self._lock = Lock()
        self.on_release: Callable[[], None] | None = None
        """Called after a release, in the thread that released, while somebody wants to know."""

    def pin(self, file: int, round_: int) -> None:
        """Keep what a round saw of a file; within the round, before another change is made."""
        with self._lock:
            self._pins.setdefault(file, Counter())[round_] += 1

    def unpin(self, file: int, round_: int) -> None:
        """The reader is done."""
        with self._lock:
            rounds = self._pins[file]
            rounds[round_] -= 1
            if not rounds[round_]:
                del rounds[round_]
            if not rounds:
                del self._pins[file]
        told = self.on_release
        if told is not None:
            told()

    @guard("pins before a destination, the cut and the unlink")
    def is_free(self, file: int, up_to: int) -> bool:
        """Whether nobody reads what rounds up to this one saw of a file."""
        with self._lock:
            return all(round_ > up_to for round_ in self._pins.get(file, ()))

    @property
    def count(self) -> int:
        """Pins that there are."""
        with self._lock:
            return sum(rounds.total() for rounds in self._pins.values())
