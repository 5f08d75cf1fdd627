"""The one schedule by which things are tried again."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bottomless
import bottomless_server
from bottomless.model.backoff import backoff

_GROWS = re.compile(
    r"(?i)(pause|wait|delay|retry|seconds)\w* *(\*=|<<|\* *2\b)|min\(2 \* |wait_(initial|max|exp_base)="
)
SECONDS = st.floats(0, 1e6)
FIRST = st.floats(1e-3, 1e6)
FAILURES = st.integers(0, 10**9)


@given(failures=FAILURES, first=SECONDS, longest=SECONDS, jitter=SECONDS)
def test_a_wait_is_never_longer_than_its_limit_nor_shorter_than_the_first(
    failures: int, first: float, longest: float, jitter: float
) -> None:
    wait = backoff(failures, first, longest, jitter)
    assert min(first, longest) <= wait <= longest


@given(failures=st.integers(0, 2_000), first=FIRST, longest=SECONDS, jitter=SECONDS)
def test_waits_double_with_each_failure_until_they_reach_the_limit(
    failures: int, first: float, longest: float, jitter: float
) -> None:
    wait = backoff(failures, first, longest)
    assert backoff(failures + 1, first, longest) == min(2 * wait, longest)
    assert backoff(failures, first, longest, jitter) == min(wait + jitter, longest)


@pytest.mark.parametrize(("failures", "wait"), [(0, 0.1), (1, 0.2), (2, 0.4), (5, 3.2), (6, 5.0)])
def test_the_schedule_in_seconds(failures: int, wait: float) -> None:
    assert backoff(failures, 0.1, 5.0) == pytest.approx(wait)


def test_nothing_else_makes_waits_grow() -> None:
    """A second schedule would have limits and faults of its own."""
    found = [
        f"{path.name}: {line.strip()}"
        for package in (bottomless, bottomless_server)
        for path in Path(package.__path__[0]).rglob("*.py")
        for line in path.read_text().splitlines()
        if _GROWS.search(line) and path.name != "backoff.py"
    ]
    assert found == []
