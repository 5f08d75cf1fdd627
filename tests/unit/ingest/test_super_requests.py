"""Requests of a producer to a super stream, in every order and cut off at every step.

The records are those with the numbers 0, 1 and 2. A request is any range of them, it is cut off
after any of its steps, and the next one may be the same again or another range. What is known is
kept and read by the product's own `Tracking`, over partitions that are a row of what they know.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import combinations
from typing import NamedTuple

import pytest
from support.guards import remove
from support.parts_as_transactions import as_a_transaction

from bottomless.errors import StoreError
from bottomless.model.chunk import AppendEntry, AppendMode
from bottomless_server.core.tracking.known_producers import Producer, TrackingBounds
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers import super_requests
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.producers.super_requests import (
    Begun,
    Raise,
    Request,
    coordinating_partition,
    entries_of_raise,
    entries_of_whole,
    highest_part,
    part_name,
    whole_name,
)
from bottomless_server.ingest.records.intake import Append

P, NOW = "loader-7", 1_000
BOUNDS = TrackingBounds(100, 5, 100, 60_000)
RECORDS = range(3)
ROUTES = {1: (0, 1, 0), 2: (2, 0, 1)}
"""The partition of each record, by the layout."""
COORDINATING = 0

Known = tuple[tuple[str, Producer], ...]
"""What one partition knows."""


class State(NamedTuple):
    known: tuple[Known, Known, Known]
    stored: tuple[int, ...]
    """How often each record is stored."""
    confirmed: frozenset[int]
    layout: int = 1


FIRST = State(((), (), ()), (0,) * len(RECORDS), frozenset())


class Event(NamedTuple):
    """A request and how far it comes."""

    first: int
    last: int
    reached: frozenset[int]
    """Which of its parts arrive."""
    completes: bool
    """Whether step 3 is reached, where all parts arrived."""


class Violation(AssertionError):
    pass


def tracking_of(known: Known) -> Tracking:
    tracking = Tracking(BOUNDS)
    tracking.producers.update(known)
    return tracking


def known_to(tracking: Tracking) -> Known:
    return tuple(sorted(tracking.producers.items()))


def request_of(first: int, last: int, epoch: int = 0) -> Request:
    """The request of a range; each cut has another body."""
    return Request(P, epoch, first, last, 1 + 10 * first + last)


def parts_of(request: Request, layout: int) -> dict[int, list[int]]:
    parts: dict[int, list[int]] = {}
    for number in range(request.first, request.last + 1):
        parts.setdefault(ROUTES[layout][number], []).append(number)
    return parts


def with_known(state: State, partition: int, tracking: Tracking) -> State:
    known = list(state.known)
    known[partition] = known_to(tracking)
    return state._replace(known=tuple(known))  # type: ignore[arg-type]


def append_part(state: State, request: Request, layout: int, partition: int) -> State:
    """Step 2 at one partition; raises what the partition refuses."""
    tracking, numbers = tracking_of(state.known[partition]), parts_of(request, layout)[partition]
    part = Append(len(numbers), 0, request.body_crc)
    verdict = super_requests.decide_part(tracking, request, layout, part)
    if isinstance(verdict, Appended):
        return state
    entry = AppendEntry(
        AppendMode.TRANSACTION,
        first_record=0,
        record_count=len(numbers),
        body_crc=request.body_crc,
        base_sequence=request.last,
        producer_epoch=request.epoch,
        producer_id=part_name(layout, P),
    )
    tracking.take_chunk(0, NOW, [entry])
    stored = list(state.stored)
    for number in numbers:
        stored[number] += 1
    return with_known(state._replace(stored=tuple(stored)), partition, tracking)


def complete(state: State, request: Request) -> State:
    """Step 3."""
    tracking = tracking_of(state.known[COORDINATING])
    tracking.take_tracked(entries_of_whole(tracking, request, NOW))
    return confirm(with_known(state, COORDINATING, tracking), request)


def confirm(state: State, request: Request) -> State:
    numbers = range(request.first, request.last + 1)
    missing = [number for number in numbers if not state.stored[number]]
    if missing:
        raise Violation(f"confirmed and not stored: {missing}")
    return state._replace(confirmed=state.confirmed | set(numbers))


def begin(state: State, request: Request) -> Begun:
    """Step 1."""
    return super_requests.decide_begin(tracking_of(state.known[COORDINATING]), request)


def layout_for(state: State, request: Request) -> int:
    older = {
        layout: max(
            (
                number
                for known in state.known
                if (number := highest_part(tracking_of(known), P, [layout])) is not None
            ),
            default=None,
        )
        for layout in range(1, state.layout)
    }
    return super_requests.layout_of(request, older, state.layout)


def after(state: State, event: Event) -> State:
    """The state after a request that came as far as the event says."""
    request = request_of(event.first, event.last)
    try:
        begun = begin(state, request)
    except StoreError:
        return state
    if begun is Begun.WHOLE:
        return confirm(state, request)
    assert begun is Begun.GO_ON
    layout = layout_for(state, request)
    arrived = 0
    partitions = sorted(parts_of(request, layout))
    for place, partition in enumerate(partitions):
        if place not in event.reached:
            continue
        try:
            state = append_part(state, request, layout, partition)
            arrived += 1
        except StoreError:
            continue
    if max(state.stored) > 1:
        raise Violation(f"stored twice: {state.stored}")
    if event.completes and arrived == len(partitions):
        with suppress(StoreError):
            return complete(state, request)
    return state


Range = tuple[int, int]
RANGES: list[Range] = [(first, last) for first in RECORDS for last in RECORDS if first <= last]
CUTS: list[list[Range]] = [
    [(0, 2)],
    [(0, 0), (1, 2)],
    [(0, 1), (2, 2)],
    [(0, 0), (1, 1), (2, 2)],
]
"""The ways in which the records can be cut into requests."""


def events(ranges: list[Range], part_count_max: int = 2) -> list[Event]:
    """Requests of these ranges, each cut off at each of its steps."""
    found = []
    for first, last in ranges:
        count = min(last - first + 1, part_count_max)
        parts = [
            frozenset(reached)
            for size in range(count + 1)
            for reached in combinations(range(count), size)
        ]
        found += [Event(first, last, reached, completes=False) for reached in parts]
        found.append(Event(first, last, parts[-1], completes=True))
    return found


class Graph(NamedTuple):
    edges: dict[State, list[State]]

    def histories(self, length_max: int) -> int:
        """How many histories of requests there are up to a length; each has its own state."""

        @cache
        def from_state(state: State, length: int) -> int:
            if not length:
                return 0
            return sum(1 + from_state(one, length - 1) for one in self.edges[state])

        return from_state(FIRST, length_max)

    def stuck(self) -> list[State]:
        """States from which the records can never all be confirmed, whatever is sent."""
        before: dict[State, list[State]] = {state: [] for state in self.edges}
        for state, others in self.edges.items():
            for other in others:
                before[other].append(state)
        good = {state for state in self.edges if len(state.confirmed) == len(RECORDS)}
        waiting = deque(good)
        while waiting:
            for state in before[waiting.popleft()]:
                if state not in good:
                    good.add(state)
                    waiting.append(state)
        return [state for state in self.edges if state not in good]


def explored(ranges: list[Range] = RANGES, *, growing: bool = False) -> Graph:
    """All states to which any number of requests of these ranges lead."""
    steps, edges = events(ranges, 3 if growing else 2), dict[State, list[State]]()
    waiting = deque([FIRST])
    while waiting:
        state = waiting.popleft()
        if state in edges:
            continue
        found = [after(state, event) for event in steps]
        if growing and state.layout == 1:
            found.append(state._replace(layout=2))
        edges[state] = found
        waiting.extend(one for one in found if one not in edges)
    return Graph(edges)


@pytest.mark.parametrize("growing", [False, True])
def test_no_history_confirms_what_is_not_stored_or_stores_twice(growing: bool) -> None:
    """Also not one of requests that were cut off and come again in another cut, nor one in which the
    super stream grows."""
    graph = explored(growing=growing)
    assert growing or graph.histories(4) == 346_200
    assert any(len(state.confirmed) == len(RECORDS) for state in graph.edges)


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_requests_that_come_again_as_they_were_can_always_be_finished(
    cut: list[Range], growing: bool
) -> None:
    """Whatever overtook them, and wherever they were cut off."""
    assert explored(cut, growing=growing).stuck() == []


def test_one_that_was_cut_anew_is_finished_under_a_higher_epoch() -> None:
    """Such a request may leave a part that no other one fits to; it is refused, and never lost."""
    stuck = explored().stuck()
    assert stuck
    for state in stuck:
        run = Run(state, frozenset(), completes=False, raised=0, highest=None, answer=None)
        for step in super_requests.raises(2, COORDINATING):
            run = raised(run, step)
        assert run.answer is not None
        for number in range(run.answer + 1, len(RECORDS)):
            request = request_of(number, number, epoch=1)
            assert begin(run.state, request) is Begun.GO_ON
            [partition] = parts_of(request, 1)
            run = run._replace(state=append_part(run.state, request, 1, partition))
            run = run._replace(state=complete(run.state, request))
            assert run.state.stored[number] == 1


def test_without_the_first_number_and_the_body_of_a_part_some_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the first number and the body of a part", as_a_transaction)
    with pytest.raises(Violation):
        explored()


def test_another_body_under_the_numbers_of_one_that_was_cut_off_is_refused() -> None:
    request = request_of(0, 0)
    state = append_part(FIRST, request, 1, 0)
    assert append_part(state, request, 1, 0) == state
    with pytest.raises(StoreError, match="sent again as it was"):
        append_part(state, request._replace(body_crc=7), 1, 0)


def test_without_the_look_at_the_coordinating_partition_a_request_can_never_be_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later request gets ahead of one that was cut off, which is then refused for ever."""
    name = "the look at the coordinating partition before a part is appended"
    remove(monkeypatch, name, lambda _tracking, _request: Begun.GO_ON)
    assert explored([(0, 1), (2, 2)]).stuck()


def test_without_the_layout_of_its_beginning_a_request_is_stored_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "the layout by which a request was begun"
    remove(monkeypatch, name, lambda _request, _highest, newest: newest)
    with pytest.raises(Violation, match="stored twice"):
        explored(growing=True)


# A new run of the producer begins while requests of the old one are under way.


class Run(NamedTuple):
    """An old run that has one request under way, and a new one that raises the epoch."""

    state: State
    left: frozenset[int]
    """Parts of the old run's request that are under way, by their partitions."""
    completes: bool
    """Whether step 3 of the old run is still to come."""
    raised: int
    """How many steps of the raise are done."""
    highest: int | None
    answer: int | None
    """The last number that the new run was told, -1 for none; None before."""


OLD = request_of(0, 1)


def raised(run: Run, step: Raise) -> Run:
    tracking = tracking_of(run.state.known[step.partition])
    if step.coordinates:
        name = whole_name(P)
        tracking.take_tracked(entries_of_raise(tracking, name, 1, NOW, run.highest))
        last = tracking.producers[name].last_sequence
        run = run._replace(answer=-1 if last is None else last)
    else:
        found = highest_part(tracking, P, [1])
        tracking.take_tracked(entries_of_raise(tracking, part_name(1, P), 1, NOW))
        numbers = [number for number in (run.highest, found) if number is not None]
        run = run._replace(highest=max(numbers, default=None))
    state = with_known(run.state, step.partition, tracking)
    return run._replace(state=state, raised=run.raised + 1)


def next_of(run: Run) -> Iterator[Run]:
    """What may happen next: a step of the old run, also one that comes late, or of the new one."""
    for partition in run.left:
        left = run.left - {partition}
        try:
            state = append_part(run.state, OLD, 1, partition)
        except StoreError:
            # It is not answered, and nothing is complete.
            yield run._replace(left=left, completes=False)
            continue
        if run.answer is not None and state.stored != run.state.stored:
            raise Violation("a part of the old run is stored after its last number was told")
        yield run._replace(state=state, left=left)
    if run.completes and not run.left:
        try:
            yield run._replace(state=complete(run.state, OLD), completes=False)
        except StoreError:
            yield run._replace(completes=False)
    steps = super_requests.raises(2, COORDINATING)
    if run.raised < len(steps):
        yield raised(run, steps[run.raised])


def runs() -> set[Run]:
    found = set[Run]()
    waiting = [Run(FIRST, frozenset({0, 1}), completes=True, raised=0, highest=None, answer=None)]
    while waiting:
        run = waiting.pop()
        if run not in found:
            found.add(run)
            waiting.extend(next_of(run))
    return found


def test_a_new_run_goes_on_after_all_that_the_old_one_has_stored() -> None:
    """The next number is always taken, whatever was under way."""
    ends = [run for run in runs() if run.answer is not None and not run.left and not run.completes]
    assert {run.answer for run in ends} == {-1, 1}
    for run in ends:
        assert run.answer is not None
        assert run.state.confirmed <= set(range(run.answer + 1))
        request = request_of(run.answer + 1, 2, epoch=1)
        assert begin(run.state, request) is Begun.GO_ON
        state = run.state._replace(stored=(0,) * len(RECORDS))
        for partition in parts_of(request, 1):
            state = append_part(state, request, 1, partition)
        assert complete(state, request).confirmed >= set(range(request.first, 3))
        with pytest.raises(StoreError, match="newer run"):
            begin(state, OLD)


def test_without_raising_it_everywhere_a_late_part_of_the_old_run_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "the epoch of a producer, raised in all partitions first"
    remove(monkeypatch, name, lambda _count, coordinating: [Raise(coordinating, coordinates=True)])
    with pytest.raises(Violation, match="after its last number was told"):
        runs()


def test_a_request_of_a_higher_epoch_is_not_begun_before_it_is_raised() -> None:
    """Also where no request of the producer was ever whole: some partition may have a part."""
    assert begin(FIRST, request_of(0, 0, epoch=1)) is Begun.RAISE


def test_an_epoch_is_raised_once_and_never_goes_back() -> None:
    tracking = tracking_of(())
    tracking.take_tracked(entries_of_raise(tracking, part_name(1, P), 3, NOW))
    assert entries_of_raise(tracking, part_name(1, P), 3, NOW) == []
    with pytest.raises(StoreError, match="newer run"):
        entries_of_raise(tracking, part_name(1, P), 2, NOW)


def test_a_producer_has_one_coordinating_partition_whatever_grows() -> None:
    places = {coordinating_partition(f"p-{number}", 4) for number in range(100)}
    assert places == {0, 1, 2, 3}
    assert coordinating_partition(P, 1) == 0
