"""`./dev soak [NAME ...]`: the long runs one after the other, with a table of what came of them.

What a run prints goes into `build/soak/NAME.txt`; the exit code is 1 if any of them failed.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from soak.runs import RUNS, Run

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "build" / "soak"
ENDLESS = {"PYTEST_ADDOPTS": "--timeout 0"}
"""A long form takes as long as it takes."""


class Result(NamedTuple):
    code: int
    minutes: float
    cpu_minutes: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all of them, unless named")
    parser.add_argument("--list", action="store_true", help="name them, and what they do")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in RUNS]
    if unknown:
        parser.error(f"no such run: {', '.join(unknown)}; --list names them")
    if given.list:
        for name, run in RUNS.items():
            print(f"{name:12}{run.title}")
        return 0
    failed = 0
    for name in given.names or RUNS:
        result = take(name, RUNS[name])
        failed += result.code != 0
        verdict = "holds" if result.code == 0 else f"FAILED, see build/soak/{name}.txt"
        told = f"{result.minutes:.1f} min, {result.cpu_minutes:.1f} CPU min"
        print(f"{name:12}{RUNS[name].title}: {verdict}; {told}", flush=True)
    return int(failed > 0)


def take(name: str, run: Run) -> Result:
    LOGS.mkdir(parents=True, exist_ok=True)
    begun, used = time.monotonic(), _cpu_seconds()
    path = os.pathsep.join(str(ROOT / part) for part in ("tests", "docs/examples"))
    with (LOGS / f"{name}.txt").open("w") as log:
        ended = subprocess.run(
            run.command,
            cwd=ROOT,
            env={**os.environ, **ENDLESS, "PYTHONPATH": path, **run.settings},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    minutes = (time.monotonic() - begun) / 60
    return Result(ended.returncode, minutes, (_cpu_seconds() - used) / 60)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
