"""What an ingest node says of itself to those that choose nodes for replicas, and to those that send.

bottomless:node-facts:{node_id}    its address, its zone and its release, as JSON
bottomless:node-emptied:{node_id}  there if an operator has it emptied: it is chosen for nothing; how
                                   many streams are left there, and how often it was to hold one
                                   more since, as JSON

A node writes it in the transaction in which it enters itself among the nodes, and takes it out with
that entry. One that was killed leaves it, so it says nothing of whether the node lives: that is what
its lease says. A node without facts is of a release that follows no log, and is never chosen. Members
that a later release may write are ignored.
"""

from typing import Final, NamedTuple

import orjson

from bottomless.formats.checks import check, corrupt
from bottomless.model.names import NodeId
from bottomless_server.stores.streams import KeyedCalls

_WHAT: Final = "facts of a node"


class NodeFacts(NamedTuple):
    """What a node says of itself."""

    url: str
    """The url of its internal listener, to which logs are sent that it follows."""
    zone: str
    """The place where it fails together with others; empty: nobody has said."""
    release: str


def facts_key(node_id: NodeId) -> str:
    """The key of the facts of a node."""
    return f"bottomless:node-facts:{node_id}"


def emptied_key(node_id: NodeId) -> str:
    """The key of the mark of a node that is emptied; it goes when the node stops."""
    return f"bottomless:node-emptied:{node_id}"


def encode_facts(facts: NodeFacts) -> bytes:
    """Write facts as they are kept."""
    return orjson.dumps(facts._asdict())


def decode_facts(data: bytes) -> NodeFacts:
    """Read facts as they are kept.

    Raises:
        Corrupt: no release of this product can have written these bytes.
    """
    try:
        members = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise corrupt(_WHAT, "they are no JSON") from error
    check(_WHAT, isinstance(members, dict), "they are no object")
    values = [members.get(name) for name in NodeFacts._fields]
    check(_WHAT, all(isinstance(value, str) for value in values), "a member is missing or no text")
    return NodeFacts._make(values)


async def facts_of(coordination: KeyedCalls, node_id: NodeId) -> NodeFacts | None:
    """Read what a node says of itself; None if it says nothing.

    Raises:
        CoordinationUnavailable
        Corrupt: what is kept is damaged.
    """
    value = await coordination.get(facts_key(node_id))
    return None if value is None else decode_facts(value)
