"""Spark's jobs verify and export at 8 GB: `bench/spark_jobs.py` as a row.

Each job is measured in a session that is there already; what the start of Spark costs is not in it.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from bench.figures import Figure, times
from bench.place import ROOT
from bench.turns import Row, Stage

MEBIBYTES: Final = 8 << 10
ROUNDS: Final = 1
JOBS: Final = {"verify": "a loop of checksums", "export": "df.write.parquet"}
"""Each with what it is compared with."""


def _measure() -> dict[str, dict[str, Any]]:
    program = [sys.executable, "-m", "bench.spark_jobs"]
    done = subprocess.run(
        [*program, "--mebibytes", str(MEBIBYTES), "--rounds", str(ROUNDS), "--warm-ups", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"spark_jobs failed: {done.stderr[-300:]}")
    words = (line.partition(" ") for line in done.stdout.splitlines())
    return {name: json.loads(rest) for name, _, rest in words if name in JOBS}


def _figure(found: dict[str, Any], side: str = "") -> Callable[[float], Figure]:
    seconds = found[f"{side}seconds"]
    figure = Figure(
        units=seconds * found[f"{side}megabytes_per_second"],
        seconds=seconds,
        cpu_seconds=found.get(f"{side}cpu_seconds", 0.0),
    )
    return lambda _: figure


def _set_up(stage: Stage) -> None:
    for job, found in _measure().items():
        stage.runners[job] = _figure(found)
        stage.runners[JOBS[job]] = _figure(found, "compared_")
    stage.notes.append(f"{MEBIBYTES >> 10} GiB of records of 1 KiB on two cores, one round.")


ROWS: Final = (
    Row(
        "spark-jobs",
        "Spark's jobs at 8 GB, in a session that is warm",
        "MB",
        (
            times("verify ≥ 0.5 x a loop of checksums", "verify", JOBS["verify"], 0.5),
            times("export ≥ 2 x df.write.parquet", "export", JOBS["export"], 2),
        ),
        _set_up,
        warms_up=False,
        rounds_max=1,
        guess_seconds=900,
    ),
)
