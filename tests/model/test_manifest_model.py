"""The manifest beside a plain list, through lost replies, crashes, two processes and new epochs.

The oracle knows only what an uploader did: which fragments it put and registered, and
which epoch was to write which offsets. After every step the whole committed manifest is
loaded from the drive, every checksum verified, and compared (architecture.md, section 7):

4. everything that the committed root names exists and matches; nothing reachable is deleted
5. durable first, visible second: a record never names what is not there
6. floor ≤ published ≤ reserved, and nothing goes back
7. sizes sum up; rebalancing neither loses nor reorders entries
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.manifest import OWNER, STREAM, Fault, World

from bottomless.errors import Fenced, Unavailable
from bottomless.formats.keys import fragment_key
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import Uid
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.manifest.committer import Committer
from bottomless_server.manifest.deleter import Deleter
from bottomless_server.manifest.sessions import begin, intend

T = TypeVar("T")

RECORDS = 10
"""Of each fragment, so that epochs start at multiples of it."""
HOURS = 3 * 3_600_000
FAULTS = [
    [Fault.UNAVAILABLE],
    [Fault.LOST_APPLIED],
    [Fault.LOST_LATE],
    [Fault.LOST_APPLIED, Fault.UNAVAILABLE],
    [Fault.LOST_LATE, Fault.UNAVAILABLE],
    [Fault.LOST_LATE, Fault.LOST_LATE],
]


class ManifestBesideAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world = World(manifest_debounce_count=3, manifest_held_count_max=64)
        self.deleter = Deleter(self.world.context)
        self.committers: list[Committer] = []
        self.sessions = 0
        self.begun = False
        self.cut_next = 0
        self.epochs = [(1, 0)]
        self.put: dict[Uid, FragmentInfo] = {}
        self.waiting: list[FragmentInfo] = []
        """Put, and not known to be applied by the session that put them."""
        self.applied: set[Uid] = set()
        self.seen: list[FragmentInfo] = []
        self.last = (0, 0, 0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.runner.close()

    @initialize()
    def create(self) -> None:
        self.run(self.world.open(session="s0"))
        self.committers = [self.open(), self.open()]
        self.begun = True

    def open(self) -> Committer:
        return self.run(Committer.open(self.world.context, STREAM))

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
        try:
            uids = self.run(intend(self.world.context, committer, self.session, firsts))
        except (Unavailable, Fenced):
            return
        for uid, first in zip(uids, firsts, strict=True):
            info = self.run(self.world.put_fragment(uid, first, epoch=self.epoch_of(first)))
            self.put[uid] = info
            self.waiting.append(info)
        self.cut_next += count * RECORDS
        for number in range(count if register else 0):
            self.register(which, [-1 - number])

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 1), picks=st.lists(st.integers(0, 9), min_size=1, max_size=5))
    def register(self, which: int, picks: list[int]) -> None:
        """Register some of what was put, in any order, perhaps again, with either process."""
        chosen = [self.waiting[pick % len(self.waiting)] for pick in picks if self.waiting]
        committer = self.committers[which]
        try:
            self.run(committer.register(self.session, chosen))
        except Unavailable:
            return
        self.note(committer)

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
        self.world.clock.now = max(self.world.clock.now, committer.wake_at or 0) + 1
        try:
            self.run(committer.wake())
        except Unavailable:
            return
        self.note(committer)

    @rule()
    def all_is_well_for_a_while(self) -> None:
        """Without faults everything that can be published is, whatever happened before."""
        self.world.coordination.faults = []
        for which in (0, 1):
            for _ in range(3):
                self.time_comes(which)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 1), faults=st.sampled_from(FAULTS))
    def publish_with_faults(self, which: int, faults: list[Fault]) -> None:
        """The first EXEC meets a fault, and perhaps the one that decides it does too."""
        self.world.coordination.faults = list(faults)
        self.register(which, list(range(len(self.waiting))))
        self.time_comes(which)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 1), share=st.integers(1, 2), ahead=st.integers(0, 1))
    def publish_after_a_claim(self, which: int, share: int, ahead: int) -> None:
        """A new owner comes between the plan and its EXEC."""
        self.register(which, list(range(share)))
        self.claim(ahead)
        self.time_comes(which)

    def note(self, committer: Committer) -> None:
        fates = {fragment.uid: committer.fate(fragment.uid) for fragment in self.waiting}
        self.applied |= {uid for uid, fate in fates.items() if fate is True}
        self.waiting = [f for f in self.waiting if fates[f.uid] is not True]
        if any(isinstance(fate, str) for fate in fates.values()):
            # An uploader that is refused begins a new session.
            self.begun = False

    @rule(faults=st.sampled_from(FAULTS))
    def next_exec_meets(self, faults: list[Fault]) -> None:
        self.world.coordination.faults = list(faults)

    @rule(
        kind=st.sampled_from(["late", "crash", "claim", "hours"]),
        which=st.integers(0, 1),
        ahead=st.integers(0, 4),
    )
    def trouble(self, kind: str, which: int, ahead: int) -> None:
        match kind:
            case "late":
                self.late_exec_arrives()
            case "crash":
                self.committers[which] = self.open()
            case "claim":
                self.claim(ahead)
            case _:
                self.hours_pass()

    def late_exec_arrives(self) -> None:
        self.world.coordination.arrive()

    @rule(which=st.integers(0, 1), owner_answers=st.booleans())
    def begin_session(self, which: int, owner_answers: bool) -> None:
        self.sessions += 1
        self.begun = False
        self.waiting = []
        committed = {STREAM: max([0, *(f.next_offset for f in self.put.values())])}
        self.world.owners.committed = committed if owner_answers else {}
        try:
            record = self.run(begin(self.world.context, self.committers[which], self.session))
        except Unavailable:
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
            return replace(record, epoch=record.epoch + 1, epochs=epochs, owner_url=OWNER)

        faults, self.world.coordination.faults = self.world.coordination.faults, []
        record = self.run(self.world.streams.update(STREAM, take))
        self.world.coordination.faults = faults
        self.epochs.append((record.epoch, starts[-1]))
        self.begun = False

    def hours_pass(self) -> None:
        self.world.clock.now += HOURS
        faults, self.world.coordination.faults = self.world.coordination.faults, []
        self.run(self.deleter.make_pass())
        self.world.coordination.faults = faults

    @invariant()
    def what_is_committed_is_what_the_list_says(self) -> None:
        if not self.committers:
            return
        record = self.run(self.world.record())
        leaves = self.run(self.world.leaves())
        assert leaves[: len(self.seen)] == self.seen, "the manifest changed behind its end"
        self.seen = leaves
        end = 0
        for leaf in leaves:
            assert leaf == self.put[leaf.uid]
            assert leaf.first_offset == end
            assert leaf.epoch == self.epoch_of(leaf.first_offset)
            end = leaf.next_offset
            facts = self.run(
                self.world.drive.head(
                    fragment_key(STREAM, leaf.first_offset, leaf.uid), checksum=True
                )
            )
            assert (facts.size, facts.crc) == (leaf.size, leaf.crc)
        assert end == record.published_next <= record.reserved_next
        assert self.applied <= {leaf.uid for leaf in leaves}, "said to be applied, and is not there"
        now = (record.version, record.published_next, record.epoch)
        assert all(a <= b for a, b in zip(self.last, now, strict=True)), "something went back"
        self.last = now
        given_up = {intent.uid for intent in record.quarantine}
        live = {intent.uid for intent in record.intents}
        assert not given_up & {leaf.uid for leaf in leaves}
        assert not live & {leaf.uid for leaf in leaves}
        assert self.deleter.refused_count == 0


TestManifestBesideAList = ManifestBesideAList.TestCase
# A failure is shrunk before it is reported, which takes longer than a run.
TestManifestBesideAList.pytestmark = [pytest.mark.timeout(600)]  # type: ignore[attr-defined]
TestManifestBesideAList.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_the_model_reaches_what_it_is_about() -> None:
    """The dangerous ways run: a story by hand through the same rules, so that green means something."""
    machine = ManifestBesideAList()
    machine.create()
    machine.upload(5, 0, register=False)
    machine.world.coordination.faults = [Fault.LOST_APPLIED]
    machine.run(machine.committers[0].register(machine.session, machine.waiting))
    machine.note(machine.committers[0])
    machine.what_is_committed_is_what_the_list_says()
    assert len(machine.applied) == 5

    machine.upload(2, 1, register=False)
    machine.trouble("crash", 1, 0)
    machine.begin_session(1, owner_answers=True)
    machine.what_is_committed_is_what_the_list_says()
    assert len(machine.seen) == 7

    machine.claim(1)
    machine.begin_session(0, owner_answers=False)
    machine.upload(3, 0, register=False)
    machine.world.coordination.faults = [Fault.LOST_LATE, Fault.UNAVAILABLE]
    machine.run(machine.committers[0].register(machine.session, machine.waiting))
    machine.late_exec_arrives()
    machine.time_comes(0)
    machine.hours_pass()
    machine.what_is_committed_is_what_the_list_says()
    assert [leaf.epoch for leaf in machine.seen] == [1] * 8 + [2] * 2
    assert machine.deleter.deleted_count > 0
    machine.teardown()
