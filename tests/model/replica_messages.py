"""What nodes with replicas say to each other in `replicas.py`: lost, late, doubled, in any order."""

from dataclasses import replace

from bottomless.model.names import NodeId
from bottomless_server.node.core import following
from bottomless_server.node.core.following import OpenRefusal, Sent
from bottomless_server.node.core.replica_waits import Said, heard_from, unheard
from bottomless_server.protocol.replica import NOWHERE, Opening, Place, Taken
from model.replica_ground import Ground
from model.replica_nodes import Chunk, Owner


class Messages(Ground):
    def send(self, number: int, to: int, count: int = 3) -> None:
        """An opening, or what the other lacks as far as its owner knows, with the bounds."""
        node, target = self.node(number), self.node(to)
        owner = node.owner
        if owner is None or target is node or target.name not in owner.holders.members:
            return
        if target.name not in owner.opened:
            self.sessions += 1
            owner.sessions[target.name] = self.sessions
            chunks, published = node.disk.chunks, owner.published_next
            local = min(chunks[0].place.segment_first, published) if chunks else published
            opening = owner.opening._replace(
                local_first=local,
                published_next=published,
                version=owner.version,
                shown=owner.found_shown,
            )
            self.post("open", node.name, target.name, self.sessions, opening)
            return
        end = owner.have.get(target.name)
        lacking = [one for one in node.disk.chunks if end is None or one.place >= end]
        if end is None:
            begun = [one for one in lacking if one.begins]
            upto = [one.place for one in begun if one.first <= owner.published_next]
            lacking = [one for one in lacking if not upto or one.place >= upto[-1]]
        session = owner.sessions[target.name]
        for one in lacking[:count]:
            self.post("item", node.name, target.name, session, owner.epoch, one)
        bound = (owner.committed_next, owner.version, owner.published_next)
        self.post("bounds", node.name, target.name, session, owner.epoch, bound)

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

    # What a follower does with a message.

    def _take_open(self, sender: NodeId, to: NodeId, session: int, opening: Opening) -> None:
        node = self.nodes[to]
        if not node.running:
            return
        if node.damaged:
            if following.is_fenced(node.disk.held, opening.epoch) or self._is_counted_on(to):
                return
            node.disk, node.synced = replace(node.disk, chunks=(), committed_next=0), 0
            node.damaged = False
            self.events["a damaged log was put aside"] += 1
        # Also where it owns the stream under an older epoch: it stops first.
        if not following.is_fenced(node.disk.held, opening.epoch):
            node.stop_owning()
        owned = node.last_owned
        held = following.told(node.disk.held, owned.shown_next)
        decided = following.open_log(held, opening, in_sync=True, owned=owned)
        if decided is OpenRefusal.DIVERGED and not self._is_counted_on(to):
            decided = following.open_log(held, opening, in_sync=False, owned=owned)
        if isinstance(decided, OpenRefusal):
            self.events[f"a log was not opened: {decided.value}"] += 1
            self.post("opened", to, sender, session, opening.epoch, decided, None)
            return
        ends = {one.first_offset: one.end for one in decided.held.segments}
        chunks = tuple(
            one
            for one in node.disk.chunks
            if one.place.segment_first in ends and one.end <= ends[one.place.segment_first]
        )
        self.events["a log was cut"] += decided.cut is not None
        self.events["a log was set aside"] += decided.set_aside
        node.stop_owning()
        node.opened = opening.epoch
        node.published_at_opening = opening.published_next
        node.disk = replace(
            node.disk,
            chunks=chunks,
            epoch=decided.held.epoch,
            committed_next=decided.held.committed_next,
        )
        node.synced = len(chunks)
        assert node.disk.end == decided.end
        self.post("opened", to, sender, session, opening.epoch, None, decided.end)

    def _is_counted_on(self, node: NodeId) -> bool:
        """Whether the record says so, beyond what is still on its way."""
        if self.asks_by_writing:
            self.shared.transact(lambda record: record)
        return node in self.record.in_sync

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
        self.post("answer", to, sender, session, epoch, taken, node.disk.end)

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
        owner = self.owner_of(to, epoch, sender, session)
        if owner is None or sender in owner.opened:
            return
        if refusal is OpenRefusal.FENCED:
            self.nodes[to].stop_owning()
        elif refusal is OpenRefusal.DIVERGED:
            had_all = sender in owner.in_sync_at_claim and not owner.found_shown
            if sender in owner.holders.counted or had_all:
                owner.diverged.add(sender)
        else:
            owner.opened.add(sender)
            owner.have.pop(sender, None)
            if end is not None:
                owner.have[sender] = end
            self._hear(owner, sender, NOWHERE if end is None else end)

    def _take_answer(
        self,
        sender: NodeId,
        to: NodeId,
        session: int,
        epoch: int,
        taken: Taken,
        end: Place | None,
    ) -> None:
        owner = self.owner_of(to, epoch, sender, session)
        if owner is None or sender not in owner.opened:
            return
        if taken is Taken.FENCED:
            self.nodes[to].stop_owning()
        elif taken is Taken.NOT_OPEN or end is None:
            owner.opened.discard(sender)
            owner.have.pop(sender, None)
            if sender in owner.said:
                owner.said[sender] = unheard(owner.said[sender])
        else:
            owner.have[sender] = end = max(end, owner.have.get(sender, end))
            self._hear(owner, sender, end)

    def _hear(self, owner: Owner, node: NodeId, end: Place) -> None:
        one = owner.said.get(node, Said())
        owner.said[node] = heard_from(one, end, owner.written, self.now)
