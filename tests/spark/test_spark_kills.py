"""SIGKILL of executors and of the driver in the middle of a read, a write and a query: each
record once.

Spark runs as a driver and two executors, each a process, beside the four services. The driver
stops where the test wants to kill (support/spark_driver.py), so that every kill hits what it
is meant for. A query without the sink's numbers is killed beside the others, and doubles.
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
from support.spark_driver import COMMITS, DOUBLED_COUNT, WRITTEN_COUNT, Plan
from support.spark_session import QUICK
from support.waiting import until

from bottomless.client import Client

SECONDS = 240
"""Long enough for a driver on a machine with much else to do."""
pytestmark = pytest.mark.timeout(4 * SECONDS)
CLUSTER = "local-cluster[2,1,1024]"
"""A master, two workers and an executor on each, all of them processes on the loopback address."""
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

    def kill_executor(self, point: str) -> None:
        """SIGKILL the executor whose task has stopped at this point, and let the rest go on."""
        executor = self.reached(point)
        assert executor != self._process.pid
        os.kill(executor, signal.SIGKILL)
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


def test_killed_executors_and_a_killed_driver_neither_lose_nor_double_a_row(
    deployment: SparkDeployment,
) -> None:
    with deployment.driver(CLUSTER, "read", "written", "copy_until_commit", "killed") as driver:
        driver.reached("read")
        # The job holds what it has planned: a trim goes through, and takes nothing from it.
        deployment.client.trim("source", ROW_COUNT)
        until(lambda: deployment.client.offsets("source").first_offset > 0, what="the trim")
        driver.kill_executor("read")
        driver.done("read")
        driver.kill_executor("written")
        driver.done("written")
        driver.kill_executor("copy")
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
