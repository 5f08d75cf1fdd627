"""Lines that come one by one are sent although they never pause."""

import os
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from bottomless.cli.inputs import text

MANY = 100


class Trickle:
    """A pipe and a clock: a line is there whenever 40 ms have gone by."""

    def __init__(self, patch: pytest.MonkeyPatch, *, every: float) -> None:
        self.now = 0.0
        self.every = every
        self.next_at = every
        self.reader, self._writer = os.pipe()
        self._left = MANY
        patch.setattr(text, "select", SimpleNamespace(select=self.select))
        patch.setattr(text, "time", SimpleNamespace(monotonic=lambda: self.now))

    def select(
        self, there: Sequence[int], _: object, __: object, patience: float | None = None
    ) -> tuple[list[int], list[int], list[int]]:
        """Let the time go on in which one waits, to the next line at most."""
        assert list(there) == [self.reader]
        if patience is not None and self.now + patience < self.next_at:
            self.now += patience
            return [], [], []
        self.now = max(self.now, self.next_at)
        self.next_at = self.now + self.every
        self._write()
        return [self.reader], [], []

    def _write(self) -> None:
        if self._left:
            os.write(self._writer, b"line\n")
            self._left -= 1
            if not self._left:
                os.close(self._writer)


def held(lines: Sequence[bytes | None]) -> list[int]:
    """How many lines came between each two moments at which they are sent."""
    counts = [0]
    for line in lines:
        if line is None:
            counts.append(0)
        else:
            counts[-1] += 1
    return counts


def test_lines_that_never_pause_are_sent_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    trickle = Trickle(monkeypatch, every=0.04)
    with os.fdopen(trickle.reader, "rb", closefd=True) as pipe:
        counts = held(list(text.lines_of(pipe)))
    assert sum(counts) == MANY
    assert max(counts) <= 0.5 / 0.04 + 1
    assert len(counts) < MANY / 5, "and not each for itself"


def test_lines_between_which_there_are_pauses_are_sent_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trickle = Trickle(monkeypatch, every=0.2)
    with os.fdopen(trickle.reader, "rb", closefd=True) as pipe:
        counts = held(list(text.lines_of(pipe)))
    assert sum(counts) == MANY
    assert max(counts) == 1
