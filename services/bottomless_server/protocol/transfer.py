"""How a stream is given to another of its nodes: asked of its owner, and then told to that node.

Contract: openapi/internal.yaml, `transfer_stream`.
"""

from typing import Annotated, Any, Final

from pydantic import Field

from bottomless.model.names import NodeId
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.paths import STREAM

TRANSFER: Final = f"{STREAM}/transfer"


class TransferAsked(ClosedBody):
    """The body of a question that a stream be given to a node."""

    node: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """The node that is to own it. Asked of that node itself, it says that it is its own now."""


def encode_transfer_asked(node: NodeId) -> dict[str, Any]:
    """Make the body."""
    return TransferAsked(node=node).model_dump()


def encode_transferred(node: NodeId) -> dict[str, Any]:
    """Make the answer: the node that the record names as the home."""
    return {"node": node}
