"""`python -m simulation SEED`: replay a run and print its story; `FROM..TO`: run many.

A run that fails prints what it found and how to replay it, and the exit code is 1.
"""

import os
import sys

from simulation import clockwork

if os.environ.get("PYTHONHASHSEED") != "0":
    # Sets of strings go by their hashes, which are drawn anew for each process.
    again = [sys.executable, "-m", "simulation", *sys.argv[1:]]
    os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
clockwork.install()

import argparse  # noqa: E402
import gc  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections import Counter  # noqa: E402

from simulation.run import simulate  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev sim")
    parser.add_argument("seeds", help="a seed, or FROM..TO")
    parser.add_argument("--storm-seconds", type=float, default=25.0, help="of trouble, virtual")
    given = parser.parse_args()
    storm: float = given.storm_seconds
    first, _, last = given.seeds.partition("..")
    if not last:
        outcome = simulate(int(first), storm_seconds=storm, echo=print)
        print(f"seed {first}: {outcome.failure or 'holds'}; story {outcome.digest}")
        return int(outcome.failure is not None)
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failed = []
    for seed in range(int(first), int(last) + 1):
        outcome = simulate(seed, storm_seconds=storm)
        gc.collect()
        counts.update(outcome.counts)
        if outcome.failure is not None:
            failed.append(seed)
            print(f"seed {seed} FAILED: {outcome.failure}")
            print(*outcome.lines[-5:], f"replay: ./dev sim {seed}", sep="\n")
        else:
            print(f"seed {seed} holds, story {outcome.digest}, {time.monotonic() - began:.0f} s")
        sys.stdout.flush()
    print(f"{int(last) - int(first) + 1} seeds, {len(failed)} failed: {failed}; {dict(counts)}")
    return int(bool(failed))


def forget(_: object) -> None:
    """What a killed process would have done in a `finally` is nobody's business."""


sys.unraisablehook = forget
warnings.simplefilter("ignore")
code = main()
sys.stdout.flush()
# At once: what is left of processes that were killed must not be cleaned up.
os._exit(code)
