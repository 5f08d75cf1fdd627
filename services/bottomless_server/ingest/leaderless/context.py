"""What all parts of a writer of leaderless streams share."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bottomless.drives.base import Drive
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Coordination
from bottomless_server.ingest.leaderless.core.accumulator import FlushBounds
from bottomless_server.ingest.leaderless.core.pieces import WaitingPiece
from bottomless_server.ingest.leaderless.core.store_clock import StoreClock
from bottomless_server.ingest.leaderless.counts import WriterCounts
from bottomless_server.leaderless.groups import GROUP_STREAM_COUNT_MAX
from bottomless_server.leaderless.tail import SeenTail
from bottomless_server.leaderless.tail_changes import TailBounds
from bottomless_server.node.lease import Clocks, LeaseBounds
from bottomless_server.stores.noted_entries import NotedEntries
from bottomless_server.stores.tail_commits import Asked

AskedOf = Callable[[SeenTail, Sequence[WaitingPiece], int], Asked]
"""Asks a commit for pieces of one stream, by what was seen of its tail and the commit's clock."""


class WriterBounds(NamedTuple):
    """How much a writer takes, and how long it waits: the settings of the same names."""

    flush: FlushBounds
    chunk_size_max: int
    put_count_max: int
    """Objects that are put at once."""
    put_seconds: float
    commit_seconds: float
    notes_sync: bool
    """Whether an append is answered only once its note is durable."""
    note_ms: int
    cache_size: int
    tail: TailBounds
    held_count_max: int
    fullness_max: float
    clock_difference_ms_max: int
    lease: LeaseBounds
    commit_stream_count_max: int = GROUP_STREAM_COUNT_MAX
    """Streams of one EXEC."""
    check_seconds: float = 2.0
    """How long a put of another writer is believed to take, where this one waits for its notes."""


@dataclass(frozen=True, slots=True)
class WriterContext:
    """What all parts of a writer share. `coordination` is for this writer alone: a new connection of
    anybody else would have each commit wait until the store is compared with the bucket again."""

    drive: Drive
    coordination: Coordination
    clocks: Clocks
    store_clock: StoreClock
    bounds: WriterBounds
    asked_of: AskedOf
    url: str
    """Where others reach this node."""
    new_uid: Callable[[], Uid]
    chance: Callable[[], float]
    """Draws a number from 0 to 1."""
    counts: WriterCounts
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by who looks for notes of others: each connection more would have commits wait."""
    noted: NotedEntries = field(default_factory=NotedEntries)
    """What was found of notes of others; at most 256 instances of them."""

    def now(self) -> int:
        """Monotonic time in ms."""
        return self.clocks.elapsed()

    def read_clock(self) -> int:
        """Tell the clock of a commit, in ms since 1970.

        Raises:
            Unavailable: `clock-skew`, until the clocks agree.
        """
        return self.store_clock.read(self.clocks.wall(), self.clocks.since_boot())
