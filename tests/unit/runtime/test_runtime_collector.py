"""The garbage collector's passes, looked at in a process of its own.

Each pass over all objects takes as long as there are many, and here there are those of all tests.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def test_passes_are_short_and_what_is_garbage_goes_all_the_same() -> None:
    """The tests are those of collector_passes.py."""
    alone = ["--noconftest", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *alone, str(HERE / "collector_passes.py")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert " passed" in ended.stdout
