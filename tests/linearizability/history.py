"""What clients asked of one stream and what they were told, with when: a history.

And the stream as it ought to be, for one client at a time: a list to which is appended.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

Log = tuple[str, ...]
"""The values of all records, in the order of their offsets. No value is appended twice."""


class Append(NamedTuple):
    """Strict appends, however often they were sent, are one of these: they happen once or never."""

    values: tuple[str, ...]
    expected_offset: int | None = None


class Read(NamedTuple):
    """A page."""

    offset: int


class Bounds(NamedTuple):
    """Where the stream ends."""


class Stored(NamedTuple):
    first_offset: int


class Mismatch(NamedTuple):
    """The end of the stream was not where the append expected it, but here."""

    next_offset: int


class Page(NamedTuple):
    values: tuple[str, ...]
    up_to_date: bool
    """Whether it reaches the end of the stream."""


class End(NamedTuple):
    next_offset: int


class Unknown(NamedTuple):
    """No answer came: it happened, or it will, or never."""


Operation = Append | Read | Bounds
Result = Stored | Mismatch | Page | End | Unknown

UNKNOWN: Final = Unknown()


@dataclass(frozen=True)
class Event:
    """One operation, between its first byte out and its last byte in, by one clock."""

    client: str
    operation: Operation
    result: Result
    invoked: float
    returned: float = field(default=inf)

    @property
    def known(self) -> bool:
        return self.result is not UNKNOWN


def step(log: Log, event: Event) -> Log | None:
    """The log after this happened to it all at once; None where it cannot have, with this result."""
    operation, result = event.operation, event.result
    match operation, result:
        case Append(values, expected), Unknown():
            return None if expected not in (None, len(log)) else log + values
        case Append(values, expected), Stored(first_offset):
            fits = len(log) == first_offset and expected in (None, first_offset)
            return log + values if fits else None
        case Append(_, expected), Mismatch(next_offset):
            return log if len(log) == next_offset != expected else None
        case Read(offset), Page(values, up_to_date):
            end = offset + len(values)
            fits = log[offset:end] == values and len(log) >= end and offset <= len(log)
            return log if fits and up_to_date == (end == len(log)) else None
        case Bounds(), End(next_offset):
            return log if len(log) == next_offset else None
    raise AssertionError(f"no such answer to such a question: {event}")
