"""Choose the nodes that hold a stream beside its owner. Whoever asks chooses the same ones."""

from collections.abc import Collection
from hashlib import blake2b
from typing import NamedTuple

from bottomless.model.names import NodeId, StreamId


class Candidate(NamedTuple):
    """A node that can follow a log."""

    node_id: NodeId
    zone: str
    """Nodes of one zone fail together; the empty one is a zone like any other."""


def chosen(
    stream_id: StreamId, taken: Collection[Candidate], live: Collection[Candidate], count: int
) -> tuple[NodeId, ...]:
    """The ids of as many as `count` nodes to hold a stream beside those in `taken`, best first.

    Zones in which nobody holds it yet come first; within that each stream has its own order of all
    nodes, so that streams spread over them, and few change their place when a node comes or goes.
    Fewer are returned where there are no more.
    """
    zones = {one.zone for one in taken}
    ids = {one.node_id for one in taken}
    left = sorted(
        {one for one in live if one.node_id not in ids},
        key=lambda one: weight(stream_id, one.node_id),
    )
    picked: list[NodeId] = []
    while left and len(picked) < count:
        best = next((one for one in left if one.zone not in zones), left[0])
        left.remove(best)
        zones.add(best.zone)
        picked.append(best.node_id)
    return tuple(picked)


def weight(stream_id: StreamId, node_id: NodeId) -> bytes:
    """Where a node stands in the order of all nodes that a stream has; the lowest comes first."""
    return blake2b(f"{stream_id}/{node_id}".encode("ascii"), digest_size=8).digest()
