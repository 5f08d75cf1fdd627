"""`Worker`: what `AsyncWorker` does, for programs without an event loop."""

from types import TracebackType
from typing import Self

from bottomless.client.loop_thread import LoopThread
from bottomless.client.message import Message
from bottomless.client.worker import AsyncHeldMessage, AsyncWorker
from bottomless.client.working import Loss


class HeldMessage(Message):
    """A message in the hand of a worker, for `with`.

    Leaving the block acknowledges it; an exception gives it back, and goes on. It is extended beside
    whatever the program does. Options and errors are those of `AsyncHeldMessage`.
    """

    __slots__ = ("_inner", "_thread")

    def __init__(self, inner: AsyncHeldMessage, thread: LoopThread) -> None:
        super().__init__(inner)
        self._inner = inner
        self._thread = thread

    @property
    def lost(self) -> Loss | None:
        """`stale`: somebody else got it meanwhile; `gone`: it left the queue. None while it is ours."""
        return self._inner.lost

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or given back."""
        return self._inner.settled

    def ack(self) -> bool:
        """Acknowledge the message; tells whether it was still this worker's."""
        return self._thread.run(self._inner.ack())

    def nack(self, *, delay_ms: int | None = None, dead_letter: bool = False) -> bool:
        """Give the message back; tells whether it was still this worker's."""
        return self._thread.run(self._inner.nack(delay_ms=delay_ms, dead_letter=dead_letter))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.run(self._inner.__aexit__(kind, error, traceback))


class Worker:
    """Takes messages of one queue; made by `Client.worker`, for `with` and `for`.

    Only one thread may ask for messages; their blocks may be on any thread. Options, guarantees and
    errors are those of `AsyncWorker`.
    """

    def __init__(self, inner: AsyncWorker, thread: LoopThread, client: object) -> None:
        self._inner = inner
        self._thread = thread
        self._client = client
        """Kept: a client that nobody has any more is closed."""
        self._received = 0

    @property
    def in_hand(self) -> int:
        """How many messages are in hand, those that were not given to the program yet among them."""
        return self._inner.in_hand

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> HeldMessage:
        """The next message; waits for one."""
        message = self._fetch(None)
        assert message is not None
        return message

    def poll(self, timeout_seconds: float) -> HeldMessage | None:
        """Wait for the next message; None if there is none in `timeout_seconds`."""
        return self._fetch(timeout_seconds)

    def close(self) -> None:
        """Give back what is still in hand, and take nothing more."""
        self._thread.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _fetch(self, timeout_seconds: float | None) -> HeldMessage | None:
        # Interrupted here, the message may be given there; then it is given again.
        message = self._thread.run(self._inner.fetch(self._received, timeout_seconds))
        if message is None:
            return None
        self._received += 1
        return HeldMessage(message, self._thread)
