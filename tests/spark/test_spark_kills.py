"""SIGKILL of executors and of the driver in the middle of a read, a write and a query: each
record once.

Spark runs as a driver and an executor, each a process, beside the four services. The driver
stops where the test wants to kill (support/spark_driver.py), so that every kill hits what it
is meant for. A query without the sink's numbers is killed beside the others, and doubles.

In everyday runs one executor has tasks of the read, the write and the query when it dies. With
BOTTOMLESS_TEST_KILLS above 1 there are two executors, one of which dies in each of the three,
while the other goes on: a Java takes many seconds to start.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pytest
from pyarrow import feather
from support.pages import ROOT
from support.separate_processes import FourProcesses, four_processes
from support.spark_driver import AT_ONCE, COMMITS, DOUBLED_COUNT, WRITTEN_COUNT, Plan
from support.spark_session import QUICK
from support.waiting import until

from bottomless.client import Client

SECONDS = 600
"""Long enough for a driver on a machine with much else to do."""
pytestmark = pytest.mark.timeout(4 * SECONDS)
KILLS = int(os.environ.get("BOTTOMLESS_TEST_KILLS", "1"))
ONE_EXECUTOR = "local-cluster[1,4,1024]"
"""A master and a worker in the driver, and an executor with four tasks, a process of its own."""
TWO_EXECUTORS = "local-cluster[2,1,1024]"
CONFIG = {"fragment": {"target_bytes": 1024 * 1024, "max_age_ms": 500}}
SETTINGS = {
    # What is trimmed goes at once, unless somebody holds it.
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "0",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "50",
}
ROW_COUNT, REQUEST_COUNT = 10_000, 10
VALUE_SIZE = 100


class Driver:
    """A driver of Spark in a session of its own, so that all of its processes can be ended."""

    def __init__(self, url: str, directory: Path, master: str, steps: Sequence[str]) -> None:
        self._directory = directory
        plan = Plan(url, str(directory), master, steps, QUICK)
        path = directory / "plan.json"
        path.write_text(json.dumps(plan._asdict()))
        self._log = directory / f"{'-'.join(steps)}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.spark_driver", str(path)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=directory,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'docs/examples'}"},
            )

    def reached(self, point: str) -> int:
        """Wait until it stops at a point; returns the JVM that stops there."""
        path = self._directory / f"{point}.reached"
        self._wait_for(path)
        return int(path.read_text())

    def go_on(self, point: str) -> None:
        (self._directory / f"{point}.go").touch()

    def kill_executor(self, *points: str) -> None:
        """SIGKILL the executor whose tasks have stopped at these points; the rest goes on."""
        [executor] = {self.reached(point) for point in points}
        assert executor != self._process.pid
        os.kill(executor, signal.SIGKILL)
        for point in points:
            self.go_on(point)

    def done(self, step: str) -> None:
        self._wait_for(self._directory / f"{step}.done")

    def finish(self) -> None:
        assert self._process.wait(SECONDS) == 0, self._tail()

    def kill(self) -> None:
        """SIGKILL the driver with everything that it runs in: nobody is told anything."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _wait_for(self, path: Path) -> None:
        until(lambda: path.exists() or self._process.poll() is not None, SECONDS, path.name)
        assert path.exists(), self._tail()

    def _tail(self) -> str:
        return f"the driver ended; its log: {self._log.read_text()[-3000:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()


class SparkDeployment:
    """The services, a stream to read, and those that are written."""

    def __init__(self, services: FourProcesses, client: Client, directory: Path) -> None:
        self.url = services.url
        self.client = client
        self.directory = directory
        self.values: list[bytes] = []
        for name in ("source", "written", "killed", "copied", "doubled"):
            client.create_stream(name, CONFIG)
        for request in range(REQUEST_COUNT):
            values = [
                b"%d-%d" % (request, number) + b"x" * VALUE_SIZE for number in range(ROW_COUNT)
            ]
            client.append_arrow("source", pa.table({"value": pa.array(values, pa.binary())}))
            self.values += values
        client.wait_until_stored("source", timeout_seconds=60)

    def driver(self, master: str, *steps: str) -> Driver:
        return Driver(self.url, self.directory, master, steps)

    def found(self, name: str) -> list[bytes]:
        """The values of a stream in its order, as plain reads show them."""
        found: list[bytes] = []
        for page in self.client.arrow_pages(name, "first"):
            found += page.table.column("value").to_pylist()  # type: ignore[arg-type]  # never null
        return found

    def committed_batches(self) -> set[str]:
        """Those of the queries that Spark knows to be done."""
        return {path.name for path in self.directory.glob("checkpoint-*/commits/[0-9]*")}


@contextmanager
def a_deployment(directory: Path) -> Iterator[SparkDeployment]:
    with (
        four_processes(directory, SETTINGS) as services,
        Client(services.url) as client,
    ):
        (directory / "driver").mkdir()
        yield SparkDeployment(services, client, directory / "driver")


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[SparkDeployment]:
    with a_deployment(tmp_path) as made:
        yield made


def numbers(values: list[bytes]) -> list[int]:
    return sorted(map(int, values))


@contextmanager
def one_executor_dies_in_all(deployment: SparkDeployment) -> Iterator[Driver]:
    with deployment.driver(ONE_EXECUTOR, "at_once", "killed") as driver:
        driver.reached("before-copy")
        trim(deployment)
        driver.go_on("before-copy")
        driver.kill_executor(*AT_ONCE)
        yield driver


@contextmanager
def an_executor_dies_in_each(deployment: SparkDeployment) -> Iterator[Driver]:
    with deployment.driver(
        TWO_EXECUTORS, "read", "written", "copy_until_commit", "killed"
    ) as driver:
        driver.reached("read")
        trim(deployment)
        driver.kill_executor("read")
        driver.done("read")
        driver.kill_executor("written")
        driver.done("written")
        driver.kill_executor("copy")
        yield driver


def trim(deployment: SparkDeployment) -> None:
    """A job that reads holds what it has planned: a trim goes through, and takes nothing from it."""
    deployment.client.trim("source", ROW_COUNT)
    until(lambda: deployment.client.offsets("source").first_offset > 0, what="the trim")


def test_killed_executors_and_a_killed_driver_neither_lose_nor_double_a_row(
    deployment: SparkDeployment,
) -> None:
    deaths = one_executor_dies_in_all if KILLS == 1 else an_executor_dies_in_each
    with deaths(deployment) as driver:
        for commit in COMMITS:
            driver.reached(commit)
        driver.reached("killed")
        driver.kill()

    rows = feather.read_table(deployment.directory / "read.rows")
    assert rows.column("offset").to_pylist() == list(range(len(deployment.values)))
    assert rows.column("value").to_pylist() == deployment.values
    assert numbers(deployment.found("written")) == list(range(WRITTEN_COUNT))
    # It died in the middle of a write, and between an append and Spark's note of it.
    assert deployment.found("killed") == []
    kept = deployment.values[deployment.client.offsets("source").first_offset :]
    assert len(deployment.found("copied")) == 80_000
    assert len(deployment.found("doubled")) == 2 * (DOUBLED_COUNT // 3)
    assert deployment.committed_batches() == {"0"}

    with deployment.driver("local[2]", "copy", "killed") as driver:
        driver.finish()
    assert sorted(deployment.found("copied")) == sorted(kept)
    assert numbers(deployment.found("killed")) == list(range(WRITTEN_COUNT))
    # What would not see a batch that is written twice is no test: this query had no numbers.
    twice = Counter(deployment.found("doubled"))
    assert set(twice) == set(deployment.values[-DOUBLED_COUNT:])
    assert Counter(twice.values()) == {1: DOUBLED_COUNT * 2 // 3, 2: DOUBLED_COUNT // 3}
