"""What changes a consumer group: joining, heartbeats, leaving, expiry, and what an operator asks.

Each is one EXEC on the group, decided in `core/groups.py`. After a crash it is done or it is not.
Who heard nothing of a join joins again under the same name: that ends the member that nobody is.
Who heard nothing of a release releases again, which changes nothing if it was done.

Leases run by the clock of coordination, and so do the times by which partitions are taken away. Who waits
in line asks for the time before, and decides by what has passed since; and who joins has its lease
renewed when its turn comes, and before it is let in once more. Else a holder had no time to end its batch, and a member came into the group dead.
Generations guard what is stored, so a clock that is wrong moves partitions too early or too late,
and does no other harm.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Code, Corrupt, NotFound, WrongOffset
from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.names import Reference
from bottomless.model.super_stream import SuperRecord
from bottomless_server.coordination.base import (
    CoordinationConflict,
    CoordinationUnknown,
    Room,
    Values,
)
from bottomless_server.core.consumer_group import ConsumerGroup, GroupMember, MemberId, Strategy
from bottomless_server.core.regressed import coordination_outdated
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.lines import Lines
from bottomless_server.manifest.common.once_more import once_more
from bottomless_server.manifest.consumers.core.groups import (
    activate,
    grow,
    join,
    leave,
    new_group,
    release,
    release_overdue,
    require_strategy,
    strike_out,
)
from bottomless_server.stores.groups import (
    ConsumerGroups,
    Decide,
    Lease,
    Shared,
    group_key,
    member_key,
    partition_count_of,
    record_key_of,
    require_over,
    room_for,
    scope_of,
)

log = structlog.get_logger(__name__)

_IN_LINE_MS: Final = 500
"""How long somebody who joins may wait in line or for a reply (ms) before its lease is renewed."""
_AGAIN_COUNT_MAX: Final = 3
"""So often a change is begun anew, after a pause, that met those of other processes at each attempt."""


class Joining(NamedTuple):
    """What somebody asks who joins."""

    name: Reference
    lease_ms: int
    strategy: Strategy | None


class GroupChanges:
    """The changes of all consumer groups. `told` hears of each group that has changed here; `count`
    says how many partitions there are to share."""

    def __init__(
        self,
        context: Context,
        told: Callable[[str, Reference], None] = lambda _, __: None,
        count: Callable[[Shared], int] = partition_count_of,
    ) -> None:
        self._context = context
        self._told = told
        self._count = count
        self._lines = Lines("changing this consumer group")
        self.groups = ConsumerGroups(context.coordination, context.served)

    async def join(
        self, shared: Shared, group: Reference, asked: Joining
    ) -> tuple[MemberId, ConsumerGroup]:
        """Let somebody into a group, which is made if there is none.

        Raises:
            Overloaded: `quota-exceeded`: the group is full, or there are too many.
            WrongOffset: `group-mismatch`.
            NotFound: there is no such stream any more.
        """
        scope, record_key = scope_of(shared), record_key_of(shared)
        member_id = MemberId(self._context.new_uid())
        now = await self._time()
        member = GroupMember(member_id, asked.name, now(), asked.lease_ms)
        lease = Lease(scope, group, asked.lease_ms)
        elapsed, held_at = self._context.elapsed, self._context.elapsed()

        async def ready() -> None:
            nonlocal held_at
            if elapsed() - held_at > _IN_LINE_MS:
                held_at = elapsed()
                await self.groups.hold(member_id, lease)

        def decide(before: ConsumerGroup | None, values: Values) -> ConsumerGroup:
            found = self.groups.require_active(shared, values[record_key])
            if before is not None and before.member(member_id) is not None:
                return before
            if before is None:
                strategy = asked.strategy or Strategy.STICKY
                before = new_group(scope, group, strategy, found.generation, now())
            require_strategy(before, asked.strategy)
            return join(grow(before, self._count(found), now()), member, now())

        room = room_for(scope, group, self._context.settings.manifest_group_count_max)
        sentence = "the stream has as many consumer groups as it may; delete one that is not used"
        known = await self.groups.find(scope, group)
        await self.groups.hold(member_id, lease)
        entered = False
        try:
            async with self._context.quotas.entering(room, sentence, is_in=known is not None):
                watched = (record_key,)
                try:
                    after = await self._change(scope, group, decide, watched, room, ready)
                except CoordinationUnknown as lost:
                    # Either it finds the member that the first attempt let in, or it kills that.
                    again = self._change(scope, group, decide, watched, room, ready)
                    after = await once_more(lost, again)
            entered = True
        except NotFound:
            await self._context.streams.check_generation()
            raise
        finally:
            if not entered:
                # Not in the group, or nobody hears of it: then its lease ends it by itself.
                await self._give_back(member_id, lease)
        assert after is not None
        self._context.counts.groups.joined += 1
        self._told(scope, group)
        return member_id, after

    async def _give_back(self, member_id: MemberId, lease: Lease) -> None:
        try:
            await self.groups.give_back(member_id, lease)
        except Exception:  # noqa: BLE001 it runs out anyhow, and why there is no member is raised
            return

    async def beat(
        self,
        scope: str,
        group: Reference,
        member_id: str,
        holding: Mapping[int, int],
        released: Mapping[int, int],
    ) -> ConsumerGroup:
        """Renew the lease of a member, and take back what it has released; the group then.

        Raises:
            NotFound: `member-expired`: it is none, or not any more.
            Unavailable: `coordination-regressed`: it holds what was never given.
        """
        lease = await self.groups.lease_of(member_id)
        if lease is None or (lease.scope, lease.group) != (scope, group):
            await self._context.streams.check_generation()
            raise member_expired()
        mine = MemberId(member_id)
        if not await self.groups.hold(mine, lease):
            raise member_expired()
        found = await self._released(scope, group, mine, released)
        if found is None or found.member(member_id) is None:
            await self.groups.give_back(mine, lease)
            raise member_expired()
        if max((*holding.values(), *released.values()), default=0) > found.counter:
            raise coordination_outdated("the group gave out generations that it does not know of")
        return found

    async def _released(
        self, scope: str, group: Reference, member_id: MemberId, released: Mapping[int, int]
    ) -> ConsumerGroup | None:
        if not released:
            return await self.groups.find(scope, group)

        def decide(before: ConsumerGroup | None, _: Values) -> ConsumerGroup | None:
            after = before
            if after is not None:
                for index, generation in released.items():
                    after = release(after, index, member_id, generation)
            return after

        after = await self._change(scope, group, decide)
        self._told(scope, group)
        return after

    async def leave(self, scope: str, group: Reference, member_id: str) -> None:
        """Let a member go at once.

        Raises:
            NotFound: `member-expired`: it is none, or not any more.
        """
        now = await self._time()

        def decide(before: ConsumerGroup | None, _: Values) -> ConsumerGroup:
            if before is None or before.member(member_id) is None:
                raise member_expired()
            return leave(before, MemberId(member_id), now())

        try:
            await self._change(scope, group, decide)
        except NotFound:
            await self._context.streams.check_generation()
            raise
        self._told(scope, group)
        lease = await self.groups.lease_of(member_id)
        if lease is not None:
            await self._give_back(MemberId(member_id), lease)

    async def expire(
        self, scope: str, group: Reference, members: AbstractSet[MemberId]
    ) -> AbstractSet[MemberId]:
        """Strike out members whose leases have run out, all by one EXEC; returns who lives after all."""
        keys = {one: member_key(one) for one in members}
        now = await self._time()
        living, gone = set[MemberId](), set[MemberId]()

        def decide(before: ConsumerGroup | None, values: Values) -> ConsumerGroup | None:
            living.clear()
            gone.clear()
            known = set() if before is None else {one.member_id for one in before.members}
            for one in members & known:
                (gone if require_over(values[keys[one]]) else living).add(one)
            return strike_out(before, gone, now()) if before is not None and gone else before

        await self._change(scope, group, decide, list(keys.values()))
        if gone:
            self._context.counts.groups.expired += len(gone)
            self._told(scope, group)
        return living

    async def take_overdue(self, scope: str, group: Reference) -> None:
        """Give what was not released in time to those who follow."""
        now = await self._time()
        taken = [0]

        def decide(before: ConsumerGroup | None, _: Values) -> ConsumerGroup | None:
            after = None if before is None else release_overdue(before, now())
            taken[:] = [0 if before is None or after is None else _moved(before, after)]
            return after

        await self._change(scope, group, decide)
        if taken[0]:
            self._context.counts.groups.forced += taken[0]
            self._told(scope, group)

    async def replan(self, record: SuperRecord) -> None:
        """Let all groups of a super stream share all partitions that it has. After a crash some do;
        the same again is right.

        Raises:
            Unavailable: not all of them do yet.
        """
        scope, count = record.super_id, len(record.partitions)
        now = await self._time()

        def decide(before: ConsumerGroup | None, _: Values) -> ConsumerGroup | None:
            return None if before is None else grow(before, count, now())

        after = ""
        while names := (await self.groups.listed(scope, after)).names:
            for group in names:
                try:
                    await self._change(scope, group, decide)
                except Corrupt as error:
                    # It keeps the partitions that it has; the others do not wait for it.
                    log.warning("a group cannot be read", scope=scope, error=str(error))
                    continue
                self._told(scope, group)
            after = names[-1]

    async def activate(
        self, scope: str, group: Reference, index: int, name: Reference
    ) -> ConsumerGroup:
        """Have a partition go to a member, after its holder has released it.

        Raises:
            NotFound: `group-not-found`, `member-expired`, `not-found`.
        """
        now = await self._time()

        def decide(before: ConsumerGroup | None, _: Values) -> ConsumerGroup:
            if before is None:
                raise group_not_found()
            return activate(before, index, name, now())

        after = await self._change_known(scope, group, decide)
        assert after is not None
        return after

    async def remove(self, scope: str, group: Reference) -> None:
        """Forget a group that nobody is in.

        Raises:
            NotFound: `group-not-found`.
            WrongOffset: `group-not-empty`.
        """

        def decide(before: ConsumerGroup | None, _: Values) -> None:
            if before is None:
                raise group_not_found()
            if before.members:
                raise WrongOffset(
                    "the group has members; end them, or wait until their leases have run out",
                    code=Code.GROUP_NOT_EMPTY,
                    facts={"members": len(before.members)},
                )

        await self._change_known(scope, group, decide)

    async def _time(self) -> Callable[[], int]:
        """What tells the time by the clock of coordination, which is asked once: never a later one."""
        asked = await self._context.coordination.clock()
        since = self._context.elapsed()
        return lambda: time_after(asked, self._context.elapsed() - since)

    async def _change_known(
        self,
        scope: str,
        group: Reference,
        decide: Decide,
    ) -> ConsumerGroup | None:
        try:
            after = await self._change(scope, group, decide)
        except NotFound:
            await self._context.streams.check_generation()
            raise
        self._told(scope, group)
        return after

    async def _change(
        self,
        scope: str,
        group: Reference,
        decide: Decide,
        watched: Sequence[str] = (),
        room: Room | None = None,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> ConsumerGroup | None:
        """`ConsumerGroups.change`, in line with the others of this process, and once more where those
        of other processes come first again and again. `ready` is called in line, before each attempt."""
        async with self._lines.turn(group_key(scope, group)):
            for tried in itertools.count():
                if ready is not None:
                    await ready()
                try:
                    return await self.groups.change(scope, group, decide, watched, room)
                except CoordinationConflict:
                    if tried == _AGAIN_COUNT_MAX:
                        raise
                await asyncio.sleep(random.random() * backoff(tried, 0.05, 0.4))  # noqa: S311
        raise AssertionError("it is tried until it ends")


@guard("what has passed in line, before a change of a group is decided")
def time_after(asked: int, passed: int) -> int:
    """The time by which a change is decided, that was asked for so long ago. Times are in ms."""
    return asked + passed


def member_expired() -> NotFound:
    return NotFound(
        "this member is not in the group, or its lease ran out; stop what it reads, and join again",
        code=Code.MEMBER_EXPIRED,
    )


def group_not_found() -> NotFound:
    return NotFound("the stream has no consumer group of this name", code=Code.GROUP_NOT_FOUND)


def _moved(before: ConsumerGroup, after: ConsumerGroup) -> int:
    pairs = zip(before.partitions, after.partitions, strict=True)
    return sum(old.holder != new.holder for old, new in pairs)
