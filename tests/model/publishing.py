"""The rules of publishing: uploads, sessions, claims, two processes, faults and crashes.

The oracle is what an uploader did: which fragments it put and registered, which epoch was to
write which offsets, and a plain list of what was seen in the manifest so far.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.manifest import NODE, OWNER, STREAM, Crash, Fault, GapRange, ManifestHarness

from bottomless.errors import Fenced, Overloaded, Unavailable
from bottomless.formats.keys import FragmentPlace, fragment_place
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import TENANT_DEFAULT, Uid
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.committer import Committer

T = TypeVar("T")

RECORDS = 10
"""Of each fragment, so that epochs start at multiples of it."""
RESERVE = 1_000
HOUR = 3_600_000
DAY = 24 * HOUR
START = 10**11
"""Of the clock: later than any timestamp of a record."""
FAULTS = [
    [Fault.UNAVAILABLE],
    [Fault.LOST_APPLIED],
    [Fault.LOST_LATE],
    [Fault.LOST_APPLIED, Fault.UNAVAILABLE],
    [Fault.LOST_LATE, Fault.UNAVAILABLE],
    [Fault.LOST_LATE, Fault.LOST_LATE],
]


class Publishing(RuleBasedStateMachine):
    steps = 0
    """Taken by all machines of this process."""
    events: Counter[str] = Counter()  # noqa: RUF012  counted over all machines, like the steps
    """How often the ways were taken that matter: a model that never comes there proves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.harness = ManifestHarness(manifest_debounce_count=3, manifest_held_count_max=64)
        self.harness.clock.now = START
        self.deleter = Deleter(self.harness.context)
        self.committers: list[Committer] = []
        self.sessions = 0
        self.begun = False
        self.cut_next = 0
        self.epochs = [(1, 0)]
        self.put: dict[Uid, FragmentInfo] = {}
        self.waiting: list[FragmentInfo] = []
        """Put, and not known to be applied by the session that put them."""
        self.applied: set[Uid] = set()
        self.seen: list[FragmentInfo | GapRange] = []
        """All that was ever in the manifest, also what was cut off since."""
        self.floor = 0
        self.refusals = 0
        """What the deleter was rightly asked in vain."""
        self.last = (0, 0, 0, 0, 0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        # Not by a runner, which asks for and sets a handler of signals each time: half of all time.
        return self.loop.run_until_complete(work)

    def quietly(self, work: Coroutine[Any, Any, T]) -> T:
        """Without the faults that wait for the next thing: it is not the process under test."""
        coordination, fuse = self.harness.coordination, self.harness.fuse
        faults, coordination.faults = coordination.faults, []
        left, fuse.left = fuse.left, None
        try:
            return self.run(work)
        finally:
            coordination.faults, fuse.left = faults, left

    def attempt(self, which: int, work: Coroutine[Any, Any, T]) -> T | None:
        """One process does something; None where it fails, or is gone before it is done."""
        try:
            return self.run(work)
        except (Unavailable, Fenced, Overloaded):
            return None
        except Crash:
            self.crash(which)
            return None

    def crash(self, which: int) -> None:
        self.events["a process crashed"] += 1
        self.committers[which] = self.open()

    def teardown(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    @initialize()
    def create(self) -> None:
        self.run(self.harness.open(session="s0", home=NODE, reserved_next=RESERVE))
        self.committers = [self.open(), self.open()]
        self.begun = True

    def open(self) -> Committer:
        return self.quietly(Committer.open(self.harness.context, STREAM))

    def epoch_of(self, offset: int) -> int:
        return [epoch for epoch, start in self.epochs if start <= offset][-1]

    @property
    def session(self) -> str:
        return f"s{self.sessions}"

    @rule(count=st.integers(1, 5), which=st.integers(0, 1), register=st.booleans())
    def upload(self, count: int, which: int, register: bool) -> None:
        """Ask for uids, put fragments, and perhaps register them, the last one first."""
        if not self.begun:
            self.begin_session(which, owner_answers=True)
        firsts = [self.cut_next + n * RECORDS for n in range(count)]
        committer = self.committers[which]
        uids = self.attempt(which, self.intend(committer, firsts))
        if uids is None:
            return
        for uid, first in zip(uids, firsts, strict=True):
            info = self.quietly(self.put_fragment(uid, first))
            if info is None:
                # An uploader that cannot put goes on with a new session.
                self.begun = False
                break
            self.put[uid] = info
            self.waiting.append(info)
        self.cut_next += count * RECORDS
        self.reserve(self.cut_next)
        for number in range(min(count, len(self.waiting)) if register else 0):
            self.register(which, [-1 - number])

    async def intend(self, committer: Committer, firsts: Sequence[int]) -> tuple[Uid, ...]:
        return await intend(self.harness.context, committer, self.session, firsts)

    async def put_fragment(self, uid: Uid, first: int) -> FragmentInfo | None:
        """Put what an intent is about; None where its drive is away."""
        return await self.harness.put_fragment(
            uid, first, epoch=self.epoch_of(first), timestamp=first * 1_000
        )

    def reserve(self, next_offset: int) -> None:
        """The owner has reserved what it acknowledged; nobody publishes beyond."""

        def more(record: StreamRecord) -> StreamRecord:
            reserved = max(record.reserved_next, next_offset + RESERVE)
            return replace(record, home=NODE, dirty=True, reserved_next=reserved)

        self.quietly(self.harness.streams.update(STREAM, more))

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 1), picks=st.lists(st.integers(0, 9), min_size=1, max_size=5))
    def register(self, which: int, picks: list[int]) -> None:
        """Register some of what was put, in any order, perhaps again, with either process."""
        chosen = [self.waiting[pick % len(self.waiting)] for pick in picks if self.waiting]
        work = self.committers[which].register(self.session, chosen)
        if self.attempt(which, work) is not None:
            self.note(self.committers[which])

    @precondition(lambda self: self.waiting)
    @rule(first=st.integers(0, 1), share=st.integers(1, 5))
    def race(self, first: int, share: int) -> None:
        """One process hears of some fragments, the other of all; then both publish."""
        self.register(1 - first, list(range(share)))
        self.register(first, list(range(len(self.waiting))) or [0])
        self.time_comes(first)
        self.time_comes(1 - first)

    @rule(which=st.integers(0, 1))
    def time_comes(self, which: int) -> None:
        committer = self.committers[which]
        self.harness.clock.now = max(self.harness.clock.now, committer.wake_at or 0) + 1
        self.attempt(which, committer.wake())
        self.note(self.committers[which])

    @rule()
    def all_is_well_for_a_while(self) -> None:
        """Without faults everything that can be published is, whatever happened before."""
        self.harness.coordination.faults, self.harness.fuse.left = [], None
        for which in (0, 1):
            for _ in range(3):
                self.time_comes(which)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 1), faults=st.sampled_from(FAULTS))
    def publish_with_faults(self, which: int, faults: list[Fault]) -> None:
        """The first EXEC meets a fault, and perhaps the one that decides it does too."""
        self.harness.coordination.faults = list(faults)
        self.register(which, list(range(len(self.waiting))))
        self.time_comes(which)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 1), share=st.integers(1, 2), ahead=st.integers(0, 1))
    def publish_after_a_claim(self, which: int, share: int, ahead: int) -> None:
        """A new owner comes between the plan and its EXEC."""
        self.register(which, list(range(share)))
        self.claim(ahead)
        self.time_comes(which)

    @precondition(lambda self: self.waiting and self.begun)
    @rule(which=st.integers(0, 1), share=st.integers(1, 2))
    def publish_what_was_given_up(self, which: int, share: int) -> None:
        """A new session gives up what one process holds; then that process would publish it."""
        self.register(which, list(range(share)))
        self.begin_session(1 - which, owner_answers=False)
        self.time_comes(which)

    def note(self, committer: Committer) -> None:
        outcomes = {fragment.uid: committer.outcome(fragment.uid) for fragment in self.waiting}
        self.applied |= {uid for uid, outcome in outcomes.items() if outcome is True}
        self.waiting = [f for f in self.waiting if outcomes[f.uid] is not True]
        if any(isinstance(outcome, str) for outcome in outcomes.values()):
            # An uploader that is refused begins a new session.
            self.begun = False

    @rule(faults=st.sampled_from(FAULTS))
    def next_exec_meets(self, faults: list[Fault]) -> None:
        self.harness.coordination.faults = list(faults)

    @rule(left=st.integers(0, 8))
    def a_process_crashes_soon(self, left: int) -> None:
        """Before or after the next things that it changes in a store."""
        self.harness.fuse.left = left

    @rule(
        kind=st.sampled_from(["late", "crash", "claim"]),
        which=st.integers(0, 1),
        ahead=st.integers(0, 4),
    )
    def trouble(self, kind: str, which: int, ahead: int) -> None:
        match kind:
            case "late":
                self.late_exec_arrives()
            case "crash":
                self.crash(which)
            case _:
                self.claim(ahead)

    def late_exec_arrives(self) -> None:
        self.events["a late EXEC arrived in vain"] += self.harness.coordination.arrive() == 0

    @rule(which=st.integers(0, 1), owner_answers=st.booleans())
    def begin_session(self, which: int, owner_answers: bool) -> None:
        self.sessions += 1
        self.begun = False
        self.waiting = []
        committed = {STREAM: max([0, *(f.next_offset for f in self.put.values())])}
        self.harness.owners.committed = committed if owner_answers else {}
        work = begin(self.harness.context, self.committers[which], self.session)
        record = self.attempt(which, work)
        if record is None:
            return
        assert all(intent.session == self.session for intent in record.intents)
        self.cut_next = record.published_next
        self.begun = True

    def claim(self, ahead: int) -> None:
        """A new owner starts `ahead` fragments after what is published; the rest was lost."""
        starts: list[int] = []

        def take(record: StreamRecord) -> StreamRecord:
            start = max(record.published_next + ahead * RECORDS, self.epochs[-1][1])
            starts.append(start)
            epochs = (*record.epochs, EpochStart(record.epoch + 1, start))
            return replace(
                record, epoch=record.epoch + 1, epochs=epochs, owner_url=OWNER, home=NODE
            )

        record = self.quietly(self.harness.streams.update(STREAM, take))
        self.epochs.append((record.epoch, starts[-1]))
        self.begun = False

    def hours_pass(self, hours: int = 3) -> None:
        self.harness.clock.now += hours * HOUR
        try:
            self.run(self.deleter.make_pass())
        except Unavailable:
            pass
        except Crash:
            self.events["the deleter crashed"] += 1
            refused = self.deleter.refused_count
            self.deleter = Deleter(self.harness.context)
            self.deleter.refused_count = refused

    def as_put(
        self, record: StreamRecord, leaves: Sequence[FragmentInfo | GapRange]
    ) -> list[FragmentInfo | GapRange]:
        """What the manifest names, as it was when it was put."""
        del record
        return list(leaves)

    def known_place(self, leaf: FragmentInfo) -> FragmentPlace:
        """Where a fragment lies that is in the list."""
        return fragment_place(STREAM, leaf, TENANT_DEFAULT)

    def drive(self, number: int) -> MemoryDrive:
        """A drive, whether it is away or not."""
        del number
        return self.harness.drive

    @invariant()
    def what_is_committed_is_what_the_list_says(self) -> None:
        if not self.committers:
            return
        Publishing.steps += 1
        record = self.quietly(self.harness.record())
        leaves = self.as_put(record, self.quietly(self.harness.entries()))
        floor = record.published_next if not leaves else leaves[0].first_offset
        known = [leaf for leaf in self.seen if leaf.first_offset >= floor]
        assert leaves[: len(known)] == known, "the manifest changed behind its end"
        self.seen += leaves[len(known) :]
        end = floor
        self.events["the floor moved"] += floor > self.floor
        for leaf in leaves:
            assert leaf.first_offset == end, "there is a hole"
            end = leaf.next_offset
            if isinstance(leaf, GapRange):
                self.events["a gap was read over"] += 1
                continue
            assert leaf == self.put[leaf.uid]
            assert leaf.epoch == self.epoch_of(leaf.first_offset)
            drive, object_key = self.known_place(leaf)
            facts = self.quietly(self.drive(drive).head(object_key, checksum=True))
            assert (facts.size, facts.crc) == (leaf.size, leaf.crc)
        assert end == record.published_next <= record.reserved_next
        assert record.condemned_next <= floor
        there = {leaf.uid for leaf in leaves if isinstance(leaf, FragmentInfo)}
        gone = {uid for uid, info in self.put.items() if info.next_offset <= floor}
        assert self.applied <= there | gone, "said to be applied, and is not there"
        now = (record.version, record.published_next, record.epoch, floor, record.condemned_next)
        assert all(a <= b for a, b in zip(self.last, now, strict=True)), "something went back"
        self.last, self.floor = now, floor
        given_up = {intent.uid for intent in record.quarantine}
        live = {intent.uid for intent in record.intents}
        assert not given_up & there
        assert not live & there
        assert self.deleter.refused_count == self.refusals
