"""The rules of takeovers, and what a rebuild would make of the bucket, beside the same list.

Coordination is lost in thought only: a copy of both stores is kept, everything is forgotten and
rebuilt, the result is compared with the list, and the copy is put back. So each state that the
other rules reach is also looked at as the last one before a loss, and the run goes on from it.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from support.manifest import (
    NODE,
    OWNER,
    STREAM,
    Fault,
    GapRange,
    KnownOwners,
    damage_a_neighbour,
    from_the_first_start,
)
from support.rebuilding import put_registry, rebuild

from bottomless.errors import StoreError, Unavailable
from bottomless.formats.keys import FragmentPlace, fragment_place
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import TENANT_DEFAULT, Uid
from bottomless.model.stream import StreamRecord, gap_due
from bottomless_server.manifest.mutators.freeing import free
from bottomless_server.manifest.mutators.sessions import begin
from bottomless_server.manifest.mutators.takeover import take_over
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.node.core.ownership import LocalView, claim
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.streams import deletes_key, node_key
from model.publishing import HOUR
from model.retention import Removing

T = TypeVar("T")
Leaf = TypeVar("Leaf", bound=FragmentInfo | GapRange)


class Pass(NamedTuple):
    """A pass of the deleter within which coordination is lost."""

    of: str
    """It is lost just before a delete lands of a key that has this in it."""
    gives_up: bool
    """Whether a session has given up before what is not published; else garbage was collected."""


class ManifestBesideAList(Removing):
    def __init__(self) -> None:
        super().__init__()
        self.fenced: StreamRecord | None = None
        """What the record was before the fence of a takeover whose gap is due."""

    @initialize()
    def create(self) -> None:
        super().create()
        self.quietly(self._tie())
        self.quietly(damage_a_neighbour(self.harness))

    async def _tie(self) -> None:
        harness = self.harness
        harness.streams.generation = await check_generation(harness.drive, harness.coordination)
        await put_registry(harness, await harness.record())

    @rule(which=st.integers(0, 1))
    def take_over(self, which: int) -> None:
        """The home is silent; what it holds alone is given up."""
        self.try_to_take_over(which)

    @rule(
        which=st.integers(0, 1),
        fails=st.sampled_from(["home comes back", "crash", "no answer", "lost reply", "slow put"]),
        step=st.integers(0, 5),
    )
    def a_takeover_fails(self, which: int, fails: str, step: int) -> None:
        """It is refused, or ends, at some step; the home lives on, and the next rules publish."""
        harness = self.harness
        match fails:
            case "home comes back" if step % 2:
                harness.drive.before_put = self.home_comes_back
            case "home comes back":
                harness.coordination.before_transact = self.home_comes_back
            case "crash":
                harness.fuse.left = step
            case "no answer":
                harness.coordination.faults = [Fault.NONE] * (step % 3) + [Fault.UNAVAILABLE]
            case "lost reply":
                harness.coordination.faults = [Fault.NONE] * (step % 3) + [Fault.LOST_LATE]
            case _:
                harness.drive.slow_puts = 1
        self.try_to_take_over(which)
        harness.drive.before_put, harness.drive.slow_puts = None, 0
        harness.coordination.before_transact = None
        harness.coordination.faults, harness.fuse.left = [], None
        self.quietly(harness.coordination.release(node_key(NODE), b"x"))

    async def home_comes_back(self) -> None:
        await self.harness.coordination.hold(node_key(NODE), b"x", 10_000)

    @rule()
    def slow_puts_land(self) -> None:
        self.events["a slow put landed"] += self.quietly(self.harness.drive.land()) > 0

    def try_to_take_over(self, which: int) -> None:
        before = self.quietly(self.harness.record())
        if gap_due(before) is not None:
            # The operation that was cut off goes on.
            self.attempt(which, self.go_on(which))
        else:
            work = take_over(self.harness.context, self.committers[which], NODE, before.epoch)
            self.attempt(which, work)
        self.note(self.committers[which])
        record = self.quietly(self.harness.record())
        self.events["a takeover did not happen"] += record.epoch == before.epoch
        if self.fenced is not None:
            self.begun = False

    async def go_on(self, which: int) -> None:
        committer = self.committers[which]
        await committer.refresh()
        await free(self.harness.context, committer)

    def attempt(self, which: int, work: Coroutine[Any, Any, T]) -> T | None:
        """What anybody does may be the fence of a takeover, or its end."""
        before = self.quietly(self.harness.record())
        done = super().attempt(which, work)
        record = self.quietly(self.harness.record())
        if gap_due(record) is not None and self.fenced is None:
            self.events["a takeover was cut off after its fence"] += 1
            self.fenced = before if before.epoch < record.epoch else record
        if record.home is None:
            self.taken_over(self.fenced or before, record)
            self.fenced = None
        return done

    def taken_over(self, before: StreamRecord, record: StreamRecord) -> None:
        """What was durable when the home lost the stream is kept, all else is in the gap."""
        self.events["a takeover happened"] += 1
        end = before.reserved_next if before.dirty else record.published_next
        assert record.published_next == end
        if before.dirty:
            leaves = self.quietly(self.harness.leaves())
            kept_next = max([before.published_next, *(leaf.next_offset for leaf in leaves)])
            durable_next = self.durable_next(before)
            self.events["a takeover adopted"] += durable_next > before.published_next
            assert kept_next >= durable_next, "a takeover threw away what was durable"
        self.epochs.append((record.epoch, record.published_next))
        self.begun = False
        self.reserve(record.published_next)

    def durable_next(self, record: StreamRecord) -> int:
        """The end of the run of fragments that were put under live intents, of the right epochs."""
        end, live = record.published_next, {intent.uid for intent in record.intents}
        while fitting := [
            info.next_offset
            for uid, info in self.put.items()
            if uid in live
            and self.is_durable(uid)
            and info.first_offset == end
            and info.epoch == self.epoch_of(end) == self.epoch_of(info.next_offset - 1)
        ]:
            end = max(fitting)
        return end

    def is_durable(self, uid: Uid) -> bool:  # noqa: ARG002
        """Whether what was put may be there still."""
        return True

    def claim(self, ahead: int) -> None:
        if self.fenced is None:
            super().claim(ahead)
            return
        record = self.quietly(self.harness.record())
        local = LocalView(record.published_next, False)
        with pytest.raises(Unavailable):
            claim(record, NODE, OWNER, local, home_held=False)

    def reserve(self, next_offset: int) -> None:
        """Of a stream that nobody owns nobody reserves."""
        if gap_due(self.quietly(self.harness.record())) is None:
            super().reserve(next_offset)

    @precondition(lambda self: self.seen)
    @rule()
    def coordination_could_be_lost_now(self) -> None:
        """All that was published is there after a rebuild, and its home can claim the stream."""
        self.imagine(None)
        self.events["coordination was rebuilt"] += 1

    @precondition(lambda self: self.seen)
    @rule(pick=st.integers(0, 99))
    def a_fragment_and_coordination_could_be_lost_now(self, pick: int) -> None:
        """The bucket loses one published fragment; a rebuild gives up no other one, and nothing
        else stands in its place."""
        leaves = self.quietly(self.harness.leaves())
        if leaves:
            self.imagine(leaves[pick % len(leaves)])
            self.events["a fragment was lost before a rebuild"] += 1

    @precondition(lambda self: self.seen)
    @rule(of=st.sampled_from(["/data/", ".g", "/metadata/root."]), gives_up=st.booleans())
    def coordination_could_be_lost_within_a_pass_of_the_deleter(
        self, of: str, gives_up: bool
    ) -> None:
        """A session gives up what is not published, or garbage is collected, and a day later all of
        that goes."""
        harness = self.harness
        context, now = harness.context, harness.clock.true_now
        # What is believed of the clock goes back with the clock.
        harness.context = replace(context, owners=KnownOwners(), table=context.drives)
        from_the_first_start(harness.context)
        try:
            self.imagine(None, Pass(of, gives_up))
        finally:
            harness.context, harness.clock.true_now = context, now

    @precondition(lambda self: self.fenced is None)
    @rule(which=st.integers(0, 1), count=st.integers(1, 3))
    def a_publish_dies_and_coordination_could_be_lost(self, which: int, count: int) -> None:
        """What it has put is collected, and coordination is lost just before a group of it goes."""
        self.all_is_well_for_a_while()
        self.upload(count, which, register=True)
        self.harness.coordination.faults = [Fault.UNAVAILABLE]
        self.time_comes(which)
        self.harness.coordination.faults = []
        self.crash(which)
        if self.seen:
            self.coordination_could_be_lost_within_a_pass_of_the_deleter(".g", gives_up=False)

    @precondition(lambda self: self.fenced is None)
    @rule(
        which=st.integers(0, 1),
        deposed=st.integers(1, 3),
        count=st.integers(1, 3),
        pick=st.integers(0, 2),
    )
    def what_is_published_over_a_deposed_owner_could_be_lost(
        self, which: int, deposed: int, count: int, pick: int
    ) -> None:
        """The publish of one owner dies, the next one publishes at the same offsets, and then one
        fragment of that is lost; or one of what the first owner had put."""
        self.all_is_well_for_a_while()
        before = set(self.put)
        self.upload(deposed, which, register=True)
        unpublished = [info for uid, info in self.put.items() if uid not in before]
        self.harness.coordination.faults = [Fault.UNAVAILABLE]
        self.time_comes(which)
        self.harness.coordination.faults = []
        self.crash(which)
        self.claim(0)
        self.upload(count, which, register=True)
        self.all_is_well_for_a_while()
        self.what_is_committed_is_what_the_list_says()
        if leaves := self.quietly(self.harness.leaves())[-count:]:
            self.imagine(leaves[pick % len(leaves)])
            self.events["a fragment was lost where a deposed owner had put another"] += 1
        for info in unpublished:
            self.imagine(info)

    def imagine(self, gone: FragmentInfo | None, under_way: Pass | None = None) -> None:
        """Coordination is lost, and perhaps a fragment, and everything is put back afterwards."""
        harness = self.harness
        before = self.quietly(harness.record())
        coordination, put_back = harness.coordination.copy(), self.copy_of_drives()
        try:
            self.quietly(self.lose_and_compare(before, gone, under_way))
        finally:
            harness.coordination.put_back(coordination)
            put_back()
            harness.streams.generation = 0

    def copy_of_drives(self) -> Callable[[], None]:
        """Copy all that is stored; what is returned puts it back."""
        bucket = self.harness.drive.copy()
        return lambda: self.harness.drive.put_back(bucket)

    async def lose_coordination(self) -> None:
        self.harness.coordination.lose()
        await rebuild(self.harness)

    def bare(self, leaf: Leaf) -> Leaf:
        """What the manifest names, without where it lies."""
        return leaf

    async def check_doomed(self, places: set[FragmentPlace], under_way: Pass | None) -> None:
        """What waits to be deleted after a rebuild, and was published, and is named."""
        del under_way
        assert not places, "published, and doomed by a rebuild"

    def is_kept(self, leaf: FragmentInfo, found: Sequence[FragmentInfo]) -> bool:
        """Whether a rebuild has kept what was published, by what it found."""
        return leaf in found

    def is_given_up(self, leaf: FragmentInfo, leaves: Sequence[FragmentInfo | GapRange]) -> bool:  # noqa: ARG002
        """Whether a rebuild was right to have a gap where something was published."""
        return False

    async def _lose_within_a_pass(self, under_way: Pass) -> None:
        drive, context = self.harness.drive, self.harness.context
        with suppress(StoreError):
            if under_way.gives_up:
                await begin(context, await Committer.open(context, STREAM), "the next one")
            else:
                await self.collected(1_000, dry=False)
        self.harness.clock.true_now += 24 * HOUR
        drive.before_delete, drive.before_delete_of = self.lose_coordination, under_way.of
        # What comes after the loss finds another coordination than the pass began with.
        with suppress(StoreError):
            await Deleter(context).make_pass()
        if drive.before_delete is not None:
            drive.before_delete, drive.before_delete_of = None, ""
            await self.lose_coordination()
            return
        drive.before_delete_of = ""
        self.events["a delete was under way in a rebuild"] += 1

    async def lose_and_compare(
        self, before: StreamRecord, gone: FragmentInfo | None, under_way: Pass | None
    ) -> None:
        harness = self.harness
        if gone is not None:
            gone = self.bare(gone)
            drive, object_key = self.known_place(gone)
            await self.drive(drive).delete([object_key])
        if under_way is None:
            await self.lose_coordination()
        else:
            await self._lose_within_a_pass(under_way)
        record, named_now = await harness.record(), await harness.entries()
        leaves = [self.bare(leaf) for leaf in named_now]
        floor = max(self.floor, leaves[0].first_offset if leaves else record.published_next)
        known = [f for f in self.seen if isinstance(f, FragmentInfo) and f.first_offset >= floor]
        found = [leaf for leaf in leaves if isinstance(leaf, FragmentInfo)]
        places = {
            f.uid: fragment_place(STREAM, f, TENANT_DEFAULT)
            for f in named_now
            if isinstance(f, FragmentInfo)
        }
        missing = [
            f
            for f in found
            if f != gone and not self.drive(places[f.uid].drive).has(places[f.uid].object_key)
        ]
        assert not missing, f"a rebuild names what is not there: {missing[0]}"
        removed = [leaf for leaf in leaves if leaf.next_offset <= self.floor]
        assert not removed, f"removed, and brought back: {removed[0]}"
        given_up = [f for f in known if self.is_given_up(f, leaves)]
        lost = [f for f in known if f not in (gone, *given_up) and not self.is_kept(f, found)]
        assert not lost, f"published, and lost by a rebuild: {lost[0]}"
        doomed = {
            FragmentPlace(number, due.member.decode())
            for number in harness.context.drives.numbers
            for due in await harness.coordination.due(deletes_key(number), 2**52, 999)
        }
        still = [f for f in known if f in found or f == gone]
        named = {places.get(f.uid) or self.known_place(f) for f in still}
        await self.check_doomed(doomed & named, under_way)
        if gone is not None:
            # What another upload holds of the same owner's offsets is the same records.
            others = [
                leaf
                for leaf in leaves
                if gone in known and gone not in given_up
                if leaf.first_offset < gone.next_offset and gone.first_offset < leaf.next_offset
                if not isinstance(leaf, FragmentInfo) or leaf.epoch != gone.epoch
            ]
            assert not others, f"in the place of a lost fragment stands another: {others[0]}"
            return
        # What the home has beyond is on its disk only: it must be let in again.
        end = max([before.published_next, *(f.next_offset for f in self.put.values())])
        local = LocalView(end, False, before.epoch, before.version, before.published_next)
        if self.fenced is not None:
            return
        try:
            claim(record, NODE, OWNER, local, home_held=False)
        except StoreError as error:
            raise AssertionError(f"its home is refused after a rebuild: {error}") from error
