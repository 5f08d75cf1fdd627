"""`AsyncConsumer`: batches of records as they come, and an offset that says what is processed.

A batch counts as processed when the next one is asked for. So a program that dies in the
middle of a batch is given that batch again: at least once, never skipped.

    asked for       processed        committed
    batch 3  ←  batches 1 and 2  ←  batch 1, and 2 within the commit interval
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from bottomless.client.address import check_reference, check_stream
from bottomless.client.deadline import seconds_left
from bottomless.client.follow import Batch, FollowCalls
from bottomless.client.follow_tables import FollowTableCalls
from bottomless.client.parameters import Parameter, query_of
from bottomless.client.place import Place, check_start, spec_of
from bottomless.client.pull import Pull
from bottomless.client.reads import ArrowPage
from bottomless.client.streams import StreamCalls
from bottomless.errors import InvalidRequest, StoreError
from bottomless.model.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

COMMIT_SECONDS_DEFAULT: Final = 1.0
_AGAIN_SECONDS: Final = 0.5
"""At least, after a commit that failed."""


class ConsumerCalls(StreamCalls, FollowCalls, FollowTableCalls):
    """The calls that a consumer needs of a client."""


def ignored(_error: StoreError) -> None:
    """Ignore an outage: the default of `on_outage`."""


@dataclass(frozen=True, slots=True)
class Consuming:
    """The stream that is consumed, under which name, from where, and how progress is stored."""

    stream: str
    name: str | None = None
    """The name under which the offset is stored; without a name none is stored."""
    start: Place = "first"
    """An offset, an offset spec or a time; with a name it counts for the first time only."""
    auto_commit: bool = True
    commit_seconds: float = COMMIT_SECONDS_DEFAULT
    """How long progress may stay uncommitted; 0 commits before each batch."""
    max_bytes: int = PAGE_SIZE_DEFAULT
    """Bytes of the values of a batch, roughly; two batches are held at most."""
    expect_stream_id: str | None = None
    on_outage: Callable[[StoreError], None] = field(default=ignored)
    """Called with the reason each time reading is interrupted; it resumes by itself."""
    claim: tuple[str, int] | None = None
    """The member of a consumer group as which is read and stored, and its generation."""
    commit_records: int | None = None
    """How many records may be processed before they are committed, if that is sooner; counted by
    whole batches. None: time alone counts."""
    wanted: Mapping[str, Parameter] = field(default_factory=dict)
    """What is asked for, where that is not everything: `filter`, `match_unfiltered`, `key`."""

    def __post_init__(self) -> None:
        check_stream(self.stream)
        if self.name is not None:
            check_reference(self.name)
        check_start(self.start)
        query_of(self.wanted)
        if not 1 <= self.max_bytes <= PAGE_SIZE_MAX or self.commit_seconds < 0:
            raise InvalidRequest(
                f"max_bytes must be from 1 to {PAGE_SIZE_MAX}, and commit_seconds at least 0"
            )
        if self.commit_records is not None and self.commit_records < 1:
            raise InvalidRequest("commit_records must be at least 1")

    def query(self) -> dict[str, Parameter]:
        """Make the query parameters of the read."""
        query: dict[str, Parameter] = {"max_bytes": self.max_bytes, **self.wanted}
        if self.expect_stream_id is not None:
            query["expect_stream_id"] = self.expect_stream_id
        if self.name is not None:
            query |= {"consumer": self.name, "default": spec_of(self.start)}
        return query


class AsyncConsumer:
    """Reads one stream for ever; made by `AsyncClient.consumer`, used with `async with`.

    Only one task may use it at a time. A task that is cancelled while it waits for a batch loses
    nothing: the batch is there for the next call. When the server cannot be reached, it waits and
    reconnects.

    Leaving the block normally commits what is processed; the last batch counts as processed only if
    the next one was asked for or `commit` was called. Leaving it by an exception commits nothing.
    """

    def __init__(self, client: ConsumerCalls, consuming: Consuming) -> None:
        self._client = client
        self._consuming = consuming
        self._start = consuming.start if consuming.name is None else "stored"
        self._pull: Pull[Batch | ArrowPage] = Pull(_followed(client, consuming, self._start))
        self._gives_tables = False
        self._last: Batch | ArrowPage | None = None
        """The batch that was given last."""
        self._processed: int | None = None
        self._stream_id: str | None = None
        self._committed: int | None = None
        self._commit_at = time.monotonic() + consuming.commit_seconds
        self._record_count = 0
        """Records that are processed and not committed."""
        self._again_at = 0.0
        """When a commit that failed may be tried again, however much is processed."""

    @property
    def position(self) -> int | None:
        """The offset after the last record that was given; None before the first batch."""
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
        """Wait for the next batch; None if there is none in `timeout_seconds`.

        It raises what the iteration would raise.
        """
        return await self._fetch_records(timeout_seconds)

    async def _fetch_records(self, timeout_seconds: float | None) -> Batch | None:
        self.check_gives(tables=False)
        return batch_of(await self.fetch(self.position, timeout_seconds))

    def check_gives(self, *, tables: bool) -> None:
        """Check that this consumer gives the wanted kind of batches: tables, or records.

        Raises:
            InvalidRequest: it gives the other kind.
        """
        if tables is not self._gives_tables:
            kind = "tables" if self._gives_tables else "records"
            raise InvalidRequest(f"this consumer gives {kind}: make another for the other kind")

    def tables(self, *, max_bytes: int = PAGE_SIZE_MAX) -> "AsyncTables":
        """Give Arrow tables instead of batches of records: many times as fast.

        `commit`, `position` and everything else of this consumer stay as they are. The values of a
        table take about `max_bytes`, and two tables are held at most.

        Raises:
            InvalidRequest: it has given batches already, or `max_bytes` is out of its range.
        """
        if self._last is not None or self._pull.is_begun:
            raise InvalidRequest("this consumer gives batches already: make another for tables")
        if not 1 <= max_bytes <= PAGE_SIZE_MAX:
            raise InvalidRequest(f"max_bytes must be from 1 to {PAGE_SIZE_MAX}")
        self._gives_tables = True
        consuming = self._consuming
        query = {**consuming.query(), "max_bytes": max_bytes}
        tables = self._client.follow_tables(
            consuming.stream, self._start, on_outage=consuming.on_outage, **query
        )
        self._pull = Pull(tables)
        return AsyncTables(self)

    async def fetch(
        self, received: int | None, timeout_seconds: float | None = None
    ) -> Batch | ArrowPage | None:
        """Wait for the batch after `received`, the position that the caller knows of.

        If that is not where the last batch ended, the caller has never received that batch, and it
        is given again. None if there is no batch in `timeout_seconds`.
        """
        if self._last is not None and self._last.next_offset != received:
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
                if batch.gaps or _count_of(batch):
                    self._last = batch
                    self._stream_id = batch.stream_id
                    return batch
                if self._consuming.wanted:
                    # Nothing in it was asked for, and all that was given before is processed.
                    self._pass(batch.next_offset)
                    self._stream_id = batch.stream_id
            if seconds_left(deadline) == 0:
                return None

    async def commit(self) -> None:
        """Store that everything that was given is processed.

        Raises:
            WrongOffset: `offset-regression`, another program with the same name is ahead;
                `stream-replaced`, another stream has taken the stream's name.
        """
        await self.store(self.position)

    async def store(self, received: int | None) -> None:
        """Commit for a caller whose position is `received`.

        That may be one batch less than was fetched.

        Raises:
            WrongOffset: `offset-regression`, another program with the same name is ahead;
                `stream-replaced`, another stream has taken the stream's name.
        """
        self.process(received)
        await self._commit()

    def process(self, received: int | None) -> None:
        """Note that a caller whose position is `received` has processed all before it.

        It is committed when that is due, or by `close`. None changes nothing.
        """
        before = -1 if self._processed is None else self._processed
        if received is None or received <= before:
            return
        if self._last is not None and self._last.next_offset == received:
            self._record_count += _count_of(self._last)
        self._pass(received)

    def _pass(self, offset: int) -> None:
        """Note that all before an offset is processed; what was passed over is processed too."""
        self._processed = max(offset, self._processed or 0)

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
            self._again_at = time.monotonic() + _AGAIN_SECONDS
            self._commit_at = time.monotonic() + max(self._consuming.commit_seconds, _AGAIN_SECONDS)

    def _commit_left(self) -> float | None:
        """Seconds until a commit is due, None if there is nothing to commit."""
        consuming = self._consuming
        nothing = consuming.name is None or self._processed in (None, self._committed)
        if nothing or not consuming.auto_commit:
            return None
        due = self._commit_at
        if consuming.commit_records is not None and self._record_count >= consuming.commit_records:
            due = min(due, self._again_at)
        return max(0.0, due - time.monotonic())

    async def _commit(self, retry_seconds: float | None = None) -> None:
        name, processed = self._consuming.name, self._processed
        if name is None or processed is None or processed == self._committed:
            return
        assert self._stream_id is not None, "what is processed has come"
        await self._client.commit(
            self._consuming.stream,
            name,
            processed,
            # The name may be another stream's by now, of which nothing is processed.
            stream_id=self._stream_id,
            retry_seconds=retry_seconds,
            claim=self._consuming.claim,
        )
        self._committed = processed
        self._record_count = 0
        self._commit_at = time.monotonic() + self._consuming.commit_seconds


class AsyncTables:
    """The tables of an `AsyncConsumer`, for `async for`: its method `tables` makes them."""

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
        """Wait for the next table; None if there is none in `timeout_seconds`.

        It raises what the iteration would raise.
        """
        return table_of(await self._consumer.fetch(self._consumer.position, timeout_seconds))


def _followed(client: ConsumerCalls, consuming: Consuming, start: Place) -> AsyncIterator[Batch]:
    stream, query, on_outage = consuming.stream, consuming.query(), consuming.on_outage
    if consuming.claim is None:
        return client.follow(stream, start, on_outage=on_outage, **query)
    member_id, generation = consuming.claim
    return client.follow_as_member(
        stream, start, member_id, generation, on_outage=on_outage, **query
    )


def batch_of(given: Batch | ArrowPage | None) -> Batch | None:
    """Check that what a consumer gave is no table; a table here is a bug."""
    assert not isinstance(given, ArrowPage)
    return given


def table_of(given: Batch | ArrowPage | None) -> ArrowPage | None:
    """Check that what a consumer gave is a table or nothing; records here are a bug."""
    assert not isinstance(given, Batch)
    return given


def _count_of(batch: Batch | ArrowPage) -> int:
    return batch.table.num_rows if isinstance(batch, ArrowPage) else len(batch.records)
