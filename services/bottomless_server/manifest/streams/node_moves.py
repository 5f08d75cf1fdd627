"""Empty a node of all that other nodes can hold, and spread streams over the nodes there are: operations.

Both go through all streams, a page at a time, and ask the owner of each for what is to be done: to give
the stream away, or to have a member replaced. What a crash leaves at each step:

1. a node is marked          it is chosen for nothing any more, until it stops
2. an owner was asked        the stream is given, or another node is taken in and then the member goes, or
                             neither; the next pass asks again, and asking twice changes nothing more
3. the page is noted         the next step begins after it
4. a pass has ended          how many streams are left there stands in the mark; the pass that ends next says
                             it anew, and of a node that was stopped meanwhile nothing is said. A pass in
                             which somebody added the node to a stream says nothing, and another one follows

An owner that dies forgets whom it was to replace: the next pass asks its heir. Nothing is taken from a
node before another one has everything.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from bottomless.errors import StoreError
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.owners import NodeAt
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done, Failed
from bottomless_server.manifest.streams.evacuation import (
    OWNER_AWAY,
    Move,
    end_pass,
    is_held_by,
    leaves,
    not_emptied,
    note_left,
    reason_of,
)
from bottomless_server.node.core.failover import heirs
from bottomless_server.node.core.placement import Candidate, chosen
from bottomless_server.stores.ingest_nodes import (
    additions_to,
    forget,
    known_nodes,
    note_left_on,
)
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
        progress = {"held": 0, "left": 0, **operation.progress}
        nodes = await known_nodes(self._context.coordination)
        live = {one.node_id for one in nodes if one.live}
        free = {one.node_id for one in nodes if one.is_usable} - {node}
        coordination = self._context.coordination
        if not progress.get("_after"):
            progress["_additions"] = await additions_to(coordination, node)
        records = await self._page(progress)
        if records is None:
            ended, now = end_pass(progress), self._context.clock()
            # Before the operation ends: what says that nothing is left there may be stopped.
            additions = progress.get("_additions")
            if not await note_left_on(coordination, node, ended["left"], additions):
                # What was to be there since may have been passed by.
                return Again(ended, now + _PASS_MS)
            if not ended["left"] and node not in live:
                # No stream counts on it, and it may never come back to take itself out.
                await forget(coordination, node)
            return _next_pass(ended, now)
        held = [(one, leaves(one, node, free, live)) for one in records if is_held_by(one, node)]
        refused = await self._do([(one, move) for one, move in held if isinstance(move, Move)])
        for record, move in held:
            note_left(progress, record, refused.get(record.stream_id) or reason_of(move))
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
        refused = await self._do(moves)
        for record, move in moves:
            if record.stream_id not in refused:
                progress["moved" if move.gives else "replaced"] += 1
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
        if "streams" in progress:
            progress["streams"] += len(stream_ids)
        return [one for one in loaded.records if one.state is StreamState.ACTIVE]

    async def _do(self, moves: Sequence[tuple[StreamRecord, Move]]) -> dict[StreamId, str]:
        """Ask owners for moves; those streams are returned of which it was refused, with the reason."""
        room = asyncio.Semaphore(_AT_ONCE)
        refused: dict[StreamId, str] = {}

        async def ask(record: StreamRecord, move: Move) -> None:
            if record.owner_url is None or record.home is None:
                refused[record.stream_id] = OWNER_AWAY
                return
            owners, stream_id = self._context.owners, record.stream_id
            at = NodeAt(record.home, record.owner_url)
            async with room:
                try:
                    if move.gives:
                        await owners.transfer(at, stream_id, move.node, _ASK_SECONDS)
                    else:
                        await owners.change_members(
                            at, stream_id, "replace", move.node, _ASK_SECONDS
                        )
                except StoreError as error:
                    log.warning("a stream stays where it is", stream=stream_id, error=str(error))
                    refused[stream_id] = f"its owner answered {error.code}: {error.message}"

        await asyncio.gather(*(ask(record, move) for record, move in moves))
        return refused


def _next_pass(ended: dict[str, Any], now: int) -> Again | Done | Failed:
    """What comes after a pass in which so many were left."""
    if not ended["left"]:
        return Done({"held": ended["held"], "left": 0})
    if ended["_passes"] >= _PASS_COUNT_MAX:
        return Failed(not_emptied(ended))
    return Again(ended, now + _PASS_MS)


def _shown(progress: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in progress.items() if not name.startswith("_")}
