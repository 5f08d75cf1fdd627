"""What all events of `replicas.py` stand on: nodes, one record, messages on their way, and the time."""

from collections import Counter
from typing import Any, Final

from unit.ingest.harness import NAME, STREAM

from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.protocol.replica import Place
from model.replica_nodes import Chunk, Node, Owner
from model.replica_record import SharedRecord

MESSAGE_COUNT_MAX: Final = 30


class Ground:
    def __init__(self, count: int, min_in_sync: int | None = None, spare: int = 0) -> None:
        """`count` replicas are wanted, and so many more nodes are there."""
        self.count = count
        self.names = [NodeId(f"{number:032x}") for number in range(1, count + spare + 1)]
        self.nodes = {name: Node(name) for name in self.names}
        self.leased = set(self.names)
        wanted = ReplicationConfig(replicas=count, min_in_sync=min_in_sync)
        self.shared = SharedRecord(
            StreamRecord(
                STREAM, NAME, "default", StreamState.ACTIVE, 0, StreamConfig(replication=wanted)
            )
        )
        self.least_in_sync = wanted.least_in_sync
        self.now = 1_000_000
        """Milliseconds of a monotonic clock."""
        self.messages: list[tuple[Any, ...]] = []
        self.acknowledged: dict[int, Chunk] = {}
        self.shown: dict[tuple[int, Place], Chunk] = {}
        self.left: set[Chunk] = set()
        """Chunks without records of which coordination has what they say of producers."""
        self.aged: set[NodeId] = set()
        """Disks that came back older, until they have everything again."""
        self.bounds = (0, 0, 0, 0)
        """Of the record, as they were looked at last; none ever goes back."""
        self.asks_by_writing = True
        """How a node finds out that it is not counted on, before it throws its log away."""
        self.contents = 0
        self.sessions = 0
        self.events: Counter[str] = Counter()

    @property
    def record(self) -> StreamRecord:
        return self.shared.record

    def node(self, number: int) -> Node:
        return self.nodes[self.names[number % len(self.names)]]

    def post(self, *message: Any) -> None:
        self.messages.append(message)
        del self.messages[:-MESSAGE_COUNT_MAX]

    def lose(self, which: int) -> None:
        """One message never arrives."""
        if self.messages:
            self.messages.pop(which % len(self.messages))

    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds

    def owner_of(self, name: NodeId, epoch: int, sender: NodeId, session: int) -> Owner | None:
        """The owner that an answer is for; those to what was sent before an opening count no more."""
        owner = self.nodes[name].owner
        if owner is None or (owner.epoch, owner.sessions.get(sender)) != (epoch, session):
            return None
        return owner
