"""Empty a node of all that other nodes can hold, and spread streams over the nodes there are: operations.

Both go through all streams, a page at a time, and ask the owner of each for what is to be done: to give
the stream away, or to have a member replaced. What a crash leaves at each step:

1. a node is marked          it is chosen for nothing any more, until it stops
2. an owner was asked        the stream is given, or the member is on its way out, or neither; the next
                             pass asks again, and asking twice changes nothing more
3. the page is noted         the next step begins after it

An owner that dies forgets whom it was to replace: the next pass asks its heir. Nothing is taken from a
node before another one has everything.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import structlog

from bottomless.errors import StoreError
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done, Failed
from bottomless_server.manifest.streams.replicas import not_in_sync
from bottomless_server.node.core.failover import heirs
from bottomless_server.node.core.placement import Candidate, chosen
from bottomless_server.stores.ingest_nodes import known_nodes
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.streams import STREAMS_KEY

log = structlog.get_logger(__name__)

EVACUATE: Final = "evacuate-node"
REBALANCE: Final = "rebalance"
"""What operations of these kinds are called in coordination and in answers."""
_PAGE_COUNT: Final = 64
_AT_ONCE: Final = 16
_PASS_MS: Final = 2_000
"""How long after a pass in which something was left the next one begins."""
_PASS_COUNT_MAX: Final = 900
"""After so many passes, half an hour at least, an operation that is not done fails."""
_ASK_SECONDS: Final = 30.0


class Move(NamedTuple):
    """What is asked of the owner of a stream."""

    gives: bool
    """Whether the stream is given to the node; otherwise that member is to be replaced."""
    node: NodeId


def leaves(record: StreamRecord, node: NodeId, live: Collection[NodeId]) -> Move | None:
    """What has a stream leave a node; None if nothing can, or it is not there.

    `live` are the nodes that live, without the one that is emptied.
    """
    if record.home == node:
        targets = [one for one in heirs(record) if one in live]
        return Move(True, targets[0]) if targets else None
    if node in record.members and record.home in live:
        return Move(False, node)
    return None


def is_held_by(record: StreamRecord, node: NodeId) -> bool:
    """Whether a node has to do with what of a stream is not in object storage."""
    return record.dirty and (record.home == node or node in record.members)


def spreads(record: StreamRecord, live: Sequence[Candidate]) -> Move | None:
    """What brings a stream nearer to where its hash has it, among the nodes that live; None if it is there."""
    known = {one.node_id: one for one in live}
    if not record.dirty or not record.members or record.home not in known:
        return None
    first = next(one for one in heirs(replace(record, home=None)) if one in known)
    if first != record.home:
        return Move(True, first)
    owner = known[NodeId(str(record.home))]
    best = chosen(record.stream_id, [owner], live, len(record.members) - 1)
    over = [node for node in record.members if node not in best and node != record.home]
    lacks = [node for node in best if node not in record.members]
    return Move(False, over[-1]) if over and lacks else None


class NodeMoves:
    """Carries out both operations; registered with `Operations`."""

    def __init__(self, context: Context, operations: Operations) -> None:
        self._context = context
        operations.register(EVACUATE, self.evacuate, long=True)
        operations.register(REBALANCE, self.rebalance, long=True)

    async def evacuate(self, _: Context, operation: Operation) -> Again | Done | Failed:
        """One page of streams that are to leave a node."""
        node = NodeId(operation.arguments["node"])
        progress = {"streams": 0, "moved": 0, "replaced": 0, "alone": 0, **operation.progress}
        nodes = [one for one in await known_nodes(self._context.coordination) if one.is_usable]
        live = {one.node_id for one in nodes} - {node}
        records = await self._page(progress)
        if records is None:
            return _next_pass(progress, self._context.clock())
        moves = []
        for record in records:
            if not is_held_by(record, node):
                continue
            if not record.members:
                # It lies there alone, and is uploaded there.
                progress["alone"] += 1
                continue
            progress["_left"] = int(progress.get("_left", 0)) + 1
            if (move := leaves(record, node, live)) is not None:
                moves.append((record, move))
        await self._do(moves, progress)
        return Again(progress)

    async def rebalance(self, _: Context, operation: Operation) -> Again | Done:
        """One page of streams, each of which is brought one step nearer to its place."""
        progress = {"streams": 0, "moved": 0, "replaced": 0, **operation.progress}
        nodes = [one for one in await known_nodes(self._context.coordination) if one.is_usable]
        live = [Candidate(one.node_id, one.facts.zone) for one in nodes if one.facts is not None]
        records = await self._page(progress)
        if records is None:
            return Done(_shown(progress))
        moves = [(one, move) for one in records if (move := spreads(one, live)) is not None]
        await self._do(moves, progress)
        return Again(progress)

    async def _page(self, progress: dict[str, Any]) -> list[StreamRecord] | None:
        """The next streams of a pass, noted in `progress`; None after the last one."""
        after = str(progress.get("_after", "")).encode("ascii")
        members = await self._context.coordination.members(STREAMS_KEY, after, _PAGE_COUNT)
        if not members:
            return None
        stream_ids = [StreamId(member.decode("ascii")) for member in members]
        loaded = await self._context.streams.load_many(stream_ids)
        progress["_after"] = stream_ids[-1]
        progress["streams"] += len(stream_ids)
        return [one for one in loaded.records if one.state is StreamState.ACTIVE]

    async def _do(
        self, moves: Sequence[tuple[StreamRecord, Move]], progress: dict[str, Any]
    ) -> None:
        room = asyncio.Semaphore(_AT_ONCE)

        async def ask(record: StreamRecord, move: Move) -> None:
            if record.owner_url is None:
                return
            owners, url, stream_id = self._context.owners, record.owner_url, record.stream_id
            async with room:
                try:
                    if move.gives:
                        await owners.transfer(url, stream_id, move.node, _ASK_SECONDS)
                    else:
                        await owners.change_members(
                            url, stream_id, "replace", move.node, _ASK_SECONDS
                        )
                except StoreError as error:
                    log.warning("a stream stays where it is", stream=stream_id, error=str(error))
                    return
            progress["moved" if move.gives else "replaced"] += 1

        await asyncio.gather(*(ask(record, move) for record, move in moves))


def _next_pass(progress: Mapping[str, Any], now: int) -> Again | Done | Failed:
    """What comes after the last stream of a pass in which so many were left."""
    if not progress.get("_left"):
        return Done(_shown(progress))
    passes = int(progress.get("_passes", 0)) + 1
    if passes >= _PASS_COUNT_MAX:
        return Failed(not_in_sync())
    again = {**progress, "streams": 0, "alone": 0, "_after": "", "_left": 0, "_passes": passes}
    return Again(again, now + _PASS_MS)


def _shown(progress: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in progress.items() if not name.startswith("_")}
