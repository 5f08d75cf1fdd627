"""The names that the broker contract gives to streams, and its bounds. Pure."""

from typing import Final, NamedTuple

from bottomless.model.limits import MIB, PAGE_RECORD_COUNT_MAX

PARTITION_COUNT_MAX: Final = 256
"""Partitions of one request: each is an append or a read of its own, under way with the others."""
PARTITION_MAX: Final = 2**31 - 1
"""The largest number of a partition: those of other brokers have 32 bits with a sign."""
FETCH_SIZE_MAX: Final = 16 * MIB
FETCH_SIZE_DEFAULT: Final = 4 * MIB
PARTITION_SIZE_DEFAULT: Final = MIB
FETCH_RECORD_COUNT_MAX: Final = PAGE_RECORD_COUNT_MAX
"""Records of one answer, over all its partitions: JSON is made record by record."""


class Place(NamedTuple):
    """One partition, as a broker's client names it."""

    topic: str
    """The text as it was sent: it may be the name of nothing."""
    partition: int

    @property
    def stream(self) -> str:
        """What the stream is called, if such a name is one. No two partitions share it: what stands
        after the last `-` is the number."""
        return f"{self.topic}-{self.partition}"
