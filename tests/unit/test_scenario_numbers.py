"""Each scenario of filters, consumer groups and super streams is a test that bears its number."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

JOURNEYS = Path(__file__).parents[1] / "journeys"
CHOSEN = ("filter", "group", "super")
"""`pytest tests/journeys -k "filter or group or super"` runs them."""
COUNTS = {"F": 10, "G": 11, "P": 10}
NUMBERS = [
    f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)
]


def numbers_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """What a test says that it shows, in its name or at the beginning of its docstring."""
    named = re.findall(r"test_([fgp]\d+)_", test.name)
    told = (ast.get_docstring(test) or "").partition(":")[0]
    return {one.upper() for one in named} | set(re.findall(r"\b[FGP]\d+\b", told))


@cache
def shown() -> dict[str, list[str]]:
    """The tests of each number."""
    found: dict[str, list[str]] = {}
    for path in JOURNEYS.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in numbers_of(node):
                    found.setdefault(number, []).append(f"{path.name}::{node.name}")
    return found


@pytest.mark.parametrize("number", NUMBERS)
def test_each_scenario_has_a_test_of_its_number(number: str) -> None:
    tests = shown().get(number, [])
    assert any(word in test for test in tests for word in CHOSEN), f"{number}: {tests}"


PLACES = re.compile(r"\b(here|mixed): ")
"""An argument by which a test runs in the tail and on object storage, also after a restart
(`support/places.py`)."""
BY_THEMSELVES = {"F10": "test_scenarios_filter.py", "P7": "test_super_produce.py"}
"""What is read there restarts its server by itself, in the middle."""


@pytest.mark.parametrize("number", [*(f"F{n}" for n in range(1, 11)), "P7"])
def test_what_is_read_is_read_on_both_tiers_and_after_a_restart(number: str) -> None:
    named = [one.partition("::") for one in shown()[number]]
    sources = [
        source_of(path, test)
        for path, _, test in named
        if path == BY_THEMSELVES.get(number, "test_scenarios_filter.py") and test.startswith("test")
    ]
    assert sources, f"{number} is in no module of its own: {named}"
    for source in sources:
        if number in BY_THEMSELVES:
            assert re.search(r"free_local|leave_the_tail", source), number
            assert re.search(r"\.restart\(|\.kill\(", source), number
        else:
            assert PLACES.search(source), f"{number} is read in one place alone"


def source_of(path: str, test: str) -> str:
    """A test as it stands in its module, without what decorates it."""
    text = (JOURNEYS / path).read_text()
    [found] = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test
    ]
    return ast.get_source_segment(text, found) or ""
