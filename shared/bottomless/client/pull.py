"""The next batch of what is read without end, for a caller who may leave while it is waited for."""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

B = TypeVar("B")


class Pull(Generic[B]):
    """Takes batches from their source one by one, each by a task of its own.

    A caller that is cancelled while it waits loses nothing: the batch is for who asks next.
    """

    def __init__(self, batches: AsyncIterator[B]) -> None:
        self._batches = batches
        self._task: asyncio.Task[B] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a batch is on its way, or has come and was not taken."""
        return self._task is not None

    def begin(self) -> None:
        """Have the next batch fetched, unless it is on its way."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._next())

    async def wait(self, timeout_seconds: float | None) -> B | None:
        """The batch that is on its way, once it has come; None if it has not in `timeout_seconds`.

        Raises:
            StoreError: there is none any more.
            RuntimeError: that was raised before.
        """
        self.begin()
        task = self._task
        assert task is not None, "it has just begun"
        await asyncio.wait({task}, timeout=timeout_seconds)
        if not task.done():
            return None
        self._task = None
        return task.result()

    async def aclose(self) -> None:
        """Give up the batch that is on its way, and the source."""
        if self._task is not None:
            self._task.cancel()
            # Gathered, so that who cancels this is not taken for the end of the task.
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        close = getattr(self._batches, "aclose", None)
        if close is not None:
            await close()

    async def _next(self) -> B:
        try:
            return await anext(self._batches)
        except StopAsyncIteration:
            # It has raised why before; a loop that begins again must not seem to be at an end.
            raise RuntimeError("the consumer has ended") from None
