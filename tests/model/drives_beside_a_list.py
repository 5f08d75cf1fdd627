"""The rules of drives: they go and come back, are retired and registered anew, are given up for ever,
and coordination could be lost while one is away.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Final, cast

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from support.manifest import NODE, OWNER, STREAM, KnownOwners, from_the_first_start
from support.rebuilding import rebuild

from bottomless.errors import StoreError
from bottomless.formats.keys import FragmentPlace
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, drives_under_way
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.losing import Losses, lose_drive
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.sessions import begin
from bottomless_server.manifest.mutators.takeover import take_over
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done, Failed
from bottomless_server.manifest.registry.drive_registration import DriveRegistration
from bottomless_server.manifest.removal import drive_loss, drive_retirement
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.removal.drive_loss import DriveLoss
from bottomless_server.manifest.removal.drive_retirement import DriveRetirement
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.stores.operations import Operation, new_operation
from bottomless_server.stores.streams import deletes_key
from model.moving_fragments import PROCESS, SHARES, Moving
from model.publishing import HOUR
from model.shelves import NUMBERS
from model.takeovers import Pass

SHELVES: Final = st.sampled_from(NUMBERS)
PASS_COUNT_MAX: Final = 100
REST_PASS_COUNT: Final = 3
Step = Callable[[Context, Operation], "Again | Done | Failed"]


class OneProcess:
    """Stands in for the tasks of streams: what is to be done is done by one committer, at once."""

    def __init__(self, context: Context, committer: Committer) -> None:
        self._context = context
        self._committer = committer

    def of(self, stream_id: StreamId) -> "OneProcess":
        assert stream_id == STREAM
        return self

    async def lose_drive(self, number: int) -> Losses:
        return await lose_drive(self._context, self._committer, number)


class ManifestOverDrives(Moving):
    def __init__(self) -> None:
        super().__init__()
        self.operation_numbers = count(1)

    @rule(number=SHELVES, gone=st.booleans())
    def a_mount_goes_or_comes_back(self, number: int, gone: bool) -> None:
        self.shelves[number].is_gone = gone or number in self.given_up
        self.events["a mount was gone"] += gone

    @rule()
    def everything_comes_to_rest(self) -> None:
        self.mount_all()
        super().everything_comes_to_rest()
        for _ in range(REST_PASS_COUNT):
            # What roots of lost attempts name goes after these, in a later pass.
            self.harness.clock.now += 2 * HOUR
            self.quietly(self.deleter.make_pass())
        self.what_is_committed_is_what_the_list_says()
        record = self.quietly(self.harness.record())
        # What was under way on a drive that was given up may wait for the operation to go on.
        if not self.given_up & {*drives_under_way(record), *record.drives}:
            self.nothing_else_is_stored_on([0, *NUMBERS])

    @rule(which=PROCESS, number=SHELVES)
    def a_drive_is_retired(self, which: int, number: int) -> None:
        """It is refused for as long as anything is on it, or may come onto it."""
        context = self.harness.context
        step = DriveRetirement(context, Operations(context)).step
        outcome = self.carried_out(which, number, drive_retirement.KIND, step)
        if isinstance(outcome, Done):
            self.events["a drive was retired"] += 1
            self.check_retired(number)
            self.a_move_is_made(which, 0, 4, number, None, 64)
            self.check_retired(number)
            self.a_drive_is_registered_anew(number)
        elif isinstance(outcome, Failed):
            self.events["a drive was in use"] += 1
            record = self.quietly(self.harness.record())
            assert number in record.drives or self.tiers, "in use, and nothing was ever there"

    def check_retired(self, number: int) -> None:
        record = self.quietly(self.harness.record())
        leaves = self.quietly(self.harness.leaves())
        assert number not in {leaf.drive for leaf in leaves}, "retired with fragments on it"
        assert number not in drives_under_way(record), "retired with uploads or moves under way"
        waits = self.quietly(self.harness.coordination.member_count(deletes_key(number)))
        assert not waits, "retired, and something is to be deleted from it"

    def a_drive_is_registered_anew(self, number: int) -> None:
        if number in self.given_up or self.shelves[number].is_gone:
            return
        registration = DriveRegistration(self.harness.context)
        self.quietly(registration.register(f"d{number}"))

    @rule(which=PROCESS, number=SHELVES, share=SHARES, count=st.integers(1, 4))
    def a_drive_is_given_up(self, which: int, number: int, share: int, count: int) -> None:
        """Something lies there, it is gone, and somebody says that it will never be back. Perhaps that is
        done in part only; or within a pass of the deleter, just before what was moved there is deleted."""
        found = self.piece(share, count)
        self.whole_move(which, found, number)
        if share % 2 and self.lost_within_a_pass(which, number):
            self.events["a drive was given up within a pass of the deleter"] += 1
            return
        self.shelves[number].is_gone = True
        self.given_up.add(number)
        if isinstance(self.carried_out(which, number, drive_loss.KIND, self.loss(which)), Done):
            self.events["a drive was given up"] += 1

    def loss(self, which: int) -> Callable[..., object]:
        context = self.harness.context
        process = cast("Mutators", OneProcess(context, self.committers[which]))
        return DriveLoss(context, Operations(context), process, page_count=1).step

    def lost_within_a_pass(self, which: int, number: int) -> bool:
        """Give a drive up just before a pass of the deleter deletes a fragment; whether it had one to delete."""
        self.all_is_well_for_a_while()
        self.harness.clock.now += 2 * HOUR
        left = [number]

        async def lose() -> None:
            for one in left[:]:
                left.remove(one)
                self.shelves[one].is_gone = True
                self.given_up.add(one)
                with suppress(StoreError):
                    await self.done(one, drive_loss.KIND, self.loss(which))

        first, shelves = self.harness.drive, [self.shelves[one] for one in NUMBERS if one != number]
        first.before_delete, first.before_delete_of = lose, "/data/"
        for shelf in shelves:
            shelf.before_delete = lose
        self.hours_pass(0)
        first.before_delete, first.before_delete_of = None, ""
        for shelf in shelves:
            shelf.before_delete = None
        return not left

    def carried_out(
        self, which: int, number: int, kind: str, step: Callable[..., object]
    ) -> object:
        """Do an operation on a drive to its end, or until something is in its way."""
        return self.attempt(which, self.done(number, kind, step))

    async def done(self, number: int, kind: str, step: Callable[..., object]) -> object:
        operation = new_operation(
            f"{next(self.operation_numbers):032x}",
            kind,
            0,
            tenant="default",
            arguments={"name": f"d{number}", "number": number},
        )

        progress = operation.progress
        while True:
            now = replace(operation, progress=progress)
            outcome = await step(self.harness.context, now)  # type: ignore[misc]
            if not isinstance(outcome, Again):
                return outcome
            progress = outcome.progress

    async def lose_coordination(self) -> None:
        self.harness.coordination.lose()
        await rebuild(self.harness, self.what_it_waits_for)

    async def what_it_waits_for(self) -> None:
        """All drives come back that will; of the others somebody says so, as an operator whose word did not
        come to the registry before."""
        self.mount_all()
        context = self.harness.context
        process = cast("Mutators", OneProcess(context, self.committers[0]))
        loss = DriveLoss(context, Operations(context), process)
        for number in self.given_up:
            with suppress(StoreError):
                # What it enters of the operation is nobody's business before coordination is there.
                await loss.begin(f"d{number}", f"d{number}", "default")
                self.events["a drive was said to be lost while a rebuild waited for it"] += 1

    async def check_doomed(self, places: set[FragmentPlace], under_way: Pass | None) -> None:
        """A pass of before the loss puts off what it has not deleted: copies of a move that was given up
        among it, which the root of that attempt names, and so the rebuild. They stay all the same."""
        if places and under_way is not None:
            self.events["a copy was named by a rebuild, and waits to be deleted"] += 1
            self.harness.clock.true_now += 24 * HOUR
            await self.all_deleted()
            places = {one for one in places if not self.drive(one.drive).has(one.object_key)}
        await super().check_doomed(places, under_way)

    @precondition(lambda self: self.seen and self.fenced is None)
    @rule(
        which=PROCESS,
        number=SHELVES,
        put_count=st.integers(0, 3),
        garbage=st.booleans(),
        home_is_back=st.booleans(),
    )
    def coordination_could_be_lost_while_a_drive_is_away(
        self, which: int, number: int, put_count: int, garbage: bool, home_is_back: bool
    ) -> None:
        """What lies there and was not published is no garbage, and is adopted when it is back."""
        if number in self.given_up:
            return
        if put_count:
            self.the_policy_is([{"drive": f"d{number}"}])
            self.all_is_well_for_a_while()
            self.upload(put_count, which, register=False)
            self.what_is_committed_is_what_the_list_says()
        harness = self.harness
        context, now = harness.context, harness.clock.true_now
        owners = KnownOwners()
        owners.committed[STREAM] = max([0, *(info.next_offset for info in self.put.values())])
        harness.context = replace(context, owners=owners, table=context.drives)
        from_the_first_start(harness.context)
        before = self.quietly(harness.record())
        coordination, put_back = harness.coordination.copy(), self.copy_of_drives()
        self.mount_all()
        self.shelves[number].is_gone = True
        try:
            self.quietly(self.rebuilt_without(number, before, garbage, home_is_back))
        finally:
            harness.coordination.put_back(coordination)
            put_back()
            harness.streams.generation = 0
            harness.context, harness.clock.true_now = context, now

    async def rebuilt_without(
        self, number: int, before: StreamRecord, garbage: bool, home_is_back: bool
    ) -> None:
        harness = self.harness
        await self.lose_and_compare(before, None, None)
        record = await harness.record()
        if number not in record.unseen:
            await self.check_adopted(self.durable_next(before))
            return
        self.events["a rebuild passed over a drive"] += 1
        if garbage:
            # It is back, and nobody has looked at it yet.
            self.shelves[number].is_gone = False
            await self.collected(1_000, dry=False)
            harness.clock.true_now += 24 * HOUR
            await self.all_deleted()
            self.shelves[number].is_gone = True
        committer = await Committer.open(harness.context, STREAM)
        if home_is_back:
            self.shelves[number].is_gone = False
            await committer.change(lambda found: replace(found, owner_url=OWNER))
            await begin(harness.context, committer, "the next one")
        else:
            try:
                await take_over(harness.context, committer, NODE, record.epoch)
            except StoreError:
                self.events["a takeover waited for a drive"] += 1
            else:
                raise AssertionError("a takeover did not wait for what a rebuild has not seen")
            self.shelves[number].is_gone = False
            await take_over(harness.context, committer, NODE, record.epoch)
        durable_next = self.durable_next(before)
        await self.check_adopted(durable_next)
        self.events["what a rebuild had not seen was adopted"] += (
            durable_next > before.published_next
        )

    async def check_adopted(self, durable_next: int) -> None:
        """What was put, and continues what was published, is in the manifest."""
        ends = [leaf.next_offset for leaf in await self.harness.leaves()]
        kept_next = max([self.last[1], *ends])
        assert kept_next >= durable_next, "what lay there is given up"

    async def all_deleted(self) -> None:
        deleter = Deleter(self.harness.context)
        for _ in range(PASS_COUNT_MAX):
            if not await deleter.make_pass():
                return
