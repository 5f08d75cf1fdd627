"""Fuzz every target for a share of the time: `./dev fuzz SECONDS [TARGET ...]`.

One after the other, each in a process of its own. Corpora are kept in `.cache/fuzz` between
runs. A finding ends its target and the program with 1; its input lies beside the corpora, and
belongs into `tests/fuzz/found/` once it is mended.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from fuzz.targets import TARGETS, folder_of

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "fuzz"
SIZE_MAX = 4_096
"""Bytes of an input."""


class Outcome(NamedTuple):
    runs: int
    covered: int
    """Edges of the code that were met."""
    memory: int
    """MiB at most."""
    found: bool


def fuzzed(name: str, seconds: int) -> Outcome:
    corpus = CACHE / folder_of(name)
    corpus.mkdir(parents=True, exist_ok=True)
    (corpus / "good").write_bytes(TARGETS[name].good)
    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={SIZE_MAX}",
        f"-artifact_prefix={CACHE}/found-{folder_of(name)}-",
        "-timeout=20",
        "-print_final_stats=1",
        str(corpus),
    ]
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-m", "fuzz.one_target", name, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    said = ended.stdout.decode(errors="replace")
    (CACHE / f"{folder_of(name)}.log").write_text(said)
    covered = re.findall(r"cov: (\d+)", said)
    return Outcome(
        _number(r"number_of_executed_units: (\d+)", said),
        int(covered[-1]) if covered else 0,
        _number(r"peak_rss_mb: *(\d+)", said),
        ended.returncode != 0,
    )


def _number(pattern: str, said: str) -> int:
    match = re.search(pattern, said)
    return int(match[1]) if match else 0


def main() -> int:
    seconds, *names = sys.argv[1:]
    names = names or list(TARGETS)
    each = max(int(seconds) // len(names), 1)
    outcomes = {}
    for name in names:
        outcomes[name] = one = fuzzed(name, each)
        verdict = "FOUND" if one.found else "nothing found"
        print(
            f"{name:28} {one.runs:>10,} runs, {one.covered:>5} edges, {one.memory:>4} MiB: {verdict}",
            flush=True,
        )
    total = sum(one.runs for one in outcomes.values())
    found = [name for name, one in outcomes.items() if one.found]
    print(f"{len(names)} targets, {each} s each, {total:,} runs; findings: {', '.join(found) or 0}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
