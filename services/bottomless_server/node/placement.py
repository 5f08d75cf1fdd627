"""Which nodes can follow logs now, and which of them are to hold a stream beside its owner."""

import asyncio
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Coordination
from bottomless_server.node.core.placement import Candidate, chosen
from bottomless_server.stores.ingest_nodes import known_nodes

_KEPT_SECONDS: Final = 1.0
"""How long it is remembered which nodes live: a start that claims thousands of streams asks once."""


class Seen(NamedTuple):
    """A node that lives and can follow logs."""

    candidate: Candidate
    usable: bool
    """Whether it may be chosen; no operator has it emptied."""


class Placement:
    """Chooses nodes for streams, as coordination shows them."""

    def __init__(self, coordination: Coordination, monotonic: Callable[[], float]) -> None:
        """`monotonic` is a clock in seconds."""
        self._coordination = coordination
        self._monotonic = monotonic
        self._asking = asyncio.Lock()
        self._found: list[Seen] = []
        self._good_until = monotonic()

    async def choose(
        self, record: StreamRecord, mine: NodeId, kept: Collection[NodeId] = ()
    ) -> tuple[NodeId, ...]:
        """The ids of nodes that are to hold a stream beside `mine`, its owner, and those that are `kept`.

        There are as many as its configuration asks for, or fewer where no more live. Where the owner and
        those that are kept suffice nothing is asked.

        Raises:
            CoordinationUnavailable
        """
        taken = {mine, *kept}
        wanted = record.config.replication.replicas - len(taken)
        if wanted <= 0:
            return ()
        live = [one.candidate for one in await self._live() if one.usable]
        known = {one.node_id: one for one in live}
        holders = [known.get(node, Candidate(node, "")) for node in taken]
        return chosen(record.stream_id, holders, live, wanted)

    async def living(self, nodes: Collection[NodeId]) -> set[NodeId]:
        """Find those of some nodes that live, as it was a moment ago; however many streams ask, coordination is
        asked once a second.

        Raises:
            CoordinationUnavailable
        """
        live = {one.candidate.node_id for one in await self._live()}
        return live & set(nodes)

    async def _live(self) -> list[Seen]:
        async with self._asking:
            if self._monotonic() >= self._good_until:
                self._found = await self._ask()
                self._good_until = self._monotonic() + _KEPT_SECONDS
            return self._found

    async def _ask(self) -> list[Seen]:
        return [
            Seen(Candidate(one.node_id, one.facts.zone), one.is_usable)
            for one in await known_nodes(self._coordination)
            if one.live and one.facts is not None
        ]
