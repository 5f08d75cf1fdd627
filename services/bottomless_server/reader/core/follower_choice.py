"""Decide whether chunks are asked of a node that follows a stream, in place of its owner, and of which.

Only far below the end: what lies near it a follower may not know yet to be committed, and whoever
reads there needs the owner's word for each page anyway.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from bottomless.guards import guard
from bottomless.model.limits import MIB
from bottomless.model.names import NodeId, StreamId
from bottomless_server.node.core.placement import weight
from bottomless_server.protocol.tail import Bounds, ChunkRun

DISTANCE: Final = MIB
"""Bytes below the end from which on followers are asked."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the owner's last run said of a stream: a guess of what is asked for next, and no more."""

    committed_next: int
    bytes_per_record: float
    followers: tuple[NodeId, ...]
    """Nodes in sync beside the owner."""


def seen_in(run: ChunkRun, before: Seen | None) -> Seen | None:
    """What to remember of an owner's answer; None of a stream that nobody follows."""
    if not run.followers:
        return None
    count = run.next_offset - run.first_offset
    known = 0.0 if before is None else before.bytes_per_record
    per_record = len(run.data) / count if count and run.data else known
    return Seen(run.bounds.committed_next, per_record, run.followers)


def is_far(seen: Seen | None, position: int) -> bool:
    """Whether a position lies so far below the end that followers are asked."""
    if seen is None:
        return False
    return (seen.committed_next - position) * seen.bytes_per_record > DISTANCE


def first_of(stream_id: StreamId, nodes: Collection[NodeId]) -> NodeId | None:
    """Choose the node that is asked: for one stream always the same, so that its file is in memory
    there, and for the next stream another one. None if there is none."""
    return min(nodes, key=lambda node: weight(stream_id, node), default=None)


@guard("the owner's word for what a follower answers")
def is_vouched_for(run: ChunkRun, owner: Bounds) -> bool:
    """Whether the owner of now has these chunks, as it says at the same time: they were read under its
    epoch, and it shows them."""
    return run.bounds.epoch == owner.epoch and run.next_offset <= owner.committed_next
