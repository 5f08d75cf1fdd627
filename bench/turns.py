"""Lets the sides of a row take turns, and keeps what came of it.

A row opens its servers once; every side runs for a moment to warm up, and then the rounds go
A B C A B C. A side that cannot be had is named with its reason, and so is one that fails.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.backing import prepare_turn
from bench.figures import Figure, Goal, Verdict
from bench.place import Missing, fresh_directory

Runner = Callable[[float], Figure]
"""Runs one side for about so many seconds."""


@dataclass
class Stage:
    """What a row's set-up is given, and what it leaves."""

    directory: Path
    stack: ExitStack
    seconds: float
    runners: dict[str, Runner] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def side(self, name: str) -> Iterator[None]:
        """A block that sets one side up; where something is missing the row goes on without it."""
        try:
            yield
        except Missing as reason:
            self.missing[name] = str(reason)


@dataclass(frozen=True)
class Row:
    """One line of the goals."""

    name: str
    title: str
    unit: str
    """What a side's `units` are."""
    goals: Sequence[Goal]
    set_up: Callable[[Stage], None]
    warms_up: bool = True
    rounds_max: int = 100
    guess_seconds: float = 180.0
    """How long it takes for all that is known before it was measured."""
    touched_bytes: int = 0
    """Memory that is touched before each turn (backing.py), where files grow fast."""


@dataclass(frozen=True)
class Outcome:
    row: Row
    sides: dict[str, list[Figure]]
    verdicts: list[Verdict]
    missing: dict[str, str]
    notes: list[str]
    facts: dict[str, Any]


def play(row: Row, rounds: int, seconds: float) -> Outcome:
    """Run a row. Prints a line for each figure as it comes."""
    started, load = time.time(), os.getloadavg()[0]
    sides: dict[str, list[Figure]] = {}
    with fresh_directory(row.name) as directory, ExitStack() as stack:
        stage = Stage(directory, stack, seconds)
        try:
            row.set_up(stage)
        except (RuntimeError, OSError) as error:
            stage.missing["the rest"] = f"the row could not be set up: {error}"[:600]
        if row.warms_up:
            for name in list(stage.runners):
                _turn(stage, name, min(1.0, seconds))
        for number in range(min(rounds, row.rounds_max)):
            for name in list(stage.runners):
                prepare_turn(row.touched_bytes)
                figure = _turn(stage, name, seconds)
                if figure is not None:
                    sides.setdefault(name, []).append(figure)
                    print(f"  {number + 1} {line(name, figure, row.unit)}", flush=True)
        facts = {
            "started": time.strftime("%Y-%m-%d %H:%M", time.localtime(started)),
            "took_seconds": round(time.time() - started, 1),
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "versions": stage.versions,
            "rounds": min(rounds, row.rounds_max),
            "seconds": seconds,
        }
        whole = {name: figures for name, figures in sides.items() if name not in stage.missing}
        verdicts = [goal.judge(whole) for goal in row.goals]
        return Outcome(row, sides, verdicts, stage.missing, stage.notes, facts)


def _turn(stage: Stage, name: str, seconds: float) -> Figure | None:
    try:
        return stage.runners[name](seconds)
    except (RuntimeError, OSError) as error:
        print(f"    {name} fails: {error}", flush=True)
        stage.missing[name] = f"failed while it was measured: {error}"[:300]
        del stage.runners[name]
        return None


def line(name: str, figure: Figure, unit: str) -> str:
    """One figure for the terminal."""
    told = (
        f"{name:<28}{figure.rate:>14,.0f} {unit}/s"
        f"{figure.cpu_per_million:>9.3f} CPU s/M{figure.rss_mib:>8.0f} MiB"
    )
    if figure.p99_ms:
        told += f"   p50 {figure.p50_ms:.2f} p99 {figure.p99_ms:.2f} p99.9 {figure.p999_ms:.2f} ms"
    if figure.generator_cpu_seconds:
        told += f"   generator {figure.generator_cpu_seconds / figure.seconds:.0%}"
    return told
