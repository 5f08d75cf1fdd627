"""Starts of nodes of queues in coordination: which copy of a data directory is the newest.

bottomless:queue-start:{node_id}    the newest start that was let in, or is about to be
bottomless:queue-node:{node_id}     lease of the node: its id, the token of its start, and its lock

A start is entered by one EXEC under WATCH of its key, of the generation and of the lease, and only for
the start that holds the lease then: so of two copies of a directory one is let in, and what an ended
process asked for is entered late by nobody.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from bottomless.errors import Code, Unavailable
from bottomless.formats.queue_start import StartRecord, decode_start, encode_start
from bottomless.guards import guard
from bottomless.model.names import NodeId
from bottomless.model.queue_start import QueueStart
from bottomless_server.coordination.base import Changes, Coordination, Values
from bottomless_server.stores.queue_homes import queue_node_key
from bottomless_server.stores.streams import GENERATION_KEY, Streams

_PART_COUNT: Final = 3

DecideStart = Callable[[StartRecord | None], StartRecord]
"""Says what the newest start is to be, from what it is."""


class Holder(NamedTuple):
    """The process that holds the lease of a node of queues."""

    token: str
    lock: str


def queue_start_key(node_id: NodeId) -> str:
    return f"bottomless:queue-start:{node_id}"


def lease_value(node_id: NodeId, holder: Holder) -> bytes:
    """The value of the lease of a node, by which others know which start holds it."""
    return f"{node_id}:{holder.token}:{holder.lock}".encode("ascii")


def holder_in(value: bytes) -> Holder | None:
    """The start that a lease's value names; None where it names none."""
    parts = value.decode("ascii", "replace").split(":")
    return Holder(*parts[1:]) if len(parts) == _PART_COUNT else None


class QueueStarts:
    """The newest starts of all nodes. Holds no state of its own."""

    def __init__(self, coordination: Coordination, streams: Streams) -> None:
        self._coordination = coordination
        self._streams = streams

    async def find(self, node_id: NodeId) -> StartRecord | None:
        """The newest start of a node; None where coordination knows of none.

        Raises:
            Unavailable: `coordination-regressed`: nothing is where the generation is not.
            Corrupt: it cannot be read.
        """
        value = await self._coordination.get(queue_start_key(node_id))
        if value is None:
            await self._streams.check_generation()
            return None
        return decode_start(value)

    async def change(self, start: QueueStart, decide: DecideStart) -> StartRecord:
        """Replace the newest start of a node by what `decide` makes of it, asked for by `start`;
        returns what it is then.

        Raises:
            Unavailable: `not-owner`: another start holds the lease, or none; `coordination-regressed`.
            Corrupt: what is there cannot be read.
        """
        key, lease = queue_start_key(start.node_id), queue_node_key(start.node_id)

        def change(values: Values) -> tuple[Changes, StartRecord]:
            self._streams.require_generation(values[GENERATION_KEY])
            value = values[key]
            before = None if value is None else decode_start(value)
            after = decide(before)
            if after == before:
                return Changes(), after
            require_holder(values[lease], start)
            return Changes({key: encode_start(after)}), after

        return await self._coordination.transact([key, lease, GENERATION_KEY], change)


@guard("the lease of a node of queues in the EXEC that enters its start")
def require_holder(value: bytes | None, start: QueueStart) -> None:
    """Refuse to enter a start that does not hold the lease of its node.

    Raises:
        Unavailable: `not-owner`.
    """
    if value != lease_value(start.node_id, Holder(start.token, start.lock)):
        raise Unavailable(
            "another start of this node holds its lease, or none does",
            code=Code.NOT_OWNER,
            retry_after_seconds=1,
        )
