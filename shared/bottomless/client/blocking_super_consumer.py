"""`SuperConsumer`: what `AsyncSuperConsumer` does, for programs without an event loop."""

from types import TracebackType
from typing import Self

from bottomless.client.loop_thread import LoopThread
from bottomless.client.super_consumer import AsyncSuperConsumer
from bottomless.client.super_reads import MergedBatch


class SuperConsumer:
    """Reads a super stream for ever; made by `Client.super_consumer`, used with `with`.

    Only one thread may use it at a time. Options, guarantees and errors are those of
    `AsyncSuperConsumer`.
    """

    def __init__(self, inner: AsyncSuperConsumer, thread: LoopThread, client: object) -> None:
        self._inner = inner
        self._thread = thread
        self._client = client
        """Kept: a client that nobody has any more is closed."""
        self._received = 0
        self.positions: dict[str, int] = {}
        """The offset after what was given, by the name of the partition's stream."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MergedBatch:
        """The next batch that holds a record or jumps over a gap."""
        batch = self.poll(None)
        assert batch is not None
        return batch

    def poll(self, timeout_seconds: float | None) -> MergedBatch | None:
        """Wait for the next batch; None if there is none in `timeout_seconds`.

        It raises what the iteration would raise.
        """
        # Interrupted here, the batch may be given there; then it is given again.
        batch = self._thread.run(self._inner.fetch(self._received, timeout_seconds))
        if batch is not None:
            self._received = self._inner.given
            self.positions = dict(batch.positions)
        return batch

    def commit(self) -> None:
        """Store that everything that was given is processed, in each partition.

        Raises:
            WrongOffset: `offset-regression`, another program with the same name is ahead;
                `stream-replaced`, another stream has the name of a partition.
        """
        self._thread.run(self._inner.store(self._received))

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
