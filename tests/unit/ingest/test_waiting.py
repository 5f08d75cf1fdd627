"""Which of the appends that wait go into a round, and which are answered or wait on."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.guards import remove

from bottomless.errors import Code, Outcome, Overloaded, StoreError
from bottomless.model.chunk import AppendEntry, AppendMode
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.core.short_hash import hash_of
from bottomless_server.core.tracking.known_producers import TrackingBounds
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.local.waiting import WaitingAppends
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.producers.super_requests import (
    Request,
    conditions_of_part,
    part_name,
)
from bottomless_server.ingest.records.conditions import (
    NO_CONDITIONS,
    Conditions,
    FromProducer,
    PartOf,
    WithKey,
)
from bottomless_server.ingest.records.intake import Append

BOUNDS = TrackingBounds(producer_count_max=10, append_count_max=5, key_count_max=10, keep_ms=1_000)
SIZE_MAX = 10_000


def an_append(conditions: Conditions = NO_CONDITIONS, size: int = 1) -> Append:
    rows = Rows([b"v" * size], [Content.BYTES])
    return Append(1, rows.size, 7, rows, conditions=conditions)


def strict(number: int, who: str = "p") -> Append:
    return an_append(Conditions(FromProducer(who, 0, AppendMode.STRICT, number)))


def expecting(offset: int) -> Append:
    return an_append(Conditions(None, offset))


def keyed(key: bytes) -> Append:
    return an_append(Conditions(WithKey(hash_of(key))))


class Standing:
    """A line, and what is known of producers."""

    def __init__(self) -> None:
        self.waiting = WaitingAppends(SIZE_MAX)
        self.tracking = Tracking(BOUNDS)

    def add(self, *appends: Append) -> list[asyncio.Future[Appended]]:
        return [self.waiting.add(append) for append in appends]

    def choose(self, next_offset: int = 0, layout: int = 0) -> list[Append]:
        """What a round takes; all of it is answered at once, with its place in the round."""
        chosen = self.waiting.choose(self.tracking, next_offset, layout)
        for number, one in enumerate(chosen):
            self.waiting.settle(one.waiting, Appended(next_offset + number, 0, 0, 1))
        return [one.append for one in chosen]


async def test_what_asks_for_nothing_goes_together_as_far_as_there_is_room() -> None:
    standing = Standing()
    appends = [an_append(size=3_000) for _ in range(5)]
    standing.add(*appends)

    assert standing.choose() == appends[:3]
    assert standing.choose() == appends[3:]
    assert not standing.waiting


async def test_of_one_producer_one_append_goes_at_a_time_and_others_do_not_wait_for_it() -> None:
    standing = Standing()
    first, second, third = strict(0), strict(1), strict(0)
    plain, other = an_append(), strict(0, "q")
    standing.add(first, second, plain, third, other)

    assert standing.choose() == [first, plain, other]
    assert standing.waiting


async def test_an_append_that_expects_an_offset_is_first_and_alone() -> None:
    standing = Standing()
    plain, wanted, later = an_append(), expecting(1), an_append()
    _, answer, _ = standing.add(plain, wanted, later)

    assert standing.choose(0) == [plain, later]
    assert not answer.done()
    standing.choose(2)
    with pytest.raises(StoreError) as refused:
        answer.result()
    assert refused.value.code is Code.OFFSET_MISMATCH

    standing.add(expecting(2), an_append())
    assert [append.conditions.expected_offset for append in standing.choose(2)] == [2]
    assert len(standing.choose(3)) == 1


async def test_what_needs_no_round_is_answered_while_it_is_looked_at() -> None:
    standing = Standing()
    _, gap, unknown = standing.add(an_append(), strict(7), strict(3, "q"))

    assert len(standing.choose()) == 1
    for answer in (gap, unknown):
        with pytest.raises(StoreError) as refused:
            answer.result()
        assert refused.value.code is Code.PRODUCER_UNKNOWN


async def test_a_key_is_in_flight_until_its_append_is_answered() -> None:
    standing = Standing()
    standing.add(keyed(b"k"), keyed(b"other"))
    with pytest.raises(Overloaded) as busy:
        standing.add(keyed(b"k"))
    assert busy.value.code is Code.IDEMPOTENCY_IN_FLIGHT
    chosen = standing.waiting.choose(standing.tracking, 0)
    with pytest.raises(Overloaded):
        standing.add(keyed(b"k"))

    for one in chosen:
        standing.waiting.settle(one.waiting, Overloaded("for a test"))
        with pytest.raises(Overloaded):
            one.waiting.answer.result()
    standing.add(keyed(b"k"))


async def test_a_round_does_not_look_through_a_line_without_end() -> None:
    standing = Standing()
    standing.add(*(strict(number) for number in range(200)), an_append())

    assert len(standing.choose()) == 1, "the plain one at the end waits too"
    assert len(standing.waiting) == 200


async def test_a_bug_leaves_everybody_in_line_to_be_refused() -> None:
    standing = Standing()
    broken: Any = an_append(Conditions("nonsense", None))  # type: ignore[arg-type]
    answers = standing.add(an_append(), broken, an_append())

    with pytest.raises(AttributeError):
        standing.choose()
    standing.waiting.refuse_all(StoreError("a bug"))
    for answer in answers:
        assert isinstance(answer.exception(), StoreError)


async def test_who_left_is_not_answered() -> None:
    standing = Standing()
    [answer] = standing.add(an_append())
    answer.cancel()
    assert len(standing.choose()) == 1


def a_part(layout: int = 1, *, resumed: bool = False) -> Append:
    return an_append(Conditions(part_of=PartOf(layout, resumed)))


def numbered(first: int, last: int, body_crc: int = 7, layout: int = 1) -> Append:
    request = Request("p", 0, first, last, body_crc)
    conditions = conditions_of_part(request, layout, resumed=False)
    return replace(an_append(conditions), body_crc=body_crc)


async def test_a_part_of_an_older_layout_is_refused_and_one_that_goes_on_with_it_is_not() -> None:
    standing = Standing()
    older, resumed, newest = a_part(1), a_part(1, resumed=True), a_part(2)
    [answer, *_] = standing.add(older, resumed, newest)

    assert standing.choose(layout=2) == [resumed, newest]
    error = answer.exception()
    assert isinstance(error, StoreError)
    assert (error.code, error.outcome) == (Code.SUPER_STREAM_GROWING, Outcome.NONE)
    assert error.retryable


async def test_without_the_look_at_its_layout_a_part_of_an_older_one_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the layout of a part at its partition", lambda *_: None)
    with pytest.raises(AssertionError):
        await test_a_part_of_an_older_layout_is_refused_and_one_that_goes_on_with_it_is_not()


async def test_a_part_is_stored_once_and_its_repeat_is_told_from_another_cut() -> None:
    standing = Standing()
    part = numbered(0, 9)
    standing.add(part)
    assert standing.choose() == [part]
    name = part_name(1, "p")
    entry = AppendEntry(AppendMode.TRANSACTION, 0, 4, 7, 9, 0, name)
    standing.tracking.take_chunk(0, 1_000, [entry])

    repeat, other = standing.add(numbered(0, 9), numbered(0, 4, body_crc=8))
    assert standing.choose() == []
    assert repeat.result().replayed
    error = other.exception()
    assert isinstance(error, StoreError)
    assert error.code is Code.PRODUCER_SEQUENCE_OVERLAP


async def test_parts_of_one_producer_go_one_at_a_time() -> None:
    standing = Standing()
    first, second = numbered(0, 9), numbered(0, 9)
    standing.add(first, second)
    assert standing.choose() == [first]


async def test_a_new_producer_of_parts_needs_a_place() -> None:
    standing = Standing()
    standing.tracking = Tracking(BOUNDS._replace(producer_count_max=0))
    [answer] = standing.add(numbered(0, 9))
    assert standing.choose() == []
    error = answer.exception()
    assert isinstance(error, StoreError)
    assert error.code is Code.QUOTA_EXCEEDED
