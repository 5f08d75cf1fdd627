"""What the nodes are that hold replicas in `replicas.py`: their chunks, disks, and owners."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bottomless.formats.segment import HEADER_SIZE
from bottomless.model.names import NodeId
from bottomless_server.node.core import following
from bottomless_server.node.core.following import NEVER_OWNED, Held, LastOwned
from bottomless_server.node.core.replica_waits import Holders, Said, Waited
from bottomless_server.protocol.replica import NOWHERE, Opening, Place

CHUNK_SIZE = 8


class Chunk(NamedTuple):
    epoch: int
    place: Place
    before: int
    first: int
    next_offset: int
    content: int

    @property
    def begins(self) -> bool:
        return self.place.position == HEADER_SIZE

    @property
    def end(self) -> Place:
        return Place(self.place.segment_first, self.place.position + CHUNK_SIZE)


@dataclass(frozen=True)
class Disk:
    chunks: tuple[Chunk, ...] = ()
    epoch: int = 0
    committed_next: int = 0
    version: int = 0
    published_next: int = 0

    @property
    def held(self) -> Held:
        held = Held()
        for one in self.chunks:
            held = following.added(held, one.epoch, one.place, CHUNK_SIZE, one.next_offset)
        return replace(held, epoch=self.epoch, committed_next=self.committed_next)

    @property
    def end(self) -> Place | None:
        return self.chunks[-1].end if self.chunks else None


@dataclass
class Owner:
    epoch: int
    opening: Opening
    holders: Holders
    written: Place
    """Where its log ends, synced or not; as `Answers` has it."""
    waited: Waited | None
    """The round under way, or what was found at the claim; None if all is committed."""
    reserved_next: int
    """Up to where it may write without asking; nothing, -1, of a clean stream."""
    committed: Place = NOWHERE
    committed_next: int = 0
    shown: Place = NOWHERE
    shown_next: int = 0
    found_shown: bool = False
    """What it found at its claim."""
    may_answer: bool = True
    published_next: int = 0
    version: int = 0
    said: dict[NodeId, Said] = field(default_factory=dict)
    diverged: set[NodeId] = field(default_factory=set)
    in_sync_at_claim: frozenset[NodeId] = frozenset()
    have: dict[NodeId, Place] = field(default_factory=dict)
    """Where a log ends that is open, of those that are not empty."""
    sessions: dict[NodeId, int] = field(default_factory=dict)
    opened: set[NodeId] = field(default_factory=set)

    def forget(self, node: NodeId) -> None:
        """It is to be opened anew: what it had may be gone, and what it still answers is of before."""
        self.said.pop(node, None)
        self.diverged.discard(node)
        self.have.pop(node, None)
        self.sessions.pop(node, None)
        self.opened.discard(node)


@dataclass
class Node:
    name: NodeId
    disk: Disk = Disk()
    synced: int = 0
    copy: Disk | None = None
    """An older state of the disk, which may come back."""
    running: bool = True
    damaged: bool = False
    """Nothing of its log is believed at the next opening."""
    opened: int | None = None
    published_at_opening: int = 0
    owner: Owner | None = None
    last_owned: LastOwned = NEVER_OWNED
    """What its process knows of when it owned the stream last."""

    def stop_owning(self) -> None:
        """It owns the stream no more, and knows what it has shown."""
        if self.owner is not None:
            _, shown_next, shown = self.last_owned
            self.last_owned = LastOwned(
                self.owner.epoch,
                max(shown_next, self.owner.committed_next),
                max(shown, self.owner.committed),
            )
        self.owner = None
