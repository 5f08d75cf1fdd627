"""Who waits for room gets it in his turn: beside a model that looks through everybody each time.

The checks before were blind: what they asked for was small, one after the other, and never
anything large beside small appends that do not end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottomless.model.names import StreamId
from bottomless_server.ingest.core.admission import Admission, Ticket

STREAMS = [StreamId(name) for name in ("one", "two", "three")]
ONE, TWO, THREE = STREAMS
STREAM_SIZE, SIZE = 10, 15


@dataclass
class Plain:
    """The same rules over one list, the oldest first."""

    held: dict[StreamId, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    waiting: list[Ticket] = field(default_factory=list)

    def fits_stream(self, stream_id: StreamId, size: int, own: int) -> bool:
        held = self.held[stream_id]
        return held <= own or held + size <= STREAM_SIZE

    def fits(self, stream_id: StreamId, size: int, own: int) -> bool:
        total = sum(self.held.values())
        fits = total <= own or total + size <= SIZE
        return fits and self.fits_stream(stream_id, size, own)

    def may_take(self, stream_id: StreamId, size: int, own: int) -> bool:
        before = [
            one
            for one in self.firsts()
            if one.stream_id == stream_id or self.fits_stream(one.stream_id, one.size, one.own)
        ]
        return self.fits(stream_id, size, own) and (own > 0 or not before)

    def firsts(self) -> list[Ticket]:
        found: dict[StreamId, Ticket] = {}
        for ticket in sorted(self.waiting, key=lambda one: one.place):
            found.setdefault(ticket.stream_id, ticket)
        return list(found.values())

    def grant(self) -> list[Ticket]:
        granted: list[Ticket] = []
        while True:
            able = [
                one for one in self.firsts() if self.fits_stream(one.stream_id, one.size, one.own)
            ]
            if not able or not self.fits(able[0].stream_id, able[0].size, able[0].own):
                return granted
            self.waiting.remove(able[0])
            self.held[able[0].stream_id] += able[0].size
            granted.append(able[0])


class Both:
    """The line and its model, told the same."""

    def __init__(self) -> None:
        self.admission = Admission(STREAM_SIZE, SIZE)
        self.plain = Plain()
        self.holders: list[list[tuple[StreamId, int]]] = []

    def ask(self, stream_id: StreamId, size: int, own: int = 0) -> None:
        taken = self.admission.take(stream_id, size, own)
        assert taken == self.plain.may_take(stream_id, size, own)
        if taken:
            self.plain.held[stream_id] += size
            self.holders.append([(stream_id, size)])
        else:
            self.plain.waiting.append(self.admission.stand(stream_id, size, own))
        self.look()

    def more(self, which: int, size: int) -> None:
        if self.holders:
            stream_id, own = self.holders[which % len(self.holders)][0]
            self.ask(stream_id, size, own)

    def free(self, which: int, _: int = 0) -> None:
        if self.holders:
            for stream_id, size in self.holders.pop(which % len(self.holders)):
                self.admission.give_back(stream_id, size)
                self.plain.held[stream_id] -= size
            self.look()

    def leave(self, which: int, _: int = 0) -> None:
        if self.plain.waiting:
            self.admission.leave(self.plain.waiting.pop(which % len(self.plain.waiting)))
            self.look()

    def look(self) -> None:
        granted = self.admission.grant()
        assert granted == self.plain.grant()
        self.holders += [[(one.stream_id, one.size)] for one in granted]
        assert self.admission.total == sum(self.plain.held.values())
        for stream_id in STREAMS:
            sizes = [size for held in self.holders for one, size in held if one == stream_id]
            assert sum(sizes) == self.plain.held[stream_id]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(STREAMS), st.integers(0, 12)),
        st.tuples(st.just("ask"), st.just(ONE), st.integers(1, 12)),
        st.tuples(st.just("more"), st.integers(0, 9), st.integers(0, 6)),
        st.tuples(st.just("free"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 9), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(steps)
def test_the_line_grants_what_a_look_through_everybody_grants(
    played: list[tuple[str, StreamId | int, int]],
) -> None:
    both = Both()
    for name, first, second in played:
        call: Callable[..., None] = getattr(both, name)
        call(first, second)
    for _ in range(len(played) + 1):
        both.free(0)
    assert both.plain.waiting == [], "whoever waits gets his turn when all is given back"
    assert (both.admission.total, both.admission.waiting_count) == (0, 0)


def test_what_is_large_gets_its_turn_beside_small_ones_that_never_end() -> None:
    admission = Admission(STREAM_SIZE, SIZE)
    assert all(admission.take(ONE, 2) for _ in range(5))
    large = admission.stand(ONE, 8)
    small = [admission.stand(ONE, 2) for _ in range(5)]
    for _ in range(4):
        admission.give_back(ONE, 2)
        assert not admission.take(ONE, 2), "nobody who comes later is before it"
        admission.grant()
    assert large.granted
    assert not any(one.granted for one in small)
    admission.give_back(ONE, 2)
    assert admission.grant() == small[:1]


def test_a_stream_that_waits_for_its_own_room_keeps_no_other_out() -> None:
    admission = Admission(STREAM_SIZE, SIZE)
    assert admission.take(ONE, 10)
    admission.stand(ONE, 10)
    assert admission.take(TWO, 5)


def test_who_waits_for_the_room_of_the_process_is_not_overtaken_by_other_streams() -> None:
    admission = Admission(STREAM_SIZE, SIZE)
    assert admission.take(ONE, 5)
    assert admission.take(TWO, 5)
    waits = admission.stand(THREE, 10)
    assert admission.grant() == []
    assert not admission.take(TWO, 1), "else room for ten would never gather"
    admission.give_back(ONE, 5)
    assert admission.grant() == [waits]


def test_who_has_begun_is_ended_before_who_waits_for_him() -> None:
    admission = Admission(STREAM_SIZE, SIZE)
    assert admission.take(ONE, 4)
    assert admission.take(ONE, 4)
    waits = admission.stand(ONE, 10)
    assert admission.take(ONE, 2, own=4)
    more = admission.stand(ONE, 2, own=4)
    admission.give_back(ONE, 4)
    assert admission.grant() == [more]
    admission.give_back(ONE, 8)
    assert admission.grant() == [waits]


def test_without_the_line_what_is_large_is_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Must fail: the guard is taken out, and who comes takes what fits."""
    take = Admission.take
    monkeypatch.setattr(
        Admission, "take", lambda self, stream, size: take(self, stream, size, own=10**9)
    )
    admission = Admission(STREAM_SIZE, SIZE)
    assert all(admission.take(ONE, 2) for _ in range(5))
    large = admission.stand(ONE, 8)
    for _ in range(100):
        admission.give_back(ONE, 2)
        assert admission.take(ONE, 2)
        assert admission.grant() == []
    assert not large.granted
