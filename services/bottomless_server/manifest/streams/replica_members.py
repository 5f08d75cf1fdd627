"""Take another node in to hold a stream, or let one go, on the word of an operator.

The owner does it, by one EXEC on the record (`ingest/replicas/member_routes.py`); here it is asked to,
again and again until the record says so. In the order of an operation, with what a crash after each step
leaves:

1. the owner was asked           the record as before, or with other members and another number of
                                 replicas; the same question again changes nothing more
2. the registry object is put    a rebuild knows the number; before, it may know the older one, and
                                 the next step puts it
3. who came has everything       the operation is done; until then each step looks at the record
"""

from typing import Final

from bottomless.errors import Code, Exists, Fault, Fenced, InvalidRequest
from bottomless.model.limits import REPLICA_COUNT_MAX
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.preconditions import require_no_partition
from bottomless_server.manifest.common.owners import NodeAt
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done, Failed
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.streams.replicas import look_at_nodes, require_owner
from bottomless_server.protocol.members import MemberChange
from bottomless_server.stores.ingest_nodes import note_addition
from bottomless_server.stores.operations import Operation

ADD_REPLICA: Final = "add-replica"
REMOVE_REPLICA: Final = "remove-replica"
"""What operations of these kinds are called in coordination and in answers."""
_ASK_SECONDS: Final = 30.0
_LOOK_MS: Final = 500
"""How often it is looked whether a node has caught up."""


async def check_addition(context: Context, record: StreamRecord, node: NodeId) -> None:
    """Refuse early what cannot be done.

    Raises:
        InvalidRequest: the stream has no replicas, or 9 nodes hold it already.
        Exists: `partition-of-super-stream`: as many hold the partition as its super stream wants.
        Fenced: `not-in-sync`: the node does not live, or is of a release that follows no log.
        Unavailable: nobody has the stream now.
    """
    require_replicas(record)
    require_owner(record)
    if node in record.members:
        return
    if len(record.members) >= REPLICA_COUNT_MAX:
        raise _refused("too-many", f"{REPLICA_COUNT_MAX} nodes hold the stream, and no more may")
    if len(record.members or (record.home,)) >= record.config.replication.replicas:
        require_no_partition(record)
    seen = (await look_at_nodes(context, [node]))[node]
    if not seen.live or seen.facts is None:
        raise Fenced(
            "the node does not live, or has not said where it is",
            code=Code.NOT_IN_SYNC,
            retry_after_seconds=5,
        )


def check_removal(record: StreamRecord, node: NodeId) -> None:
    """Refuse early what cannot be done.

    Raises:
        InvalidRequest: the stream has no replicas.
        Exists: `partition-of-super-stream`: no more hold the partition than its super stream wants.
        Fenced: `home-live`: the node is the owner.
        Unavailable: nobody has the stream now.
    """
    require_replicas(record)
    require_owner(record)
    if node == record.home:
        raise Fenced(
            "the node is the owner of the stream: give that to another one first",
            code=Code.HOME_LIVE,
            facts={"home": record.home, "epoch": record.epoch},
        )
    if node in record.members and len(record.members) <= record.config.replication.replicas:
        require_no_partition(record)


def require_replicas(record: StreamRecord) -> None:
    """Refuse a stream whose tail no other node can hold.

    Raises:
        InvalidRequest
    """
    if record.config.leaderless:
        raise _refused("leaderless", "a leaderless stream has no replicas")


def register_member_changes(operations: Operations, registry: Registry) -> None:
    """Say who carries out changes of the nodes that hold a stream."""

    async def run_addition(context: Context, operation: Operation) -> Again | Done | Failed:
        node = NodeId(operation.arguments["node"])
        assert operation.stream_id is not None
        record = await registry.load_active(operation.stream_id)
        if node not in record.members:
            try:
                await check_addition(context, record, node)
                # Before it holds the stream: who reads "emptied" may take its disk away.
                await note_addition(context.coordination, node)
                await _ask(context, record, "add", node)
            except (Exists, Fenced, InvalidRequest) as error:
                return Failed(error)
            record = await registry.load_active(operation.stream_id)
        await registry.ensure_object(record, committed=True)
        # Once more: an evacuation may have counted since, before it held the stream.
        await note_addition(context.coordination, node)
        if node in record.in_sync or record.home == node:
            return Done({"node": node, "replicas": record.config.replication.replicas})
        return Again({"catching_up": node}, context.clock() + _LOOK_MS)

    async def run_removal(context: Context, operation: Operation) -> Again | Done | Failed:
        node = NodeId(operation.arguments["node"])
        assert operation.stream_id is not None
        record = await registry.load_active(operation.stream_id)
        if node in record.members:
            try:
                check_removal(record, node)
                await _ask(context, record, "remove", node)
            except (Exists, Fenced, InvalidRequest) as error:
                return Failed(error)
            record = await registry.load_active(operation.stream_id)
        await registry.ensure_object(record, committed=True)
        return Done({"node": node, "replicas": record.config.replication.replicas})

    operations.register(ADD_REPLICA, run_addition)
    operations.register(REMOVE_REPLICA, run_removal)


async def _ask(context: Context, record: StreamRecord, change: MemberChange, node: NodeId) -> None:
    assert record.owner_url is not None
    assert record.home is not None
    at = NodeAt(record.home, record.owner_url)
    await context.owners.change_members(at, record.stream_id, change, node, _ASK_SECONDS)


def _refused(slug: str, sentence: str) -> InvalidRequest:
    fault = Fault(slug, sentence)
    return InvalidRequest(sentence, code=Code.VALIDATION_FAILED, faults=[fault])
