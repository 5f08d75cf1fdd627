"""`Membership`: a program as its group knows it, kept alive by heartbeats beside whatever it does.

    joined ──answer──► held ──asked back──► given over by the program, told in the next heartbeat
       ▲                └──lease over, or another's──► lost: the program closes it and commits nothing
       └── again where the group knows the member no more

One task sends the heartbeats and marks what is held; the program's own task reads, closes and gives
over. When the heartbeats end, for whatever reason, the program hears why the next time it asks.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

from bottomless.client.address import check_reference, check_stream
from bottomless.client.consumer import AsyncConsumer, ConsumerCalls, Consuming
from bottomless.client.follow import Batch
from bottomless.client.groups import GroupCalls, of_either
from bottomless.client.heard import Assigned, Heard, heard_in, member_id_in
from bottomless.client.place import Place, spec_of
from bottomless.client.reads import ReadCalls
from bottomless.client.super_reads import gathered
from bottomless.errors import Code, InvalidRequest, StoreError
from bottomless.guards import guard

_LEASE_MS_MIN: Final = 5_000
_LEASE_MS_MAX: Final = 300_000
_WAIT_MS_MAX: Final = 20_000
_PAUSE_SECONDS: Final = 1.0
"""Between heartbeats after one that failed, or that had no time to wait."""
_MENDED_BY_OPERATORS: Final = frozenset(
    (Code.COORDINATION_REGRESSED, Code.COORDINATION_UNAVAILABLE)
)
"""Members wait for that, and need not be started again."""


class GroupMemberCalls(ConsumerCalls, GroupCalls, ReadCalls):
    """The calls that a member of a group needs of a client."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The stream or super stream that is shared, in which group, as whom, and how it is consumed."""

    stream: str
    group: str
    member: str
    lease_seconds: float
    strategy: str | None
    consuming: Consuming
    """What each partition is consumed with; its stream, name, start and claim are given later."""
    start: Place

    def __post_init__(self) -> None:
        check_stream(self.stream)
        check_reference(self.group)
        check_reference(self.member)
        if not _LEASE_MS_MIN <= self.lease_ms <= _LEASE_MS_MAX:
            raise InvalidRequest("lease_seconds must be from 5 to 300")

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return round(self.lease_seconds * 1000)


@dataclass(eq=False)
class Held:
    """One partition that this member reads."""

    partition: int
    generation: int
    consumer: AsyncConsumer
    pull: asyncio.Task[Batch | None] | None = None
    revoked: bool = False
    """It is asked back, and is released after the batch in hand."""
    lost: bool = False
    """It is another's by now: nothing of it is committed any more."""
    begun: bool = False
    """It is read: an answer stays open for it."""


class Membership:
    """One program in one group; it is in none before `join`, and after `leave`."""

    def __init__(self, client: GroupMemberCalls, sharing: Sharing) -> None:
        self._client = client
        self._sharing = sharing
        self._member_id: str | None = None
        self.super_stream: bool | None = None
        """Whether it is a super stream that is shared; None before it is known."""
        self._heard_at = 0.0
        """When a request was sent that the group answered last, by the monotonic clock."""
        self._beating: asyncio.Task[None] | None = None
        self._beat: asyncio.Task[dict[str, Any]] | None = None
        self._released: dict[int, int] = {}
        """What was given over, until a heartbeat has said so."""
        self.held: dict[int, Held] = {}
        self.ending: list[Held] = []
        """What is another's by now and was not closed yet."""
        self.changed = asyncio.Event()
        """Set when there is something to look at: more or less is held, or the heartbeats ended."""

    @property
    def begun(self) -> bool:
        """Whether heartbeats are sent, or were sent until something ended them."""
        return self._beating is not None

    @property
    def going_on(self) -> dict[int, int]:
        """What this member reads and is not asked back, each with its generation."""
        return {
            number: one.generation
            for number, one in self.held.items()
            if not one.revoked and not one.lost
        }

    async def begin(self) -> None:
        """Join, and send heartbeats from now on."""
        await self._join()
        self._beating = asyncio.create_task(self._keep_alive(), name="bottomless group")
        self._beating.add_done_callback(lambda _: self.changed.set())

    def check(self) -> None:
        """Give up what the lease is over for, and raise what has ended the heartbeats.

        Raises:
            StoreError: what a heartbeat met that trying again does not mend.
            Exception: what `on_outage` has raised, for instance.
        """
        beating = self._beating
        if beating is not None and beating.done():
            if beating.cancelled():
                raise RuntimeError("the heartbeats of the member were cancelled")
            error = beating.exception()
            assert error is not None, "heartbeats go on for ever"
            raise error
        self._give_up_if_over()

    def say_released(self, held: Held) -> None:
        """Tell the group at once that a partition was given over."""
        if self.held.get(held.partition) is held:
            del self.held[held.partition]
        self._released[held.partition] = held.generation
        if self._beat is not None:
            self._beat.cancel()

    async def end(self) -> None:
        """Send no heartbeats any more."""
        beating, self._beating = self._beating, None
        for task in (beating, self._beat):
            if task is not None:
                task.cancel()
                # Gathered, so that who cancels this is not taken for the end of the task.
                await asyncio.gather(task, return_exceptions=True)

    async def leave(self) -> None:
        """Tell the group that this member goes, if it is in one; its lease ends it anyhow."""
        member_id, self._member_id = self._member_id, None
        if member_id is None:
            return
        try:
            await self._client.leave_group(
                self._sharing.stream,
                self._sharing.group,
                member_id,
                super_stream=bool(self.super_stream),
            )
        except StoreError as error:
            self._sharing.consuming.on_outage(error)

    async def _join(self) -> None:
        asked_at, known = time.monotonic(), self.super_stream
        joined = await (of_either(self._joined) if known is None else self._joined(known))
        self._member_id = member_id_in(joined)
        # Only who asks for batches closes what it read: nobody else is using it then.
        self.ending += self.held.values()
        self.held, self._released = {}, {}
        await self._hear(heard_in(joined), asked_at)

    async def _joined(self, super_stream: bool) -> dict[str, Any]:
        """Join as what has the name: a stream, or a super stream."""
        sharing = self._sharing
        start = spec_of(sharing.start)
        if super_stream and (isinstance(start, int) or start.isdigit()):
            raise InvalidRequest("start: an offset is a place in one partition; give another place")
        joined = await self._client.join_group(
            sharing.stream,
            sharing.group,
            sharing.member,
            lease_ms=sharing.lease_ms,
            strategy=sharing.strategy,
            super_stream=super_stream,
        )
        self.super_stream = super_stream
        return joined

    async def _keep_alive(self) -> None:
        """Send heartbeats until one meets what trying again does not mend."""
        while True:
            try:
                await self._beat_once()
            except StoreError as error:
                if not error.retryable and error.code not in _MENDED_BY_OPERATORS:
                    raise
                self._sharing.consuming.on_outage(error)
                self._give_up_if_over()
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _beat_once(self) -> None:
        sharing, asked_at = self._sharing, time.monotonic()
        assert self._member_id is not None
        holding, released = self.going_on, dict(self._released)
        wait_ms = min(_WAIT_MS_MAX, sharing.lease_ms // 3)
        self._beat = asyncio.ensure_future(
            self._client.send_heartbeat(
                sharing.stream,
                sharing.group,
                self._member_id,
                holding=holding,
                released=released,
                # What is released is another's at once, so nothing is waited for then.
                wait_ms=0 if released else wait_ms,
                super_stream=bool(self.super_stream),
            )
        )
        try:
            heard = heard_in(await self._beat)
        except asyncio.CancelledError:
            if self._beating is None or not self._beat.cancelled():
                raise
            # There is something to release: it is said at once.
            return
        except StoreError as error:
            if error.code != Code.MEMBER_EXPIRED:
                raise
            self._lose()
            # Else two programs of one name would push each other out without a pause.
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._join()
            return
        for partition in released:
            self._released.pop(partition, None)
        await self._hear(heard, asked_at)
        if self.going_on == holding and time.monotonic() - asked_at < wait_ms / 2000:
            # The server let nobody wait.
            await asyncio.sleep(0 if released else _PAUSE_SECONDS)

    async def _hear(self, heard: Heard, asked_at: float) -> None:
        """Begin with what is new, ask back what is revoked, and give up what is another's."""
        self._heard_at = asked_at
        for partition, held in list(self.held.items()):
            assigned = heard.assigned.get(partition)
            if heard.revoked.get(partition) == held.generation:
                held.revoked = True
            elif assigned is None or assigned.generation != held.generation:
                held.lost = True
        new = []
        for partition, assigned in heard.assigned.items():
            known = self.held.get(partition)
            if known is not None and not known.lost:
                continue
            if known is not None:
                self.ending.append(self.held.pop(partition))
            new.append(assigned)
        # Some at once: who holds many has to be heard of again within its lease.
        await gathered(self._begin_with, new)
        self.changed.set()

    async def _begin_with(self, assigned: Assigned) -> None:
        """Begin with a partition that was given to this member, where the group has come to."""
        consuming = self._consuming_of(assigned)
        start = "first" if assigned.by_growth else self._sharing.start
        if assigned.is_new and not await store_start(self._client, consuming, start):
            return
        consumer = AsyncConsumer(self._client, consuming)
        self.held[assigned.partition] = Held(assigned.partition, assigned.generation, consumer)

    def _consuming_of(self, assigned: Assigned) -> Consuming:
        asked = self._sharing.consuming
        assert self._member_id is not None
        return Consuming(
            assigned.stream,
            self._sharing.group,
            # It is stored by now, so this counts only where somebody deletes what is stored.
            self._sharing.start,
            asked.auto_commit,
            asked.commit_seconds,
            asked.max_bytes,
            assigned.stream_id,
            asked.on_outage,
            (self._member_id, assigned.generation),
            asked.commit_records,
        )

    def _give_up_if_over(self) -> None:
        """Stop what was not confirmed for as long as the lease: another one may read it by now."""
        over = time.monotonic() - self._heard_at > self._sharing.lease_seconds
        if over and not all(one.lost for one in self.held.values()):
            self._lose()

    def _lose(self) -> None:
        for held in self.held.values():
            held.lost = True
        self.changed.set()


@guard("the start that is stored before the first read")
async def store_start(client: GroupMemberCalls, consuming: Consuming, start: Place) -> bool:
    """Store where a group begins, before it reads anything; false if another member holds it by now.

    Else a group that begins with what comes next would begin anew with each holder, and leave out
    what came before the first commit.
    """
    assert consuming.name is not None
    assert consuming.claim is not None
    try:
        found = await client.resolve(consuming.stream, start)
        await client.commit(
            consuming.stream,
            consuming.name,
            found["offset"],
            stream_id=consuming.expect_stream_id,
            claim=consuming.claim,
        )
    except StoreError as error:
        # Another member has stored a higher one, as the holder before: that one counts.
        if error.code == Code.OFFSET_REGRESSION:
            return True
        if is_fenced(error):
            return False
        raise
    return True


def is_fenced(error: StoreError) -> bool:
    """Whether an error says that another member holds the partition by now."""
    return error.code in (Code.CONSUMER_FENCED, Code.NOT_ACTIVE)
