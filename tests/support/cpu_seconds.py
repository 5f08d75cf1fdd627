"""CPU seconds of each test, for `./dev test --cpu`: a plugin of pytest.

Wall time says little on a machine that does other things too, and with several workers on fewer
cores. Counted is what the worker used itself, and what all processes that it started have used
so far, whether they ended or not: a server that is shared counts where it works, not where it
began. What a process does that has left its family, as a daemon does, is missed.
"""

import os
import resource
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest

TICKS: Final = os.sysconf("SC_CLK_TCK")
SHOWN_COUNT: Final = 50
PAUSE_SECONDS: Final = 0.5
GROUPS: Final[dict[str, Callable[[str], str]]] = {
    "folder": lambda test: "/".join(test.partition("::")[0].split("/")[:-1]),
    "file": lambda test: test.partition("::")[0],
    "test": lambda test: test,
}


class Family:
    """The processes that this one started, and those that they started.

    A thread looks at them now and then: one that ends without anybody waiting for it, as the
    Java of a Spark driver does, is remembered as it was seen last.
    """

    def __init__(self) -> None:
        self._ours: dict[int, bool] = {os.getpid(): True}
        self._own: dict[int, float] = {}
        self._waited: dict[int, float] = {}
        self._lost = 0.0
        self._lock = threading.Lock()
        threading.Thread(target=self._look_now_and_then, daemon=True).start()

    def seconds(self) -> float:
        """All that this process and its descendants ever used."""
        with self._lock:
            self._look()
            used = resource.getrusage(resource.RUSAGE_SELF)
            living = sum(self._own.values()) + sum(self._waited.values())
            return used.ru_utime + used.ru_stime + living + self._lost

    def _look_now_and_then(self) -> None:
        never = threading.Event()
        while not never.wait(PAUSE_SECONDS):
            with self._lock:
                self._look()

    def _look(self) -> None:
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208  # many a second
        self._ours = {pid: ours for pid, ours in self._ours.items() if pid in pids}
        own: dict[int, float] = {}
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        waited = {os.getpid(): children.ru_utime + children.ru_stime}
        for pid in sorted(pids - {os.getpid()}):
            if not self._ours.get(pid, True):
                continue
            parent, *ticks = _stat(pid)
            if self._ours.setdefault(pid, self._ours.get(parent, False)):
                own[pid] = sum(ticks[:2]) / TICKS
                waited[pid] = sum(ticks[2:]) / TICKS
        gone = sum(
            seconds + self._waited[pid] for pid, seconds in self._own.items() if pid not in own
        )
        grown = sum(seconds - self._waited.get(pid, 0.0) for pid, seconds in waited.items())
        # Whoever waited for one has it among its own from now on.
        self._lost += max(0.0, gone - grown)
        self._own, self._waited = own, waited


def _stat(pid: int) -> list[int]:
    """A process's parent; its ticks in user and kernel mode, and those of its ended children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return [0] * 5
    return [int(fields[at]) for at in (1, 11, 12, 13, 14)]


class Counting:
    """In each worker: adds to a test's last report what was used since the one before."""

    def __init__(self) -> None:
        self._family = Family()
        self._before = 0.0
        self._start: float | None = None

    def pytest_collection_finish(self) -> None:
        """What was used until here belongs to no test."""
        self._before = self._start = self._family.seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "teardown":
            now = self._family.seconds()
            report.user_properties.append(("cpu_seconds", now - self._before))
            self._before = now
            if self._start is not None:
                report.user_properties.append(("start_cpu_seconds", self._start))
                self._start = None
        return report


class Summing:
    """Where the reports come together."""

    def __init__(self) -> None:
        self._by_test: dict[str, float] = {}
        self._starts: list[float] = []
        self._last: dict[str, tuple[float, str]] = {}
        """When each worker ended its last test, and which one it was."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        worker: str = getattr(report, "worker_id", "alone")
        self._last[worker] = report.stop, report.nodeid
        for name, value in report.user_properties:
            if name == "cpu_seconds" and isinstance(value, float):
                self._by_test[report.nodeid] = value
            if name == "start_cpu_seconds" and isinstance(value, float):
                self._starts.append(value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds")
        for title, names in GROUPS.items():
            sums: dict[str, float] = {}
            for test, seconds in self._by_test.items():
                group = names(test)
                sums[group] = sums.get(group, 0.0) + seconds
            dearest = sorted(sums.items(), key=lambda pair: -pair[1])[:SHOWN_COUNT]
            terminalreporter.write_line(f"the {len(dearest)} dearest by {title}")
            for name, seconds in dearest:
                terminalreporter.write_line(f"{seconds:10.2f} {name}")
        end = max((stop for stop, _ in self._last.values()), default=0.0)
        terminalreporter.write_line("seconds for which each worker had nothing to do, in the end")
        for worker, (stop, test) in sorted(self._last.items()):
            terminalreporter.write_line(f"{end - stop:10.2f} {worker} after {test}")
        workers, tests = sum(self._starts), sum(self._by_test.values())
        line = f"{tests:10.2f} of {len(self._by_test)} tests, {workers:.2f} to start and to collect"
        terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """With workers, they count and this process sums up; without, one does both."""
    if not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Counting())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summing())
