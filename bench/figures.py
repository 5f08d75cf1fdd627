"""What a measurement is, and when a goal is met: numbers alone, so that they can be tested.

A row lets its sides take turns for some rounds. What is compared are the two figures of one
round, because the machine does other things too and both sides meet the same weather; the
spread of those ratios over the rounds says how much one may believe them.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy.typing as npt

GIB: Final = 1 << 30


@dataclass(frozen=True)
class Figure:
    """One side, one round."""

    units: float
    """Records, or whatever else the row counts, that were answered within the time."""
    seconds: float
    cpu_seconds: float = 0.0
    """Of the server's processes, until they were quiet again: what it put off counts."""
    cpu_busy_seconds: float = 0.0
    """The same, but only while the load ran."""
    units_all: float = 0.0
    """Units that the CPU seconds were spent on: those answered after the time too."""
    generator_cpu_seconds: float = 0.0
    rss_mib: float = 0.0
    """Of the server's processes together, the most that was seen."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    p999_ms: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.units / self.seconds

    @property
    def cpu_per_million(self) -> float:
        """Server CPU seconds per million units."""
        return self.cpu_seconds / (self.units_all or self.units) * 1e6

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Figure":
        return cls(**document)


def quantile(ordered: Sequence[float] | npt.NDArray[Any], part: float) -> float:
    """The smallest of these values that so large a part of them does not exceed; 0 of none.

    It is one that was measured: between the two slowest of a hundred nothing is made up.
    """
    if not len(ordered):
        return 0.0
    # A hair less, since 0.99 * 100 is 99.00000000000001 to a computer.
    return float(ordered[max(math.ceil(part * len(ordered) - 1e-9), 1) - 1])


@dataclass(frozen=True)
class Spread:
    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(min(values), statistics.median(values), max(values))


Sides = Mapping[str, Sequence[Figure]]


@dataclass(frozen=True)
class Verdict:
    """A goal, what was measured of it, and whether it is met; None where it cannot be said."""

    goal: str
    found: Spread | None
    met: bool | None
    unit: str = "x"
    bound: float | None = None
    at_most: bool = False


@dataclass(frozen=True)
class Goal:
    """Something that the median of the rounds must reach; without a bound, only to be known."""

    text: str
    value: Callable[[Sides], Sequence[float] | None]
    """One number a round; None if a side is missing."""
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"

    def judge(self, sides: Sides) -> Verdict:
        values = self.value(sides)
        bound = self.at_most if self.at_least is None else self.at_least
        if not values:
            return Verdict(self.text, None, None, self.unit, bound)
        found = Spread.of(values)
        met: bool | None = None
        if self.at_least is not None:
            met = found.middle >= self.at_least
        elif self.at_most is not None:
            met = found.middle <= self.at_most
        return Verdict(self.text, found, met, self.unit, bound, self.at_most is not None)


def ratios(sides: Sides, ours: str, theirs: str) -> list[float] | None:
    """Our rate over theirs, round by round."""
    if not sides.get(ours) or not sides.get(theirs):
        return None
    pairs = zip(sides[ours], sides[theirs], strict=False)
    return [our.rate / their.rate for our, their in pairs]


def times(text: str, ours: str, theirs: str, at_least: float) -> Goal:
    """Our rate is at least so many times theirs."""
    return Goal(text, lambda sides: ratios(sides, ours, theirs), at_least=at_least)


def per_gib(figure: Figure) -> float:
    """CPU seconds of the server for each GiB that it sent."""
    return figure.cpu_seconds / figure.extra["received"] * GIB


def bytes_ratios(sides: Sides, ours: str, theirs: str) -> list[float] | None:
    """What we send in a second over what they send, in bytes of answers, round by round."""
    if not sides.get(ours) or not sides.get(theirs):
        return None
    pairs = zip(sides[ours], sides[theirs], strict=False)
    return [_bytes_rate(our) / _bytes_rate(their) for our, their in pairs]


def _bytes_rate(figure: Figure) -> float:
    return figure.extra["received"] / figure.seconds


def at_most(
    text: str, side: str, measure: Callable[[Figure], float], limit: float, unit: str
) -> Goal:
    """A number of one side stays within a limit."""
    return Goal(
        text,
        lambda sides: [measure(figure) for figure in sides.get(side, ())],
        at_most=limit,
        unit=unit,
    )
