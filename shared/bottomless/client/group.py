"""`AsyncGroup`: one program of several that share a stream, of which one reads at a time; or that
share the partitions of a super stream, each of which one of them reads at a time.

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
from types import TracebackType
from typing import Any, Final, Self

from bottomless.client.consumer import AsyncConsumer, batch_of
from bottomless.client.follow import Batch
from bottomless.client.membership import GroupMemberCalls, Held, Membership, Sharing, is_fenced
from bottomless.errors import StoreError

LEASE_SECONDS_DEFAULT: Final = 30.0
READ_COUNT_MAX: Final = 48
"""Partitions that one member reads: each is an answer that stays open on a connection."""


class AsyncGroup:
    """A member of a consumer group; made by `AsyncClient.group`, used with `async with`.

    Only one task may use it at a time. It gives batches while it holds the stream, and waits while
    another member does. Of a super stream the members divide the partitions: each batch is of one of
    them, and says of which. A member reads up to 48 partitions; where it holds more, the others wait
    until there are more members. Leaving the block commits what is processed and leaves the group.
    """

    def __init__(self, client: GroupMemberCalls, sharing: Sharing) -> None:
        self._sharing = sharing
        self._membership = Membership(client, sharing)
        self._hand: Held | None = None
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
        return self._membership.going_on

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        """The next batch; waits while another member holds the stream.

        Raises:
            OffsetGone: `offset-trimmed`, retention or trim passed the position.
            NotFound: the stream was deleted.
            WrongOffset: `stream-replaced`, another stream has the name.
            Unavailable: the group answers what no server of ours does.
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
        if self._hand is not None and self._last is not None:
            # It is processed, since the next one is asked for, whichever partition that comes from.
            self._hand.consumer.process(self._last.next_offset)
        self._hand = None
        await self.start()
        while True:
            self._membership.changed.clear()
            self._membership.check()
            await self._give_over()
            given = self._take()
            if given is not None:
                return given
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            await self._wait(left)

    async def commit(self) -> None:
        """Store that everything that was given is processed, the last batch too.

        Raises:
            WrongOffset: `consumer-fenced`, another member holds the stream by now.
        """
        hand = self._hand
        refused: list[StoreError] = []
        others = [one for one in self._membership.held.values() if one is not hand and not one.lost]
        for held in [hand, *others] if hand is not None else others:
            received = self._last.next_offset if held is hand and self._last is not None else None
            try:
                await held.consumer.store(received)
            except StoreError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    async def start(self) -> None:
        """Join the group; once is enough.

        Raises:
            RuntimeError: it was closed.
        """
        if self._closed:
            raise RuntimeError("the member has left its group: make another")
        if not self._membership.begun:
            await self._membership.begin()

    async def close(self, *, commit: bool = True) -> None:
        """Stop reading, commit what is processed unless `commit` is false, and leave the group."""
        self._closed = True
        membership = self._membership
        await membership.end()
        reading = [*membership.ending, *membership.held.values()]
        membership.ending, membership.held = [], {}
        try:
            for held in reading:
                await self._end(held, commit=commit and not held.lost)
        finally:
            await membership.leave()

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

    async def _give_over(self) -> None:
        """End what was asked back or lost; the batch in hand is processed by now."""
        membership = self._membership
        membership.ending += [one for one in membership.held.values() if one.lost]
        membership.held = {number: one for number, one in membership.held.items() if not one.lost}
        while membership.ending:
            ending = membership.ending[0]
            await self._end(ending, commit=False)
            membership.ending.remove(ending)
        for held in [one for one in membership.held.values() if one.revoked]:
            await self._end(held, commit=True)
            membership.say_released(held)

    async def _end(self, held: Held, *, commit: bool) -> None:
        """Close what this member reads no more, and commit what is processed of it."""
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
            if not is_fenced(error) and not error.retryable:
                raise
            # Who follows begins where the last commit was: some records come twice, none is lost.
            self._sharing.consuming.on_outage(error)

    def _take(self) -> Batch | None:
        """A batch of one of the partitions, if there is one; and let all of them be fetched."""
        membership = self._membership
        for held in list(membership.held.values()):
            if held.lost or held.revoked:
                continue
            if held.pull is None:
                held.begun = held.begun or self._has_room()
                if not held.begun:
                    continue
                held.pull = asyncio.ensure_future(_next_of(held.consumer))
            elif held.pull.done():
                pull, held.pull = held.pull, None
                try:
                    batch = pull.result()
                except StoreError as error:
                    if not is_fenced(error):
                        raise
                    held.lost = True
                    membership.changed.set()
                    continue
                assert batch is not None
                if membership.super_stream:
                    batch = of_partition(batch, held.partition)
                # The next one looks at the others first.
                membership.held[held.partition] = membership.held.pop(held.partition)
                self._hand, self._last = held, batch
                self._given += 1
                return batch
        return None

    def _has_room(self) -> bool:
        """Whether one more partition may be read beside those that are."""
        return sum(one.begun for one in self._membership.held.values()) < READ_COUNT_MAX

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a batch, or until the group has said something."""
        membership = self._membership
        pulls = [one.pull for one in membership.held.values() if one.pull]
        changed = asyncio.ensure_future(membership.changed.wait())
        try:
            await asyncio.wait(
                {changed, *pulls}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            changed.cancel()


def of_partition(batch: Batch, partition: int) -> Batch:
    """A batch, and each of its records, with the index of the partition that it is of."""
    for record in batch.records:
        record["partition"] = partition
    return batch._replace(partition=partition)


def member_name() -> str:
    """Make a name that no other program of this host or another has."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:64].strip("-")
    return f"{host or 'member'}-{secrets.token_hex(4)}"


async def _next_of(consumer: AsyncConsumer) -> Batch | None:
    return batch_of(await consumer.fetch(consumer.position))
