"""What a node holds of a stream, as it says it itself: asked of each node that a record names.

Contract: openapi/internal.yaml, `get_replica`.
"""

from typing import Any, Final, NamedTuple

from bottomless.model.names import NodeId
from bottomless_server.protocol.paths import STREAM
from bottomless_server.protocol.peer import number, said_by, string

HELD: Final = f"{STREAM}/replica"


class HeldThere(NamedTuple):
    """What one node says of its log of a stream."""

    owns: bool
    """Whether it is the owner, as far as it knows."""
    epoch: int
    """The highest under which its log was opened; 0 if nothing of the stream lies there."""
    next_offset: int | None
    """Where its log ends (exclusive); what an owner has committed. None of a log without records."""
    failing: tuple[NodeId, ...] = ()
    """Nodes that told the owner last that they cannot store what they are sent; other nodes name none."""
    stalled: tuple[NodeId, ...] = ()
    """Nodes that live, lack something, and of which the owner has heard nothing more for so long that another
    one is to take their place; other nodes name none."""


def encode_held(held: HeldThere) -> dict[str, Any]:
    """Make the answer."""
    return held._asdict()


@said_by("ingest")
def decode_held(body: Any) -> HeldThere:
    """Read the answer.

    Raises:
        Unavailable: `peer-unavailable`: it is none.
    """
    next_offset = body["next_offset"]
    return HeldThere(
        owns=body["owns"] is True,
        epoch=number(body["epoch"]),
        next_offset=None if next_offset is None else number(next_offset),
        failing=_nodes(body["failing"]),
        # A node of an older release does not say it.
        stalled=_nodes(body.get("stalled", ())),
    )


def _nodes(said: Any) -> tuple[NodeId, ...]:
    return tuple(NodeId(string(node)) for node in said)
