"""The senders of a node: one for each other node to which something is sent."""

import asyncio
from collections.abc import Sequence

from bottomless.model.names import NodeId
from bottomless_server.ingest.replicas.replicator import Follower
from bottomless_server.ingest.replicas.senders import Senders
from bottomless_server.node.core.sends import NOTHING_TOLD, Event, Memory, Piece
from bottomless_server.protocol.replica import Opening, Place
from unit.ingest.harness import STREAM


class Silent:
    """A node that never answers."""

    async def post(
        self,
        path: str,  # noqa: ARG002
        parts: Sequence[bytes | memoryview],  # noqa: ARG002
        content_type: str,  # noqa: ARG002
        timeout_seconds: float,  # noqa: ARG002
    ) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError


class Log:
    """An empty log of this node."""

    epoch = 1

    def opening(self) -> Opening:
        return Opening(1, (), 0, 0, 0)

    async def read(self, end: Place | None) -> Piece | None:  # noqa: ARG002
        return None


class Deaf:
    def hear(self, node: NodeId, event: Event) -> None:
        pass


async def test_senders_are_as_many_as_nodes_to_which_something_is_sent() -> None:
    left: list[NodeId] = []

    def way_to(_: NodeId) -> Follower:
        return Silent()

    async def leave(node: NodeId) -> None:
        left.append(node)

    senders = Senders(Memory(2**20), asyncio.get_running_loop().time, way_to, leave)
    nodes = [NodeId(f"{number:032x}") for number in range(20)]
    for node in nodes:
        listener, sender = Deaf(), senders.of(node)
        assert sender is not None
        senders.listen(STREAM, listener)
        sender.follow(STREAM, Log(), None, NOTHING_TOLD)
        # A request is on its way, and is given up.
        await asyncio.sleep(0)
        assert senders.count <= 2
        if node != nodes[-1]:
            senders.leave(STREAM, listener)
    assert senders.of(nodes[-1]) is sender, "who has a stream keeps its sender"
    await senders.stop()
    assert left == nodes[:-1]
