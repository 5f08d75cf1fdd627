"""An event loop whose clock jumps to the next timer when nothing is ready.

Processes share it. Callbacks of one process run in the order in which they became ready, as in
any event loop; which process goes next is a matter of seeded chance. What belongs to a process
that was killed never runs again: no `finally`, no `except`, as after SIGKILL.

Calls in worker threads run here, one at a time, at moments that are made up from the seed.

`now` is true time. `time()` is what the monotonic clock of the asking machine says, as in any
event loop: while the machine sleeps it stands still, and so do the timers of its processes.
"""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar

from simulation.clockwork import MACHINE, MachineClock

_T = TypeVar("_T")
THREAD_SECONDS_MAX: Final = 0.004
"""How long a call in a thread waits for its turn, and its caller for the result."""


class Killed(BaseException):
    """Raised in a call of a thread to end the process at this place."""


class Process:
    """One life of a program: all that runs in its context."""

    def __init__(self, loop: "VirtualLoop", name: str, clock: MachineClock) -> None:
        self.name = name
        self.clock = clock
        self.alive = True
        self.on_death: list[Callable[[], None]] = []
        self.steps_left: int | None = None
        """It is killed after so many more callbacks."""
        self.paused = False
        self._parked: list[asyncio.Handle] = []
        self._loop = loop
        self._graveyard: list[object] = []
        """What must not be collected, since that would run what stands in a `finally`."""
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self.context.run(MACHINE.set, clock)

    def spawn(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Run in this process, in a context of its own."""
        return self._loop.create_task(work, context=self.context.copy())

    def pause(self) -> None:
        """Do nothing, as after SIGSTOP: time goes on, and what becomes ready waits."""
        self.paused = True

    def park(self, handle: asyncio.Handle) -> None:
        self._parked.append(handle)

    def resume(self) -> None:
        if self.clock.asleep_since is not None:
            return
        self.paused = False
        parked, self._parked = self._parked, []
        self._loop.ready_again(parked)

    def sleep(self, *, unseen: bool = False) -> None:
        """The machine stops, with its monotonic clock and the timers that go by it; `unseen`: none
        of its clocks will tell that it slept."""
        self.paused = True
        self.clock.fall_asleep(self._loop.now, unseen=unseen)

    def wake(self) -> None:
        """The machine goes on where it was."""
        slept = self.clock.wake(self._loop.now)
        late, self._parked = self._parked, []
        self._loop.postpone(self, slept, late)
        self.resume()

    def keep(self, thing: object) -> None:
        self._graveyard.append(thing)

    def kill(self) -> None:
        if not self.alive:
            return
        self.alive = False
        died, self.on_death = self.on_death, []
        for tell in died:
            # Whoever hears of it is not this process.
            Context().run(tell)


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Numbered:
    """Sets go by numbers and not by addresses, so that their order is that of the seed."""

    made_count = 0
    """In this run."""
    _number: int

    def __new__(cls, *_: Any, **__: Any) -> Any:
        made = super().__new__(cls)
        made._number = _Numbered.made_count = _Numbered.made_count + 1
        return made

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _NumberedTask(_Numbered, asyncio.Task[Any]):
    pass


class _NumberedFuture(_Numbered, asyncio.Future[Any]):
    pass


class VirtualLoop(asyncio.BaseEventLoop):
    _ready: "deque[asyncio.Handle]"
    _scheduled: "list[Any]"
    _stopping: bool

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        _Numbered.made_count = 0
        self._now = 0.0
        self._chance = chance
        self._lines: dict[Any, deque[tuple[Callable[..., object], tuple[Any, ...]]]] = {}
        """What executors with one thread have to do, in its order."""
        self.step_count = 0
        self.bugs: list[str] = []
        """Callbacks that raised."""
        self.failures: list[BaseException] = []
        """What ends the run at the next step."""
        self.set_task_factory(_make_task)
        self.set_exception_handler(self._note)

    @property
    def now(self) -> float:
        """True time, for whoever is not a machine."""
        return self._now

    def time(self) -> float:
        machine = MACHINE.get()
        return self._now if machine is None else machine.monotonic(self._now)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        # Timers are kept by true time; who sets one says it by its own clock.
        true_when = when + (self._now - self.time())
        return super().call_at(true_when, callback, *args, context=context)

    def postpone(self, process: Process, seconds: float, parked: list[asyncio.Handle]) -> None:
        """Move the timers of a process that slept: they go by its monotonic clock. What came due
        while it slept was parked, and is not due."""
        timers = [timer for timer in self._scheduled if _process_of(timer) is process]
        for handle in parked:
            if isinstance(handle, asyncio.TimerHandle) and not handle.cancelled():
                timers.append(handle)
                self._scheduled.append(handle)
                handle._scheduled = True  # type: ignore[attr-defined]
            else:
                self._ready.append(handle)
        for timer in timers:
            timer._when += seconds
        heapq.heapify(self._scheduled)

    def create_future(self) -> "asyncio.Future[Any]":
        made: asyncio.Future[Any] = _NumberedFuture(loop=self)
        return made

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., _T], *args: Any
    ) -> "asyncio.Future[_T]":
        """A call in a thread: begun later unless it is cancelled before, heard of later still.

        Those of an executor with one thread come one after the other.
        """
        future: asyncio.Future[_T] = self.create_future()
        process = PROCESS.get()

        def call() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Killed:
                assert process is not None
                process.keep(future)
                process.kill()
                return
            except Exception as error:  # noqa: BLE001 it is the caller's, whatever it is
                self._later(executor, _settle, future, None, error)
                return
            self._later(executor, _settle, future, result, None)

        self._later(executor, call)
        return future

    def _later(self, executor: Any, callback: Callable[..., object], *args: Any) -> None:
        if getattr(executor, "_max_workers", 0) != 1:
            self.call_later(self._moment(), callback, *args)
            return
        line = self._lines.setdefault(executor, deque())
        line.append((callback, args))

        def next_of_line() -> None:
            first, given = line.popleft()
            first(*given)

        self.call_later(self._moment(), next_of_line)

    def _moment(self) -> float:
        return self._chance.random() ** 3 * THREAD_SECONDS_MAX

    def _run_once(self) -> None:
        self._take_due()
        if not self._ready:
            return
        handle = self._choose()
        process = _process_of(handle)
        if process is not None and process.alive and process.steps_left is not None:
            process.steps_left -= 1
            if process.steps_left < 0:
                process.kill()
        if process is not None and not process.alive:
            process.keep(handle)
            return
        if process is not None and process.paused:
            process.park(handle)
            return
        self.step_count += 1
        if not handle._cancelled:
            handle._run()
        if self.failures:
            raise self.failures[0]

    def ready_again(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def _take_due(self) -> None:
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not self._ready and not self._stopping:
            if not timers:
                raise RuntimeError("nothing will ever happen again")
            self._now = max(self._now, timers[0].when())
        while timers and timers[0].when() <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            self._ready.append(timer)

    def _choose(self) -> asyncio.Handle:
        """The oldest of a process that chance chose among those that have something to do."""
        ready = self._ready
        if len(ready) > 1:
            process = _process_of(ready[self._chance.randrange(len(ready))])
            for number, handle in enumerate(ready):
                if _process_of(handle) is process:
                    del ready[number]
                    return handle
        return ready.popleft()

    def _note(self, _: object, context: dict[str, Any]) -> None:
        # Of what is said when something is collected nobody knows when it is.
        if "never retrieved" not in context["message"] and "destroyed" not in context["message"]:
            self.bugs.append(f"{context['message']}: {context.get('exception')!r}")

    def _process_events(self, _: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _process_of(handle: Any) -> Process | None:
    context: Context = handle._context
    return context.get(PROCESS)


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None
) -> "asyncio.Task[Any]":
    task: asyncio.Task[Any] = _NumberedTask(work, loop=loop, context=context)
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.keep(task)
    return task


def _settle(future: "asyncio.Future[_T]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
