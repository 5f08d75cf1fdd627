"""Who waits for room gets it in his turn: beside a model that looks through everybody each time.

The checks before were blind twice: what they asked for was small, one after the other, and never
anything large beside small appends that do not end; and the model of the line that mended this
let nobody pass, as the line did, so that one who waited for the process kept everybody out.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.guards import remove

from bottomless.model.names import StreamId
from bottomless_server.node.core.admission import Admission, Ticket

STREAMS = [StreamId(name) for name in ("one", "two", "three", *(f"s{n}" for n in range(20)))]
ONE, TWO, THREE, *SMALL = STREAMS
STREAM_SIZE, SIZE = 10, 15
WIDE_STREAM, WIDE, KEPT, LITTLE = 340, 512, 32, 2
"""So large that a part is kept for streams that hold little."""


@dataclass
class Plain:
    """The same rules over one list, the oldest first."""

    stream_size: int = STREAM_SIZE
    size: int = SIZE
    kept: int = 0
    little: int = 0
    held: dict[Hashable, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    waiting: list[Ticket] = field(default_factory=list)

    def fits_stream(self, owner: Hashable, size: int, own: int) -> bool:
        held = self.held[owner]
        return held <= own or held + size <= self.stream_size

    def sums(self, owner: Hashable, size: int) -> tuple[int, int]:
        """What streams would hold that hold little, and the others."""
        after = {**self.held, owner: self.held[owner] + size}
        small = sum(each for each in after.values() if each <= self.little)
        return small, sum(after.values()) - small

    def is_little(self, owner: Hashable, size: int) -> bool:
        return self.held[owner] + size <= self.little

    def fits(self, owner: Hashable, size: int, own: int) -> bool:
        small, large = self.sums(owner, size)
        if self.is_little(owner, size):
            fits = small <= self.kept or small + large <= self.size
        else:
            alone = large <= own + size and small <= self.kept
            fits = alone or large + max(small, self.kept) <= self.size
        return fits and self.fits_stream(owner, size, own)

    def may_take(self, owner: Hashable, size: int, own: int) -> bool:
        if own:
            return self.fits(owner, size, own)
        able = self.able()
        if any(one.owner == owner for one in self.firsts()):
            return False
        passing = self.is_little(owner, size) and self.sums(owner, size)[0] <= self.kept
        before = [one for one in able if self.is_little(one.owner, one.size)]
        return self.fits(owner, size, own) and (not able or (passing and not before))

    def able(self) -> list[Ticket]:
        return [one for one in self.firsts() if self.fits_stream(one.owner, one.size, one.own)]

    def firsts(self) -> list[Ticket]:
        found: dict[Hashable, Ticket] = {}
        for ticket in sorted(self.waiting, key=lambda one: one.place):
            found.setdefault(ticket.owner, ticket)
        return list(found.values())

    def next(self) -> Ticket | None:
        able = self.able()
        if able and self.fits(able[0].owner, able[0].size, able[0].own):
            return able[0]
        passing = [one for one in able if self.is_little(one.owner, one.size)][:1]
        for one in passing:
            if self.sums(one.owner, one.size)[0] <= self.kept:
                return one
        return None

    def grant(self) -> list[Ticket]:
        granted: list[Ticket] = []
        while (one := self.next()) is not None:
            self.waiting.remove(one)
            self.held[one.owner] += one.size
            granted.append(one)
        return granted


class Both:
    """The line and its model, told the same."""

    def __init__(self, plain: Plain) -> None:
        self.admission = Admission(plain.stream_size, plain.size)
        self.plain = plain
        self.holders: list[list[tuple[Hashable, int]]] = []

    def ask(self, owner: Hashable, size: int, own: int = 0) -> None:
        taken = self.admission.take(owner, size, own)
        assert taken == self.plain.may_take(owner, size, own)
        if taken:
            self.plain.held[owner] += size
            self.holders.append([(owner, size)])
        else:
            self.plain.waiting.append(self.admission.issue_ticket(owner, size, own))
        self.look()

    def more(self, which: int, size: int) -> None:
        if self.holders:
            owner, own = self.holders[which % len(self.holders)][0]
            self.ask(owner, size, own)

    def free(self, which: int, _: int = 0) -> None:
        if self.holders:
            for owner, size in self.holders.pop(which % len(self.holders)):
                self.admission.give_back(owner, size)
                self.plain.held[owner] -= size
            self.look()

    def leave(self, which: int, _: int = 0) -> None:
        if self.plain.waiting:
            self.admission.leave(self.plain.waiting.pop(which % len(self.plain.waiting)))
            self.look()

    def look(self) -> None:
        granted = self.admission.grant()
        assert granted == self.plain.grant()
        self.holders += [[(one.owner, one.size)] for one in granted]
        assert self.admission.total == sum(self.plain.held.values())
        for owner in STREAMS:
            sizes = [size for held in self.holders for one, size in held if one == owner]
            assert sum(sizes) == self.plain.held[owner]


Steps = list[tuple[str, StreamId | int, int]]


def steps(streams: list[StreamId], asked: st.SearchStrategy[int]) -> st.SearchStrategy[Steps]:
    return st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.sampled_from(streams), asked),
            st.tuples(st.just("ask"), st.just(ONE), asked),
            st.tuples(st.just("more"), st.integers(0, 9), asked),
            st.tuples(st.just("free"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("leave"), st.integers(0, 9), st.just(0)),
        ),
        max_size=40,
    )


@settings(deadline=None, derandomize=True, max_examples=300)
@given(steps(STREAMS[:3], st.integers(0, 12)))
def test_the_line_grants_what_a_look_through_everybody_grants(played: Steps) -> None:
    play(Both(Plain()), played)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(steps(STREAMS, st.sampled_from([0, 1, 2, 2, 3, 150, 170, 330, 480, 600])))
def test_streams_that_hold_little_pass_as_in_a_look_through_everybody(played: Steps) -> None:
    play(Both(Plain(WIDE_STREAM, WIDE, KEPT, LITTLE)), played)


def play(both: Both, played: Steps) -> None:
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
    large = admission.issue_ticket(ONE, 8)
    small = [admission.issue_ticket(ONE, 2) for _ in range(5)]
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
    admission.issue_ticket(ONE, 10)
    assert admission.take(TWO, 5)


def test_who_waits_for_the_room_of_the_process_is_not_overtaken_by_other_streams() -> None:
    admission = Admission(STREAM_SIZE, SIZE)
    assert admission.take(ONE, 5)
    assert admission.take(TWO, 5)
    waits = admission.issue_ticket(THREE, 10)
    assert admission.grant() == []
    assert not admission.take(TWO, 1), "else room for ten would never gather"
    admission.give_back(ONE, 5)
    assert admission.grant() == [waits]


def test_small_appends_of_other_streams_pass_who_waits_for_the_room_of_the_process() -> None:
    admission = Admission(WIDE_STREAM, WIDE)
    assert admission.take(ONE, 300)
    waits = admission.issue_ticket(TWO, 300)
    assert admission.grant() == []
    assert all(admission.take(owner, LITTLE) for owner in SMALL[: KEPT // LITTLE])
    more = admission.issue_ticket(SMALL[-1], LITTLE)
    assert admission.grant() == [], "they have no more than what is kept for them"
    assert not admission.take(THREE, LITTLE + 1), "it is kept for those who need little"
    admission.give_back(SMALL[0], LITTLE)
    assert admission.grant() == [more]
    admission.give_back(ONE, 300)
    assert admission.grant() == [waits], "and none of it is needed for who waits"


def test_what_is_kept_for_small_appends_is_there_when_large_ones_have_all_that_they_may() -> None:
    admission = Admission(WIDE_STREAM, WIDE)
    assert admission.take(ONE, 240)
    assert admission.take(TWO, 240)
    assert not admission.take(THREE, 30)
    assert admission.take(SMALL[0], LITTLE)


def test_who_passes_without_end_keeps_nobody_out_however_much_he_needs() -> None:
    admission = Admission(WIDE_STREAM, WIDE)
    assert admission.take(ONE, 300)
    assert all(admission.take(owner, LITTLE) for owner in SMALL[: KEPT // LITTLE])
    waits = admission.issue_ticket(TWO, 2 * WIDE)
    for turn in range(3 * len(SMALL)):
        admission.give_back(SMALL[turn % (KEPT // LITTLE)], LITTLE)
        assert admission.take(SMALL[turn % (KEPT // LITTLE)], LITTLE)
    admission.give_back(ONE, 300)
    assert admission.grant() == [waits]


def test_who_has_begun_is_ended_before_who_waits_for_him() -> None:
    admission = Admission(STREAM_SIZE, SIZE)
    assert admission.take(ONE, 4)
    assert admission.take(ONE, 4)
    waits = admission.issue_ticket(ONE, 10)
    assert admission.take(ONE, 2, own=4)
    more = admission.issue_ticket(ONE, 2, own=4)
    admission.give_back(ONE, 4)
    assert admission.grant() == [more]
    admission.give_back(ONE, 8)
    assert admission.grant() == [waits]


def test_without_the_line_what_is_large_is_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Must fail: the guard is taken out, and who comes takes what fits."""
    remove(monkeypatch, "the order of those who wait for room", lambda *_: True)
    admission = Admission(STREAM_SIZE, SIZE)
    assert all(admission.take(ONE, 2) for _ in range(5))
    large = admission.issue_ticket(ONE, 8)
    for _ in range(100):
        admission.give_back(ONE, 2)
        assert admission.take(ONE, 2)
        assert admission.grant() == []
    assert not large.granted


def test_without_what_is_kept_for_them_small_appends_wait_for_a_large_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Must fail: the guard is taken out, and nobody passes."""
    remove(monkeypatch, "the room for streams that hold little", lambda *_: False)
    with pytest.raises(AssertionError):
        test_small_appends_of_other_streams_pass_who_waits_for_the_room_of_the_process()
