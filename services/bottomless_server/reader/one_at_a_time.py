"""Ask one question at a time for each name: who comes while it is asked gets the same answer.

Followers of a stream all wake at once when it grows; what they need to know then is asked
by the first of them.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

N = TypeVar("N", bound=Hashable)
T = TypeVar("T")


class OneAtATime(Generic[N, T]):
    def __init__(self, linger_seconds: float = 0) -> None:
        """A question that nobody waits for any more is given up after `linger_seconds`."""
        self._asking: dict[N, _Question[T]] = {}
        self._linger_seconds = linger_seconds

    async def join(self, name: N, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to a question that is being asked, or to `ask`, which begins now.

        Whatever `ask` raises is raised in all who wait.
        """
        question = self._asking.get(name)
        if question is None:
            question = self._asking[name] = _Question(asyncio.create_task(ask()))
            question.task.add_done_callback(lambda _: self._asked(name, question))
        question.count += 1
        try:
            await asyncio.wait({question.task})
        finally:
            question.count -= 1
            if question.count == 0 and not question.task.done():
                self._left(name, question)
        return question.task.result()

    async def aclose(self) -> None:
        """Give up all questions."""
        tasks = [question.task for question in self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _left(self, name: N, question: "_Question[T]") -> None:
        if not self._linger_seconds:
            self._give_up(name, question)
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self._linger_seconds, self._give_up, name, question)

    def _give_up(self, name: N, question: "_Question[T]") -> None:
        if question.count:
            return
        # Who comes now asks anew, and does not join what was given up.
        question.task.cancel()
        if self._asking.get(name) is question:
            del self._asking[name]

    def _asked(self, name: N, question: "_Question[T]") -> None:
        if self._asking.get(name) is question:
            del self._asking[name]
        if not question.task.cancelled():
            # Looked at here, since all who waited may have gone away.
            question.task.exception()

    @property
    def joined_count(self) -> int:
        """How many wait for the questions that are being asked, all together."""
        return sum(question.count for question in self._asking.values())

    def __len__(self) -> int:
        return len(self._asking)

    def __contains__(self, name: N) -> bool:
        return name in self._asking


class _Question(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.count = 0
        """Who waits for it."""
