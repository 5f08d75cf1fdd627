"""What all owned streams of a process share that have other nodes beside their owner."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from bottomless.model.names import NodeId, StreamId
from bottomless_server.ingest.replicas.figures import ReplicaFigures
from bottomless_server.ingest.replicas.membership import Choose
from bottomless_server.ingest.replicas.senders import Senders
from bottomless_server.node.core.replica_waits import WaitBounds
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.lease import Clocks
from bottomless_server.node.replica_records import ReplicaRecords
from bottomless_server.runtime.base.shared_hops import SharedHops

LiveOf = Callable[[Collection[NodeId]], Awaitable[set[NodeId]]]
"""Finds those of some nodes whose lease is held."""


@dataclass(frozen=True, slots=True)
class OwnerContext:
    """What all owned streams of a process share that have other nodes."""

    mine: NodeId
    records: ReplicaRecords
    senders: Senders
    files: FileCalls
    hops: SharedHops
    clocks: Clocks
    bounds: WaitBounds
    choose: Choose | None = None
    """None: nobody is taken in but those that a claim has chosen."""
    live_of: LiveOf | None = None
    """None: nobody is replaced by itself."""
    note: Callable[[StreamId], Awaitable[None]] | None = None
    """Has the bucket say who holds a stream; None: it is not told."""
    figures: ReplicaFigures = field(default_factory=ReplicaFigures)
