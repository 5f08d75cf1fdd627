"""The nodes that hold a stream: shown, and one of them made its owner on the word of an operator.

The owner gives a stream away (`ingest/replicas/transfers.py`); here it is asked to. An operation asks
again until the record names the node, and each question may be repeated: one that comes after the stream
was given away is refused by who gave it, and the next look at the record finds the new home.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bottomless.errors import Code, Corrupt, Fenced, Unavailable
from bottomless.model.names import NodeId
from bottomless.model.stream import NOBODY, StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.owners import NodeAt
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Done, Failed
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.protocol.held import HeldThere
from bottomless_server.stores.node_facts import NodeFacts, decode_facts, facts_key
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.streams import node_key

CHANGE_OWNER: Final = "owner"
"""What an operation of this kind is called in coordination and in answers."""
_GIVE_SECONDS: Final = 30.0
_HELD_SECONDS: Final = 2.0
"""After so long nothing is shown of what a node holds."""


async def replicas_of(context: Context, record: StreamRecord) -> dict[str, Any]:
    """Show the nodes that hold a stream, the owner first, as its record and their leases say, and what
    each that lives says of its log.

    Raises:
        Unavailable: coordination does not answer.
    """
    nodes = list(record.members)
    if not nodes and record.home not in (None, NOBODY):
        nodes = [NodeId(str(record.home))]
    nodes.sort(key=lambda node: (node != record.home, node))
    seen = await look_at_nodes(context, nodes)
    held = await _held_by(context, record, seen)
    owner = next((one for one in held.values() if one.owns and one.epoch == record.epoch), None)
    replication = record.config.replication
    return {
        "replicas": replication.replicas,
        "min_in_sync": replication.least_in_sync,
        "epoch": record.epoch,
        "nodes": [
            {
                "node": node,
                "zone": seen[node].zone,
                "role": role_of(record, node, live=seen[node].live),
                "in_sync": node in record.in_sync or not record.members,
                "epoch": _epoch_in(held.get(node)),
                "next_offset": _end_in(held.get(node)),
                "lag": lag_of(held.get(node), owner),
                "failing": owner is not None and node in owner.failing,
                "stalled": owner is not None and seen[node].live and node in owner.stalled,
            }
            for node in nodes
        ],
    }


class SeenNode(NamedTuple):
    """What coordination shows of a node."""

    live: bool
    """Whether its lease is held."""
    facts: NodeFacts | None

    @property
    def zone(self) -> str | None:
        """Where it fails together with others; None if it has not said so."""
        return None if self.facts is None else self.facts.zone


async def look_at_nodes(context: Context, nodes: Sequence[NodeId]) -> dict[NodeId, SeenNode]:
    """Tell which of these nodes live, and what they say of themselves.

    Raises:
        Unavailable: coordination does not answer.
    """
    keys = [*(node_key(node) for node in nodes), *(facts_key(node) for node in nodes)]
    values = await context.coordination.get_many(keys) if keys else []
    leases, facts = values[: len(nodes)], values[len(nodes) :]
    return {
        node: SeenNode(lease is not None, _facts_in(said))
        for node, lease, said in zip(nodes, leases, facts, strict=True)
    }


def lag_of(held: HeldThere | None, owner: HeldThere | None) -> int | None:
    """Records that a node lacks of what its owner has committed; None where either did not say."""
    if held is None or owner is None:
        return None
    return max((owner.next_offset or 0) - (held.next_offset or 0), 0)


async def _held_by(
    context: Context, record: StreamRecord, seen: Mapping[NodeId, SeenNode]
) -> dict[NodeId, HeldThere]:
    """What those nodes say that live; the others, and who does not answer, are left out."""

    async def ask(node: NodeId, url: str) -> tuple[NodeId, HeldThere | None]:
        return node, await context.owners.held(NodeAt(node, url), record.stream_id, _HELD_SECONDS)

    ways = [(node, one.facts.url) for node, one in seen.items() if one.live and one.facts]
    said = await asyncio.gather(*(ask(node, url) for node, url in ways))
    return {node: held for node, held in said if held is not None}


def _epoch_in(held: HeldThere | None) -> int | None:
    return None if held is None or not held.epoch else held.epoch


def _end_in(held: HeldThere | None) -> int | None:
    return None if held is None else held.next_offset


def role_of(record: StreamRecord, node: NodeId, *, live: bool) -> str:
    """What a node is to a stream now; `away` is one without a lease, whatever else it is."""
    if not live:
        return "away"
    if node == record.home:
        return "owner"
    return "in-sync" if node in record.in_sync else "catching-up"


def require_owner(record: StreamRecord) -> None:
    """Refuse a stream that no node holds now.

    Raises:
        Unavailable
    """
    if record.home in (None, NOBODY) or record.owner_url is None:
        raise Unavailable(
            "no node holds the stream now: its nodes are chosen with its next append",
            code=Code.NOT_OWNER,
            retry_after_seconds=1,
        )


async def check_new_owner(context: Context, record: StreamRecord, node: NodeId) -> None:
    """Refuse early what the owner would refuse.

    Raises:
        Fenced: `not-in-sync`.
        Unavailable: `not-owner` of a stream that no node holds; or coordination does not answer.
    """
    if node == record.home:
        return
    require_owner(record)
    if node not in record.in_sync or await context.coordination.get(node_key(node)) is None:
        raise not_in_sync()


def register_owner_changes(operations: Operations, registry: Registry) -> None:
    """Say who carries out changes of owners."""

    async def run(context: Context, operation: Operation) -> Done | Failed:
        assert operation.stream_id is not None
        node = NodeId(operation.arguments["node"])
        record = await registry.load_active(operation.stream_id)
        pause_ms: int | None = None
        if record.home != node:
            if record.owner_url is None or record.home is None:
                raise Unavailable(
                    "the stream has no owner that could give it", retry_after_seconds=1
                )
            try:
                await check_new_owner(context, record, node)
                asked_at = context.elapsed()
                at = NodeAt(record.home, record.owner_url)
                await context.owners.transfer(at, record.stream_id, node, _GIVE_SECONDS)
            except Fenced as error:
                return Failed(error)
            # It answers when the other node has opened the stream, or is to find it by itself.
            pause_ms = context.elapsed() - asked_at
        return Done({"home": node, "pause_ms": pause_ms})

    operations.register(CHANGE_OWNER, run)


def not_in_sync() -> Fenced:
    """The node cannot go on with the stream."""
    return Fenced(
        "the node does not have everything that the stream holds, or does not live",
        code=Code.NOT_IN_SYNC,
        retry_after_seconds=5,
    )


def _facts_in(facts: bytes | None) -> NodeFacts | None:
    try:
        return None if facts is None else decode_facts(facts)
    except Corrupt:
        return None
