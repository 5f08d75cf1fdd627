"""How a node of the queues service asks manifest to be let in, and what it is told.

Contract: openapi/internal.yaml, `post_queue_start`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from bottomless.model.names import NodeId, parse_uid
from bottomless.model.queue_start import QueueStart
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.paths import INTERNAL
from bottomless_server.protocol.peer import number, said_by, string

_NODE_ID: Final = "node_id"
QUEUE_START: Final = f"{INTERNAL}/queue-starts/{{{_NODE_ID}}}"
KNOWN_COUNT_MAX: Final = 4
"""Tokens that a directory shows; it has two at most."""
_URL_SIZE_MAX: Final = 1_024
_TIME_MAX: Final = 2**63 - 1
_Token = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class StartSaid(NamedTuple):
    """The newest start of a node; None of both before the first one."""

    number: int | None
    token: str | None


class StartAskedBody(ClosedBody):
    token: _Token
    """The token of the start that asks."""
    lock: _Token
    """The lock that it holds of its directory, in this run of the machine."""
    url: Annotated[str, Field(min_length=1, max_length=_URL_SIZE_MAX)]
    """The url of its internal listener."""
    started_at: Annotated[int, Field(ge=0, le=_TIME_MAX)]
    """In ms since 1970."""
    known: Annotated[list[_Token], Field(max_length=KNOWN_COUNT_MAX)]
    """Tokens that the directory has."""
    accept_loss: bool = False
    """Whether an operator has said that this directory is to be the newest."""
    only_look: bool = False
    """Whether nothing is to be changed."""


def start_path(node_id: NodeId) -> str:
    """The path of a node's starts."""
    return QUEUE_START.replace(f"{{{_NODE_ID}}}", node_id)


def start_node_in(path_params: Mapping[str, str]) -> NodeId:
    """The node that a path is about, by what its route found in it.

    Raises:
        InvalidRequest: it is not the id of a node.
    """
    return NodeId(parse_uid(path_params[_NODE_ID]))


def encode_start_asked(
    start: QueueStart, known: Sequence[str], *, accept_loss: bool, only_look: bool
) -> dict[str, Any]:
    """What a start asks for; its number is not among it."""
    return StartAskedBody(
        token=start.token,
        lock=start.lock,
        url=start.url,
        started_at=start.started_at,
        known=list(known),
        accept_loss=accept_loss,
        only_look=only_look,
    ).model_dump()


def encode_start_said(start: QueueStart | None) -> dict[str, Any]:
    said = StartSaid(None, None) if start is None else StartSaid(start.number, start.token)
    return said._asdict()


@said_by("manifest")
def decode_start_said(body: Any) -> StartSaid:
    found, token = body["number"], body["token"]
    return StartSaid(
        number=None if found is None else number(found),
        token=None if token is None else parse_uid(string(token)),
    )
