"""How other nodes are taken in to hold a stream, and let go: asked of its owner.

Contract: openapi/internal.yaml, `change_members`.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from bottomless.model.names import NodeId
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.paths import STREAM

MEMBERS: Final = f"{STREAM}/members"
MemberChange = Literal["add", "remove", "replace"]
"""Take a node in, let one go, or have another one take its place."""


class MembersAsked(ClosedBody):
    """The body of a question that a node be taken in, or let go."""

    change: MemberChange
    node: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


def encode_members_asked(change: MemberChange, node: NodeId) -> dict[str, Any]:
    """Make the body."""
    return MembersAsked(change=change, node=node).model_dump()
