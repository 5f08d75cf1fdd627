"""The nodes that hold a stream: shown, and one of them made its owner on the word of an operator.

The owner gives a stream away (`ingest/replicas/transfers.py`); here it is asked to. An operation asks
again until the record names the node, and each question may be repeated: one that comes after the stream
was given away is refused by who gave it, and the next look at the record finds the new home.
"""

from typing import Any, Final

from bottomless.errors import Code, Corrupt, Fenced, Unavailable
from bottomless.model.names import NodeId
from bottomless.model.stream import NOBODY, StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Done, Failed
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.stores.node_facts import decode_facts, facts_key
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.streams import node_key

CHANGE_OWNER: Final = "owner"
"""What an operation of this kind is called in coordination and in answers."""
_GIVE_SECONDS: Final = 30.0


async def replicas_of(context: Context, record: StreamRecord) -> dict[str, Any]:
    """Show the nodes that hold a stream, the owner first, as its record and their leases say.

    Raises:
        Unavailable: coordination does not answer.
    """
    nodes = list(record.members)
    if not nodes and record.home not in (None, NOBODY):
        nodes = [NodeId(str(record.home))]
    nodes.sort(key=lambda node: (node != record.home, node))
    keys = [*(node_key(node) for node in nodes), *(facts_key(node) for node in nodes)]
    values = await context.coordination.get_many(keys) if keys else []
    leases, facts = values[: len(nodes)], values[len(nodes) :]
    replication = record.config.replication
    return {
        "replicas": replication.replicas,
        "min_in_sync": replication.least_in_sync,
        "epoch": record.epoch,
        "nodes": [
            {
                "node": node,
                "zone": _zone_in(said),
                "role": role_of(record, node, live=lease is not None),
                "in_sync": node in record.in_sync or not record.members,
            }
            for node, lease, said in zip(nodes, leases, facts, strict=True)
        ],
    }


def role_of(record: StreamRecord, node: NodeId, *, live: bool) -> str:
    """What a node is to a stream now; `away` is one without a lease, whatever else it is."""
    if not live:
        return "away"
    if node == record.home:
        return "owner"
    return "in-sync" if node in record.in_sync else "catching-up"


async def check_new_owner(context: Context, record: StreamRecord, node: NodeId) -> None:
    """Refuse early what the owner would refuse.

    Raises:
        Fenced: `not-in-sync`.
        Unavailable
    """
    if node == record.home:
        return
    if node not in record.in_sync or await context.coordination.get(node_key(node)) is None:
        raise not_in_sync()


def register_owner_changes(operations: Operations, registry: Registry) -> None:
    """Say who carries out changes of owners."""

    async def run(context: Context, operation: Operation) -> Done | Failed:
        assert operation.stream_id is not None
        node = NodeId(operation.arguments["node"])
        record = await registry.load_active(operation.stream_id)
        if record.home != node:
            if record.owner_url is None:
                raise Unavailable(
                    "the stream has no owner that could give it", retry_after_seconds=1
                )
            try:
                await check_new_owner(context, record, node)
                await context.owners.transfer(
                    record.owner_url, record.stream_id, node, _GIVE_SECONDS
                )
            except Fenced as error:
                return Failed(error)
        return Done({"home": node})

    operations.register(CHANGE_OWNER, run)


def not_in_sync() -> Fenced:
    """The node cannot go on with the stream."""
    return Fenced(
        "the node does not have everything that the stream holds, or does not live",
        code=Code.NOT_IN_SYNC,
        retry_after_seconds=5,
    )


def _zone_in(facts: bytes | None) -> str | None:
    try:
        return None if facts is None else decode_facts(facts).zone
    except Corrupt:
        return None
