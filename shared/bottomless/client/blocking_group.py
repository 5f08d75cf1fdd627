"""`Group`: what `AsyncGroup` does, for programs without an event loop."""

from types import TracebackType
from typing import Self

from bottomless.client.follow import Batch
from bottomless.client.group import AsyncGroup
from bottomless.client.loop_thread import LoopThread


class Group:
    """A member of a consumer group; made by `Client.group`, used with `with`.

    Only one thread may use it at a time. Heartbeats go on beside whatever the program does. Options,
    guarantees and errors are those of `AsyncGroup`.
    """

    def __init__(self, inner: AsyncGroup, thread: LoopThread, client: object) -> None:
        self._inner = inner
        self._thread = thread
        self._client = client
        """Kept: a client that nobody has any more is closed."""
        self._received = 0

    @property
    def member(self) -> str:
        """The name of this member."""
        return self._inner.member

    @property
    def holding(self) -> dict[int, int]:
        """The partitions that this member reads, each with its generation; a stream has the number 0."""
        return self._inner.holding

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The next batch; waits while another member holds the stream."""
        batch = self._fetch(None)
        assert batch is not None
        return batch

    def poll(self, timeout_seconds: float) -> Batch | None:
        """Wait for the next batch; None if there is none in `timeout_seconds`."""
        return self._fetch(timeout_seconds)

    def commit(self) -> None:
        """Store that the batch that was given last is processed too.

        Raises:
            WrongOffset: `consumer-fenced`, another member holds the stream by now.
        """
        self._thread.run(self._inner.commit())

    def close(self, *, commit: bool = True) -> None:
        """Stop reading, commit what is processed unless `commit` is false, and leave the group."""
        self._thread.run(self._inner.close(commit=commit))

    def __enter__(self) -> Self:
        self._thread.run(self._inner.start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(commit=error is None)

    def _fetch(self, timeout_seconds: float | None) -> Batch | None:
        # Interrupted here, the batch may be given there; then it is given again.
        batch = self._thread.run(self._inner.fetch(self._received, timeout_seconds))
        if batch is not None:
            self._received += 1
        return batch
