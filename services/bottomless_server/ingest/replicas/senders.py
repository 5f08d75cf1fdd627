"""All that this node sends to others as the owner of streams: a sender for each node that it reaches.

A sender is begun when its node is first asked for. When one is begun for another node, those end that
have no stream any more: however many nodes come and go, senders are as many as there are nodes. What a node says of a stream is passed on to whoever
looks after the nodes of that stream (`other_nodes.py`); of a stream that was closed nobody hears.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from bottomless.model.names import NodeId, StreamId
from bottomless_server.ingest.replicas.replicator import Follower, Replicator
from bottomless_server.node.core.sends import Event, Memory


class Listener(Protocol):
    """Hears what other nodes say of one stream."""

    def hear(self, node: NodeId, event: Event) -> None:
        """Take news of a node; in the event loop, without waiting."""
        ...


class Senders:
    """Senders by node, and who listens by stream."""

    def __init__(
        self,
        memory: Memory,
        monotonic: Callable[[], float],
        way_to: Callable[[NodeId], Follower] | None = None,
        left: Callable[[NodeId], Awaitable[None]] | None = None,
    ) -> None:
        """`memory` is that of all nodes together, and `monotonic` a clock in seconds. `way_to` is the way
        to any node; without it only those are reached that are named by `reach`. `left` ends the way to
        a node to which nothing is sent any more."""
        self._memory = memory
        self._monotonic = monotonic
        self._way_to = way_to
        self._left = left
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._senders: dict[NodeId, Replicator] = {}
        self._listeners: dict[StreamId, Listener] = {}

    def reach(self, node: NodeId, follower: Follower) -> None:
        """Send to a node from now on."""
        assert node not in self._senders
        heard = partial(self._hear, node)
        sender = Replicator(follower, self._memory, self._monotonic, heard, node)
        self._senders[node] = sender
        sender.start()

    async def stop(self) -> None:
        """Send nothing more to anybody."""
        self._stopped = True
        for sender in self._senders.values():
            await sender.stop()
        await asyncio.gather(*self._ending)

    @property
    def count(self) -> int:
        """How many nodes are sent to."""
        return len(self._senders)

    def of(self, node: NodeId) -> Replicator | None:
        """The sender to a node; None if that is not reached."""
        if node not in self._senders and self._way_to is not None and not self._stopped:
            self._end_idle()
            self.reach(node, self._way_to(node))
        return self._senders.get(node)

    def listen(self, stream_id: StreamId, listener: Listener) -> None:
        """Pass on what is said of a stream, to this listener alone."""
        self._listeners[stream_id] = listener

    def leave(self, stream_id: StreamId, listener: Listener) -> None:
        """Send nothing more of a stream, unless another one listens to it by now."""
        if self._listeners.get(stream_id) is listener:
            del self._listeners[stream_id]
            for sender in self._senders.values():
                sender.leave(stream_id)

    def _end_idle(self) -> None:
        for node in [one for one, sender in self._senders.items() if sender.is_idle]:
            ending = asyncio.create_task(
                self._end(node, self._senders.pop(node)), name="sender-end"
            )
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _end(self, node: NodeId, sender: Replicator) -> None:
        await sender.stop()
        if self._left is not None and node not in self._senders:
            await self._left(node)

    def _hear(self, node: NodeId, event: Event) -> None:
        listener = self._listeners.get(event.stream_id)
        if listener is not None:
            listener.hear(node, event)
