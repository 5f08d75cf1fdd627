"""`Consumer`: what `AsyncConsumer` does, for programs without an event loop."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from bottomless.client.consumer import AsyncConsumer, batch_of, table_of
from bottomless.client.follow import Batch
from bottomless.client.loop_thread import LoopThread
from bottomless.client.reads import ArrowPage
from bottomless.model.limits import PAGE_SIZE_MAX


class Consumer:
    """Reads one stream for ever; made by `Client.consumer`, used with `with`.

    Only one thread may use it at a time. Options, guarantees and errors are those of
    `AsyncConsumer`.
    """

    def __init__(self, inner: AsyncConsumer, thread: LoopThread, client: object) -> None:
        self._inner = inner
        self._thread = thread
        self._client = client
        """Kept: a client that nobody has any more is closed."""
        self.position: int | None = None
        """Offset after the last record that was given; None before the first batch."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The next batch that holds a record or jumps over a gap."""
        batch = self.poll(None)
        assert batch is not None
        return batch

    def poll(self, timeout_seconds: float | None) -> Batch | None:
        """Wait for the next batch; None if there is none in `timeout_seconds`.

        It raises what the iteration would raise.
        """
        self._inner.check_gives(tables=False)
        return batch_of(self._fetch(timeout_seconds))

    def tables(self, *, max_bytes: int = PAGE_SIZE_MAX) -> "Tables":
        """Give Arrow tables instead of batches of records: many times as fast.

        `commit`, `position` and everything else of this consumer stay as they are. The values of a
        table take about `max_bytes`, and two tables are held at most.

        Raises:
            InvalidRequest: it has given batches already, or `max_bytes` is out of its range.
        """
        self._inner.tables(max_bytes=max_bytes)
        return Tables(self._fetch)

    def commit(self) -> None:
        """Store that everything that was given is processed.

        Raises:
            WrongOffset: `offset-regression`, another program with the same name is ahead;
                `stream-replaced`, another stream has taken the stream's name.
        """
        self._thread.run(self._inner.store(self.position))

    def close(self, *, commit: bool = True) -> None:
        """Stop reading; commit what is processed unless `commit` is false."""
        self._thread.run(self._inner.close(commit=commit))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(commit=error is None)

    def _fetch(self, timeout_seconds: float | None) -> Batch | ArrowPage | None:
        # Interrupted here, the batch may be given there; then it is given again.
        batch = self._thread.run(self._inner.fetch(self.position, timeout_seconds))
        if batch is not None:
            self.position = batch.next_offset
        return batch


class Tables:
    """The tables of a `Consumer`, for `for`: its method `tables` makes them."""

    def __init__(self, fetch: Callable[[float | None], Batch | ArrowPage | None]) -> None:
        self._fetch = fetch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ArrowPage:
        """The next table that has a record or jumps over a gap."""
        page = self.poll(None)
        assert page is not None
        return page

    def poll(self, timeout_seconds: float | None) -> ArrowPage | None:
        """Wait for the next table; None if there is none in `timeout_seconds`.

        It raises what the iteration would raise.
        """
        return table_of(self._fetch(timeout_seconds))
