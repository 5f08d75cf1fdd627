"""Decide what may be in flight ahead of one consumer. The fetching is in ../read_ahead.py."""

from collections import deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Anything that will take `size` bytes once it is fetched."""

    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Window(Generic[T]):
    """A window over `wanted` that never holds more than `budget` bytes."""

    def __init__(self, wanted: Iterable[T], budget: int) -> None:
        self._waiting = deque(wanted)
        self._started: deque[int] = deque()
        self._budget = budget
        self.held = 0

    def start(self) -> list[T]:
        """What to request now, in order."""
        started = []
        while self._waiting and self._fits(self._waiting[0].size):
            started.append(self._waiting.popleft())
            self._started.append(started[-1].size)
            self.held += started[-1].size
        return started

    def consumed(self) -> None:
        """Note that the consumer is done with the oldest of what was started."""
        self.held -= self._started.popleft()

    def _fits(self, size: int) -> bool:
        # What is larger than the whole budget must still go through, alone.
        return self.held == 0 or self.held + size <= self._budget
