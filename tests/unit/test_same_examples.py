"""What Hypothesis draws from a seed does not depend on the modules that a process has loaded, nor its verdict on
how long that takes."""

import importlib
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

HERE: Final = Path(__file__)
NUMBERS: Final = [10**12 + 7_919 * place for place in range(1_000)]


def drawn() -> list[int]:
    found: list[int] = []

    @seed(0)
    @settings(max_examples=500, database=None)
    @given(st.integers())
    def look(number: int) -> None:
        found.append(number)

    look()
    return found


def is_the_same_with_more_loaded(directory: Path) -> bool:
    """Draw, load a module that is full of numbers, and draw again."""
    (directory / "full_of_numbers.py").write_text(f"NUMBERS = {NUMBERS}\n")
    before = drawn()
    sys.path.insert(0, str(directory))
    try:
        importlib.import_module("full_of_numbers")
    finally:
        sys.path.remove(str(directory))
    try:
        return drawn() == before
    finally:
        del sys.modules["full_of_numbers"]


@pytest.mark.skipif(
    bool(os.environ.get("BOTTOMLESS_TEST_PROPERTIES")), reason="these are drawn anew each time"
)
def test_a_seed_draws_the_same_whatever_else_the_process_has_loaded(tmp_path: Path) -> None:
    assert is_the_same_with_more_loaded(tmp_path)


def test_by_itself_the_library_draws_from_what_is_loaded(tmp_path: Path) -> None:
    """Where it does not any more, support/same_examples.py is not needed."""
    program = "from test_same_examples import *; print(is_the_same_with_more_loaded(HERE))"
    program = program.replace("HERE", f"Path({str(tmp_path)!r})")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert told.stdout == "False\n"


def test_a_property_holds_however_long_its_examples_take_to_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first text that a fresh checkout draws takes a second of a core, since the library makes its
    table of characters then: beside much other work that alone was longer than it waits by itself."""
    seconds = count(step=10.0)

    @given(st.integers())
    def look(number: int) -> None:
        assert isinstance(number, int)

    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: next(seconds))
        look()
