"""The two operations by which an operator gives something up: a lost home, or a hole before its log.

Both are one step of the stream's task, and idempotent: a step that is done again finds its own
work. What each of them changes, and what a crash leaves, is told in `mutators/takeover.py` and
`mutators/accept_gap.py`.
"""

from contextlib import suppress
from typing import Final

from bottomless.errors import Code, Fault, InvalidRequest, StoreError
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.owners import NodeAt
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Done
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.streams.replicas import look_at_nodes
from bottomless_server.manifest.tree.core.takeovers import (
    GoesOn,
    cannot_go_on,
    home_live,
    in_sync_live,
    require_reaches,
)
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.streams import node_key

TAKEOVER: Final = "takeover"
ACCEPT_GAP: Final = "bridge"
"""What an operation of this kind is called in coordination and in answers."""
_HELD_SECONDS: Final = 10.0
"""After so long a node that is named does not answer."""


async def check_takeover(
    context: Context, record: StreamRecord, expect_home: NodeId, node: NodeId | None = None
) -> GoesOn | None:
    """Refuse early what the fence would refuse; returns the member that goes on, if one is named.

    Raises:
        Fenced: `home-live`, `in-sync-live`, or `not-in-sync` of the node that is named.
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
    return None if node is None else await _goes_on(context, record, node)


async def _goes_on(context: Context, record: StreamRecord, node: NodeId) -> GoesOn:
    """Ask a member what it holds.

    Raises:
        Fenced: `not-in-sync`: it is none, does not live or answer, or ends before what is published.
    """
    if node not in record.members:
        raise cannot_go_on("the node is no member of the stream")
    seen = (await look_at_nodes(context, [node]))[node]
    if not seen.live or seen.facts is None:
        raise cannot_go_on("the node does not live")
    at = NodeAt(node, seen.facts.url)
    held = await context.owners.held(at, record.stream_id, _HELD_SECONDS)
    if held is None:
        raise cannot_go_on("the node does not say what it holds")
    # A log without a record goes on where all is published, if it was opened there.
    named = GoesOn(node, held.next_offset or 0, held.epoch)
    require_reaches(record, named)
    return named


def register_home_operations(
    operations: Operations, mutators: Mutators, registry: Registry
) -> None:
    """Say who carries out takeovers and accepted gaps."""

    async def run_takeover(context: Context, operation: Operation) -> Done:
        home, epoch = NodeId(operation.arguments["home"]), int(operation.arguments["epoch"])
        stream_id = _stream_of(operation)
        # Operations of the release before name no node.
        node = operation.arguments.get("node")
        named = None
        if node is not None:
            held_epoch = operation.arguments.get("held_epoch")
            named = GoesOn(
                NodeId(node),
                int(operation.arguments["next_offset"]),
                None if held_epoch is None else int(held_epoch),
            )
        result = await mutators.of(stream_id).take_over(home, epoch, named)
        record = await registry.load_active(stream_id)
        await registry.ensure_object(record, committed=True)
        if named is not None and record.home == named.node:
            await _tell(context, record, named.node)
        return Done(result)

    async def run_gap(_: Context, operation: Operation) -> Done:
        next_offset = int(operation.arguments["next_offset"])
        return Done(await mutators.of(_stream_of(operation)).accept_gap(next_offset))

    operations.register(TAKEOVER, run_takeover)
    operations.register(ACCEPT_GAP, run_gap)


async def _tell(context: Context, record: StreamRecord, node: NodeId) -> None:
    """Tell a node that a stream is its own now; otherwise it finds out when it looks at the record."""
    seen = (await look_at_nodes(context, [node]))[node]
    if seen.facts is not None:
        with suppress(StoreError):
            at = NodeAt(node, seen.facts.url)
            await context.owners.transfer(at, record.stream_id, node, _HELD_SECONDS)


def _stream_of(operation: Operation) -> StreamId:
    assert operation.stream_id is not None
    return operation.stream_id
