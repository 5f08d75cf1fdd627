"""Imported by Python before anything else, in a process whose wall clock a test has set.

See support/skewed_clock.py. Elapsed time is left alone, as it is where an operator sets a clock.
"""

import mmap
import os
import struct
import time
from pathlib import Path

_MILLISECOND_NS = 1_000_000
_real_ns = time.time_ns

with Path(os.environ["TEST_CLOCK_SKEW"]).open("rb") as _file:
    _page = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)


def _time_ns() -> int:
    skew_ms: int = struct.unpack("<q", _page[:8])[0]
    return _real_ns() + skew_ms * _MILLISECOND_NS


time.time_ns = _time_ns
time.time = lambda: _time_ns() / 1e9
