"""No test is impatient: where a machine that does much else is late, nothing is wrong with the product.

A limit of a few seconds that a test sets to a wait is a verdict about the machine. One that is meant to be
over, since nothing comes, says so by `TimeoutError` in the lines around it.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

ROOT: Final = Path(__file__).parents[2]
PATIENCE_SECONDS: Final = 15
"""Processes stood still for five to ten seconds where four workers and other work shared two slow cores."""
_NUMBER: Final = r"(?P<seconds{}>[0-9][0-9_.]*)"
_LIMITS: Final = (
    r"\.result\((?:timeout=)?{}\)",
    r"communicate\(timeout={}",
    r"asyncio\.timeout\({}\)",
    r"wait_for\(.*, {}\)",
    r"\buntil\(.*seconds={}",
    r"^ +seconds={},$",
    r"settimeout\({}\)",
    r"\btimeout={}[,)]",
    r"\.join\({}\)",
    r"process\w*\.wait\({}\)",
)
LIMIT: Final = re.compile(
    "|".join(limit.format(_NUMBER.format(number)) for number, limit in enumerate(_LIMITS))
)
EXPECTED: Final = ("TimeoutError", "TimeoutExpired")
NEAR: Final = 3
"""Lines before, and one after, in which it may be said that a limit is meant to be over."""
OTHERS: Final = ("simulation", "model", "soak", "fuzz")
"""Folders with clocks of their own, or of programs that nobody waits for."""

ALLOWED: Final[dict[str, tuple[int, str]]] = {
    "tests/deploy/composition.py": (1, "it is asked again until it answers"),
    "tests/support/nginx.py": (1, "it is asked again until it answers"),
    "tests/unit/client/test_client_producer_ends.py": (1, "nothing comes in that time"),
    "tests/unit/runtime/test_runtime_single_flight.py": (1, "on a virtual clock"),
}
"""How many lines of a file have a shorter limit, and why that is right."""


def limits() -> Iterator[tuple[str, str]]:
    """Files and lines that wait for less than the patience that a machine needs."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.parts[len(ROOT.parts) + 1] in OTHERS:
            continue
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            for found in LIMIT.finditer(line):
                seconds = next(filter(None, found.groupdict().values()))
                around = "\n".join(lines[max(0, number - NEAR) : number + 2])
                if float(seconds) < PATIENCE_SECONDS and not any(one in around for one in EXPECTED):
                    yield str(path.relative_to(ROOT)), line.strip()


def test_no_test_gives_up_while_a_busy_machine_may_be_late() -> None:
    found = list(limits())
    counts = Counter(path for path, _ in found)
    assert counts == {path: count for path, (count, _) in ALLOWED.items()}, found


def test_a_request_without_a_limit_of_its_own_waits_as_long_as_the_others() -> None:
    with httpx.Client() as client:
        assert client.timeout == httpx.Timeout(240)
