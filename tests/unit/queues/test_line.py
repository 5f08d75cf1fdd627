"""The line before rounds: its order and its bounds."""

import pytest

from bottomless.errors import Overloaded
from bottomless_server.queues.core.line import OVERHEAD_SIZE, Line

ONE = 100 + OVERHEAD_SIZE


def test_a_round_takes_the_first_ones_in_their_order() -> None:
    line: Line[int] = Line(10 * ONE, 10 * ONE, 3)
    for job in range(5):
        line.put(job, 100)
    assert (line.take(), line.take(), line.take()) == ([0, 1, 2], [3, 4], [])
    assert len(line) == 0


def test_a_round_has_a_bound_in_bytes_and_takes_one_always() -> None:
    line: Line[str] = Line(100 * ONE, 2 * ONE, 9)
    for job, size in (("large", 50 * ONE), ("a", 100), ("b", 100), ("c", 100)):
        line.put(job, size)
    assert [line.take() for _ in range(3)] == [["large"], ["a", "b"], ["c"]]


def test_what_waits_has_a_bound_in_bytes_and_one_may_wait_always() -> None:
    line: Line[int] = Line(3 * ONE, ONE, 9)
    for job in range(3):
        line.put(job, 100)
    with pytest.raises(Overloaded):
        line.put(3, 100)
    line.put_anyway(4, 100)
    assert line.take() == [0]
    with pytest.raises(Overloaded):
        line.put(5, 100)
    assert [line.take(), line.take(), line.take()] == [[1], [2], [4]]
    line.put(6, 100 * ONE)
    assert line.take() == [6]
