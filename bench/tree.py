"""A server as the kernel sees it: what the processes of a tree have used."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psutil

QUIET_SHARE: Final = 0.08
"""Of one core: below it a server has nothing more to do."""
QUIET_STEP_SECONDS: Final = 0.5
SAMPLE_SECONDS: Final = 0.1


class Tree:
    """The processes below some pids, themselves included."""

    def __init__(self, *pids: int) -> None:
        self.pids = pids

    def _processes(self) -> Iterator[psutil.Process]:
        for pid in self.pids:
            with suppress(psutil.NoSuchProcess):
                first = psutil.Process(pid)
                yield first
                yield from first.children(recursive=True)

    def cpu_seconds(self) -> float:
        """User and system time so far; of children that ended, what was waited for."""
        total = 0.0
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                spent = process.cpu_times()
                total += spent.user + spent.system + spent.children_user + spent.children_system
        return total

    def rss_mib(self, *, own: bool = False) -> float:
        """Of all processes; `own`: of those that were started first, without their children."""
        total = 0
        for process in map(psutil.Process, self.pids) if own else self._processes():
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total / (1 << 20)

    def written_bytes(self) -> int:
        """What all processes have had written to files so far, whether it is on the disk yet or not."""
        total = 0
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                total += process.io_counters().write_bytes
        return total

    def handles(self) -> int:
        """Open file descriptors of all processes."""
        total = 0
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                total += process.num_fds()
        return total

    def settle(self, at_most_seconds: float) -> None:
        """Wait until the server is quiet: what it put off would be in the next side's way."""
        deadline = time.monotonic() + at_most_seconds
        before = self.cpu_seconds()
        while time.monotonic() < deadline:
            # Quiet means that no CPU time is used for so long: there is no event for that.
            time.sleep(QUIET_STEP_SECONDS)
            after = self.cpu_seconds()
            if after - before < QUIET_SHARE * QUIET_STEP_SECONDS:
                return
            before = after

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """Collects the RSS of the tree while the block runs; its maximum is the peak."""
        seen = [self.rss_mib()]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(SAMPLE_SECONDS):
                seen.append(self.rss_mib())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield seen
        finally:
            done.set()
            watcher.join()
