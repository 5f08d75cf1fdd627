"""What owners of a stream with replicas do in `replicas.py`: claims, rounds, and who is in sync.

An owner decides by `replica_waits.py` and does what `other_nodes.py` and `counted.py` do; `admit`, `evict`
and `commit` are for stories, which say themselves what is decided.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bottomless.errors import Fenced, StoreError
from bottomless.formats.segment import HEADER_SIZE
from bottomless.model.names import NodeId
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.node.core import in_sync
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.core.ownership import LocalView
from bottomless_server.node.core.replica_waits import (
    Do,
    Holders,
    Said,
    WaitBounds,
    Waited,
    joiner,
    let_go,
    next_step,
    to_take_back,
)
from bottomless_server.protocol.replica import NOWHERE, EpochEnd, Opening, Place
from model.replica_messages import Messages
from model.replica_nodes import Chunk, Node, Owner
from model.replica_record import Fate, NoReply

BOUNDS = WaitBounds(wait_ms=1_000, commit_ms=10_000, join_ms=3_000)


class Owners(Messages):
    # Claims.

    def claim(self, number: int, fate: Fate = Fate.DONE) -> None:
        """A node that follows nobody any more claims with what it has."""
        node, record = self.node(number), self.record
        if not node.running or node.name not in self.leased or node.owner is not None:
            return
        if node.damaged:
            return
        node.opened = None
        if not record.dirty and record.home != node.name:
            # All is published, and what lies here is an older time's: it is set aside.
            node.disk, node.synced = replace(node.disk, chunks=()), 0
        disk = node.disk
        end = disk.chunks[-1].next_offset if disk.chunks else 0
        view = LocalView(
            end,
            not disk.chunks,
            disk.epoch,
            disk.version,
            disk.published_next,
            _epochs_in(disk.chunks),
        )
        held = record.home is not None and record.home in self.leased
        others = [one for one in (record.home,) if one not in (None, node.name)]
        at = self.names.index(node.name)
        chosen = [self.node(at + other).name for other in range(self.count)]

        def change(before: StreamRecord) -> StreamRecord:
            return in_sync.claim(before, node.name, str(node.name), view, chosen, home_held=held)

        moved = record.dirty and record.home != node.name
        try:
            claimed = self.shared.transact(change, fate, [one for one in others if one is not None])
        except (StoreError, NoReply):
            return
        self.events["a dirty stream changed its home"] += moved
        self._become_owner(node, claimed)

    def _become_owner(self, node: Node, record: StreamRecord) -> None:
        node.disk = replace(
            node.disk,
            epoch=record.epoch,
            version=record.version,
            published_next=record.published_next,
        )
        chunks = node.disk.chunks
        node.synced = len(chunks)
        ends = {one.epoch: EpochEnd(one.epoch, one.end, one.next_offset) for one in chunks}
        first = chunks[0].place.segment_first if chunks else record.published_next
        opening = Opening(
            record.epoch, tuple(ends.values()), first, record.published_next, record.version
        )
        node.owner = Owner(
            epoch=record.epoch,
            opening=opening,
            holders=Holders.of(record, node.name),
            in_sync_at_claim=frozenset(record.in_sync),
            written=chunks[-1].end if chunks else NOWHERE,
            waited=Waited(chunks[-1].end if chunks else NOWHERE, self.now)
            if chunks or record.dirty
            else None,
            reserved_next=record.reserved_next if record.dirty else -1,
            committed_next=record.published_next,
            shown_next=record.published_next,
            published_next=record.published_next,
            version=record.version,
        )

    def read_record(self, number: int) -> None:
        """As a claim is confirmed after a lapse of the lease: by the epoch alone."""
        node = self.node(number)
        owner, record = node.owner, self.record
        if owner is None:
            return
        if record.epoch != owner.epoch:
            node.stop_owning()
            return
        owner.may_answer = node.name in self.leased
        self._show(node, owner)

    # Rounds.

    def append(self, number: int, records: int, *, roll: bool, fate: Fate = Fate.DONE) -> None:
        """Written, and neither synced nor sent."""
        node = self.node(number)
        owner = node.owner
        if owner is None or owner.waited is not None or not owner.holders.are_enough:
            return
        chunks = node.disk.chunks
        first = chunks[-1].next_offset if chunks else owner.opening.published_next
        if not self._reserve(node, owner, first + records, fate):
            return
        if chunks and not (roll and first > chunks[-1].place.segment_first):
            place, before = chunks[-1].end, 0
        else:
            place = Place(first, HEADER_SIZE)
            before = chunks[-1].end.position if chunks else 0
        self.contents += 1
        chunk = Chunk(owner.epoch, place, before, first, first + records, self.contents)
        node.disk = replace(node.disk, chunks=(*chunks, chunk))
        owner.written, owner.waited = chunk.end, Waited(chunk.end, self.now)

    def _reserve(self, node: Node, owner: Owner, next_offset: int, fate: Fate) -> bool:
        if next_offset <= owner.reserved_next:
            return True
        made = self.changed(node, in_sync.reserve, next_offset, fate=fate)
        if made is None:
            return False
        owner.reserved_next = made.reserved_next
        return True

    def sync(self, number: int) -> None:
        node = self.node(number)
        node.synced = len(node.disk.chunks)

    def commit(self, number: int) -> None:
        """Show and acknowledge the round, if all have it that are counted."""
        self.decide(number, only=Do.SHOW)

    def decide(self, number: int, fate: Fate = Fate.DONE, only: Do | None = None) -> None:
        """Do what is next about the round that is synced here."""
        node = self.node(number)
        owner = node.owner
        if owner is None:
            return
        if owner.diverged:
            self._give_up(number, owner, fate)
            return
        if owner.waited is None or node.synced < len(node.disk.chunks):
            return
        step = next_step(owner.holders, owner.said, owner.waited, self.now, BOUNDS)
        if only not in (None, step.do):
            return
        self.events[f"an owner decided to {step.do}"] += 1
        if step.do is Do.SHOW:
            owner.waited, owner.committed, owner.found_shown = None, owner.written, True
            chunks = node.disk.chunks
            owner.committed_next = (
                chunks[-1].next_offset if chunks else owner.opening.published_next
            )
            self._show(node, owner)
        elif step.do is Do.SETTLE:
            self.settle(number, fate)
        elif step.node is not None:
            change = self.admit if step.do is Do.ADMIT else self.evict
            change(number, self.names.index(step.node), fate)

    def _show(self, node: Node, owner: Owner) -> None:
        """To readers and producers, as long as the lease is good."""
        if not owner.may_answer or node.name not in self.leased:
            return
        for chunk in node.disk.chunks:
            if owner.shown < chunk.end <= owner.committed:
                self._acknowledge(chunk)
        owner.shown, owner.shown_next = owner.committed, owner.committed_next

    def _acknowledge(self, chunk: Chunk) -> None:
        known = self.shown.setdefault((chunk.epoch, chunk.place), chunk)
        assert known == chunk, "one place was shown with two contents"
        if chunk.next_offset > chunk.first:
            for offset in range(chunk.first, chunk.next_offset):
                known = self.acknowledged.setdefault(offset, chunk)
                assert known == chunk, "an offset was given twice"
            self.events["something was acknowledged"] += 1

    # Who is in sync, and who holds the stream.

    def join(self, number: int, fate: Fate = Fate.DONE) -> None:
        """Count a member in that has everything, or one of which nobody knows whether it was."""
        owner = self.node(number).owner
        if owner is None:
            return
        if owner.diverged:
            self._give_up(number, owner, fate)
            return
        doubted = [one for one in sorted(owner.holders.doubted) if has_all(owner, one)]
        node = joiner(owner.holders, owner.said, owner.written, self.now, BOUNDS)
        node = doubted[0] if doubted else node
        if node is not None:
            self.admit(number, self.names.index(node), fate)

    def admit(self, number: int, who: int, fate: Fate = Fate.DONE) -> None:
        node, target = self.node(number), self.node(who)
        owner = node.owner
        if owner is None or target is node:
            return
        if owner.diverged:
            self._give_up(number, owner, fate)
        elif in_sync.may_be_admitted(owner.said.get(target.name, Said()).end, owner.written):
            self._change(node, owner, in_sync.admit, target.name, fate)

    def evict(self, number: int, who: int, fate: Fate = Fate.DONE) -> None:
        """Not by a node whose disk came back older: those that know more would have to answer it."""
        node, target = self.node(number), self.node(who)
        owner = node.owner
        if owner is None or target is node or node.name in self.aged:
            return
        if self._change(node, owner, in_sync.evict, target.name, fate):
            one = owner.said.get(target.name, Said())
            owner.said[target.name] = let_go(one, owner.written, self.now)

    def _change(self, node: Node, owner: Owner, change: Any, target: NodeId, fate: Fate) -> bool:
        before = owner.holders
        is_in, admits = target in before.in_sync, change is in_sync.admit
        if target not in before.doubted and is_in is admits:
            return False
        # Counted as long as nobody knows.
        owner.holders = replace(before, doubted=before.doubted | {target})
        # It has what its owner has: who was told of more, and is in sync, takes the stream over.
        knows_less = {target} if admits and node.name in self.aged else set[NodeId]()

        def then() -> None:
            self.aged |= knows_less

        made = self.changed(node, change, target, fate=fate, before=before, then=then)
        if made is None:
            return False
        owner.holders = Holders.of(made, node.name)
        self.events[f"{'admit' if admits else 'evict'}: a set changed"] += 1
        return True

    def settle(self, number: int, fate: Fate = Fate.DONE) -> None:
        """Write the record as it is."""
        node = self.node(number)
        owner = node.owner
        if owner is None:
            return
        made = self.changed(node, in_sync.settled, fate=fate)
        if made is not None:
            owner.holders = Holders.of(made, node.name)
            self.events["a doubt was settled"] += 1

    def set_members(self, number: int, who: int, fate: Fate = Fate.DONE) -> None:
        """A node comes, or goes; whatever it had before counts no more."""
        node, target = self.node(number), self.node(who)
        owner = node.owner
        if owner is None or target is node:
            return
        members = set(owner.holders.members) ^ {target.name}
        if len(members) < self.least_in_sync or target.name in owner.holders.counted:
            return
        owner.forget(target.name)
        made = self.changed(node, in_sync.set_members, members, fate=fate)
        if made is not None:
            owner.holders = Holders.of(made, node.name)
            self.events["members: a set changed"] += 1

    def changed(
        self,
        node: Node,
        change: Any,
        *arguments: Any,
        fate: Fate,
        before: Holders | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> StreamRecord | None:
        """Change the record as its owner; None: it was not changed, or nobody knows. `before` is what
        the owner knows again where it was refused, since nothing was written then."""
        owner = node.owner
        assert owner is not None

        def once(record: StreamRecord) -> StreamRecord:
            made: StreamRecord = change(record, node.name, owner.epoch, *arguments)
            return made

        try:
            return self.shared.transact(once, fate, then=then)
        except Fenced:
            node.stop_owning()
        except Refused as refused:
            owner.holders = before or owner.holders
            if refused.refusal is Refusal.NOT_HOME:
                node.stop_owning()
        except (NoReply, StoreError):
            self.events["an EXEC had no reply"] += 1
        return None

    # How a stream leaves its owner, and what others write.

    def transfer(self, number: int, to: int, fate: Fate = Fate.DONE) -> None:
        """By an owner that has stopped, whatever comes of it."""
        node = self.node(number)
        self.transfer_asked(number, to, fate)
        node.stop_owning()

    def transfer_asked(self, number: int, to: int, fate: Fate = Fate.DONE) -> None:
        """By an owner that goes on until it hears of it, which is worse than any does."""
        node, target = self.node(number), self.node(to)
        owner = node.owner
        if owner is None or target is node:
            return
        live, url = target.name in self.leased, str(target.name)

        def change(record: StreamRecord) -> StreamRecord:
            return in_sync.transfer(record, node.name, owner.epoch, target.name, url, live=live)

        try:
            self.shared.transact(change, fate, [target.name])
        except (Refused, StoreError, NoReply):
            return
        self.events["a stream was transferred"] += 1

    def _give_up(self, number: int, owner: Owner, fate: Fate) -> None:
        """To one that knows more; until that is done nobody is let go, or counted in but that one."""
        node = self.node(number)
        for target in to_take_back(owner.holders, owner.diverged)[:1]:
            knows_less = target in self.aged
            self._change(node, owner, in_sync.admit, target, fate)
            if not knows_less:
                self.aged.discard(target)
            return
        for target in sorted(owner.diverged):
            if node.owner is owner and target in self.record.in_sync and target in self.leased:
                self.transfer(number, self.names.index(target))

    def publish(self, number: int, fate: Fate = Fate.DONE) -> None:
        """The manifest registers what its owner has shown."""
        node, record = self.node(number), self.record
        owner = node.owner
        if owner is None or owner.epoch != record.epoch or not owner.may_answer:
            return
        if owner.shown_next <= record.published_next:
            return
        upto = owner.shown_next

        def change(before: StreamRecord) -> StreamRecord:
            return replace(before, version=before.version + 1, published_next=upto)

        try:
            made = self.shared.transact(change, fate)
        except NoReply:
            return
        owner.published_next, owner.version = made.published_next, made.version
        node.disk = replace(node.disk, version=made.version, published_next=made.published_next)

    def leave_clean(self, number: int, fate: Fate = Fate.DONE) -> None:
        """By an owner that has stopped; if it is refused the stream stays dirty."""
        node = self.node(number)
        owner = node.owner
        if owner is None:
            return
        chunks, waits = node.disk.chunks, owner.waited is not None
        end = chunks[-1].next_offset if chunks else owner.opening.published_next
        if not in_sync.holds_all(waits=waits, committed=owner.committed, synced=owner.written):
            return

        def left() -> None:
            """Coordination has what is known of producers."""
            self.left |= {one for one in chunks if one.next_offset == one.first}

        if self.changed(node, in_sync.leave_clean, end, fate=fate, then=left) is not None:
            self.events["a stream was left clean"] += 1
        node.stop_owning()

    def take_over(self, to: int, fate: Fate = Fate.DONE) -> None:
        """By an operator, who names a member that goes on with what it has."""
        record, target = self.record, self.node(to)
        if not record.dirty or target.name not in record.members:
            return
        fenced = replace(record, epoch=record.epoch + 1)

        def change(before: StreamRecord) -> StreamRecord:
            return in_sync.take_over(before, fenced, self.leased, target.name)

        def then() -> None:
            assert not self.leased & set(record.in_sync), "what a living node has was given up"
            self._accept_what(target)

        try:
            self.shared.transact(change, fate, record.in_sync, then)
        except (Refused, NoReply):
            return

    def _accept_what(self, target: Node) -> None:
        """Nobody lives that has everything, and what is not at the one that was named is given up."""
        held = set(target.disk.chunks[: target.synced])
        published = self.record.published_next
        for offset, chunk in list(self.acknowledged.items()):
            if offset >= published and chunk not in held:
                del self.acknowledged[offset]
        self.shown = {
            place: one
            for place, one in self.shown.items()
            if one in held or one.first < one.next_offset <= published
        }
        self.events["a member was named by an operator"] += 1


def _epochs_in(chunks: tuple[Chunk, ...]) -> tuple[EpochStart, ...]:
    firsts: dict[int, EpochStart] = {}
    for one in chunks:
        firsts.setdefault(one.epoch, EpochStart(one.epoch, one.first))
    return tuple(firsts.values())


def has_all(owner: Owner, node: NodeId) -> bool:
    """Whether a node has all that was written, as far as its owner heard."""
    end: Place | None = owner.said.get(node, Said()).end
    return end is not None and end >= owner.written
