"""What a node measures of replicas: of the streams that it owns, and of those that it follows.

Counts go up where something is done (counted.py, failover.py, transfers.py). All else is asked of the
owned streams at a scrape, so that a round pays for one observation and nothing more. Labels have few
values: never the name of a stream.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from heapq import nlargest
from typing import Final, NamedTuple, Protocol

from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric

from bottomless.model.names import NodeId
from bottomless_server.ingest.log.segments import SegmentLog
from bottomless_server.node.core.replica_waits import Do, Holders
from bottomless_server.protocol.replica import Place
from bottomless_server.runtime.observe.metrics import SECONDS, counted, gauged, gauged_by

_NODE_COUNT_MAX: Final = 100
"""Nodes that are shown, those that lack most."""


class InSync(StrEnum):
    """How many nodes have everything of a stream, measured by how many there are to be."""

    ALL = "all"
    FEWER = "fewer"
    """Another one may be lost, and appends go on."""
    MINIMUM = "minimum"
    """One less, and no append is taken."""
    TOO_FEW = "too-few"
    """No append is taken."""


class Seen(NamedTuple):
    """What is seen of one owned stream."""

    in_sync: InSync
    lags: Mapping[NodeId, int]
    """Bytes that each other node lacks."""
    is_held: bool
    """Whether a round waits for longer than its callers did."""


class Watched(Protocol):
    """An owned stream that other nodes follow."""

    def seen(self) -> Seen:
        """What is seen of it now."""
        ...


class ReplicaFigures:
    """Counts since the start of the process, and the streams that are asked for all else."""

    def __init__(self) -> None:
        self.evictions = 0
        self.admissions = 0
        self.failovers = 0
        self.transfers = 0
        self.step_downs = 0
        self.watched: set[Watched] = set()
        self.round_waits = Histogram(
            "bottomless_ingest_replica_round_wait_seconds",
            "How long a round that was synced here waited for other nodes.",
            buckets=SECONDS,
            registry=None,
        )

    def note(self, done: Do) -> None:
        """Count an EXEC that let a node go, or counted one in."""
        if done is Do.EVICT:
            self.evictions += 1
        elif done in (Do.ADMIT, Do.TAKE_BACK):
            self.admissions += 1

    def in_sync(self) -> dict[str, int]:
        """Streams that are owned here, by how many nodes have everything of them."""
        states = dict.fromkeys(map(str, InSync), 0)
        for one in self.watched:
            states[one.seen().in_sync] += 1
        return states

    def metrics(self, followed_count: int, *, is_full: bool) -> Iterable[Metric]:
        """What all of it says; `followed_count` streams are followed here, unless local logs are full."""
        name = "bottomless_ingest"
        lags, held = dict[NodeId, int](), 0
        for one in self.watched:
            seen = one.seen()
            held += seen.is_held
            for node, lag in seen.lags.items():
                lags[node] = lags.get(node, 0) + lag
        most = nlargest(_NODE_COUNT_MAX, lags, key=lambda node: lags[node])
        yield gauged_by(
            f"{name}_replica_in_sync",
            "Streams that this node owns, by how many nodes have everything of them.",
            "state",
            self.in_sync(),
        )
        yield gauged_by(
            f"{name}_replica_lag_bytes",
            "Bytes that another node lacks of all streams that this node owns.",
            "node",
            {node: lags[node] for node in most},
        )
        yield gauged(
            f"{name}_replica_held_rounds",
            "Rounds that wait for other nodes, and whose callers were told that the outcome is unknown.",
            held,
        )
        yield from self.round_waits.collect()
        yield gauged(
            f"{name}_replica_followed_streams",
            "Streams of other nodes whose logs are followed here.",
            followed_count,
        )
        yield gauged(
            f"{name}_replica_full",
            "1 while nothing is taken of other nodes, since local logs take too much of the disk.",
            is_full,
        )
        yield from self._counts(name)

    def _counts(self, name: str) -> Iterable[Metric]:
        yield counted(
            f"{name}_replica_evictions",
            "Nodes that were let go since they were silent or could not store, once for each stream.",
            self.evictions,
        )
        yield counted(
            f"{name}_replica_admissions",
            "Nodes that were counted in since they have everything, once for each stream.",
            self.admissions,
        )
        yield counted(
            f"{name}_replica_transfers",
            "Streams that this node gave to another one.",
            self.transfers,
        )
        yield counted(
            f"{name}_replica_step_downs",
            "Streams that this node gave to another one by itself, since they could not go on here.",
            self.step_downs,
        )
        yield counted(
            f"{name}_failovers",
            "Streams that this node followed and went on with by itself, since their owner was away.",
            self.failovers,
        )


def seen_of(
    local: SegmentLog,
    holders: Holders,
    wanted: int,
    ends: Mapping[NodeId, Place | None],
    *,
    is_held: bool,
) -> Seen:
    """What is seen of a stream that `wanted` nodes are to hold, and whose logs end at these places."""
    others = [node for node in holders.members if node != holders.mine]
    lags = {node: lag_of(local, ends.get(node)) for node in others}
    return Seen(_in_sync(len(_sure(holders)), holders.least, wanted), lags, is_held)


def lag_of(local: SegmentLog, end: Place | None) -> int:
    """Bytes that a log lacks which ends at a place; None is one of which nothing is known."""
    lag = 0
    for segment in reversed(local.segments):
        if end is not None and segment.first_offset <= end.segment_first:
            if segment.first_offset == end.segment_first:
                lag += max(segment.size - end.position, 0)
            break
        lag += segment.size
    return lag


def _sure(holders: Holders) -> Collection[NodeId]:
    return set(holders.in_sync) - holders.doubted


def _in_sync(count: int, least: int, wanted: int) -> InSync:
    if count < least:
        return InSync.TOO_FEW
    if count >= wanted:
        return InSync.ALL
    return InSync.MINIMUM if count == least else InSync.FEWER
