"""Each process has the clock that its test has set, though one nursery forks all of them."""

import os
from pathlib import Path

from support.skewed_clock import SkewedClock, skewed_nursery

HOUR_MS = 3_600_000
SECONDS = 120
TELLS = """
import time
print(time.time_ns() - time.clock_gettime_ns(time.CLOCK_REALTIME))
"""


def ahead_ms(directory: Path, **environment: str) -> int:
    program, log = directory / "tells.py", directory / "log"
    program.write_text(TELLS)
    with log.open("w") as stderr:
        process = skewed_nursery().spawn([], {**os.environ, **environment}, stderr, str(program))
    with process.stdout as stdout:
        told = stdout.read()
    assert process.wait(SECONDS) == 0, log.read_text()
    return round(int(told) / 1_000_000)


def test_of_two_that_are_forked_each_has_the_clock_of_its_environment(tmp_path: Path) -> None:
    clocks = {}
    for hours in (2, -3):
        directory = tmp_path / str(hours)
        directory.mkdir()
        clocks[hours] = SkewedClock(directory)
        clocks[hours].set(hours * HOUR_MS)
    for hours, clock in clocks.items():
        assert round(ahead_ms(tmp_path, **clock.environment) / HOUR_MS) == hours


def test_who_has_no_such_clock_has_the_right_time(tmp_path: Path) -> None:
    assert round(ahead_ms(tmp_path) / HOUR_MS) == 0
