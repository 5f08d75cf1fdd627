"""Draws bench/results: which goals are met and by how much, and the rates side by side.

    python bench/clients/plot.py RESULTS.json DIRECTORY

Runs under the Python of `.bench`, which has matplotlib.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

MET, MISSED, OTHER, OURS = "#2a7f62", "#c0392b", "#9aa5b1", "#1f5fa8"
RATES = ("append-os", "append-fsync", "append-64k", "clients", "replay-local", "replay-objects")


def goals(rows: dict[str, Any], to: Path) -> None:
    """How far each goal is reached: 1 is just met, whichever way the goal points."""
    lines = []
    for name, row in rows.items():
        for goal in row["goals"]:
            bound = goal["bound"]
            if goal["found"] is None or not bound:
                continue
            low, middle, high = (max(value, 1e-9) / bound for value in goal["found"])
            if goal["at_most"]:
                low, middle, high = 1 / high, 1 / middle, 1 / low
            lines.append((f"{name}: {goal['goal']}", low, middle, high, goal["met"]))
    if not lines:
        return
    lines.reverse()
    figure, axes = plt.subplots(figsize=(11, 0.34 * len(lines) + 1.2), layout="constrained")
    for at, (_, low, middle, high, met) in enumerate(lines):
        axes.barh(at, middle, color=MET if met else MISSED)
        axes.plot([low, high], [at, at], color="black", linewidth=1)
    axes.set_yticks(range(len(lines)), [line[0] for line in lines], fontsize=8)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("reached, as a multiple of the goal (log); line: lowest to highest round")
    figure.savefig(to, dpi=110)


def rates(rows: dict[str, Any], to: Path) -> None:
    """What each side did in a second, in millions, with the CPU of its server."""
    shown = [name for name in RATES if name in rows]
    if not shown:
        return
    height = (len(shown) + 1) // 2
    figure, grid = plt.subplots(
        height, 2, figsize=(13, 3.1 * height), layout="constrained", squeeze=False
    )
    for axes, name in zip(grid.flat, shown, strict=False):
        row = rows[name]
        sides = list(row["sides"].items())[::-1]
        for at, (side, documents) in enumerate(sides):
            found = [document["units"] / document["seconds"] / 1e6 for document in documents]
            middle = statistics.median(found)
            axes.barh(at, middle, color=OURS if side.startswith("ours") else OTHER)
            axes.plot([min(found), max(found)], [at, at], color="black", linewidth=1)
            axes.text(middle, at, f" {middle:.3g}", va="center", fontsize=8)
        axes.set_yticks(range(len(sides)), [side for side, _ in sides], fontsize=8)
        axes.set_title(f"{name}: million {row['unit']}/s", fontsize=9)
        axes.margins(x=0.12)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    figure.savefig(to, dpi=110)


def main() -> None:
    rows = json.loads(Path(sys.argv[1]).read_text())
    directory = Path(sys.argv[2])
    goals(rows, directory / "goals.png")
    rates(rows, directory / "rates.png")


if __name__ == "__main__":
    main()
