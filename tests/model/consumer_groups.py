"""A consumer group under two manifest processes: members that come, die, wake and answer late.

Time is that of a store whose clock the machine moves; the checks of both processes run as often as
their setting says. A member is what a program knows of itself: its id, and what it believes to hold.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.manifest import STREAM, Fault, ManifestHarness, a_record

from bottomless.errors import Code, StoreError
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference
from bottomless_server.coordination.base import CoordinationUnknown
from bottomless_server.core.consumer_group import (
    ConsumerGroup,
    MemberId,
    Strategy,
    decode_holder,
)
from bottomless_server.manifest.consumers.core.groups import REVOKE_MS, held_by, revoked_from
from bottomless_server.manifest.consumers.group_changes import GroupChanges, Joining
from bottomless_server.manifest.consumers.group_checks import GroupChecks
from bottomless_server.stores.consumers import ConsumerOffsets
from bottomless_server.stores.groups import Claim, Lease, holder_key, member_key

GROUP = Reference("billing")
LEASE_MS = 5_000
CHECK_MS = 500
PARTITION_COUNT_MAX = 5
T = TypeVar("T")

numbers = st.integers(0, 9)


@dataclass
class Program:
    """A program that is, or was, in the group."""

    name: Reference
    member_id: MemberId
    holding: dict[int, int] = field(default_factory=dict)
    to_release: dict[int, int] = field(default_factory=dict)


class GroupOfMembers(RuleBasedStateMachine):
    """What is true whatever comes: of each generation one holder; of each partition a live one, soon."""

    events: ClassVar[Counter[str]] = Counter()
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.harness = ManifestHarness()
        self.partition_count = 1
        self.given: dict[int, tuple[int, str]] = {}
        """Who got each generation, and for which partition."""
        self.programs: list[Program] = []
        self.without: dict[int, int] = {}
        """Since when each partition has no holder that lives, while somebody does."""
        contexts = [self.harness.context, replace(self.harness.context)]
        self.processes = [
            GroupChanges(one, count=lambda _: self.partition_count) for one in contexts
        ]
        self.checks = [
            GroupChecks(one, changes) for one, changes in zip(contexts, self.processes, strict=True)
        ]
        self.offsets = ConsumerOffsets(self.harness.coordination)
        self.committed = 0
        self.released: set[tuple[str, int, int]] = set()
        """Each holding that a program has released: by whom, partition, generation."""
        self.before: ConsumerGroup | None = None

    @initialize(count=st.integers(1, PARTITION_COUNT_MAX), strategy=st.sampled_from(Strategy))
    def begin(self, count: int, strategy: Strategy) -> None:
        self.partition_count = count
        self.strategy = strategy
        self.record = a_record()
        self._run(self.harness.streams.create(self.record))

    @rule(name=numbers, process=st.integers(0, 1))
    def join(self, name: int, process: int) -> None:
        self._join(name, process)

    def _join(self, name: int, process: int) -> None:
        asked = Joining(Reference(f"m{name % 4}"), LEASE_MS, self.strategy)
        joined = self._try(self.processes[process].join(self.record, GROUP, asked))
        if joined is not None:
            member_id, group = joined
            program = Program(asked.name, member_id)
            self._hear(program, group)
            self.programs.append(program)
            self._note("a member joined")

    @precondition(lambda self: self.programs)
    @rule(who=numbers, process=st.integers(0, 1))
    def beat(self, who: int, process: int) -> None:
        """Whoever it is: also one that died long ago and wakes."""
        self._run(self._beat(self._program(who), process))

    async def _beat(self, program: Program, process: int) -> None:
        released = dict(program.to_release)
        self.released |= {(program.member_id, *one) for one in released.items()}
        try:
            group = await self.processes[process].beat(
                STREAM, GROUP, program.member_id, program.holding, released
            )
        except CoordinationUnknown:
            self._note("a reply to a heartbeat was lost")
        except StoreError as error:
            if error.code is Code.MEMBER_EXPIRED:
                self._note("a late heartbeat")
                self._forget(program)
        else:
            self._hear(program, group)

    @precondition(lambda self: any(one.to_release for one in self.programs))
    @rule(fault=st.sampled_from([Fault.LOST_APPLIED, Fault.LOST_LATE]), process=st.integers(0, 1))
    def release_and_hear_nothing(self, fault: Fault, process: int) -> None:
        """The reply is lost; the program releases once more, at another process."""
        program = next(one for one in self.programs if one.to_release)
        self.harness.coordination.faults = [fault]
        self._run(self._beat(program, process))
        self.harness.coordination.faults = []
        self._run(self._beat(program, 1 - process))

    @precondition(lambda self: len(self.programs) > 1)
    @rule(one=numbers, other=numbers, same=st.booleans())
    def beat_at_once(self, one: int, other: int, same: bool) -> None:
        """Two heartbeats and both checks at the same time."""

        async def at_once() -> None:
            await asyncio.gather(
                self._beat(self._program(one), 0),
                self._beat(self._program(other), 0 if same else 1),
                *(self._look(check) for check in self.checks),
            )

        self._run(at_once())

    @precondition(lambda self: self.programs)
    @rule(who=numbers)
    def beat_at_the_last_moment(self, who: int) -> None:
        """It asked for its lease in time and holds it late, after a check has seen that it was over."""
        program, answered = self._program(who), list[bool]()
        self.harness.clock.now += LEASE_MS
        groups, lease = self.processes[1].groups, Lease(STREAM, GROUP, LEASE_MS)

        async def wake() -> None:
            assert await groups.hold(program.member_id, lease)
            group = await groups.find(STREAM, GROUP)
            answered.append(group is not None and group.member(program.member_id) is not None)
            if not answered[0]:
                await groups.give_back(program.member_id, lease)

        self.harness.coordination.before_transact = wake
        self._run(self._look(self.checks[0]))
        self.harness.coordination.before_transact = None
        if answered == [True]:
            group = self._group()
            assert group is not None
            assert group.member(program.member_id) is not None, "it lives, and was struck out"
            self._note("a heartbeat at the last moment")

    @precondition(lambda self: self.programs)
    @rule(who=numbers, process=st.integers(0, 1))
    def leave(self, who: int, process: int) -> None:
        program = self._program(who)
        self._try(self.processes[process].leave(STREAM, GROUP, program.member_id))
        self._forget(program)

    @precondition(lambda self: self.programs)
    @rule(who=numbers, partition=numbers)
    def activate(self, who: int, partition: int) -> None:
        index, name = partition % PARTITION_COUNT_MAX, self._program(who).name
        self._try(self.processes[0].activate(STREAM, GROUP, index, name))

    @precondition(lambda self: self.partition_count < PARTITION_COUNT_MAX)
    @rule(name=numbers)
    def grow(self, name: int) -> None:
        """The scope grows; who joins next brings it to the group."""
        self.partition_count += 1
        self._join(name, 0)
        self._note("the scope grew")

    @precondition(lambda self: self.programs)
    @rule(who=numbers, generation_off=st.sampled_from([0, 0, 0, -1, 1]))
    def commit(self, who: int, generation_off: int) -> None:
        """A program commits for partition 0 as what it believes to be."""
        program = self._program(who)
        generation = program.holding.get(0, program.to_release.get(0, 1)) + generation_off
        claim = Claim(program.member_id, max(0, generation))
        self._commit(claim)

    @rule()
    def commit_as_nobody(self) -> None:
        self._commit(None)

    def _commit(self, claim: Claim | None) -> None:
        held = self._holder(0)
        passed = self._try(self._store(claim)) is not None
        if passed:
            assert held == claim, "a commit passed that is not the holder's"
            self._note("a commit passed")
        elif held != claim:
            self._note("a commit was fenced")

    @precondition(lambda self: self.programs)
    @rule(who=numbers)
    def commit_while_it_is_deposed(self, who: int) -> None:
        """A commit is on its way while its member is replaced: one of both wins."""
        program = self._program(who)
        claim = Claim(program.member_id, program.holding.get(0, 0))
        before, seen = self._holder(0), list[object]()

        async def interfere() -> None:
            asked = Joining(program.name, LEASE_MS, self.strategy)
            joined = await self.processes[1].join(self.record, GROUP, asked)
            seen.append(self._holder(0))
            again = Program(asked.name, joined[0])
            self._hear(again, joined[1])
            self.programs.append(again)

        self.harness.coordination.before_transact = interfere
        passed = self._try(self._store(claim)) is not None
        self.harness.coordination.before_transact = None
        if passed:
            assert claim in (before, *seen)
            assert not seen or claim == seen[0], "it was deposed before"
        self._note("a commit met a change of the holder")

    async def _store(self, claim: Claim | None) -> StoredOffset | None:
        self.committed += 1
        stored = StoredOffset(GROUP, self.committed, 0, self.committed)
        return await self.offsets.change(STREAM, GROUP, lambda _: stored, 0, claim=claim)

    @rule(fault=st.sampled_from([Fault.LOST_APPLIED, Fault.LOST_LATE, Fault.UNAVAILABLE]))
    def trouble(self, fault: Fault) -> None:
        self.harness.coordination.faults = [fault]

    @rule()
    def late_replies_arrive(self) -> None:
        if self.harness.coordination.arrive():
            self._note("a late EXEC did something")

    @rule(half_seconds=st.integers(1, 30))
    def time_passes(self, half_seconds: int) -> None:
        for _ in range(half_seconds):
            self.harness.clock.now += CHECK_MS
            for check in self.checks:
                self._run(self._look(check))
            self._watch_over()
            self.each_generation_has_one_holder()

    async def _look(self, check: GroupChecks) -> None:
        try:
            await check.look()
        except StoreError:
            self._note("a check met trouble")

    def _watch_over(self) -> None:
        """Note since when a partition has no holder that lives; it may not be for long."""
        now, group = self.harness.clock.true(), self._group()
        living = [] if group is None else [one for one in group.members if self._lives(one[0])]
        if group is None or not living:
            self.without.clear()
            return
        alive = {one.member_id for one in living}
        for one in group.partitions:
            if one.holder in alive:
                self.without.pop(one.number, None)
                continue
            since = self.without.setdefault(one.number, now)
            assert now - since <= REVOKE_MS + 2 * CHECK_MS, "nobody holds it, and somebody could"
            assert one.revoke_at is None or now - one.revoke_at <= 2 * CHECK_MS

    @invariant()
    def each_generation_has_one_holder(self) -> None:
        group = self._group()
        if group is None:
            return
        GroupOfMembers.steps += 1
        group.check()
        self._nothing_is_taken_early(group)
        for one in group.partitions:
            assert decode_holder(
                self.harness.coordination.peek(holder_key(STREAM, GROUP, one.number))
            ) == (None if one.holder is None else (one.holder, one.generation))
            if one.holder is not None:
                got = (one.number, str(one.holder))
                assert self.given.setdefault(one.generation, got) == got

    def _nothing_is_taken_early(self, group: ConsumerGroup) -> None:
        """Never two holders that live: who is in the group loses only what it released, or what it
        did not release in time."""
        before, self.before = self.before, group
        for old in () if before is None else before.partitions:
            gone = old.holder is None or group.member(old.holder) is None
            if gone or group.partitions[old.number].generation == old.generation:
                continue
            overdue = old.revoke_at is not None and old.revoke_at <= self.harness.clock.true()
            assert overdue or (old.holder, old.number, old.generation) in self.released

    def teardown(self) -> None:
        self.loop.close()

    def _hear(self, program: Program, group: ConsumerGroup) -> None:
        """The program does as it is told, and notes what it has to release for its next heartbeat."""
        held = held_by(group, program.member_id)
        program.holding = {number: one.generation for number, one in held.items()}
        revoked = revoked_from(group, program.member_id)
        program.to_release = {one.number: one.generation for one in revoked}
        if revoked:
            self._note("a partition was revoked")

    def _forget(self, program: Program) -> None:
        """Its program may come back as a zombie: it stays among those who beat and commit."""
        if len(self.programs) > 8:
            self.programs = [one for one in self.programs if one is not program]

    def _program(self, number: int) -> Program:
        return self.programs[number % len(self.programs)]

    def _group(self) -> ConsumerGroup | None:
        return self._run(self.processes[0].groups.find(STREAM, GROUP))

    def _holder(self, partition: int) -> tuple[MemberId, int] | None:
        return decode_holder(self.harness.coordination.peek(holder_key(STREAM, GROUP, partition)))

    def _lives(self, member_id: str) -> bool:
        return self.harness.coordination.peek(member_key(member_id)) is not None

    def _try(self, work: Awaitable[T]) -> T | None:
        async def tried() -> T | None:
            try:
                return await work
            except StoreError:
                return None

        return self._run(tried())

    def _run(self, work: Awaitable[T]) -> T:
        async def done() -> T:
            return await work

        return self.loop.run_until_complete(done())

    def _note(self, event: str) -> None:
        GroupOfMembers.events[event] += 1
