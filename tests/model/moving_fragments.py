"""The rules of moves: entered, taken up, copied, named, given up; by policy, by hand, promoted.

A mover may end between any two of its steps, and another one goes on. What is put late, of a move that
was given up meanwhile, is put before the longest upload is over.
"""

from collections.abc import Sequence
from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from support.manifest import STREAM, Fault

from bottomless.errors import Exists, StoreError
from bottomless.formats.keys import fragment_place
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MOVE_COUNT_MAX
from bottomless.model.names import TENANT_DEFAULT, Uid
from bottomless.model.tiers import Move
from bottomless_server.manifest.mutators.moves import (
    Claimed,
    Wanted,
    claim,
    enter,
    finish,
    give_up,
)
from bottomless_server.manifest.mutators.tiering import evaluate
from bottomless_server.manifest.tree.core.drive_totals import find_drive_totals
from bottomless_server.manifest.tree.resolver import load_root
from model.publishing import FAULTS, HOUR
from model.shelves import COLD, HOT, POLICIES, SHELF, OverShelves

DRIVES = st.sampled_from([HOT, SHELF, COLD])
PROCESS = st.integers(0, 1)
MOVERS = st.sampled_from(["m1", "m2"])
SHARES = st.integers(0, 19)


class Moving(OverShelves):
    def __init__(self) -> None:
        super().__init__()
        self.copied: dict[tuple[int, str], set[Uid]] = {}
        """What a mover has copied of a move."""
        self.heard: dict[int, int] = {}
        """When a mover has said last that it is at a move, by the number of it."""

    def under_way(self) -> list[Move]:
        return list(self.quietly(self.harness.record()).moves)

    def piece(self, share: int, count: int) -> list[FragmentInfo]:
        """`count` neighbours on one drive, from `share` twentieths of what is published on."""
        fragments = [leaf for leaf in self.published() if isinstance(leaf, FragmentInfo)]
        found = fragments[len(fragments) * share // 20 :][:count]
        first = [self.places[leaf.uid].drive for leaf in found[:1]]
        return [leaf for leaf in found if [self.places[leaf.uid].drive] == first]

    @rule(tiers=st.sampled_from(POLICIES))
    def the_policy_is(self, tiers: list[dict[str, object]]) -> None:
        self.tiers = tiers
        self.configure()

    @rule(which=PROCESS, share=SHARES, count=st.integers(1, 4), to=DRIVES, kept=st.booleans())
    def a_move_is_entered(self, which: int, share: int, count: int, to: int, kept: bool) -> None:
        self.enter(which, self.piece(share, count), to, kept)

    def enter(
        self, which: int, fragments: list[FragmentInfo], target: int, kept: bool = False
    ) -> int | None:
        """The number of the move; `kept` there for some hours, whatever the policy says."""
        if not fragments or self.places[fragments[0].uid].drive == target:
            return None
        source = self.places[fragments[0].uid].drive
        wanted = Wanted(fragments[0].first_offset, fragments[-1].next_offset, source, target)
        until = self.harness.clock.now + 4 * HOUR if kept else None
        context, committer = self.harness.context, self.committers[which]
        try:
            move = self.attempt(which, enter(context, committer, wanted, until))
        except Exists:
            # Its drive is retired, or was lost.
            return None
        return None if move is None else move.copy

    @precondition(lambda self: self.under_way())
    @rule(
        which=PROCESS,
        pick=st.integers(0, MOVE_COUNT_MAX - 1),
        mover=MOVERS,
        count=st.integers(0, 4),
        waits=st.booleans(),
    )
    def a_mover_copies(self, which: int, pick: int, mover: str, count: int, waits: bool) -> None:
        """Some of what its move is about; perhaps a minute later, as nobody is heard any more."""
        moves = self.under_way()
        self.harness.clock.now += 61_000 if waits else 0
        number = moves[pick % len(moves)].copy
        self.copy(which, number, mover, count)
        # The other one asks at once, and is refused.
        self.copy(1 - which, number, "m2" if mover == "m1" else "m1", 0)

    def copy(self, which: int, number: int, mover: str, count: int = 64) -> Claimed | None:
        context, committer = self.harness.context, self.committers[which]
        before = [move for move in self.under_way() if move.copy == number]
        at = context.elapsed()
        try:
            claimed = self.attempt(which, claim(context, committer, number, mover))
        except Exists:
            return None
        if claimed is None:
            return None
        last = before[0].session if before else None
        if last not in (None, mover) and number in self.heard:
            self.events["a mover took a move over"] += 1
            assert at - self.heard[number] >= 60_000, "two movers are at one move"
        self.heard[number] = at
        self.quietly(self.put_copies(claimed, mover, count))
        return claimed

    async def put_copies(self, claimed: Claimed, mover: str, count: int = 64) -> None:
        move = claimed.move
        copied = self.copied.setdefault((move.copy, mover), set())
        for info in claimed.fragments[:count]:
            target = info._replace(drive=move.to_drive, copy=move.copy)
            places = (fragment_place(STREAM, one, TENANT_DEFAULT) for one in (info, target))
            if await self.carry(*places):
                copied.add(info.uid)

    @precondition(lambda self: self.copied)
    @rule(which=PROCESS, pick=st.integers(0, 9), faults=st.sampled_from([[], *FAULTS]))
    def a_mover_says_what_it_has_copied(self, which: int, pick: int, faults: list[Fault]) -> None:
        """Perhaps of a move that has ended, or is another one's by now."""
        number, mover = [*self.copied][-1 - pick % len(self.copied)]
        self.harness.coordination.faults = list(faults)
        self.finish(which, number, mover)

    def ask(self, number: int, mover: str, moves: Sequence[Move]) -> frozenset[Uid]:
        """What a mover says it has copied of a move, which is to be finished now."""
        copied = frozenset(self.copied.get((number, mover), ()))
        self.asked.setdefault(number, []).append(copied)
        self.asked_at[number] = self.harness.clock.true_now
        self.moves |= {move.copy: move for move in moves}
        self.over -= {move.copy for move in moves}
        return copied

    def finish(self, which: int, number: int, mover: str) -> None:
        copied = self.ask(number, mover, self.under_way())
        context, committer = self.harness.context, self.committers[which]
        self.attempt(which, finish(context, committer, number, mover, copied))
        self.note(self.committers[which])

    @rule(
        which=PROCESS,
        share=SHARES,
        count=st.integers(1, 4),
        to=DRIVES,
        left=st.one_of(st.none(), st.integers(0, 20)),
        copies=st.sampled_from([1, 64]),
    )
    def a_move_is_made(
        self, which: int, share: int, count: int, to: int, left: int | None, copies: int
    ) -> None:
        """From the first step to the last; perhaps a process dies on the way, or some is copied only."""
        number = self.enter(which, self.piece(share, count), to)
        if number is None:
            return
        self.harness.fuse.left = left
        self.copy(which, number, "m1", copies)
        self.finish(1 - which, number, "m1")
        self.harness.fuse.left = None

    @rule(which=PROCESS, share=SHARES, count=st.integers(1, 4), to=DRIVES)
    def a_move_is_given_up_just_before_it_is_done(
        self, which: int, share: int, count: int, to: int
    ) -> None:
        """The other process does so between the plan and its EXEC."""
        number = self.enter(which, self.piece(share, count), to)
        if number is None or self.copy(which, number, "m1") is None:
            return

        async def given_up() -> None:
            with suppress(StoreError):
                await give_up(self.harness.context, self.committers[1 - which], number)
                self.over.add(number)

        self.harness.coordination.before_transact = given_up
        self.finish(which, number, "m1")
        self.harness.coordination.before_transact = None

    @rule(
        which=PROCESS,
        pick=st.integers(0, MOVE_COUNT_MAX - 1),
        late=st.booleans(),
        share=SHARES,
        to=DRIVES,
    )
    def a_move_is_given_up(self, which: int, pick: int, late: bool, share: int, to: int) -> None:
        """One that was just entered, or another. Perhaps its copies are on their way still."""
        self.enter(which, self.piece(share, 2), to)
        moves = self.under_way()
        if not moves:
            return
        number = moves[pick % len(moves)].copy
        context = self.harness.context
        claimed = self.copy(which, number, "m1", 0) if late else None
        if self.attempt(which, give_up(context, self.committers[which], number)) is None:
            return
        self.over.add(number)
        self.events["a move was given up"] += 1
        if claimed is not None and claimed.fragments:
            self.quietly(self.put_copies(claimed, "m1"))
            self.events["a copy was put of a move that was given up"] += 1

    @rule(which=PROCESS)
    def the_policy_is_evaluated(self, which: int) -> None:
        before = self.quietly(self.harness.record())
        now = self.harness.clock.now
        entered = self.attempt(which, evaluate(self.harness.context, self.committers[which]))
        held = [one[:2] for one in before.promoted if one.until > now]
        held += [(one.first_offset, one.next_offset) for one in before.moves]
        for move in entered or ():
            self.events["a policy moved fragments"] += 1
            for first, end in held:
                apart = move.next_offset <= first or end <= move.first_offset
                assert apart, "a policy moves what was promoted, or is moved already"

    @rule(
        which=PROCESS,
        share=SHARES,
        count=st.integers(1, 4),
        to=st.sampled_from([SHELF, COLD]),
        gone=st.booleans(),
    )
    def what_was_moved_away_is_moved_back(
        self, which: int, share: int, count: int, to: int, gone: bool
    ) -> None:
        """And away once more, within a pass of the deleter, just before what lay there the first time is
        gone; or the mount is `gone` during that pass."""
        self.all_is_well_for_a_while()
        self.what_is_committed_is_what_the_list_says()
        found = [leaf for leaf in self.piece(share, count) if self.places[leaf.uid].drive == HOT]
        for drive in (to, HOT):
            self.whole_move(which, found, drive)
        if not found or self.places[found[0].uid].drive != HOT:
            return
        self.harness.clock.now += 2 * HOUR

        async def away() -> None:
            self.events["a move was done within a pass of the deleter"] += 1
            await self.move_at_once(which, found, to)

        shelf = self.shelves[to]
        shelf.before_delete, shelf.is_gone = None if gone else away, gone or shelf.is_gone
        self.hours_pass(0)
        shelf.before_delete = None
        self.everything_comes_to_rest()

    @rule(which=PROCESS, share=SHARES, count=st.integers(1, 4), to=DRIVES)
    def a_job_has_been_told_where_something_lay(
        self, which: int, share: int, count: int, to: int
    ) -> None:
        """It holds a lease, and what it was told is moved; more than the grace passes."""
        found = self.piece(share, count)
        self.quietly(self.try_lease(share, 6))
        self.whole_move(which, found, to)
        self.hours_pass(2)

    @rule(which=PROCESS, share=SHARES, count=st.integers(1, 4), to=st.sampled_from([HOT, SHELF]))
    def something_is_promoted(self, which: int, share: int, count: int, to: int) -> None:
        """A policy that has it elsewhere is evaluated then."""
        self.the_policy_is([{"drive": f"d{COLD}"}])
        number = self.enter(which, self.piece(share, count), to, kept=True)
        if number is not None:
            self.copy(which, number, "m1")
            self.finish(which, number, "m1")
        self.the_policy_is_evaluated(which)

    def whole_move(self, which: int, fragments: list[FragmentInfo], target: int) -> None:
        self.quietly(self.move_at_once(which, fragments, target))
        self.what_is_committed_is_what_the_list_says()

    async def move_at_once(self, which: int, fragments: list[FragmentInfo], target: int) -> None:
        """All of a move, without any fault, where nothing is in its way."""
        context, committer = self.harness.context, self.committers[which]
        kept = [one for one in fragments if one.uid in self.places]
        if not kept or self.places[kept[0].uid].drive == target:
            return
        source = self.places[kept[0].uid].drive
        wanted = Wanted(kept[0].first_offset, kept[-1].next_offset, source, target)
        try:
            number = (await enter(context, committer, wanted)).copy
            await self.put_copies(await claim(context, committer, number, "m1"), "m1")
            copied = self.ask(number, "m1", (await self.harness.record()).moves)
            await finish(context, committer, number, "m1", copied)
        except StoreError:
            # A drive is away or closed, or as many moves are under way as may be.
            return

    @rule()
    def what_lies_on_each_drive_adds_up(self) -> None:
        """The sums that the groups say are those of the list."""
        found: dict[int, tuple[int, int, int]] = {}
        for leaf in self.published():
            if isinstance(leaf, FragmentInfo):
                drive = self.places[leaf.uid].drive
                count, size, records = found.get(drive, (0, 0, 0))
                found[drive] = (count + 1, size + leaf.size, records + leaf.record_count)
        assert self.quietly(self._sums()) == found, "bytes by drive do not add up"
        self.events["fragments lay on several drives"] += len(found) > 1

    async def _sums(self) -> dict[int, tuple[int, int, int]]:
        context = self.harness.context
        record, root = await load_root(context, await self.harness.record())
        descent = find_drive_totals(root, 1_000)
        found = await context.groups.descend(record.tenant, root, descent)
        sums = {
            number: (one.totals.fragment_count, one.totals.byte_size, one.totals.record_count)
            for number, one in found.items()
        }
        return {number: one for number, one in sums.items() if one[0]}
