"""The rules of removing: retention, trim, leases, the deleter, beside the same list.

What is held beside the manifest here: which leases were granted and when they run out, and
that every fragment that was ever published exists until it is condemned (architecture.md,
section 7: 4, 5 and 6).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from support.manifest import STREAM, Crash, Fault, GapRange

from bottomless.errors import OffsetGone, StoreError, Unavailable
from bottomless.model.config import RetentionConfig, parse_config
from bottomless.model.fragment import FragmentInfo
from bottomless.model.stream import Lease
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.mutators.retention import evaluate, preview, trim
from bottomless_server.manifest.operations.steps import Done
from bottomless_server.manifest.removal.garbage import GC, collect_step, gc_arguments
from bottomless_server.manifest.removal.range_leases import give_back, grant, renew
from bottomless_server.manifest.tree.core.retention_decision import RetentionDecision
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.streams import delete_later
from model.publishing import DAY, HOUR, Publishing


class Removing(Publishing):
    def __init__(self) -> None:
        super().__init__()
        self.leases: dict[str, Lease] = {}
        self.lease_count = 0

    def published(self) -> list[FragmentInfo | GapRange]:
        """What is in the manifest, as of the last look."""
        return [leaf for leaf in self.seen if leaf.first_offset >= self.floor]

    @rule(which=st.integers(0, 1), share=st.integers(0, 20), empty=st.booleans())
    def trim(self, which: int, share: int, empty: bool) -> None:
        """Everything below an offset that lies `share` twentieths into what is published."""
        end = self.quietly(self.harness.record()).published_next
        before = self.floor + (end - self.floor) * share // 20
        work = trim(self.harness.context, self.committers[which], before, allow_empty=empty)
        floor = self.attempt(which, work)
        if floor is None:
            return
        assert self.floor <= floor <= max(before, self.floor), "more than asked for"
        kept = self.quietly(self.harness.leaves())
        # What goes, goes from the front. The last fragment stays, of those that were there: the
        # other process may have added more since.
        old = [f for f in kept if isinstance(f, FragmentInfo) and f.first_offset < end]
        if kept and kept[0].next_offset <= before:
            assert old == kept[:1], "less than asked for"
        self.note(self.committers[which])

    @rule(
        which=st.integers(0, 1),
        share=st.integers(0, 20),
        by=st.sampled_from(["age", "bytes", "both"]),
    )
    def retention(self, which: int, share: int, by: str) -> None:
        """Limits that `share` twentieths of what is published are above; preview, then evaluate."""
        fragments = [leaf for leaf in self.published() if isinstance(leaf, FragmentInfo)]
        if not fragments:
            return
        first = fragments[len(fragments) * min(share, 19) // 20]
        retention = RetentionConfig(
            max_age=f"{(self.harness.clock.now - first.last_timestamp) // 1000}s"
            if by != "bytes"
            else None,
            max_bytes=max(sum(f.size for f in fragments) * (20 - share) // 20, 1)
            if by != "age"
            else None,
        )
        self.configure(retention=retention.model_dump())
        committer = self.committers[which]
        told = self.attempt(which, preview(self.harness.context, committer, None))
        work = evaluate(self.harness.context, self.committers[which])
        done = self.attempt(which, work)
        if done is not None:
            self.check_decision(done, retention)
            self.note(self.committers[which])
        if told is not None and done is not None and told.root.uid == done.root.uid:
            assert told.described() == done.described()

    def configure(self, **members: object) -> None:
        config = parse_config(members)
        self.quietly(
            self.harness.streams.update(STREAM, lambda record: replace(record, config=config))
        )

    def check_decision(self, decision: RetentionDecision, retention: RetentionConfig) -> None:
        """What was cut is what goes from the front of a list."""
        floor, end = decision.root.first_offset, decision.root.next_offset
        known = [leaf for leaf in self.seen if floor <= leaf.first_offset < end]
        if not known or known[-1].next_offset != end:
            return  # the end was published and cut in this very step
        kept = [leaf for leaf in known if isinstance(leaf, FragmentInfo)]
        seconds = retention.age_limit_seconds
        limit = None if seconds is None else decision.evaluated_at - seconds * 1000
        while len(kept) > 1:
            old = limit is not None and kept[0].last_timestamp < limit
            size = sum(fragment.size for fragment in kept)
            if not old and (retention.bytes_limit is None or size <= retention.bytes_limit):
                break
            kept.pop(0)
        live = [f for f in kept if f.first_offset >= decision.cut.floor]
        assert live == kept, "other fragments are gone than the list says"
        assert decision.cut.gone.fragment_count == len(
            [leaf for leaf in known if isinstance(leaf, FragmentInfo)]
        ) - len(kept)

    @rule(
        which=st.integers(0, 1),
        ahead_ms=st.sampled_from([2 * 60_000, 10 * 60_000, HOUR, 10 * DAY, 366 * DAY]),
        one_machine=st.booleans(),
        own_store=st.booleans(),
        minutes=st.sampled_from([0, 0, 15]),
    )
    def the_wall_clock_is_ahead_for_a_moment(
        self, which: int, ahead_ms: int, one_machine: bool, own_store: bool, minutes: int
    ) -> None:
        """It is set ahead, retention and the deleter run, and it is set right again.

        On one machine store and coordination are set with it: a directory has no other clock, and
        a store of one's own on that machine tells the same wrong time, for as long as it is wrong.
        """
        fragments = [leaf for leaf in self.published() if isinstance(leaf, FragmentInfo)]
        if not fragments:
            return
        oldest_ms = self.harness.clock.true_now - fragments[0].last_timestamp
        # What passes here, and the two minutes that are no doubt.
        too_old = oldest_ms // 1000 + 60 * (20 + minutes)
        self.configure(retention={"max_age": f"{too_old}s"})
        # How the clock stood before is known from earlier looks.
        self.quietly(self.harness.context.time.look())
        self.harness.clock.now += 11 * 60_000
        self.quietly(self.harness.context.time.look())
        self.harness.clock.skew_ms = ahead_ms
        self.harness.one_machine = one_machine
        self.harness.drive.has_own_clock = own_store or not one_machine
        for _ in range(minutes + 1):
            decision = self.attempt(which, evaluate(self.harness.context, self.committers[which]))
            # A gap at the front has no time, and goes.
            assert decision is None or not decision.by_age.gone.fragment_count, "it was not too old"
            self.harness.clock.now += 60_000 if minutes else 0
        self.hours_pass(0)
        self.harness.clock.skew_ms, self.harness.one_machine = 0, False
        self.note(self.committers[which])
        self.events["the clock was ahead"] += 1

    @rule(
        which=st.integers(0, 1),
        count=st.integers(1, 5),
        share=st.integers(10, 20),
        dies=st.booleans(),
    )
    def trim_while_the_other_publishes(
        self, which: int, count: int, share: int, dies: bool
    ) -> None:
        """The other process publishes between the plan of a trim and its EXEC; or it puts its root
        for the same version of the record, and dies."""
        other = self.committers[1 - which]
        self.upload(count, which, register=True)
        self.all_is_well_for_a_while()
        self.what_is_committed_is_what_the_list_says()
        self.upload(2, 1 - which, register=True)

        async def publish() -> None:
            self.harness.coordination.faults = [Fault.UNAVAILABLE] if dies else []
            await other.flush()
            self.harness.coordination.faults = []

        self.harness.drive.before_put = publish
        self.trim(which, share, empty=False)
        self.harness.drive.before_put = None
        if dies:
            self.crash(1 - which)
        else:
            self.note(other)

    @rule(share=st.integers(0, 25), hours=st.integers(1, 6))
    def lease(self, share: int, hours: int) -> None:
        """Anywhere from the first that ever was to the end, for as long as a lease may be at most."""
        self.quietly(self.try_lease(share, hours))

    async def try_lease(self, share: int, hours: int) -> None:
        record = await self.harness.record()
        first = record.published_next * min(share, 20) // 20
        self.lease_count += 1
        expires_at = self.harness.clock.now + hours * HOUR
        lease = Lease(f"ls_{self.lease_count}", first, record.published_next, expires_at, "job")
        try:
            await grant(self.harness.streams, STREAM, lease, await self.harness.context.time.over())
        except OffsetGone:
            assert first < record.condemned_next or self.harness.drive.deleting
            self.events["a condemned range was asked for"] += 1
        except StoreError:
            return
        else:
            self.leases[lease.lease_id] = lease

    @precondition(lambda self: self.leases)
    @rule(pick=st.integers(0, 9), renewed=st.booleans())
    def end_or_renew_a_lease(self, pick: int, renewed: bool) -> None:
        lease_id = sorted(self.leases)[pick % len(self.leases)]
        streams, clock = self.harness.streams, self.harness.clock
        if not renewed:
            del self.leases[lease_id]
            self.quietly(give_back(streams, STREAM, lease_id, clock()))
            return
        try:
            renewal = renew(streams, STREAM, lease_id, clock() + 5 * HOUR, clock())
            self.leases[lease_id] = self.quietly(renewal)
        except StoreError:
            assert self.leases.pop(lease_id).expires_at <= clock.now

    @rule(hours=st.integers(0, 3), share=st.one_of(st.none(), st.integers(0, 20)))
    def objects_are_deleted(self, hours: int, share: int | None) -> None:
        """A pass of the deleter; perhaps somebody asks for a lease just before it deletes."""
        if share is not None:
            wanted = share

            async def ask() -> None:
                self.harness.drive.deleting = True
                await self.try_lease(wanted, 6)
                self.harness.drive.deleting = False

            self.harness.drive.before_delete = ask
        self.hours_pass(hours)
        self.harness.drive.before_delete = None

    @precondition(lambda self: self.published())
    @rule(pick=st.integers(0, 99))
    def a_bug_elsewhere_queues_what_is_live(self, pick: int) -> None:
        """The deleter refuses, and says so."""
        leaves = [leaf for leaf in self.published() if isinstance(leaf, FragmentInfo)]
        if leaves:
            leaf = leaves[pick % len(leaves)]
            drive, object_key = self.known_place(leaf)
            if not self.is_refused(leaf):
                return
            self.harness.coordination.write(Changes(queued=[delete_later(object_key, 0, drive)]))
            self.quietly(self.deleter.make_pass())
            self.refusals += 1

    def is_refused(self, leaf: FragmentInfo) -> bool:
        """Whether the deleter says that it is a bug, where this is queued."""
        del leaf
        return True

    @rule(page_count=st.integers(2, 40), dry=st.booleans())
    def garbage_is_collected(self, page_count: int, dry: bool) -> None:
        """However young it is, in whatever state everything else is."""
        result = self.collect(page_count, dry)
        if result is not None:
            self.events["garbage was collected"] += bool(result["queued"])
            assert result["skipped"] == []
            assert not (dry and result["queued"])

    @rule(which=st.integers(0, 1), count=st.integers(1, 2), between=st.booleans())
    def garbage_is_collected_around_a_publish(self, which: int, count: int, between: bool) -> None:
        """An EXEC is on its way. It arrives between the two looks, or after both."""
        self.all_is_well_for_a_while()
        self.upload(count, which, register=True)
        self.harness.coordination.faults = [Fault.LOST_LATE, Fault.UNAVAILABLE]
        self.time_comes(which)
        self.harness.coordination.faults = []

        async def arrive() -> None:
            arrived = self.harness.coordination.arrive()
            self.events["a publish came between the looks"] += arrived

        self.harness.coordination.after_due_at = arrive if between else None
        self.garbage_is_collected(1_000, dry=False)
        self.harness.coordination.after_due_at = None
        self.late_exec_arrives()
        self.hours_pass(0)

    def collect(self, page_count: int, dry: bool) -> Mapping[str, Any] | None:
        """None where it fails: nobody is there who would do a step again."""
        try:
            return self.run(self.collected(page_count, dry))
        except (Unavailable, Crash):
            return None

    async def collected(self, page_count: int, dry: bool) -> Mapping[str, Any] | None:
        """The whole operation, and its result."""
        arguments = gc_arguments(dry_run=dry, minimum_age_ms=0, tenant=None)
        operation = Operation("op_1", GC, "default", None, 0, 0, arguments=arguments)
        while True:
            outcome = await collect_step(self.harness.context, operation, page_count)
            if isinstance(outcome, Done):
                return outcome.result
            operation = replace(operation, progress=outcome.progress)

    @rule()
    def everything_comes_to_rest(self) -> None:
        """What was removed long ago and is held by nobody is gone: the deleter does delete."""
        self.all_is_well_for_a_while()
        self.leases.clear()
        deleted = self.deleter.deleted_count
        self.harness.clock.now += 24 * HOUR
        while self.quietly(self.deleter.make_pass()):
            pass
        self.events["objects were deleted"] += self.deleter.deleted_count > deleted
        record = self.quietly(self.harness.record())
        left = self.quietly(self.harness.entries())
        floor = left[0].first_offset if left else record.published_next
        for leaf in self.seen:
            if isinstance(leaf, FragmentInfo) and leaf.next_offset <= floor:
                assert not self.stays(leaf), "a removed fragment stays for ever"

    def stays(self, leaf: FragmentInfo) -> bool:
        """Whether a removed fragment is there, where the deleter goes."""
        return self.exists(leaf)

    def exists(self, leaf: FragmentInfo) -> bool:
        drive, object_key = self.known_place(leaf)
        return self.drive(drive).has(object_key)

    @invariant()
    def nothing_goes_before_it_is_condemned_or_while_it_is_held(self) -> None:
        if not self.committers:
            return
        record = self.quietly(self.harness.record())
        now = self.harness.clock.now
        held = [lease.first_offset for lease in self.leases.values() if lease.expires_at > now]
        root = self.committers[0].keeper.root
        part = len(root.entries) > 0 and int(root.entries["first_offset"][0]) < root.first_offset
        self.events["a group was cut in part"] += part
        for leaf in self.seen:
            if isinstance(leaf, GapRange):
                continue
            self.events["a lease held what was removed"] += bool(
                held and min(held) < leaf.next_offset <= self.floor
            )
            if leaf.next_offset > min([record.condemned_next, *held]):
                assert self.exists(leaf), "it is gone and was held, or was not condemned"
