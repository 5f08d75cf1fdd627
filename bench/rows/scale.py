"""A manifest of a million fragments beside one of a thousand: `bench/manifest_scale.py` as a row."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from bench.figures import Figure, Goal, Sides
from bench.place import ROOT
from bench.turns import Row, Stage

LARGE: Final = 1_050_000
SMALL: Final = 1_000
HEIGHT: Final = 3
"""GETs that may find a fragment there: the root, and groups of heights 2 and 1."""


def _measure(stage: Stage) -> list[dict[str, Any]]:
    program, answer = ROOT / "bench" / "manifest_scale.py", stage.directory / "scale.json"
    subprocess.run(
        [sys.executable, program, "--json", answer, "--large", str(LARGE), "--small", str(SMALL)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    found: list[dict[str, Any]] = json.loads(answer.read_text())
    return found


def _set_up(stage: Stage) -> None:
    results = _measure(stage)
    for result in results:
        if len(result["cpu_us"]) != 2:
            continue
        for size, cpu_us, requests in zip(
            (SMALL, LARGE), result["cpu_us"], result["requests"], strict=True
        ):
            figure = Figure(
                units=1,
                seconds=cpu_us / 1e6,
                cpu_seconds=cpu_us / 1e6,
                p50_ms=cpu_us / 1e3,
                extra={"requests": requests},
            )
            stage.runners[f"{result['name']}, {size:,}"] = lambda _, found=figure: found  # type: ignore[misc]


def _of(name: str, value: Callable[[Figure], float]) -> Callable[[Sides], list[float] | None]:
    def read(sides: Sides) -> list[float] | None:
        found = sides.get(f"{name}, {LARGE:,}")
        return [value(figure) for figure in found] if found else None

    return read


def _constant(name: str) -> Goal:
    def read(sides: Sides) -> list[float] | None:
        large, small = sides.get(f"{name}, {LARGE:,}"), sides.get(f"{name}, {SMALL:,}")
        if not large or not small:
            return None
        return [big.seconds / little.seconds for big, little in zip(large, small, strict=True)]

    return Goal(f"{name}: ≤ 1.5 x that of {SMALL:,} fragments", read, at_most=1.5)


ROWS: Final = (
    Row(
        "manifest",
        f"Seek and append in a manifest of {LARGE:,} fragments (CPU alone, stores in memory)",
        "operations",
        (
            *(
                Goal(
                    f"find by {what}: ≤ {HEIGHT} GETs",
                    _of(f"find by {what}, cold", lambda figure: figure.extra["requests"]),
                    at_most=HEIGHT,
                    unit="GETs",
                )
                for what in ("offset", "time")
            ),
            *(
                Goal(
                    f"find by {what}: CPU ≤ 1 ms",
                    _of(f"find by {what}, cold", lambda figure: figure.seconds * 1e3),
                    at_most=1,
                    unit="ms",
                )
                for what in ("offset", "time")
            ),
            _constant("append a run of 64"),
            _constant("append one fragment"),
        ),
        _set_up,
        warms_up=False,
        rounds_max=1,
    ),
)
