"""`AsyncSuperConsumer`: all partitions of a super stream as they come, and how far each is processed.

A batch counts as processed when the next one is asked for, as of a consumer of one stream: a program
that dies in the middle of a batch is given that batch again. The offset of each partition is stored
by itself, under the consumer's name.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from bottomless.client.address import check_reference, check_stream
from bottomless.client.consumer import COMMIT_SECONDS_DEFAULT, ignored
from bottomless.client.deadline import seconds_left
from bottomless.client.parameters import Parameter, query_of
from bottomless.client.pull import Pull
from bottomless.client.super_reads import MergedBatch, Places, SuperReadCalls, gathered, places_of
from bottomless.errors import InvalidRequest, StoreError

_AGAIN_SECONDS: Final = 0.5
"""At least, after a commit that failed."""


@dataclass(frozen=True, slots=True)
class SuperConsuming:
    """The super stream that is consumed, under which name, from where, and how progress is stored."""

    stream: str
    name: str | None = None
    """The name under which offsets are stored; without a name none are."""
    start: Places = "first"
    """Where to begin; with a name, in the partitions of which nothing is stored."""
    auto_commit: bool = True
    commit_seconds: float = COMMIT_SECONDS_DEFAULT
    """How long progress may stay uncommitted; 0 commits before each batch."""
    on_outage: Callable[[StoreError], None] = field(default=ignored)
    wanted: Mapping[str, Parameter] = field(default_factory=dict)
    """What is asked for, where that is not everything: `filter`, `match_unfiltered`, `key`."""

    def __post_init__(self) -> None:
        check_stream(self.stream)
        if self.name is not None:
            check_reference(self.name)
        places_of(self.start, ())
        query_of(self.wanted)
        if self.commit_seconds < 0:
            raise InvalidRequest("commit_seconds must be at least 0")


class AsyncSuperConsumer:
    """Reads a super stream for ever; made by `AsyncClient.super_consumer`, used with `async with`.

    Only one task may use it at a time. A task that is cancelled while it waits for a batch loses
    nothing: the batch is there for the next call. When the server cannot be reached, it waits and
    reconnects.

    Leaving the block normally commits what is processed; the last batch counts as processed only if
    the next one was asked for or `commit` was called. Leaving it by an exception commits nothing.
    """

    def __init__(self, client: SuperReadCalls, consuming: SuperConsuming) -> None:
        self._client = client
        self._consuming = consuming
        self._pull: Pull[MergedBatch] = Pull(
            client.follow_super(
                consuming.stream,
                consuming.start,
                on_outage=consuming.on_outage,
                consumer=consuming.name,
                **consuming.wanted,
            )
        )
        self._last: MergedBatch | None = None
        self._given = 0
        """How many batches were given."""
        self._processed: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        self._commit_at = time.monotonic() + consuming.commit_seconds

    @property
    def positions(self) -> dict[str, int]:
        """The offset after what was given, by the name of the partition's stream."""
        return {} if self._last is None else dict(self._last.positions)

    @property
    def given(self) -> int:
        """How many batches were given so far."""
        return self._given

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MergedBatch:
        """The next batch that holds a record or jumps over a gap.

        Raises:
            OffsetGone: `offset-trimmed`, retention or trim passed the position in a partition.
            NotFound: the super stream was deleted.
            WrongOffset: `stream-replaced`, another stream has the name of a partition;
                `offset-regression`, another program commits for the same consumer and is ahead.
        """
        batch = await self.fetch(self._given)
        assert batch is not None
        return batch

    async def poll(self, timeout_seconds: float) -> MergedBatch | None:
        """Wait for the next batch; None if there is none in `timeout_seconds`.

        It raises what the iteration would raise.
        """
        return await self.fetch(self._given, timeout_seconds)

    async def fetch(
        self, received: int, timeout_seconds: float | None = None
    ) -> MergedBatch | None:
        """Wait for the batch after the `received` that the caller knows of.

        If more were given, the caller has never received the last one, and it is given again. None
        if there is no batch in `timeout_seconds`.
        """
        if self._last is not None and self._given != received:
            return self._last
        self.process(received)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            # Before the commit, so that it is on its way meanwhile.
            self._pull.begin()
            await self._commit_if_due()
            waits = [
                wait for wait in (self._commit_left(), seconds_left(deadline)) if wait is not None
            ]
            batch = await self._pull.wait(min(waits, default=None))
            if batch is not None:
                if batch.records or batch.gaps:
                    self._last = batch
                    self._given += 1
                    return batch
                # Nothing in it was asked for, and all that was given before is processed.
                self._processed |= batch.positions
            if seconds_left(deadline) == 0:
                return None

    async def commit(self) -> None:
        """Store that everything that was given is processed, in each partition.

        Raises:
            WrongOffset: `offset-regression`, another program with the same name is ahead;
                `stream-replaced`, another stream has the name of a partition.
        """
        await self.store(self._given)

    async def store(self, received: int) -> None:
        """Commit for a caller who knows of `received` batches; that may be one less than were given.

        Raises:
            WrongOffset: as `commit` does.
        """
        self.process(received)
        await self._commit()

    def process(self, received: int) -> None:
        """Note that a caller who knows of `received` batches has processed them."""
        if self._last is not None and received == self._given:
            self._processed |= self._last.positions

    async def close(self, *, commit: bool = True) -> None:
        """Stop reading; commit what is processed unless `commit` is false."""
        await self._pull.aclose()
        if commit and self._consuming.auto_commit:
            await self._commit()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(commit=error is None)

    async def _commit_if_due(self) -> None:
        left = self._commit_left()
        if left is None or left > 0:
            return
        try:
            await self._commit(retry_seconds=0)
        except StoreError as error:
            if not error.retryable:
                raise
            # What is not committed now is committed later; reading goes on meanwhile.
            self._consuming.on_outage(error)
            self._commit_at = time.monotonic() + max(self._consuming.commit_seconds, _AGAIN_SECONDS)

    def _commit_left(self) -> float | None:
        """Seconds until a commit is due, None if there is nothing to commit."""
        consuming = self._consuming
        if consuming.name is None or not consuming.auto_commit or not self._uncommitted():
            return None
        return max(0.0, self._commit_at - time.monotonic())

    def _uncommitted(self) -> dict[str, int]:
        committed = self._committed
        return {
            stream: offset
            for stream, offset in self._processed.items()
            if committed.get(stream) != offset
        }

    async def _commit(self, retry_seconds: float | None = None) -> None:
        due = self._uncommitted()
        if self._consuming.name is None or not due:
            return
        if not due.keys() <= self._ids.keys():
            found = await self._client.partitions(self._consuming.stream)
            self._ids = {one.stream: one.stream_id for one in found}
        await gathered(lambda one: self._commit_one(*one, retry_seconds), due.items())
        self._commit_at = time.monotonic() + self._consuming.commit_seconds

    async def _commit_one(self, stream: str, offset: int, retry_seconds: float | None) -> None:
        assert self._consuming.name is not None
        await self._client.commit(
            stream,
            self._consuming.name,
            offset,
            # The name may be another stream's by now, of which nothing is processed.
            stream_id=self._ids.get(stream),
            retry_seconds=retry_seconds,
        )
        self._committed[stream] = offset
