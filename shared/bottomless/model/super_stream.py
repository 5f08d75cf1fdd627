"""What coordination keeps of a super stream: its partitions, and how records are divided among them.

A super stream only grows. Each time it does there is one more layout: a hash that went to one
partition may go to another by the next, so whoever repeats a request of before has to know by which
layout it was divided.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from bottomless.model.config import StreamConfig
from bottomless.model.limits import PARTITION_COUNT_MAX
from bottomless.model.names import FullName, StreamId, StreamName, SuperId
from bottomless.model.routing import Strategy


class SuperState(StrEnum):
    """Whether a super stream is in use, gets more partitions, or is being deleted."""

    ACTIVE = "active"
    GROWING = "growing"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class Layout:
    """How many partitions the records of a super stream were divided among, and since when."""

    version: int
    """Counted from 1."""
    count: int
    created_at: int
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a super stream: a stream like any other, with a number among the others."""

    index: int
    stream_id: StreamId
    name: StreamName
    binding_key: str | None = None
    """The key of all its records, by the strategy of keys; None by that of hashes."""


@dataclass(frozen=True, slots=True)
class SuperRecord:
    """What coordination holds about one super stream, and its object in the bucket too."""

    super_id: SuperId
    name: StreamName
    tenant: str
    state: SuperState
    created_at: int
    """Milliseconds since 1970."""
    strategy: Strategy
    seed: int
    """The seed of the hash; of both strategies, so that it never changes its meaning."""
    layouts: tuple[Layout, ...]
    """Oldest first; at least one."""
    partitions: tuple[Partition, ...]
    """All partitions in the order of their indexes, without a hole."""
    config: StreamConfig
    """What the configuration of every partition is."""
    config_version: int = 1
    generation: int = 0
    registry_version: int = 1
    """Number of the newest object in the bucket."""

    @property
    def full_name(self) -> FullName:
        """The tenant and name of the super stream together."""
        return FullName(self.tenant, self.name)

    @property
    def initial_count(self) -> int:
        """How many partitions it was created with: this never changes."""
        return self.layouts[0].count


def check_super(record: SuperRecord) -> None:
    """Assert what must hold of every record of a super stream; a failure is a bug."""
    partitions, layouts = record.partitions, record.layouts
    assert 1 <= len(partitions) <= PARTITION_COUNT_MAX
    assert [one.index for one in partitions] == list(range(len(partitions)))
    ids: set[str] = {record.super_id, *(one.stream_id for one in partitions)}
    assert len(ids) == len(partitions) + 1
    assert len({record.name, *(one.name for one in partitions)}) == len(partitions) + 1
    assert [one.version for one in layouts] == list(range(1, len(layouts) + 1))
    assert layouts
    assert all(a.count < b.count for a, b in pairwise(layouts))
    assert layouts[-1].count == len(partitions)
    bound = [one.binding_key for one in partitions if one.binding_key is not None]
    assert len(set(bound)) == len(bound)
    assert len(bound) == (len(partitions) if record.strategy is Strategy.KEY else 0)
    assert not record.config.leaderless
