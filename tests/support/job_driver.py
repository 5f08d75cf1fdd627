"""A driver of Spark that works on several jobs and is killed: `python -m support.job_driver PLAN.json`.

Each job runs in a thread and stops for good at a round of its own, just before or just after
what makes that round part of its output, and says so in a file. When all stand there, a test
kills the driver.
"""

import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

STOP_SECONDS: Final = 300
"""A test that has not killed this by then has failed."""
STEPS: Final = {
    # Where a job calls what, once a round.
    "export": ("bottomless.spark.jobs.export", "_Run._write"),
    "import": ("bottomless.spark.jobs.load", "committed"),
    "replay": ("bottomless.spark.jobs.replay", "write_frame"),
    "verify": ("bottomless.spark.jobs.verify_report", "Book.add"),
}


class Stop(NamedTuple):
    """Before or after which round of its own a job stops."""

    round: int
    after: bool


class Job(NamedTuple):
    """One call, as `bottomless.spark.jobs` has them."""

    title: str
    """By which its stop is known; several jobs may be of a kind."""
    kind: str
    stop: Stop
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


class Plan(NamedTuple):
    directory: str
    settings: Mapping[str, str]
    """Of the session."""
    jobs: Sequence[Job]


_of_this_thread: Final = threading.local()


class Stops:
    """Makes the steps of jobs stop where their plan says."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._never = threading.Event()

    def put_before(self, module: str, name: str) -> None:
        """Look into every call of a function, by whichever job."""
        owner: Any = importlib.import_module(module)
        *classes, function = name.split(".")
        for one in classes:
            owner = getattr(owner, one)
        inner = getattr(owner, function)

        def stopping(*given: Any, **named: Any) -> Any:
            job: Job = _of_this_thread.job
            number = _of_this_thread.rounds
            _of_this_thread.rounds += 1
            if number == job.stop.round and not job.stop.after:
                self._stop(job)
            answer = inner(*given, **named)
            if number == job.stop.round:
                self._stop(job)
            return answer

        setattr(owner, function, stopping)

    def _stop(self, job: Job) -> None:
        (self._directory / f"{job.title}.stopped").touch()
        self._never.wait(STOP_SECONDS)


def main() -> None:
    from pyspark.sql import SparkSession

    from bottomless.spark import configure, jobs, register

    given = json.loads(Path(sys.argv[1]).read_text())
    planned = [
        Job(title, kind, Stop(*stop), tuple(arguments), options)
        for title, kind, stop, arguments, options in given[2]
    ]
    plan = Plan(given[0], given[1], planned)
    builder = configure(SparkSession.builder, master="local[2]")
    for name, value in plan.settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    functions: dict[str, Callable[..., Any]] = {
        "export": jobs.export,
        "import": jobs.import_parquet,
        "replay": jobs.replay,
        "verify": jobs.verify,
    }
    stops = Stops(Path(plan.directory))
    for kind in {job.kind for job in plan.jobs}:
        stops.put_before(*STEPS[kind])

    def run(job: Job) -> None:
        _of_this_thread.job, _of_this_thread.rounds = job, 0
        try:
            functions[job.kind](spark, *job.arguments, **job.options)
            sys.stderr.write(f"{job.title} has not stopped\n")
        except BaseException:  # noqa: BLE001  # said, and the program ends
            traceback.print_exc()
        # The others stand and wait.
        os._exit(1)

    with ThreadPoolExecutor(len(plan.jobs)) as pool:
        for job in plan.jobs:
            pool.submit(run, job)


if __name__ == "__main__":
    main()
