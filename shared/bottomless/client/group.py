"""`AsyncGroup`: one program of several that share a stream, of which one reads at a time.

It joins, says that it lives beside the work of its program, reads what it holds, and stores how far
it has come. What is asked back from it it gives over after the batch in hand:

    member of the group ──holds──► start stored ──► batches ──asked back──► committed ──► released
           └── lease over: what it held is another's, and nothing of it is committed any more

A batch counts as processed when the next one is asked for. Who was paused for longer than its lease
may process records that another one processes too; the generation in each commit keeps it from
moving the stored offset.
"""

import asyncio
import re
import secrets
import socket
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from bottomless.client.address import check_reference, check_stream
from bottomless.client.consumer import AsyncConsumer, ConsumerCalls, Consuming, batch_of
from bottomless.client.follow import Batch
from bottomless.client.groups import GroupCalls
from bottomless.client.place import Place
from bottomless.client.reads import ReadCalls
from bottomless.errors import Code, InvalidRequest, StoreError, Unavailable
from bottomless.guards import guard

LEASE_SECONDS_DEFAULT: Final = 30.0
_LEASE_MS_MIN: Final = 5_000
_LEASE_MS_MAX: Final = 300_000
_WAIT_MS_MAX: Final = 20_000
_PAUSE_SECONDS: Final = 1.0
"""Between heartbeats after one that failed, or that had no time to wait."""


class GroupMemberCalls(ConsumerCalls, GroupCalls, ReadCalls):
    """The calls that a member of a group needs of a client."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The stream that is shared, in which group, as whom, and how it is consumed."""

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
class _Held:
    """One partition that this member reads."""

    partition: int
    generation: int
    consumer: AsyncConsumer
    pull: asyncio.Task[Batch | None] | None = None
    revoked: bool = False
    """It is asked back, and is released after the batch in hand."""
    lost: bool = False
    """It is another's by now: nothing of it is committed any more."""


@dataclass
class _Member:
    """What the group knows this program as."""

    member_id: str
    heard: float
    """When a request was sent that the group answered last, by the monotonic clock."""
    held: dict[int, _Held] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)
    """What was given over, until a heartbeat has said so."""
    ending: list[_Held] = field(default_factory=list)
    """What is another's by now and was not closed yet."""


class AsyncGroup:
    """A member of a consumer group; made by `AsyncClient.group`, used with `async with`.

    Only one task may use it at a time. It gives batches while it holds the stream, and waits while
    another member does. Leaving the block commits what is processed and leaves the group.
    """

    def __init__(self, client: GroupMemberCalls, sharing: Sharing) -> None:
        self._client = client
        self._sharing = sharing
        self._member: _Member | None = None
        self._beating: asyncio.Task[None] | None = None
        self._beat: asyncio.Task[dict[str, Any]] | None = None
        self._changed = asyncio.Event()
        self._failed: StoreError | None = None
        self._hand: _Held | None = None
        """The partition of which the batch that was given last is."""
        self._last: Batch | None = None
        self._given = 0
        self._closed = False

    @property
    def member(self) -> str:
        """The name of this member."""
        return self._sharing.member

    @property
    def holding(self) -> dict[int, int]:
        """The partitions that this member reads, each with its generation; a stream has the number 0."""
        return {} if self._member is None else _going_on(self._member)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        """The next batch; waits while another member holds the stream.

        Raises:
            OffsetGone: `offset-trimmed`, retention or trim passed the position.
            NotFound: the stream was deleted.
            WrongOffset: `stream-replaced`, another stream has the name.
        """
        batch = await self.fetch(self._given)
        assert batch is not None
        return batch

    async def poll(self, timeout_seconds: float) -> Batch | None:
        """Wait for the next batch; None if there is none in `timeout_seconds`."""
        return await self.fetch(self._given, timeout_seconds)

    async def fetch(self, received: int, timeout_seconds: float | None = None) -> Batch | None:
        """Wait for the batch after the first `received` ones.

        If more were given than that, the caller has never received the last one, and it is given
        again. It raises what the iteration would raise.
        """
        if received != self._given and self._last is not None:
            return self._last
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        # It is processed, since the next one is asked for.
        self._hand = None
        await self.start()
        while True:
            self._changed.clear()
            self._check()
            self._give_up_if_over()
            await self._give_over()
            given = self._take()
            if given is not None:
                return given
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            await self._wait(left)

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def commit(self) -> None:
        """Store that the batch that was given last is processed too.

        Raises:
            WrongOffset: `consumer-fenced`, another member holds the stream by now.
        """
        if self._hand is not None:
            await self._hand.consumer.commit()

    async def start(self) -> None:
        """Join the group; once is enough.

        Raises:
            RuntimeError: it was closed.
        """
        if self._closed:
            raise RuntimeError("the member has left its group: make another")
        if self._beating is None:
            await self._join()
            self._beating = asyncio.create_task(self._keep_alive(), name="bottomless group")

    async def close(self, *, commit: bool = True) -> None:
        """Stop reading, commit what is processed unless `commit` is false, and leave the group."""
        self._closed = True
        beating, self._beating = self._beating, None
        for task in (beating, self._beat):
            if task is not None:
                task.cancel()
                # Gathered, so that who cancels this is not taken for the end of the task.
                await asyncio.gather(task, return_exceptions=True)
        member, self._member = self._member, None
        if member is None:
            return
        try:
            for held in [*member.ending, *member.held.values()]:
                await self._close(held, commit=commit and not held.lost)
        finally:
            await self._leave(member)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(commit=error is None)

    async def _leave(self, member: _Member) -> None:
        try:
            await self._client.leave_group(
                self._sharing.stream, self._sharing.group, member.member_id
            )
        except StoreError as error:
            # Its lease ends it, if it is there still.
            self._sharing.consuming.on_outage(error)

    async def _join(self) -> None:
        sharing, asked_at = self._sharing, time.monotonic()
        joined = await self._client.join_group(
            sharing.stream,
            sharing.group,
            sharing.member,
            lease_ms=sharing.lease_ms,
            strategy=sharing.strategy,
        )
        # Only who asks for batches closes what it read: nobody else is using it then.
        ending = [] if self._member is None else [*self._member.ending, *self._member.held.values()]
        self._member = _Member(joined["member_id"], asked_at, ending=ending)
        await self._hear(self._member, joined, asked_at)

    async def _keep_alive(self) -> None:
        """Send heartbeats for ever, beside whatever the program does."""
        while True:
            try:
                await self._beat_once()
            except StoreError as error:
                if not error.retryable and not isinstance(error, Unavailable):
                    self._failed = error
                    self._changed.set()
                    return
                self._sharing.consuming.on_outage(error)
                self._give_up_if_over()
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _beat_once(self) -> None:
        member, sharing, asked_at = self._member, self._sharing, time.monotonic()
        assert member is not None
        holding, released = _going_on(member), dict(member.released)
        wait_ms = min(_WAIT_MS_MAX, sharing.lease_ms // 3)
        self._beat = asyncio.ensure_future(
            self._client.send_heartbeat(
                sharing.stream,
                sharing.group,
                member.member_id,
                holding=holding,
                released=released,
                # What is released is another's at once, so nothing is waited for then.
                wait_ms=0 if released else wait_ms,
            )
        )
        try:
            heard = await self._beat
        except asyncio.CancelledError:
            if self._beating is None or not self._beat.cancelled():
                raise
            # There is something to release: it is said at once.
            return
        except StoreError as error:
            if error.code != Code.MEMBER_EXPIRED:
                raise
            self._lose(member)
            # Else two programs of one name would push each other out without a pause.
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._join()
            return
        for partition in released:
            member.released.pop(partition, None)
        await self._hear(member, heard, asked_at)
        if _going_on(member) == holding and time.monotonic() - asked_at < wait_ms / 2000:
            # The server let nobody wait.
            await asyncio.sleep(0 if released else _PAUSE_SECONDS)

    async def _hear(self, member: _Member, heard: dict[str, Any], asked_at: float) -> None:
        """Begin with what is new, ask back what is revoked, and give up what is another's."""
        member.heard = asked_at
        revoked = {one["partition"]: one["generation"] for one in heard["revoked"]}
        assigned = {one["partition"]: one for one in heard["assignments"]}
        for partition, held in list(member.held.items()):
            if revoked.get(partition) == held.generation:
                held.revoked = True
            elif assigned.get(partition, {}).get("generation") != held.generation:
                held.lost = True
        for partition, one in assigned.items():
            known = member.held.get(partition)
            if known is not None and not known.lost:
                continue
            if known is not None:
                member.ending.append(member.held.pop(partition))
            consuming = self._consuming_of(member, one)
            is_new = one["source"] == "none"
            if is_new and not await store_start(self._client, consuming, self._sharing.start):
                continue
            member.held[partition] = _Held(
                partition, one["generation"], AsyncConsumer(self._client, consuming)
            )
        self._changed.set()

    def _consuming_of(self, member: _Member, one: dict[str, Any]) -> Consuming:
        asked = self._sharing.consuming
        return Consuming(
            one["stream"],
            self._sharing.group,
            # It is stored by now, so this counts only where somebody deletes what is stored.
            self._sharing.start,
            asked.auto_commit,
            asked.commit_seconds,
            asked.max_bytes,
            one["stream_id"],
            asked.on_outage,
            (member.member_id, one["generation"]),
            asked.commit_records,
        )

    def _give_up_if_over(self) -> None:
        """Stop what was not confirmed for as long as the lease: another one may read it by now."""
        member = self._member
        over = member is not None and time.monotonic() - member.heard > self._sharing.lease_seconds
        if over and member is not None and not all(one.lost for one in member.held.values()):
            self._lose(member)

    def _lose(self, member: _Member) -> None:
        for held in member.held.values():
            held.lost = True
        self._changed.set()

    async def _give_over(self) -> None:
        """End what was asked back or lost; the batch in hand is processed by now."""
        member = self._member
        if member is None:
            return
        member.ending += [one for one in member.held.values() if one.lost]
        member.held = {number: one for number, one in member.held.items() if not one.lost}
        while member.ending:
            ending = member.ending[0]
            await self._end(ending, commit=False)
            member.ending.remove(ending)
        for held in [one for one in member.held.values() if one.revoked]:
            await self._end(held, commit=True)
            if member.held.get(held.partition) is held:
                del member.held[held.partition]
            member.released[held.partition] = held.generation
            if self._beat is not None:
                self._beat.cancel()

    async def _end(self, held: _Held, *, commit: bool) -> None:
        """Close what this member reads no more, and commit what it gave."""
        # Without one that is under way, all that was fetched was given, and is processed.
        if commit and held.pull is None and self._sharing.consuming.auto_commit:
            await self._quietly(held.consumer.store(held.consumer.position))
        await self._close(held, commit=commit)

    async def _close(self, held: _Held, *, commit: bool) -> None:
        if held.pull is not None:
            held.pull.cancel()
            await asyncio.gather(held.pull, return_exceptions=True)
            held.pull = None
        await self._quietly(held.consumer.close(commit=commit))

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        """Commit as far as that is possible."""
        try:
            await work
        except StoreError as error:
            if not _is_fenced(error) and not error.retryable:
                raise
            # Who follows begins where the last commit was: some records come twice, none is lost.
            self._sharing.consuming.on_outage(error)

    def _take(self) -> Batch | None:
        """A batch of one of the partitions, if there is one; and let all of them be fetched."""
        member = self._member
        if member is None:
            return None
        for held in list(member.held.values()):
            if held.lost or held.revoked:
                continue
            if held.pull is None:
                held.pull = asyncio.ensure_future(_next_of(held.consumer))
            elif held.pull.done():
                pull, held.pull = held.pull, None
                try:
                    batch = pull.result()
                except StoreError as error:
                    if not _is_fenced(error):
                        raise
                    held.lost = True
                    self._changed.set()
                    continue
                assert batch is not None
                # The next one looks at the others first.
                member.held[held.partition] = member.held.pop(held.partition)
                self._hand, self._last = held, batch
                self._given += 1
                return batch
        return None

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a batch, or until the group has said something."""
        member = self._member
        pulls = [] if member is None else [one.pull for one in member.held.values() if one.pull]
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait(
                {changed, *pulls}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            changed.cancel()


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
        if _is_fenced(error):
            return False
        raise
    return True


def member_name() -> str:
    """Make a name that no other program of this host or another has."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:64].strip("-")
    return f"{host or 'member'}-{secrets.token_hex(4)}"


def _going_on(member: _Member) -> dict[int, int]:
    return {
        number: one.generation
        for number, one in member.held.items()
        if not one.revoked and not one.lost
    }


def _is_fenced(error: StoreError) -> bool:
    return error.code == Code.CONSUMER_FENCED


async def _next_of(consumer: AsyncConsumer) -> Batch | None:
    return batch_of(await consumer.fetch(consumer.position))
