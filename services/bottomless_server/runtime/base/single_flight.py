"""Do a thing once for all who want it at the same time: who comes meanwhile gets the same outcome.

Many want the same at once: followers wake together when their stream grows, and requests come
with a key that is due to be asked for. What the first of them needs is begun, and the others wait
for it. Nothing is remembered: who comes after the end begins anew, so an answer is kept by whoever
asked for it, and a failure by nobody.

What is begun is a flight: a task of its own, which runs in the context of who began it. Nobody who
waits can end it by leaving, so nobody's short patience is a failure of the others.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

import structlog

from bottomless.errors import StoreError
from bottomless_server.runtime.base.end import end_tasks

log = structlog.get_logger(__name__)

N = TypeVar("N", bound=Hashable)
T = TypeVar("T")

Make = Callable[[], Coroutine[Any, Any, T]]


class SingleFlight(Generic[N, T]):
    """The flights of one kind that are under way, at most one for each name that can be joined."""

    def __init__(self, linger_seconds: float | None = None) -> None:
        """A flight that nobody waits for any more is given up after `linger_seconds`.

        If None, it goes on to its end: its outcome is of use to those who come later.
        """
        self._linger_seconds = linger_seconds
        self._current: dict[N, _Flight[T]] = {}
        """What can be joined."""
        self._running: set[asyncio.Task[T]] = set()
        """All that has not ended, also what nobody may join any more."""

    async def join(self, name: N, make: Make[T]) -> T:
        """The outcome of what is under way, or of `make`, which begins now.

        Whatever `make` raises is raised in all who wait. Who is cancelled, or runs out of time,
        takes nothing from the others.

        Raises:
            asyncio.CancelledError: also where all was given up, by `aclose`.
        """
        flight = self._joinable(name) or self._begun(name, make)
        flight.join()
        try:
            # It does not cancel what it waits for, and neither does it raise what that raises.
            await asyncio.wait({flight.task})
        finally:
            flight.waiting_count -= 1
            if flight.waiting_count == 0 and not flight.task.done():
                self._left(name, flight)
        return flight.task.result()

    def begin(self, name: N, make: Make[T]) -> None:
        """Begin it ahead of time, if it is not under way, and wait for nothing."""
        assert self._linger_seconds is None, "nobody waits for it, so it would be given up"
        if self._joinable(name) is None:
            self._begun(name, make)

    def part(self, name: N) -> None:
        """Let nobody join what is under way: what it finds may be out of date by now.

        Those who wait for it already get its outcome.
        """
        self._current.pop(name, None)

    def is_parted(self, name: N) -> bool:
        """Tell the flight itself, while it runs, whether it was parted, and may remember nothing."""
        flight = self._current.get(name)
        return flight is None or flight.task is not asyncio.current_task()

    async def ended(self, *names: N) -> None:
        """Return when what is under way under these names has ended, however it ended.

        It raises nothing of that, and being cancelled does not end it.
        """
        tasks = {self._current[name].task for name in names if name in self._current}
        if tasks:
            await asyncio.wait(tasks)

    async def give_up(self, *names: N) -> None:
        """End what is under way under these names and nobody waits for; returns when it has ended."""
        unwanted = [
            (name, flight)
            for name in names
            if (flight := self._joinable(name)) is not None and not flight.waiting_count
        ]
        for name, flight in unwanted:
            # Before anything is awaited: who comes now begins anew.
            self._take_out(name, flight)
        await end_tasks(*(flight.task for _, flight in unwanted))

    async def aclose(self) -> None:
        """Give up all flights, also those that were parted; returns when they have ended."""
        await end_tasks(*self._running)

    @property
    def joined_count(self) -> int:
        """How many wait for the flights that can be joined, all together."""
        return sum(flight.waiting_count for flight in self._current.values())

    def names(self) -> list[N]:
        """Under which something can be joined now."""
        return list(self._current)

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, name: N) -> bool:
        return self._joinable(name) is not None

    def _joinable(self, name: N) -> "_Flight[T] | None":
        flight = self._current.get(name)
        # One that has just ended has an outcome from before, whoever comes only now.
        return None if flight is None or flight.task.done() else flight

    def _begun(self, name: N, make: Make[T]) -> "_Flight[T]":
        flight = self._current[name] = _Flight(asyncio.create_task(make()))
        self._running.add(flight.task)
        flight.task.add_done_callback(lambda _: self._ended(name, flight))
        return flight

    def _left(self, name: N, flight: "_Flight[T]") -> None:
        if self._linger_seconds is None:
            return
        if self._linger_seconds == 0:
            self._give_up(name, flight)
            return
        loop = asyncio.get_running_loop()
        flight.timer = loop.call_later(self._linger_seconds, self._give_up, name, flight)

    def _give_up(self, name: N, flight: "_Flight[T]") -> None:
        # Who comes now begins anew, and does not join what was given up.
        flight.task.cancel()
        self._take_out(name, flight)

    def _ended(self, name: N, flight: "_Flight[T]") -> None:
        self._take_out(name, flight)
        self._running.discard(flight.task)
        flight.stop_timer()
        if flight.task.cancelled():
            return
        # Looked at here, since all who waited may have gone.
        error = flight.task.exception()
        if error is not None and flight.waiting_count == 0 and not isinstance(error, StoreError):
            log.error("a bug was met where nobody waits for the outcome", exc_info=error)

    def _take_out(self, name: N, flight: "_Flight[T]") -> None:
        if self._current.get(name) is flight:
            del self._current[name]


class _Flight(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting_count = 0
        self.timer: asyncio.TimerHandle | None = None
        """Set while nobody waits for it: then it is given up."""

    def join(self) -> None:
        """One more waits for it."""
        self.waiting_count += 1
        self.stop_timer()

    def stop_timer(self) -> None:
        """Somebody waits for it again, or it has ended."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
