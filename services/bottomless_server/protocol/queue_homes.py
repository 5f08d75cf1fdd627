"""Where the queues of a tenant are, as the queues service asks manifest to settle it.

Contract: openapi/internal.yaml, `post_queue_home`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from bottomless.model.names import NodeId, parse_tenant, parse_uid
from bottomless.model.queue_home import QueueHome
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.paths import INTERNAL
from bottomless_server.protocol.peer import number, said_by, string

_TENANT: Final = "tenant"
QUEUE_HOME: Final = f"{INTERNAL}/queue-homes/{{{_TENANT}}}"
_URL_SIZE_MAX: Final = 1_024
_NodeId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class HomeSaid(NamedTuple):
    """The home of a tenant's queues."""

    term: int
    node_id: NodeId
    url: str | None
    """Where it is; None where it has not said so since coordination was rebuilt."""


class HomeAskedBody(ClosedBody):
    node_id: _NodeId
    """The node that asks."""
    url: Annotated[str, Field(min_length=1, max_length=_URL_SIZE_MAX)]
    """The url of its internal listener."""
    expect_home: _NodeId | None = None
    """In a takeover, the node that loses the queues."""


def home_path(tenant: str) -> str:
    """The path of a tenant's home."""
    return QUEUE_HOME.replace(f"{{{_TENANT}}}", tenant)


def home_tenant_in(path_params: Mapping[str, str]) -> str:
    """The tenant that a path is about, by what its route found in it.

    Raises:
        InvalidRequest: it is not the id of a tenant.
    """
    return parse_tenant(path_params[_TENANT])


def encode_home_asked(node_id: NodeId, url: str, expect_home: NodeId | None) -> dict[str, Any]:
    """What a node asks for that would serve the queues of a tenant."""
    return HomeAskedBody(node_id=node_id, url=url, expect_home=expect_home).model_dump()


def encode_home_said(home: QueueHome) -> dict[str, Any]:
    return HomeSaid(home.term, home.node_id, home.url)._asdict()


@said_by("manifest")
def decode_home_said(body: Any) -> HomeSaid:
    url = body["url"]
    return HomeSaid(
        term=number(body["term"]),
        node_id=NodeId(parse_uid(string(body["node_id"]))),
        url=None if url is None else string(url),
    )
