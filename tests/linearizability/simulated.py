"""Histories without a server: clients of a perfect stream, and what a faulty one would have told them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from linearizability.history import (
    UNKNOWN,
    Append,
    Bounds,
    Commit,
    Committed,
    End,
    Event,
    Fenced,
    Held,
    Hold,
    Log,
    Look,
    Mismatch,
    Operation,
    Page,
    Place,
    Read,
    Result,
    Stored,
)

Mutation = Callable[[list[Event]], list[Event]]


def honest(seed: int, count: int = 60, clients: int = 4) -> list[Event]:
    """What clients of a linearizable stream see; some of them do not hear how an append ended."""
    chance = random.Random(seed)
    log: Log = ()
    events: list[Event] = []
    free = [0.0] * clients
    moment = 0.0
    for number in range(count):
        client = chance.randrange(clients)
        # Each happens behind the one before it, somewhere between its own invocation and return.
        moment = max(moment, free[client]) + chance.random()
        invoked = chance.uniform(max(free[client], moment - 5), moment)
        free[client] = returned = moment + chance.random() * 3
        log, operation, result = _happen(chance, log, number)
        lost = isinstance(operation, Append) and chance.random() < 0.15
        event = Event(f"c{client}", operation, result, invoked, returned)
        events.append(replace(event, result=UNKNOWN, returned=float("inf")) if lost else event)
    return _ordered(events, log, max(free) + len(events))


def _ordered(events: list[Event], log: Log, end: float) -> list[Event]:
    """With a last look at everything, when all is quiet."""
    last = Event("last", Read(0), Page(log, up_to_date=True), end, end + 1)
    return [*events, last]


def _happen(chance: random.Random, log: Log, number: int) -> tuple[Log, Operation, Result]:
    end = len(log)
    values = tuple(f"v{number}-{each}" for each in range(chance.randint(1, 3)))
    match chance.randrange(5):
        case 0 | 1:
            return log + values, Append(values), Stored(end)
        case 2:
            expected = end if chance.random() < 0.6 else chance.randint(0, end + 3)
            wanted = Append(values, expected)
            if expected != end:
                return log, wanted, Mismatch(end)
            return log + values, wanted, Stored(end)
        case 3:
            offset = chance.randint(0, end)
            page = log[offset : offset + chance.randint(1, 9)]
            return log, Read(offset), Page(page, offset + len(page) == end)
        case _:
            return log, Bounds(), End(end)


def _acknowledged(events: Sequence[Event]) -> list[int]:
    return [place for place, each in enumerate(events) if isinstance(each.result, Stored)]


def _changed(events: list[Event], place: int, **changes: object) -> list[Event]:
    return [*events[:place], replace(events[place], **changes), *events[place + 1 :]]  # type: ignore[arg-type]


def _pages(events: list[Event], change: Callable[[Log], Log]) -> list[Event]:
    """Every page, as a stream would have it whose log was changed so from the beginning."""
    return [
        replace(each, result=each.result._replace(values=change(each.result.values)))
        if isinstance(each.result, Page)
        else each
        for each in events
    ]


def lost_acknowledged(events: list[Event]) -> list[Event]:
    """What was acknowledged is in no page."""
    operation = events[_acknowledged(events)[-1]].operation
    assert isinstance(operation, Append)
    gone = set(operation.values)
    return _pages(events, lambda log: tuple(value for value in log if value not in gone))


def stored_twice(events: list[Event]) -> list[Event]:
    """A record of an append that was sent twice is there twice."""
    operation = events[_acknowledged(events)[0]].operation
    assert isinstance(operation, Append)
    twice = operation.values[0]

    def doubled(log: Log) -> Log:
        return tuple(value for each in log for value in ([each, each] if each == twice else [each]))

    return _pages(events, doubled)


def stale_bounds(events: list[Event]) -> list[Event]:
    """Who looks after an acknowledgement does not see what it was of."""
    place = _acknowledged(events)[-1]
    after = max(each.returned for each in events if each.known) + 1
    result = events[place].result
    assert isinstance(result, Stored)
    return [*events, Event("late", Bounds(), End(result.first_offset), after, after + 1)]


def stale_page(events: list[Event]) -> list[Event]:
    """A page that says it reaches the end, and does not."""
    last = events[-1]
    assert isinstance(last.result, Page)
    shorter = last.result._replace(values=last.result.values[:-1])
    return _changed(events, len(events) - 1, result=shorter)


def wrong_offset(events: list[Event]) -> list[Event]:
    """An append is told the place of its neighbour."""
    place = _acknowledged(events)[len(_acknowledged(events)) // 2]
    result = events[place].result
    assert isinstance(result, Stored)
    return _changed(events, place, result=Stored(result.first_offset + 1))


def condition_passed_twice(events: list[Event]) -> list[Event]:
    """Two appends expected the same offset, and both were stored."""
    place = _acknowledged(events)[0]
    won = events[place]
    assert isinstance(won.result, Stored)
    rival = Append(("rival",), won.result.first_offset)
    return [*events, Event("rival", rival, won.result, won.invoked, won.returned)]


def swapped(events: list[Event]) -> list[Event]:
    """Two records stand in the other order for one reader."""
    last = events[-1]
    assert isinstance(last.result, Page)
    first, second, *rest = last.result.values
    return _changed(events, len(events) - 1, result=Page((second, first, *rest), up_to_date=True))


def seen_and_gone(events: list[Event]) -> list[Event]:
    """An append without an answer is read, and later it never happened."""
    ghost = Event("ghost", Append(("ghost",)), UNKNOWN, 0.0)
    end = events[-1]
    assert isinstance(end.result, Page)
    seen = Page((*end.result.values, "ghost"), up_to_date=True)
    early = Event("early", Read(0), seen, end.invoked - 2, end.invoked - 1)
    return [*events[:-1], ghost, early, end]


def from_the_future(events: list[Event]) -> list[Event]:
    """A record is read before anybody appended it."""
    place = next(
        place
        for place in _acknowledged(events)
        if events[place].invoked > 2 and events[place].operation.values  # type: ignore[union-attr]
    )
    operation = events[place].operation
    result = events[place].result
    assert isinstance(operation, Append)
    assert isinstance(result, Stored)
    seen = Page(operation.values[:1], up_to_date=False)
    before = events[place].invoked - 1
    return [*events, Event("seer", Read(result.first_offset), seen, before - 0.5, before)]


MUTATIONS: Final[tuple[Mutation, ...]] = (
    lost_acknowledged,
    stored_twice,
    stale_bounds,
    stale_page,
    wrong_offset,
    condition_passed_twice,
    swapped,
    seen_and_gone,
    from_the_future,
)
"""Each makes of an honest history one that no linearizable stream has."""


# The same for the members of a consumer group.


def honest_group(seed: int, count: int = 60, members: int = 3) -> list[Event]:
    """What members of a group see whose commits are fenced as they ought to be."""
    chance = random.Random(seed)
    events: list[Event] = []
    free = [0.0] * members
    claims: list[list[tuple[str, int]]] = [[] for _ in range(members)]
    generation, holder, stored, moment = 0, -1, None, 0.0
    for number in range(count):
        if chance.random() < 0.2:
            generation, holder = generation + 1, chance.randrange(-1, members)
        member = chance.randrange(members)
        moment = max(moment, free[member]) + chance.random()
        invoked = chance.uniform(max(free[member], moment - 5), moment)
        free[member] = returned = moment + chance.random() * 3
        span = (invoked, returned)
        if member == holder and (not claims[member] or chance.random() < 0.3):
            claim = (f"m{member}", generation)
            claims[member] = [*claims[member], claim]
            events.append(Event(claim[0], Hold(claim[0]), Held(generation), *span))
        elif claims[member] and chance.random() < 0.8:
            claim = chance.choice(claims[member][-2:])
            passes = (member, generation) == (holder, claim[1])
            stored = number if passes else stored
            result = Committed() if passes else Fenced()
            lost = chance.random() < 0.15
            event = Event(claim[0], Commit(*claim, number), result, *span)
            events.append(replace(event, result=UNKNOWN, returned=float("inf")) if lost else event)
        else:
            events.append(Event(f"m{member}", Look(), Place(stored), *span))
    end = max(free) + len(events)
    return [*events, Event("last", Look(), Place(stored), end, end + 1)]


def zombie_passes(events: list[Event]) -> list[Event]:
    """A member commits that was deposed, and was told that it passed."""
    first = next(event for event in events if isinstance(event.result, Held))
    end = events[-1].invoked
    assert isinstance(first.operation, Hold)
    assert isinstance(first.result, Held)
    commit = Commit(first.operation.member_id, first.result.generation, 1_000)
    late = Event(first.client, commit, Committed(), end - 2, end - 1)
    seen = Event("last", Look(), Place(1_000), end, end + 1)
    return [*events[:-1], late, seen]


def zombie_is_stored(events: list[Event]) -> list[Event]:
    """What was refused is stored all the same."""
    refused = [event.operation for event in events if isinstance(event.result, Fenced)]
    last = refused[-1]
    assert isinstance(last, Commit)
    return _changed(events, len(events) - 1, result=Place(last.next_offset))


def two_holders(events: list[Event]) -> list[Event]:
    """Two members are told of one generation."""
    place = next(n for n, event in enumerate(events) if isinstance(event.result, Held))
    return [*events, replace(events[place], client="other", operation=Hold("other"))]


def committed_and_gone(events: list[Event]) -> list[Event]:
    """What passed last is not what is stored, and nobody knows of another commit."""
    known = [event for event in events[:-1] if event.known]
    return [*known, replace(events[-1], result=Place(5_000))]


GROUP_MUTATIONS: Final[tuple[Mutation, ...]] = (
    zombie_passes,
    zombie_is_stored,
    two_holders,
    committed_and_gone,
)
