"""Imported by Python before anything else, in a process whose wall clock a test sets, or which forks such ones.

See support/skewed_clock.py. Elapsed time is left alone, as it is where an operator sets a clock. Who
forks has no such file in its environment, and the right time; what it forks has one of its own.
"""

import mmap
import os
import struct
import time
from functools import cache
from pathlib import Path

_MILLISECOND_NS = 1_000_000
_real_ns = time.time_ns


@cache
def _page(path: str) -> mmap.mmap:
    with Path(path).open("rb") as file:
        return mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)


def _time_ns() -> int:
    path = os.environ.get("TEST_CLOCK_SKEW")
    if path is None:
        return _real_ns()
    skew_ms: int = struct.unpack("<q", _page(path)[:8])[0]
    return _real_ns() + skew_ms * _MILLISECOND_NS


time.time_ns = _time_ns
time.time = lambda: _time_ns() / 1e9
