"""What clients asked of one stream and what they were told, with when: a history.

And the stream as it ought to be, for one client at a time: a list to which is appended, and for the
members of a consumer group a place that only the one may set whose turn it is.
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


class Hold(NamedTuple):
    """A member asks whether it holds the stream."""

    member_id: str


class Commit(NamedTuple):
    """A member, or who was one, stores where it goes on."""

    member_id: str
    generation: int
    next_offset: int


class Leave(NamedTuple):
    """A member is none any more."""

    member_id: str


class Look(NamedTuple):
    """Where the group goes on."""


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


class Held(NamedTuple):
    generation: int


class Committed(NamedTuple):
    """The place is stored."""


class Fenced(NamedTuple):
    """The member does not hold the stream."""


class Left(NamedTuple):
    """The member holds nothing, if it did."""


class Place(NamedTuple):
    next_offset: int | None


class Unknown(NamedTuple):
    """No answer came: it happened, or it will, or never."""


Operation = Append | Read | Bounds | Hold | Commit | Leave | Look
Result = Stored | Mismatch | Page | End | Held | Committed | Fenced | Left | Place | Unknown

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
            # Who reads while nobody knows the end is not told that this is it, and asks on.
            return log if fits and up_to_date <= (end == len(log)) else None
        case Bounds(), End(next_offset):
            return log if len(log) == next_offset else None
    raise AssertionError(f"no such answer to such a question: {event}")


class Turn(NamedTuple):
    """A group as it ought to be. Its stream changes hands when it likes, but never goes back to a
    generation of before, so it is taken to have done so as late as what clients saw allows."""

    generation: int
    """The highest with which anybody was seen to hold it."""
    holder: str | None
    """Who was; None when that is over."""
    next_offset: int | None


NOBODYS: Final = Turn(0, None, None)


def turn_step(turn: Turn, event: Event) -> Turn | None:
    """What a group is after this happened to it all at once; None where it cannot have, with this
    result."""
    match event.operation, event.result:
        case Hold(member_id), Held(generation):
            return _held(turn, member_id, generation)
        case Commit(member_id, generation, next_offset), Committed() | Unknown():
            held = _held(turn, member_id, generation)
            return None if held is None else held._replace(next_offset=next_offset)
        case Commit(member_id, generation, _), Fenced():
            is_its_turn = (turn.generation, turn.holder) == (generation, member_id)
            return turn._replace(holder=None) if is_its_turn else turn
        case Leave(member_id), Left():
            return turn._replace(holder=None) if turn.holder == member_id else turn
        case Look(), Place(next_offset):
            return turn if turn.next_offset == next_offset else None
    raise AssertionError(f"no such answer to such a question: {event}")


def _held(turn: Turn, member_id: str, generation: int) -> Turn | None:
    """The group while a member holds the stream with a generation, if that can be now."""
    if generation > turn.generation:
        return turn._replace(generation=generation, holder=member_id)
    return turn if (generation, member_id) == (turn.generation, turn.holder) else None
