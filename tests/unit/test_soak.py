"""Each long run has a short form in every run of the tests, and does what it says."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from soak.left_out import LEFT_OUT, is_left_out
from soak.runs import RUNS, Run

ROOT = Path(__file__).parents[2]
_SIMULATION = "simulation/test_simulation.py"
SOURCES = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))


@cache
def functions(path: str) -> frozenset[str]:
    """The names at the top of a file, which is read once for all tests that are named in it."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in tree.body if hasattr(node, "name"))


def there_is(test: str) -> bool:
    path, _, case = test.partition("::")
    function = case.partition("[")[0]
    if not function:
        return (ROOT / path).exists()
    return function in functions(path)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_each_long_run_has_a_canary_and_settings_that_somebody_reads(run: Run) -> None:
    named = [word for word in run.tests.split() if word.startswith("tests/")]
    assert named
    for test in named:
        assert there_is(test)
    assert not all(is_left_out(test, ["tests"]) for test in named)
    for setting in run.settings:
        assert f'environ.get("{setting}"' in SOURCES


def test_the_docs_name_every_long_run() -> None:
    told = (ROOT / "docs/guarantees.md").read_text()
    assert [name for name in RUNS if f"`./dev soak {name}`" not in told] == []


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_run_of_everything_leaves_out_what_is_named_and_no_other_run_does(name: str) -> None:
    path = name.partition("::")[0]
    assert there_is(name)
    assert is_left_out(name, ["tests"])
    assert is_left_out(name, [f"{ROOT}/tests"])
    assert not is_left_out(name, [name])
    assert not is_left_out(name, [str(Path(path).parent), "tests/unit"])
    assert not is_left_out("tests/unit/test_soak.py::test_other", ["tests"])


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_has_a_relative_that_is_not(name: str) -> None:
    relative = LEFT_OUT[name]
    assert there_is(relative)
    assert not is_left_out(relative, ["tests"])


def test_the_run_that_misses_a_guard_is_in_every_run() -> None:
    told = (ROOT / "docs/guarantees.md").read_text()
    table = told.partition("\n## Guards")[2].partition("\n## ")[0]
    runs = re.findall(r"`([\w/]+\.py::\w+)` \|$", table, re.MULTILINE)
    assert len(runs) > 100
    left_out = {run for run in runs if is_left_out(f"tests/{run}", ["tests"])}
    # Of two guards no cheaper run is known.
    assert left_out == {f"{_SIMULATION}::test_each_guard_that_is_taken_away_is_missed"}
    assert sum(run in left_out for run in runs) <= 2


def test_a_run_that_nobody_knows_is_refused_before_any_is_begun() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "soak", "fuzz", "nosuch"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2
    assert "no such run: nosuch" in told.stderr
