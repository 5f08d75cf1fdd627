"""Tests side by side: each is done once and told of, whatever becomes of the process that does it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
CONFTEST: Final = """
import os, pytest
from support.forked_workers import ForkedWorkers

def pytest_configure(config):
    config.pluginmanager.register(ForkedWorkers(2, lambda name: name.partition("::")[0]))

@pytest.fixture(scope="session")
def of_a_process(request, tmp_path_factory):
    yield tmp_path_factory.mktemp("kept")
    if request.config.option.keyword == "takes":
        raise ValueError("could not be taken down")

@pytest.fixture(scope="module")
def of_a_file():
    return []
"""
FILES: Final = {
    "test_dies.py": """
import os, signal
def test_before(of_a_process): pass
def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
def test_after(of_a_process): assert of_a_process.exists()
""",
    "test_together.py": """
import os, sys
def test_first(of_a_file): of_a_file.append(os.getpid())
def test_second(of_a_file): assert of_a_file == [os.getpid()]
def test_wrong(of_a_file):
    print("what it printed")
    assert of_a_file == []
""",
    "test_warns.py": """
import warnings
def test_warns(): warnings.warn("beware of it")
""",
    "test_takes.py": "def test_takes(of_a_process): pass",
}


def told(folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of a run of these files."""
    for name, text in {**FILES, "conftest.py": CONFTEST}.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ended = subprocess.run(
        [*command, "-p", "no:schemathesis", f"--basetemp={folder / 'kept'}", "-q", *options, "."],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_each_test_is_done_once_and_one_that_ends_its_process_has_failed(tmp_path: Path) -> None:
    code, text = told(tmp_path)
    assert code == pytest.ExitCode.TESTS_FAILED, text
    assert "2 failed, 6 passed, 1 warning in" in text
    assert re.search(
        r"^FAILED test_dies.py::test_dies - the worker ended here: Killed", text, re.MULTILINE
    )
    assert re.search(r"^FAILED test_together.py::test_wrong - ", text, re.MULTILINE)
    assert "what it printed" in text
    assert "beware of it" in text


def test_what_fails_at_the_end_of_a_process_fails_the_run(tmp_path: Path) -> None:
    code, text = told(tmp_path, "-k", "takes")
    assert code == pytest.ExitCode.TESTS_FAILED, text
    assert "1 passed, 3 deselected" not in text
    assert "could not be taken down" in text


def test_a_run_that_is_to_end_at_the_first_failure_does(tmp_path: Path) -> None:
    code, text = told(tmp_path, "-x")
    assert code == pytest.ExitCode.TESTS_FAILED, text
    assert "stopping after 1 failures" in text
