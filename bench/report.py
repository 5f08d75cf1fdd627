"""What came out, for people and programs: the terminal, `bench/results/`, and docs/performance.md."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench.figures import Spread, Verdict
from bench.install import peers_python
from bench.place import RESULTS, ROOT
from bench.turns import Outcome

DOCUMENT: Final = RESULTS / "results.json"


def machine() -> dict[str, str]:
    """What the figures depend on."""
    model = next(
        (
            row.split(":")[1].strip()
            for row in Path("/proc/cpuinfo").read_text().splitlines()
            if row.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    commit = _git("rev-parse", "--short", "HEAD")
    if _git("status", "--porcelain", "--", "services", "shared", "bench/rows", "bench/native"):
        commit += " and changes"
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "commit": commit,
    }


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def said(spread: Spread, unit: str) -> str:
    """A median with what it varied between."""
    digits = 2 if abs(spread.middle) < 100 else 0
    low, middle, high = (
        f"{value:,.{digits}f}" for value in (spread.low, spread.middle, spread.high)
    )
    return f"{middle} ({low} to {high}) {'x' if unit == 'x' else unit}"


def judged(verdict: Verdict) -> str:
    unknown = "measured" if verdict.found else "not measured"
    words = {True: "met", False: "NOT met", None: unknown}[verdict.met]
    found = "" if verdict.found is None else f": {said(verdict.found, verdict.unit)}"
    return f"{verdict.goal}: {words}{found}"


def show(outcome: Outcome) -> None:
    for verdict in outcome.verdicts:
        print(f"  {judged(verdict)}")
    for name, reason in outcome.missing.items():
        print(f"  without {name}: {reason}")
    for note in outcome.notes:
        print(f"  {note}")


def kept_rows(document: Path = DOCUMENT) -> dict[str, Any]:
    """What is kept of each row, by its name."""
    kept: dict[str, Any] = json.loads(document.read_text()) if document.exists() else {}
    return kept


def keep(outcome: Outcome, document: Path = DOCUMENT) -> None:
    """Put a row into the document in place of an older one of the same name."""
    kept = kept_rows(document)
    kept[outcome.row.name] = to_json(outcome)
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def to_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "title": outcome.row.title,
        "unit": outcome.row.unit,
        "sides": {
            name: [figure.to_json() for figure in figures]
            for name, figures in outcome.sides.items()
        },
        "goals": [
            {
                "goal": verdict.goal,
                "met": verdict.met,
                "unit": verdict.unit,
                "bound": verdict.bound,
                "at_most": verdict.at_most,
                "found": None
                if verdict.found is None
                else [verdict.found.low, verdict.found.middle, verdict.found.high],
            }
            for verdict in outcome.verdicts
        ],
        "missing": outcome.missing,
        "notes": outcome.notes,
        "machine": machine(),
        **outcome.facts,
    }


def draw() -> None:
    """The plots beside the document.

    Raises:
        Missing: matplotlib cannot be had.
    """
    script = ROOT / "bench" / "clients" / "plot.py"
    subprocess.run([peers_python(), script, DOCUMENT, RESULTS], check=True)
