"""Nodes that hold replicas of one stream, by the pure cores alone: disks, one record, and messages.

Each method of `Replicas` is one event; a story or a walk (`replica_walk.py`) calls them, in any order.
What is not possible now does nothing. `replica_checks.py` says what must hold after each of them.
"""

from dataclasses import replace

from bottomless_server.node.core import following
from bottomless_server.node.core.following import NEVER_OWNED
from model.replica_nodes import Disk
from model.replica_owners import Owners


class Replicas(Owners):
    """Beside what owners do and what is said: what happens to nodes."""

    def land(self, which: int) -> None:
        """A transaction that was late arrives."""
        landed = self.shared.landed_count
        self.shared.land(which)
        self.events["a late EXEC landed"] += self.shared.landed_count - landed

    def crash(self, number: int, lost: int = 9) -> None:
        """With so many chunks that were not synced."""
        node = self.node(number)
        count = max(node.synced, len(node.disk.chunks) - lost)
        node.disk = replace(node.disk, chunks=node.disk.chunks[:count])
        node.synced, node.owner, node.opened, node.running = count, None, None, False
        node.last_owned = NEVER_OWNED
        self.leased.discard(node.name)

    def start(self, number: int) -> None:
        node = self.node(number)
        node.running = True
        if node.name not in self.leased:
            self.leased.add(node.name)
            self.shared.touch(node.name)

    def lapse(self, number: int) -> None:
        """The lease is gone, and before that the node has stopped to believe in it."""
        node = self.node(number)
        if node.owner is not None:
            node.owner.may_answer = False
        self.leased.discard(node.name)

    def keep_copy(self, number: int) -> None:
        node = self.node(number)
        node.copy = replace(node.disk, chunks=node.disk.chunks[: node.synced])

    def come_back_older(self, number: int) -> None:
        """One disk at a time, and only what all others in sync were told can be kept by them."""
        node, record = self.node(number), self.record
        others = [self.nodes[name] for name in self.record.in_sync if name != node.name]
        told = min((one.disk.committed_next for one in others), default=0)
        known = told > max(self.acknowledged, default=told)
        there, copy = node.disk.chunks, node.copy
        if node.running or copy is None or copy == node.disk or self.aged or self.least_in_sync < 2:
            return
        if not known and copy.chunks != there[: len(copy.chunks)]:
            return
        assert node.copy is not None
        # What a disk has seen of the record keeps an owner from claiming with less than is published.
        if node.copy.published_next == record.published_next or node.name != record.home:
            self.aged.add(node.name)
            node.disk, node.synced = node.copy, len(node.copy.chunks)
            self.events["a disk came back older"] += 1

    def all_lose_power(self, older: int) -> None:
        """All nodes at once, with what they were told and had not saved; and one disk lacks the last of
        what it held. It has nothing that was cut since: of two that differ nobody could tell which is
        the older one."""
        for number, node in enumerate(self.nodes.values()):
            self.crash(number)
            node.disk = replace(node.disk, committed_next=0)
        node = self.node(older)
        there, copy = node.disk.chunks, node.copy
        if copy is not None and not self.aged and self.least_in_sync > 1:
            is_older = copy.chunks == there[: len(copy.chunks)] != there
            told = (copy.version, copy.published_next)
            if is_older and told == (node.disk.version, node.disk.published_next):
                self.aged.add(node.name)
                node.disk, node.synced = replace(copy, committed_next=0), len(copy.chunks)
                self.events["all lost power, and a disk came back older"] += 1
        for number in range(len(self.names)):
            self.start(number)

    def damage(self, number: int) -> None:
        """A node that is not counted on finds its log damaged at a start."""
        node = self.node(number)
        if node.running and node.owner is None and node.name not in self.record.in_sync:
            node.damaged, node.opened = True, None

    def free(self, number: int) -> None:
        node = self.node(number)
        published = min(self.record.published_next, node.disk.published_next)
        kept = following.freed(node.disk.held, published)
        # As long as a round is held nothing is freed of its log.
        held = node.owner is not None and node.owner.waited is not None
        if kept.segments and node.disk.chunks and not held:
            first = kept.segments[0].first_offset
            chunks = tuple(one for one in node.disk.chunks if one.place.segment_first >= first)
            gone = len(node.disk.chunks) - len(chunks)
            self.events["a segment was freed"] += gone > 0
            node.disk, node.synced = replace(node.disk, chunks=chunks), max(node.synced - gone, 0)

    def drop(self, number: int) -> None:
        """A node that holds the stream no more removes what lies there."""
        node, record = self.node(number), self.record
        if node.name in (*record.members, record.home) or node.owner is not None:
            return
        self.events["a log was dropped"] += bool(node.disk.chunks)
        node.disk, node.synced, node.copy = Disk(), 0, None
        node.damaged, node.opened = False, None
