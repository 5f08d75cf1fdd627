"""Nodes that hold replicas of one stream, by the pure cores alone: disks, one record, and messages.

Each method of `Replicas` is one event; a story or a Hypothesis machine calls them, in any order. What
is not possible now does nothing. `replica_checks.py` says what must hold after each of them.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

from unit.ingest.harness import NAME, STREAM

from bottomless.errors import StoreError
from bottomless.formats.segment import HEADER_SIZE
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.node.core import following, in_sync
from bottomless_server.node.core.following import OpenRefusal, Sent
from bottomless_server.node.core.in_sync import Refused
from bottomless_server.node.core.ownership import LocalView
from bottomless_server.protocol.replica import EpochEnd, Opening, Place, Taken
from model.replica_nodes import Chunk, Disk, Node, Owner

MESSAGE_COUNT_MAX = 30


class Replicas:
    def __init__(self, count: int, min_in_sync: int | None = None) -> None:
        self.names = [NodeId(f"{number:032x}") for number in range(1, count + 1)]
        self.nodes = {name: Node(name) for name in self.names}
        self.leased = set(self.names)
        wanted = ReplicationConfig(replicas=count, min_in_sync=min_in_sync)
        self.record = StreamRecord(
            STREAM, NAME, "default", StreamState.ACTIVE, 0, StreamConfig(replication=wanted)
        )
        self.least_in_sync = wanted.least_in_sync
        self.messages: list[tuple[Any, ...]] = []
        self.acknowledged: dict[int, Chunk] = {}
        self.shown: dict[tuple[int, Place], Chunk] = {}
        self.aged: set[NodeId] = set()
        """Disks that came back older, until they have everything again."""
        self.bounds = (0, 0, 0, 0)
        """Of the record, as they were looked at last; none ever goes back."""
        self.contents = 0
        self.sessions = 0
        self.events: Counter[str] = Counter()

    # What nodes do.

    def claim(self, number: int) -> None:
        node, record = self._node(number), self.record
        if not node.running or node.name not in self.leased or node.owner is not None:
            return
        disk = node.disk
        if not record.dirty and record.home != node.name:
            # All is published, and what lies here is an older time's: it is set aside.
            disk = replace(disk, chunks=())
        end = disk.chunks[-1].next_offset if disk.chunks else 0
        view = LocalView(end, not disk.chunks, disk.epoch, disk.version, disk.published_next)
        held = record.home is not None and record.home in self.leased
        try:
            claimed = in_sync.claim(
                self.record, node.name, str(node.name), view, self.names, home_held=held
            )
        except StoreError:
            return
        self._become_owner(node, disk, claimed)

    def _become_owner(self, node: Node, disk: Disk, claimed: StreamRecord) -> None:
        self.events["a dirty stream changed its home"] += (
            self.record.dirty and self.record.home != node.name
        )
        self.record = claimed
        record = claimed
        node.opened = None
        node.disk = replace(
            disk, epoch=record.epoch, version=record.version, published_next=record.published_next
        )
        node.synced = len(disk.chunks)
        ends = {one.epoch: EpochEnd(one.epoch, one.end, one.next_offset) for one in disk.chunks}
        first = disk.chunks[0].place.segment_first if disk.chunks else record.published_next
        opening = Opening(
            record.epoch, tuple(ends.values()), first, record.published_next, record.version
        )
        node.owner = Owner(
            record.epoch, opening, record.published_next, counted=set(claimed.in_sync)
        )

    def append(self, number: int, records: int, *, roll: bool) -> None:
        """Written, and neither synced nor sent."""
        node = self._node(number)
        owner = node.owner
        if owner is None or len(owner.counted - owner.doubted) < self.least_in_sync:
            return
        chunks = node.disk.chunks
        first = chunks[-1].next_offset if chunks else owner.opening.published_next
        if not self._changed(node, in_sync.reserve, first + records):
            return
        if chunks and not (roll and first > chunks[-1].place.segment_first):
            place, before = chunks[-1].end, 0
        else:
            place = Place(first, HEADER_SIZE)
            before = chunks[-1].end.position if chunks else 0
        self.contents += 1
        chunk = Chunk(owner.epoch, place, before, first, first + records, self.contents)
        node.disk = replace(node.disk, chunks=(*chunks, chunk))

    def sync(self, number: int) -> None:
        node = self._node(number)
        node.synced = len(node.disk.chunks)

    def send(self, number: int, to: int, count: int = 3) -> None:
        """An opening, or what the other lacks as far as its owner knows, with the bounds."""
        node, target = self._node(number), self._node(to)
        owner = node.owner
        if owner is None or target is node or target.name not in self.record.members:
            return
        record = self.record
        if target.name not in owner.opened:
            self.sessions += 1
            owner.sessions[target.name] = self.sessions
            first = node.disk.chunks[0].place.segment_first if node.disk.chunks else None
            local = record.published_next if first is None else first
            opening = owner.opening._replace(
                local_first=local, published_next=record.published_next, version=record.version
            )
            self._post("open", node.name, target.name, self.sessions, opening)
            return
        end = owner.have.get(target.name)
        lacking = [one for one in node.disk.chunks if end is None or one.place >= end]
        if end is None:
            begun = [one for one in lacking if one.begins]
            upto = [one.place for one in begun if one.first <= record.published_next]
            lacking = [one for one in lacking if not upto or one.place >= upto[-1]]
        session = owner.sessions[target.name]
        for one in lacking[:count]:
            self._post("item", node.name, target.name, session, owner.epoch, one)
        bound = (owner.committed_next, record.version, record.published_next)
        self._post("bounds", node.name, target.name, session, owner.epoch, bound)

    def commit(self, number: int) -> None:
        """Show and acknowledge what all have that are in sync."""
        node = self._node(number)
        owner = node.owner
        if owner is None or not owner.may_answer or node.name not in self.leased:
            return
        synced = node.disk.chunks[: node.synced]
        have = dict(owner.have)
        if synced:
            have[node.name] = synced[-1].end
        for chunk in synced:
            if not in_sync.all_have(owner.counted, have, chunk.end):
                break
            owner.committed_next = max(owner.committed_next, chunk.next_offset)
            self._acknowledge(chunk)

    def _acknowledge(self, chunk: Chunk) -> None:
        known = self.shown.setdefault((chunk.epoch, chunk.place), chunk)
        assert known == chunk, "one place was shown with two contents"
        if chunk.next_offset > chunk.first:
            for offset in range(chunk.first, chunk.next_offset):
                known = self.acknowledged.setdefault(offset, chunk)
                assert known == chunk, "an offset was given twice"
            self.events["something was acknowledged"] += 1

    # What changes the record.

    def admit(self, number: int, who: int, *, lost: bool = False) -> None:
        node, target = self._node(number), self._node(who)
        owner = node.owner
        if owner is None or target is node or target.name not in owner.opened:
            return
        if in_sync.may_be_admitted(owner.have.get(target.name), node.disk.end):
            self._set_changes(node, in_sync.admit, target.name, lost=lost)

    def evict(self, number: int, who: int, *, lost: bool = False) -> None:
        """Not by a node whose disk came back older: those that know more would have to answer it."""
        node, target = self._node(number), self._node(who)
        if node.owner is not None and target is not node and node.name not in self.aged:
            self._set_changes(node, in_sync.evict, target.name, lost=lost)

    def read_record(self, number: int) -> None:
        """After a lost reply, or when a lease was taken anew."""
        node = self._node(number)
        owner, record = node.owner, self.record
        if owner is None:
            return
        if (record.epoch, record.home) != (owner.epoch, node.name):
            node.owner = None
            return
        owner.counted, owner.doubted = set(self.record.in_sync), set()
        owner.may_answer = node.name in self.leased

    def transfer(self, number: int, to: int) -> None:
        node, target = self._node(number), self._node(to)
        if node.owner is None or target is node:
            return
        live = target.name in self.leased
        if self._changed(node, in_sync.transfer, target.name, str(target.name), live=live):
            node.owner = None
            self.events["a stream was transferred"] += 1

    def transfer_asked(self, number: int, to: int) -> None:
        """The EXEC arrives, its reply does not: the old owner goes on until it hears of it."""
        node, target = self._node(number), self._node(to)
        if node.owner is not None and target is not node:
            live = target.name in self.leased
            self._changed(node, in_sync.transfer, target.name, str(target.name), live=live)

    def publish(self, number: int) -> None:
        owner, record = self._node(number).owner, self.record
        if owner is None or owner.epoch != record.epoch:
            return
        if owner.committed_next > record.published_next:
            version = record.version + 1
            self.record = replace(record, version=version, published_next=owner.committed_next)

    def leave_clean(self, number: int) -> None:
        node = self._node(number)
        if node.owner is None or not node.disk.chunks:
            return
        if self._changed(node, in_sync.leave_clean, node.disk.chunks[-1].next_offset):
            node.owner = None

    def take_over(self, to: int) -> None:
        """By an operator, who names a member that goes on with what it has."""
        record, target = self.record, self._node(to)
        if not record.dirty or target.name not in self.record.members:
            return
        fenced = replace(record, epoch=record.epoch + 1)
        alive = self.leased & set(self.record.in_sync)
        try:
            self.record = in_sync.take_over(self.record, fenced, self.leased, target.name)
        except Refused:
            return
        assert not alive, "what a living node has was given up"
        self._accept_what(target)

    def _accept_what(self, target: Node) -> None:
        """Nobody lives that has everything, and what is not at the one that was named is given up."""
        held = set(target.disk.chunks)
        published = self.record.published_next
        for offset, chunk in list(self.acknowledged.items()):
            if offset >= published and chunk not in held:
                del self.acknowledged[offset]
        self.shown = {
            place: one
            for place, one in self.shown.items()
            if one in held or one.next_offset <= published
        }
        self.events["a member was named by an operator"] += 1

    # What happens to nodes, and on the way.

    def deliver(self, which: int, *, again: bool = False) -> None:
        """One message, any of them, and maybe once more later."""
        if not self.messages:
            return
        at = which % len(self.messages)
        kind, *rest = self.messages[at] if again else self.messages.pop(at)
        getattr(self, f"_take_{kind}")(*rest)

    def deliver_all(self) -> None:
        while self.messages:
            self.deliver(0)

    def lose(self, which: int) -> None:
        if self.messages:
            self.messages.pop(which % len(self.messages))

    def crash(self, number: int, lost: int = 9) -> None:
        """With so many chunks that were not synced."""
        node = self._node(number)
        count = max(node.synced, len(node.disk.chunks) - lost)
        node.disk = replace(node.disk, chunks=node.disk.chunks[:count])
        node.synced, node.owner, node.opened, node.running = count, None, None, False
        self.leased.discard(node.name)

    def start(self, number: int) -> None:
        node = self._node(number)
        node.running = True
        self.leased.add(node.name)

    def lapse(self, number: int) -> None:
        """The lease is gone, and before that the node has stopped to believe in it."""
        node = self._node(number)
        if node.owner is not None:
            node.owner.may_answer = False
        self.leased.discard(node.name)

    def keep_copy(self, number: int) -> None:
        node = self._node(number)
        node.copy = replace(node.disk, chunks=node.disk.chunks[: node.synced])

    def come_back_older(self, number: int) -> None:
        """One disk at a time, and only what all others in sync were told can be kept by them."""
        node, record = self._node(number), self.record
        others = [self.nodes[name] for name in self.record.in_sync if name != node.name]
        told = min((one.disk.committed_next for one in others), default=0)
        safe = told > max(self.acknowledged, default=told) and self.least_in_sync > 1
        if node.running or node.copy in (None, node.disk) or self.aged or not safe:
            return
        assert node.copy is not None
        # What a disk has seen of the record keeps an owner from claiming with less than is published.
        if node.copy.published_next == record.published_next or node.name != record.home:
            self.aged.add(node.name)
            node.disk, node.synced = node.copy, len(node.copy.chunks)
            self.events["a disk came back older"] += 1

    def free(self, number: int) -> None:
        node = self._node(number)
        published = min(self.record.published_next, node.disk.published_next)
        kept = following.freed(node.disk.held, published)
        if kept.segments and node.disk.chunks:
            first = kept.segments[0].first_offset
            chunks = tuple(one for one in node.disk.chunks if one.place.segment_first >= first)
            gone = len(node.disk.chunks) - len(chunks)
            self.events["a segment was freed"] += gone > 0
            node.disk, node.synced = replace(node.disk, chunks=chunks), max(node.synced - gone, 0)

    # What a follower does with a message.

    def _take_open(self, sender: NodeId, to: NodeId, session: int, opening: Opening) -> None:
        node = self.nodes[to]
        if not node.running:
            return
        decided = following.open_log(node.disk.held, opening, in_sync=to in self.record.in_sync)
        if isinstance(decided, OpenRefusal):
            self.events[f"a log was not opened: {decided.value}"] += 1
            self._post("opened", to, sender, session, opening.epoch, decided, None)
            return
        ends = {one.first_offset: one.end for one in decided.held.segments}
        chunks = tuple(
            one
            for one in node.disk.chunks
            if one.place.segment_first in ends and one.end <= ends[one.place.segment_first]
        )
        self.events["a log was cut"] += decided.cut is not None
        self.events["a log was set aside"] += decided.set_aside
        node.owner, node.opened = None, opening.epoch
        node.published_at_opening = opening.published_next
        node.disk = replace(
            node.disk,
            chunks=chunks,
            epoch=decided.held.epoch,
            committed_next=decided.held.committed_next,
        )
        node.synced = len(chunks)
        assert node.disk.end == decided.end
        self._post("opened", to, sender, session, opening.epoch, None, decided.end)

    def _take_item(
        self, sender: NodeId, to: NodeId, session: int, epoch: int, chunk: Chunk
    ) -> None:
        node = self.nodes[to]
        if not node.running:
            return
        sent = Sent(epoch, chunk.place, chunk.begins, chunk.before)
        taken = following.judge(node.disk.held, node.opened, sent, node.published_at_opening)
        if taken is None:
            node.disk = replace(node.disk, chunks=(*node.disk.chunks, chunk))
            node.synced = len(node.disk.chunks)
            taken = Taken.OK
        self._post("answer", to, sender, session, epoch, taken, node.disk.end)

    def _take_bounds(
        self,
        sender: NodeId,
        to: NodeId,
        session: int,
        epoch: int,
        bound: tuple[int, int, int],
    ) -> None:
        node = self.nodes[to]
        if not node.running or node.opened != epoch:
            return
        committed, version, published = bound
        node.disk = replace(
            node.disk,
            committed_next=following.told(node.disk.held, committed).committed_next,
            version=max(version, node.disk.version),
            published_next=max(published, node.disk.published_next),
        )
        assert self.nodes[sender].name == sender
        assert session > 0

    # What an owner does with an answer.

    def _take_opened(
        self,
        sender: NodeId,
        to: NodeId,
        session: int,
        epoch: int,
        refusal: OpenRefusal | None,
        end: Place | None,
    ) -> None:
        owner = self._owner(to, epoch, sender, session)
        if owner is None or sender in owner.opened:
            return
        if refusal is OpenRefusal.DIVERGED:
            self.transfer(self.names.index(to), self.names.index(sender))
        if refusal is None:
            owner.opened.add(sender)
            owner.have.pop(sender, None)
            if end is not None:
                owner.have[sender] = end

    def _take_answer(
        self,
        sender: NodeId,
        to: NodeId,
        session: int,
        epoch: int,
        taken: Taken,
        end: Place | None,
    ) -> None:
        owner = self._owner(to, epoch, sender, session)
        if owner is None or sender not in owner.opened:
            return
        if taken in (Taken.NOT_OPEN, Taken.FENCED) or end is None:
            owner.opened.discard(sender)
            owner.have.pop(sender, None)
        else:
            owner.have[sender] = max(end, owner.have.get(sender, end))

    # Small things.

    def _node(self, number: int) -> Node:
        return self.nodes[self.names[number % len(self.names)]]

    def _post(self, *message: Any) -> None:
        self.messages.append(message)
        del self.messages[:-MESSAGE_COUNT_MAX]

    def _owner(self, name: NodeId, epoch: int, sender: NodeId, session: int) -> Owner | None:
        """The owner that an answer is for; those to what was sent before an opening count no more."""
        owner = self.nodes[name].owner
        if owner is None or (owner.epoch, owner.sessions.get(sender)) != (epoch, session):
            return None
        return owner

    def _changed(self, node: Node, change: Any, *arguments: Any, **named: Any) -> bool:
        assert node.owner is not None
        try:
            self.record = change(self.record, node.name, node.owner.epoch, *arguments, **named)
        except (Refused, StoreError):
            self.read_record(self.names.index(node.name))
            return False
        return True

    def _set_changes(self, node: Node, change: Any, target: NodeId, *, lost: bool) -> None:
        owner = node.owner
        before = set(self.record.in_sync)
        if owner is None or not self._changed(node, change, target):
            return
        self.events[f"{change.__name__}: a set changed"] += set(self.record.in_sync) != before
        if lost:
            # One too many is counted until the record is read; one too few never is.
            owner.counted.add(target)
            owner.doubted.add(target)
        else:
            owner.counted, owner.doubted = set(self.record.in_sync), set()
