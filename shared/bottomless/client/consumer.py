"""`AsyncConsumer`: batches of records as they come, and an offset that says what is processed.

A batch counts as processed when the next one is asked for. So a program that dies in the
middle of a batch is given that batch again: at least once, never skipped.

    asked for       processed        committed
    batch 3  ←  batches 1 and 2  ←  batch 1, and 2 within the commit interval
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from bottomless.client.address import check_reference, check_stream
from bottomless.client.follow import Batch, FollowCalls
from bottomless.client.follow_tables import FollowTableCalls
from bottomless.client.place import Place, check_start, spec_of
from bottomless.client.reads import ArrowPage
from bottomless.client.streams import StreamCalls
from bottomless.errors import InvalidRequest, StoreError
from bottomless.model.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

COMMIT_SECONDS_DEFAULT: Final = 1.0
_AGAIN_SECONDS: Final = 0.5
"""At least, after a commit that failed."""


class ConsumerCalls(StreamCalls, FollowCalls, FollowTableCalls):
    """What a consumer needs of a client."""


def ignored(_error: StoreError) -> None:
    """An outage that nobody wants to hear of."""


@dataclass(frozen=True, slots=True)
class Consuming:
    """What is consumed, by whom, and from where."""

    stream: str
    name: str | None = None
    """Whose offset is stored; without one none is."""
    start: Place = "first"
    """An offset, an offset spec or a time; with a name for the first time only."""
    auto_commit: bool = True
    commit_seconds: float = COMMIT_SECONDS_DEFAULT
    """How long what is processed may stay uncommitted; 0 commits before each batch."""
    max_bytes: int = PAGE_SIZE_DEFAULT
    """Bytes of the values of a batch, about; two batches are held at most."""
    expect_stream_id: str | None = None
    on_outage: Callable[[StoreError], None] = field(default=ignored)
    """Hears why reading is interrupted; it goes on by itself."""

    def __post_init__(self) -> None:
        check_stream(self.stream)
        if self.name is not None:
            check_reference(self.name)
        check_start(self.start)
        if not 1 <= self.max_bytes <= PAGE_SIZE_MAX or self.commit_seconds < 0:
            raise InvalidRequest(
                f"max_bytes is from 1 to {PAGE_SIZE_MAX}, commit_seconds not below 0"
            )

    def query(self) -> dict[str, int | str]:
        """The parameters of the read."""
        query: dict[str, int | str] = {"max_bytes": self.max_bytes}
        if self.expect_stream_id is not None:
            query["expect_stream_id"] = self.expect_stream_id
        if self.name is not None:
            query |= {"consumer": self.name, "default": spec_of(self.start)}
        return query


class AsyncConsumer:
    """Reads one stream for ever; made by `AsyncClient.consumer`, used with `async with`.

    Of one task at a time. A task that is cancelled while it waits for a batch loses nothing:
    the batch is there when the next is asked for. Outages of the server are waited out.

    Leaving the block in good order commits what is processed, which the last batch is only
    if the next was asked for or `commit` was called. Leaving it by an error commits nothing.
    """

    def __init__(self, client: ConsumerCalls, consuming: Consuming) -> None:
        self._client = client
        self._consuming = consuming
        self._start = consuming.start if consuming.name is None else "stored"
        self._batches: AsyncIterator[Batch | ArrowPage] = client.follow(
            consuming.stream, self._start, on_outage=consuming.on_outage, **consuming.query()
        )
        self._gives_tables = False
        self._pull: asyncio.Task[Batch | ArrowPage] | None = None
        self._last: Batch | ArrowPage | None = None
        """The batch that was given last."""
        self._processed: int | None = None
        self._committed: int | None = None
        self._commit_at = time.monotonic() + consuming.commit_seconds

    @property
    def position(self) -> int | None:
        """Offset after the last record that was given; None before the first batch."""
        return None if self._last is None else self._last.next_offset

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        """The next batch that holds a record or jumps over a gap.

        Raises:
            OffsetGone: `offset-trimmed`, retention or trim passed the position.
            NotFound: the stream was deleted.
            WrongOffset: `stream-replaced`, another stream has the name; `offset-regression`,
                another program commits for the same consumer and is ahead.
        """
        batch = await self._fetch_records(None)
        assert batch is not None
        return batch

    async def poll(self, timeout_seconds: float) -> Batch | None:
        """The next batch, or None if there is none within the time; raises as the iteration."""
        return await self._fetch_records(timeout_seconds)

    async def _fetch_records(self, timeout_seconds: float | None) -> Batch | None:
        self.check_gives(tables=False)
        return batch_of(await self.fetch(self.position, timeout_seconds))

    def check_gives(self, *, tables: bool) -> None:
        """Raise InvalidRequest where this consumer gives the other kind of batches."""
        if tables is not self._gives_tables:
            kind = "tables" if self._gives_tables else "records"
            raise InvalidRequest(f"this consumer gives {kind}: make another for the other kind")

    def tables(self, *, max_bytes: int = PAGE_SIZE_MAX) -> "AsyncTables":
        """The batches as Arrow tables, many times as fast; instead of batches of records.

        `commit`, `position` and everything else of this consumer are as they are; `max_bytes`
        is about what the values of a table take, and two tables are held at most.

        Raises:
            InvalidRequest: it has given batches already, or `max_bytes` is out of its range.
        """
        if self._last is not None or self._pull is not None:
            raise InvalidRequest("this consumer gives batches already: make another for tables")
        if not 1 <= max_bytes <= PAGE_SIZE_MAX:
            raise InvalidRequest(f"max_bytes is from 1 to {PAGE_SIZE_MAX}")
        self._gives_tables = True
        consuming = self._consuming
        query = {**consuming.query(), "max_bytes": max_bytes}
        self._batches = self._client.follow_tables(
            consuming.stream, self._start, on_outage=consuming.on_outage, **query
        )
        return AsyncTables(self)

    async def fetch(
        self, received: int | None, timeout_seconds: float | None = None
    ) -> Batch | ArrowPage | None:
        """The batch after `received`, the position that the caller knows of.

        If that is not where the last batch ended, its answer did not arrive, and it is given
        again.
        """
        if self._last is not None and self._last.next_offset != received:
            return self._last
        self._processed = received
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            if self._pull is None:
                self._pull = asyncio.ensure_future(_next(self._batches))
            await self._commit_if_due()
            # The task is kept when this is cancelled: the batch is for who asks next.
            waits = [wait for wait in (self._commit_left(), _left(deadline)) if wait is not None]
            await asyncio.wait({self._pull}, timeout=min(waits, default=None))
            if self._pull.done():
                pull, self._pull = self._pull, None
                batch = pull.result()
                if batch.gaps or _count_of(batch):
                    self._last = batch
                    return batch
            if _left(deadline) == 0:
                return None

    async def commit(self) -> None:
        """Store that everything that was given is processed.

        Raises:
            WrongOffset: `offset-regression`, another program is ahead with the same name;
                `stream-replaced`, another stream has the stream's.
        """
        await self.store(self.position)

    async def store(self, received: int | None) -> None:
        """Commit for a caller whose position is `received`; see `fetch`."""
        self._processed = received
        await self._commit()

    async def close(self, *, commit: bool = True) -> None:
        """Stop reading, and commit what is processed."""
        if self._pull is not None:
            self._pull.cancel()
            # Gathered, so that who cancels this is not taken for the end of the task.
            await asyncio.gather(self._pull, return_exceptions=True)
            self._pull = None
        close = getattr(self._batches, "aclose", None)
        if close is not None:
            await close()
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
        nothing = consuming.name is None or self._processed in (None, self._committed)
        if nothing or not consuming.auto_commit:
            return None
        return max(0.0, self._commit_at - time.monotonic())

    async def _commit(self, retry_seconds: float | None = None) -> None:
        name, processed = self._consuming.name, self._processed
        if name is None or processed is None or processed == self._committed:
            return
        assert self._last is not None, "what is processed was given"
        await self._client.commit(
            self._consuming.stream,
            name,
            processed,
            # The name may be another stream's by now, of which nothing is processed.
            stream_id=self._last.stream_id,
            retry_seconds=retry_seconds,
        )
        self._committed = processed
        self._commit_at = time.monotonic() + self._consuming.commit_seconds


class AsyncTables:
    """The tables of an `AsyncConsumer`, for `async for`: see its `tables`."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ArrowPage:
        """The next table that has a record or jumps over a gap; raises as the consumer does."""
        page = await self.poll(None)
        assert page is not None
        return page

    async def poll(self, timeout_seconds: float | None) -> ArrowPage | None:
        """The next table, or None if there is none within the time; raises as the iteration."""
        return table_of(await self._consumer.fetch(self._consumer.position, timeout_seconds))


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def batch_of(given: Batch | ArrowPage | None) -> Batch | None:
    """What was given, where it is no table."""
    assert not isinstance(given, ArrowPage)
    return given


def table_of(given: Batch | ArrowPage | None) -> ArrowPage | None:
    """What was given, where it is a table."""
    assert not isinstance(given, Batch)
    return given


def _count_of(batch: Batch | ArrowPage) -> int:
    return batch.table.num_rows if isinstance(batch, ArrowPage) else len(batch.records)


async def _next(batches: AsyncIterator[Batch | ArrowPage]) -> Batch | ArrowPage:
    try:
        return await anext(batches)
    except StopAsyncIteration:
        # It has raised why before; a loop that begins again must not seem to be at an end.
        raise RuntimeError("the consumer has ended") from None
