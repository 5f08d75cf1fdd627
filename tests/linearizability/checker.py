"""Whether a history could be that of a stream that does one thing at a time: Wing and Gong's search.

Every operation must seem to happen at one moment between its invocation and its return. The
search picks, again and again, an operation that no other one had returned before, and lets it
happen to the model. One whose outcome is not known may happen at any time after it was invoked,
or never. What was tried stays known by which operations had happened and what the log was then:
the same state is never searched twice, which is Lowe's addition.

Three things keep it short, and lose no order that explains a history. What fits now and leaves
the state as it is may as well happen now. An append without an answer that some page shows
happened at the place where it is shown. One that is missing in a look at everything, which was
begun after all other answers had come, happened after it or never, so nobody has to try it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from linearizability.history import (
    NOBODYS,
    Append,
    Event,
    Log,
    Page,
    Read,
    step,
    turn_step,
)

State = TypeVar("State", bound=tuple[object, ...])


class Verdict(NamedTuple):
    order: tuple[Event, ...] | None
    """One order in which it all could have happened; None: there is none."""
    longest: tuple[Event, ...]
    """The most that could have happened before the search was stuck."""
    stuck_at: tuple[Event, ...]
    """What had to come next there, and could not."""

    def __str__(self) -> str:
        if self.order is not None:
            return "linearizable"
        lines = ["not linearizable; the last of what fits:", *map(_shown, self.longest[-12:])]
        return "\n  ".join(
            [*lines, "and none of these fits behind it:", *map(_shown, self.stuck_at)]
        )


class _Frame(NamedTuple, Generic[State]):
    done: int
    """A bit for each event that has happened."""
    state: State
    path: tuple[int, ...]


def check(history: Sequence[Event]) -> Verdict:
    """Search for an order that explains the history of a stream."""
    places = _places(history)

    def step_in_place(log: Log, event: Event) -> Log | None:
        if not event.known and isinstance(event.operation, Append):
            place = places.get(event.operation.values[0])
            if place not in (None, len(log)):
                return None
        return step(log, event)

    nothing: Log = ()
    return _search(_without_unseen(history, places), step_in_place, nothing)


def check_group(history: Sequence[Event]) -> Verdict:
    """Search for an order that explains what members of a group saw."""
    return _search(history, turn_step, NOBODYS)


def _search(
    history: Sequence[Event], step_of: Callable[[State, Event], State | None], first: State
) -> Verdict:
    events = sorted(history, key=lambda event: event.invoked)
    known = sum(1 << number for number, event in enumerate(events) if event.known)
    seen: set[tuple[int, State]] = set()
    stack = [_Frame(0, first, ())]
    longest = stack[0]
    stuck_at: tuple[int, ...] = ()
    while stack:
        frame = stack.pop()
        if frame.done & known == known:
            order = tuple(events[number] for number in frame.path)
            return Verdict(order, order, ())
        if (frame.done, frame.state) in seen:
            continue
        seen.add((frame.done, frame.state))
        candidates = _next(events, frame.done)
        if len(frame.path) >= len(longest.path):
            longest, stuck_at = frame, tuple(candidates)
        stack += _ways(events, candidates, frame, step_of)
    return Verdict(
        None,
        tuple(events[number] for number in longest.path),
        tuple(events[number] for number in stuck_at),
    )


def _ways(
    events: Sequence[Event],
    candidates: Sequence[int],
    frame: _Frame[State],
    step_of: Callable[[State, Event], State | None],
) -> list[_Frame[State]]:
    """The states that may come next; what is known stands last, and so is tried first."""
    found = []
    for number in sorted(candidates, key=lambda number: (events[number].known, -number)):
        event = events[number]
        state = step_of(frame.state, event)
        if state is None:
            continue
        way = _Frame(frame.done | 1 << number, state, (*frame.path, number))
        if state is frame.state:
            return [way]
        found.append(way)
    return found


def _places(history: Sequence[Event]) -> dict[str, int]:
    """Where pages show each value; where they differ, no order explains both anyway."""
    return {
        value: event.operation.offset + number
        for event in history
        if isinstance(event.operation, Read) and isinstance(event.result, Page)
        for number, value in enumerate(event.result.values)
    }


def _without_unseen(history: Sequence[Event], places: Mapping[str, int]) -> list[Event]:
    """Without the appends that need not have happened, if a last look says so."""
    known = [event for event in history if event.known]
    if not known:
        return list(history)
    last = max(known, key=lambda event: event.invoked)
    whole = isinstance(last.result, Page) and last.result.up_to_date and last.operation == Read(0)
    if not whole or any(event.returned > last.invoked for event in known if event is not last):
        return list(history)
    assert isinstance(last.result, Page)
    shown = set(last.result.values)
    return [
        event
        for event in history
        if event.known
        or not isinstance(event.operation, Append)
        or event.operation.values[0] in shown
        or event.operation.values[0] in places
    ]


def _next(events: Sequence[Event], done: int) -> list[int]:
    """What may happen now: whatever was invoked before the first return that is still to come."""
    left = [number for number in range(len(events)) if not done >> number & 1]
    first_return = min(events[number].returned for number in left)
    return [number for number in left if events[number].invoked <= first_return]


def _shown(event: Event) -> str:
    span = f"{event.invoked:.4f} to {event.returned:.4f}"
    return f"{span} {event.client}: {event.operation} -> {event.result}"
