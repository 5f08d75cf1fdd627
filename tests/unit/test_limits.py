"""A test that goes on for ever ends all the same, and says where it stood."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.limits import UNIT_SECONDS

ROOT: Final = Path(__file__).parents[2]
CONFTEST: Final = """
import pytest
from support import limits
from support.by_file import ByFile

limits.GRACE_SECONDS = 1.0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)
"""
INI: Final = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""
STANDS: Final = """
import asyncio
import signal
import pytest


async def never_set():
    await asyncio.Event().wait()


def its_time_is_over():
    signal.setitimer(signal.ITIMER_REAL, 0.05)


async def test_it_waits_for_what_nobody_does():
    waiting = asyncio.create_task(never_set(), name="the one that waits")
    await asyncio.sleep(0)
    its_time_is_over()
    await waiting


@pytest.fixture
async def ends_never():
    yield
    its_time_is_over()
    await never_set()


async def test_it_fails_and_what_it_leaves_never_ends(ends_never):
    assert ends_never, "it fails"


def test_what_comes_after_it():
    pass
"""
"""The signal of the limit comes when something stands, however long it took until then."""
CAUGHT: Final = """
import threading
import pytest


@pytest.mark.timeout(1)
def test_it_catches_its_limit():
    while True:
        try:
            threading.Event().wait()
        except BaseException:
            pass


def test_what_comes_after_it():
    pass
"""


def run(tmp_path: Path, program: str, *, apart: bool = False) -> subprocess.CompletedProcess[str]:
    """The tests of a program; `apart`: in another process than the run."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(program)
    (tmp_path / "pytest.ini").write_text(INI)
    names = ("hypothesispytest", "schemathesis", "anyio", "valkey", "cacheprovider")
    given = [word for name in names for word in ("-p", f"no:{name}")]
    given += ["-n", "1"] if apart else ["-p", "no:xdist"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "support.limits", "--timeout=600", *given],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_a_test_that_stands_still_fails_also_where_it_ends_and_others_go_on(tmp_path: Path) -> None:
    ran = run(tmp_path, STANDS)
    assert "2 failed, 1 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
    # The stack that pytest shows is that of the loop; this one is that of the task.
    assert "the one that waits" in ran.stdout
    assert "never_set" in ran.stdout


def test_a_test_that_catches_its_limit_ends_with_its_process_and_another_does_the_rest(
    tmp_path: Path,
) -> None:
    ran = run(tmp_path, CAUGHT, apart=True)
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "crashed while running 'test_it.py::test_it_catches_its_limit'" in ran.stdout
    assert "Timeout (0:00:02)!" in ran.stderr
    assert "most recent call first" in ran.stderr


def test_a_test_of_a_single_part_has_a_limit_beyond_the_longest_wait(
    request: pytest.FixtureRequest,
) -> None:
    marker = request.node.get_closest_marker("timeout")
    is_given = request.config.getoption("timeout") is not None
    assert (None if marker is None else marker.args) == (None if is_given else (UNIT_SECONDS,))
    assert UNIT_SECONDS > 240
