"""The line in which changes wait for their round, with bounds for all of it and for one round."""

from collections import deque
from typing import Final, Generic, TypeVar

from bottomless.errors import Overloaded

T = TypeVar("T")

OVERHEAD_SIZE: Final = 1_024
"""What one that waits takes beside its own bytes."""


class Line(Generic[T]):
    """Jobs in the order of their arrival; none is lost, and a round takes the first of them."""

    def __init__(
        self, waiting_bytes_max: int, round_bytes_max: int, round_change_count_max: int
    ) -> None:
        assert round_change_count_max > 0
        self._waiting_bytes_max = waiting_bytes_max
        self._round_bytes_max = round_bytes_max
        self._round_change_count_max = round_change_count_max
        self._jobs: deque[tuple[T, int]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: T, size: int) -> None:
        """Put a job at the end.

        Raises:
            Overloaded: too many bytes wait; nothing is done of it.
        """
        if self._jobs and self._bytes + size + OVERHEAD_SIZE > self._waiting_bytes_max:
            raise Overloaded("too much waits for the disk of this node", retry_after_seconds=1)
        self.put_anyway(job, size)

    def put_anyway(self, job: T, size: int) -> None:
        """Put a job at the end that had its place before, or that gives something back."""
        self._jobs.append((job, size + OVERHEAD_SIZE))
        self._bytes += size + OVERHEAD_SIZE

    def take(self) -> list[T]:
        """The jobs of the next round: at least one, if one waits."""
        taken: list[T] = []
        left = self._round_bytes_max
        while self._jobs and len(taken) < self._round_change_count_max:
            job, size = self._jobs[0]
            if taken and size > left:
                break
            left -= size
            self._bytes -= size
            self._jobs.popleft()
            taken.append(job)
        return taken
