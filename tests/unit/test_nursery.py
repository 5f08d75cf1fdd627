"""A program that is forked with all modules loaded ends as one does that was started alone."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.nursery import WHOLE_END, nursery

SECONDS = 120

BEGINNING = """
import atexit, sys, threading
atexit.register(lambda: print("the end", end=""))
threading.Thread(target=lambda: print("a thread", end=" ")).start()
print("the work", file=sys.stderr)
"""
ENDINGS = {
    "by itself": "",
    "by a code": "sys.exit(3)",
    "by none": "sys.exit()",
    "by a text": "sys.exit('no more')",
    "by an exception": "raise ValueError('no more')",
}
LOSING = """
import json, os

class Kept:
    def __del__(self, write=os.write):
        write(1, b"lost")

json.kept = Kept()
"""


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str


def forked(program: Path, **variables: str) -> Ended:
    log = program.with_suffix(".log")
    with log.open("w") as stderr:
        process = nursery().spawn([], {**os.environ, **variables}, stderr, str(program))
    with process.stdout as stdout:
        told = stdout.read()
    return Ended(process.wait(SECONDS), told, log.read_text())


def alone(program: Path) -> Ended:
    ended = subprocess.run(
        # Nothing of this environment is needed, and a start without it takes half as long.
        [sys.executable, "-I", "-S", str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_forked_program_ends_as_one_that_was_started_alone(tmp_path: Path, ending: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(BEGINNING + ENDINGS[ending])

    here, there = forked(program), alone(program)

    assert (here.code, here.stdout) == (there.code, there.stdout)
    # The one has a line more in its traceback for each caller of the program.
    assert here.stderr.splitlines()[:1] == there.stderr.splitlines()[:1]
    assert here.stderr.splitlines()[-1:] == there.stderr.splitlines()[-1:]


def test_one_that_is_to_end_wholly_says_what_was_lost_until_then(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LOSING)

    assert forked(program).stdout == ""
    assert forked(program, **WHOLE_END).stdout == "lost"
