"""`-n COUNT`: tests side by side in processes that are forked when all tests are collected.

A worker that is a program of its own loads and collects for itself: that took each of them longer
than a thousand tests. These know all of it when they begin, and share the memory that it takes.

This process hands out units, which are lists of tests that stay together, to whoever has none, and
reports what it is told. A worker that dies is reported with the test that it was at, and another
one goes on with what is left of its unit.
"""

import atexit
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from signal import SIGINT, SIGKILL, strsignal
from typing import Any, Final, NamedTuple

import pytest

from bottomless_server.coordination.die_with_parent import die_with_parent

WORKER: Final = pytest.StashKey[int]()
"""In a worker's configuration: its number, from 0 on."""
OF_A_TERMINAL: Final = ("terminalreporter", "terminalprogress", "lfplugin", "nfplugin")
"""Plugins whose work is done where the reports come together."""
END_SECONDS: Final = 20.0
"""For what a test has under way where the run ends early."""


class _Began(NamedTuple):
    place: int
    """Of the test among all that were collected."""


class _Reported(NamedTuple):
    report: dict[str, Any]


class _Warned(NamedTuple):
    text: str
    file: str
    line: int
    when: str
    nodeid: str


class _Ready(NamedTuple):
    """It has nothing to do."""


class _Unit(NamedTuple):
    places: Sequence[int]


class _Worker:
    """One forked process, as this one sees it."""

    def __init__(self, session: pytest.Session, number: int, others: "Iterable[_Worker]") -> None:
        self.number = number
        self.way, there = Pipe()
        self.unit: deque[int] = deque()
        """What it has still to do; the first one is what it is at, once it has begun."""
        end_with_it = die_with_parent()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            if end_with_it is not None:
                end_with_it()
            for one in (self, *others):
                one.way.close()
            _be_a_worker(session, number, there)
        there.close()

    def end(self, seconds: float) -> int:
        """How it ended, within some seconds or by force."""
        with suppress(ProcessLookupError):
            if seconds:
                os.kill(self.pid, SIGINT)
        # Its end of the connection closes when it ends.
        with suppress(EOFError, OSError):
            while seconds and self.way.poll(seconds):
                self.way.recv_bytes()
        with suppress(ProcessLookupError):
            os.kill(self.pid, SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkedWorkers:
    """The plugin that runs collected tests in so many processes; tests for which `unit_of` says the
    same share one."""

    def __init__(self, count: int, unit_of: Callable[[str], str]) -> None:
        self._count = count
        self._unit_of = unit_of

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly or not session.items:
            return None
        self._session = session
        self._units = deque(map(deque, units_of(session.items, self._unit_of)))
        self._workers: dict[Connection, _Worker] = {}
        # Else each of them would make one of its own.
        getattr(session.config, "_tmp_path_factory").getbasetemp()  # noqa: B009
        try:
            for number in range(min(self._count, len(self._units))):
                self._fork(number)
            while self._workers:
                for way in wait(list(self._workers)):
                    assert isinstance(way, Connection)
                    self._hear(self._workers[way])
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for worker in self._workers.values():
                worker.end(END_SECONDS)
        return True

    def _fork(self, number: int) -> None:
        worker = _Worker(self._session, number, self._workers.values())
        self._workers[worker.way] = worker

    def _hear(self, worker: _Worker) -> None:
        try:
            told = worker.way.recv()
        except (EOFError, OSError):
            self._forget(worker)
            return
        hook = self._session.config.hook
        if isinstance(told, _Ready):
            worker.unit = self._units.popleft() if self._units else deque()
            with suppress(OSError):
                worker.way.send(_Unit(tuple(worker.unit)))
        elif isinstance(told, _Began):
            while worker.unit[0] != told.place:
                worker.unit.popleft()
        elif isinstance(told, _Reported):
            report = hook.pytest_report_from_serializable(
                config=self._session.config, data=told.report
            )
            report.worker_id = f"worker {worker.number}"
            hook.pytest_runtest_logreport(report=report)
        elif isinstance(told, _Warned):
            message = warnings.WarningMessage(told.text, Warning, told.file, told.line)
            given = {"when": told.when, "nodeid": told.nodeid, "location": None}
            hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": message, **given})

    def _forget(self, worker: _Worker) -> None:
        """It ended: as it was to, or at a test, which then has failed."""
        del self._workers[worker.way]
        code = worker.end(0)
        worker.way.close()
        how = strsignal(-code) if code < 0 else f"exit code {code}"
        if not worker.unit:
            assert code == 0, f"a worker ended after its last test: {how}"
            return
        item = self._session.items[worker.unit.popleft()]
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"the worker ended here: {how}", "call"
        )
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if worker.unit:
            self._units.appendleft(worker.unit)
        self._fork(worker.number)


def units_of(items: Sequence[pytest.Item], unit_of: Callable[[str], str]) -> list[list[int]]:
    """The tests that stay together, by their places, in the order of the first of each."""
    by_name: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        by_name.setdefault(unit_of(item.nodeid), []).append(place)
    return list(by_name.values())


class _Telling:
    """In a worker: tells the other process what happens."""

    def __init__(self, config: pytest.Config, way: Connection) -> None:
        self._config = config
        self._way = way

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._way.send(_Reported(data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str
    ) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        place = warning_message.filename, warning_message.lineno
        self._way.send(_Warned(text, *place, when, nodeid))


def _be_a_worker(session: pytest.Session, number: int, way: Connection) -> None:
    """Do what is handed out, from the fork to the end of the process."""
    code = 1
    try:
        _make_it_its_own(session.config, number)
        session.config.pluginmanager.register(_Telling(session.config, way))
        _work(session, way)
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:  # noqa: BLE001  # there is nobody else to tell
        session.config.notify_exception(pytest.ExceptionInfo.from_current())
    finally:
        # Programs that were started for all tests of a process end like this.
        getattr(atexit, "_run_exitfuncs")()  # noqa: B009
        os._exit(code)


def _make_it_its_own(config: pytest.Config, number: int) -> None:
    """What would get mixed up if it belonged to two processes."""
    config.stash[WORKER] = number
    for name in OF_A_TERMINAL:
        if config.pluginmanager.has_plugin(name):
            config.pluginmanager.unregister(name=name)
    captured: Any = config.pluginmanager.get_plugin("capturemanager")
    captured.suspend_global_capture(in_=True)
    captured.stop_global_capturing()
    captured.start_global_capturing()
    temporary: Any = getattr(config, "_tmp_path_factory")  # noqa: B009
    folder: Path = temporary.getbasetemp() / f"worker-{number}-{os.getpid()}"
    folder.mkdir(mode=0o700)
    setattr(temporary, "_basetemp", folder)  # noqa: B010
    # The files of all others are this run's, which ends later.
    atexit.unregister(getattr(temporary, "_exit_stack").close)  # noqa: B009


def _work(session: pytest.Session, way: Connection) -> None:
    last = None
    while True:
        way.send(_Ready())
        unit = way.recv().places
        if not unit:
            break
        # After the last one of a unit stays what belongs to all tests of the process.
        following = [*(session.items[place] for place in unit[1:]), session]
        for place, after in zip(unit, following, strict=True):
            last = session.items[place]
            way.send(_Began(place))
            last.config.hook.pytest_runtest_protocol(item=last, nextitem=after)
    if last is not None:
        _take_down(session, last)


def _take_down(session: pytest.Session, last: pytest.Item) -> None:
    """End what belongs to all tests; a failure of that is one of the last test."""
    state: Any = getattr(session, "_setupstate")  # noqa: B009
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(None), when="teardown")
    report = last.config.hook.pytest_runtest_makereport(item=last, call=call)
    last.config.hook.pytest_runtest_logreport(report=report)
