"""Decide how a range of an object is fetched: in runs of several blocks, or block by block.

A store is paid for each GET and answers one at the speed of one connection. Who reads on and on
is served with few large GETs; who looks up a record does not wait for bytes that it never reads.
"""

from typing import NamedTuple


class Run(NamedTuple):
    """Consecutive blocks of an object that one GET may bring."""

    start: int
    end: int


def runs_of(start: int, size: int, object_size: int, run_size: int) -> list[Run]:
    """The runs of an object that a range touches, in order; all lie where a run begins.

    What is less than half a run at the end of the object belongs to the run before.
    """
    count = max((object_size + run_size // 2) // run_size, 1)
    first = min(start // run_size, count - 1)
    last = min((start + size - 1) // run_size, count - 1)
    return [
        Run(number * run_size, object_size if number == count - 1 else (number + 1) * run_size)
        for number in range(first, last + 1)
    ]


def read_on(run: Run, start: int, end: int, *, follows: bool) -> bool:
    """Whether who reads from `start` to `end` probably reads all of a run, so that one GET is best.

    It is so for who comes from before the run, and for who wants half of it at once. `follows`
    says that the range goes on from where another object ended.
    """
    wanted = min(end, run.end) - max(start, run.start)
    return start < run.start or follows or 2 * wanted >= run.end - run.start
