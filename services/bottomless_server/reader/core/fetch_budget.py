"""How much one answer to a fetch takes of each partition, and when it is enough. Pure.

Partitions are read some at a time, in the order of their turn, and share what is left between them; so
no more lies in memory than the answer may hold, and a record of each. What a page brings is weighed
again when it is here, since a page holds one record however large that is. One record always comes: the
first that there is, whatever the bounds are.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

TOGETHER_COUNT: Final = 8
"""Partitions that are read at once for one answer, while none of them is waited for."""


class Share(NamedTuple):
    """What a page may hold."""

    record_count: int
    size: int


NOTHING: Final = Share(0, 1)
"""A page without records still tells where the stream begins and ends."""


@dataclass(slots=True)
class FetchBudget:
    """What is left for an answer, while its partitions are read one after the other."""

    size_max: int
    """Bytes of users' data of all partitions together."""
    count_max: int
    """Records of all partitions together."""
    size_min: int = 1
    """The answer is enough with so many bytes."""
    size: int = 0
    count: int = 0

    @property
    def full(self) -> bool:
        """Whether nothing more may come."""
        return self.count > 0 and (self.size >= self.size_max or self.count >= self.count_max)

    @property
    def enough(self) -> bool:
        """Whether nobody has to wait for more."""
        return self.full or self.size >= self.size_min

    def share(self, size_max: int, together: int) -> Share:
        """What each of so many pages may hold that are read together; of this one at most `size_max`
        bytes are wanted."""
        if self.full or size_max <= 0:
            return NOTHING
        size = min(size_max, (self.size_max - self.size) // together)
        return Share(max((self.count_max - self.count) // together, 1), max(size, 1))

    def take(self, count: int, size: int) -> bool:
        """Take the records of a page; False, and none of them is in the answer, where there is no room
        for them any more."""
        if not count:
            return True
        fits = self.size + size <= self.size_max and self.count + count <= self.count_max
        if self.count and not fits:
            return False
        self.count += count
        self.size += size
        return True
