"""Decide how a range of an object is fetched: in runs of several blocks, or block by block.

A store is paid for each GET and answers one at the speed of one connection. Who reads on and on
is served with few large GETs; who looks up a record does not wait for bytes that it never reads.
"""

from typing import Final, NamedTuple

_NEXT_DUE: Final = 4
"""So manieth part of a run was given out when the next one is fetched."""


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


class KeptRun:
    """The bytes of a run, and how far it was read: who goes on from there will go on."""

    __slots__ = ("_read_to", "data", "went_ahead")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.went_ahead = False
        """The run after it was begun for somebody who reads this one."""
        self._read_to: int | None = None

    def __len__(self) -> int:
        return len(self.data)

    def read(self, start: int, end: int, *, came: bool) -> bool:
        """Note a range that is given out; whether it is of somebody who reads on.

        It is where the range goes on from what was given out before, and where whoever asks `came`
        from before the run. A first range tells nothing, and neither does one within what was read.
        """
        last = self._read_to
        goes_on = came if last is None else start <= last < end
        if last is None or goes_on:
            self._read_to = end
        return goes_on


def next_is_due(run: Run, end: int) -> bool:
    """Whether somebody who has read a run up to `end` is far enough for the next one to be fetched.

    Some of a run is often given out with the end of the one before: the run after it is early then.
    """
    return _NEXT_DUE * (end - run.start) >= run.end - run.start
