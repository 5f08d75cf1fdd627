"""What the other nodes of a stream have answered to its owner, under one claim.

It is in memory alone: a later owner asks anew. What an answer is worth, `node/core/replica_waits.py`
says; who is waited for, `counted.py`.
"""

from collections.abc import Mapping
from dataclasses import replace

from bottomless.model.names import NodeId
from bottomless_server.node.core.replica_waits import Said, heard_from, let_go, unheard
from bottomless_server.node.pulse import Pulse
from bottomless_server.protocol.replica import Place


class Answers:
    """What the other nodes of one stream have said, and the pulse by which whoever waits hears of it.

    Times are milliseconds of the monotonic clock.
    """

    def __init__(self, written: Place) -> None:
        """`written` is where the log of the owner ends at its claim."""
        self.written = written
        """Where that log ends by now, synced or not."""
        self.pulse = Pulse()
        """Fires at each answer, and whenever else all is to be decided anew."""
        self.diverged: set[NodeId] = set()
        """Nodes that have more than their owner, and were in sync when it last showed anything; also such as
        were evicted while they said so."""
        self._said: dict[NodeId, Said] = {}

    @property
    def said(self) -> Mapping[NodeId, Said]:
        """What each node has said that has said anything."""
        return self._said

    def of(self, node: NodeId) -> Said:
        """What one node has said; nothing at first."""
        return self._said.get(node, Said())

    @property
    def failing(self) -> tuple[NodeId, ...]:
        """Nodes that said last that they cannot store what they are sent."""
        return tuple(node for node, one in self._said.items() if one.failed)

    def has_all(self, node: NodeId) -> bool:
        """Whether a node has all that was written."""
        end = self.of(node).end
        return end is not None and end >= self.written

    def note_end(self, node: NodeId, end: Place, now: int) -> None:
        """Note where the synced log of a node ends. It follows now, whatever more it had."""
        self.diverged.discard(node)
        self._said[node] = heard_from(self.of(node), end, self.written, now)

    def note_failed(self, node: NodeId) -> None:
        """Note that a node takes nothing now."""
        self._said[node] = replace(self.of(node), failed=True)

    def note_unknown(self, node: NodeId) -> None:
        """Note that nobody knows any more what a node has."""
        if node in self._said:
            self._said[node] = unheard(self._said[node])

    def note_evicted(self, node: NodeId, now: int) -> None:
        """Note that a node is in sync no more, and has to wait until it is again."""
        self._said[node] = let_go(self.of(node), self.written, now)

    def forget(self, node: NodeId) -> None:
        """Forget all that a node has said. Whatever more it had, it counts for nothing now."""
        self.diverged.discard(node)
        self._said.pop(node, None)
