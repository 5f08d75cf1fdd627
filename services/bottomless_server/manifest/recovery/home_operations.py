"""The two operations by which an operator gives something up: a lost home, or a hole before its log.

Both are one step of the stream's task, and idempotent: a step that is done again finds its own
work. What each of them changes, and what a crash leaves, is told in `mutators/takeover.py` and
`mutators/accept_gap.py`.
"""

from typing import Final

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Done
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.tree.core.takeovers import home_live, in_sync_live
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.streams import node_key

TAKEOVER: Final = "takeover"
ACCEPT_GAP: Final = "bridge"
"""What an operation of this kind is called in coordination and in answers."""


async def check_takeover(context: Context, record: StreamRecord, expect_home: NodeId) -> None:
    """Refuse early what the fence would refuse.

    Raises:
        Fenced: `home-live` or `in-sync-live`.
        InvalidRequest: the stream never has a home.
        Unavailable
    """
    if record.config.leaderless:
        sentence = "a leaderless stream has no home to be taken from: every node appends to it"
        fault = Fault("leaderless", sentence)
        raise InvalidRequest(sentence, code=Code.VALIDATION_FAILED, faults=[fault])
    if record.home != expect_home:
        raise home_live(record)
    if await context.coordination.get(node_key(expect_home)) is not None:
        raise home_live(record)
    others = [node_key(node) for node in record.in_sync]
    if others and any(await context.coordination.get_many(others)):
        raise in_sync_live(record)


def register_home_operations(
    operations: Operations, mutators: Mutators, registry: Registry
) -> None:
    """Say who carries out takeovers and accepted gaps."""

    async def run_takeover(_: Context, operation: Operation) -> Done:
        home, epoch = NodeId(operation.arguments["home"]), int(operation.arguments["epoch"])
        stream_id = _stream_of(operation)
        result = await mutators.of(stream_id).take_over(home, epoch)
        await registry.ensure_object(await registry.load_active(stream_id), committed=True)
        return Done(result)

    async def run_gap(_: Context, operation: Operation) -> Done:
        next_offset = int(operation.arguments["next_offset"])
        return Done(await mutators.of(_stream_of(operation)).accept_gap(next_offset))

    operations.register(TAKEOVER, run_takeover)
    operations.register(ACCEPT_GAP, run_gap)


def _stream_of(operation: Operation) -> StreamId:
    assert operation.stream_id is not None
    return operation.stream_id
