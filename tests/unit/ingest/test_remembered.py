"""What was taken is remembered for its hour, however many new names one round brings.

The checks before were blind: they sent one new producer, or one new key, after the other, so
that each was decided against what the one before it had left. In a round many are decided
against the same state.
"""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.guards import remove

from bottomless.errors import Code, Overloaded
from bottomless.model.chunk import AppendMode
from bottomless_server.core.short_hash import hash_of
from bottomless_server.core.tracking.known_producers import TrackingBounds
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.local.waiting import WaitingAppends
from bottomless_server.ingest.log.core.batcher import seal_round
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.producers.tracking_room import TrackingRoom
from bottomless_server.ingest.records.conditions import Conditions, FromProducer, WithKey
from bottomless_server.ingest.records.intake import Append
from unit.ingest.test_waiting import SIZE_MAX, an_append

KEEP_MS = 1_000
BOUNDS = TrackingBounds(producer_count_max=3, append_count_max=5, key_count_max=3, keep_ms=KEEP_MS)
NAMES = "abcdefg"
senders = st.tuples(st.booleans(), st.sampled_from(NAMES))
rounds = st.lists(
    st.tuples(st.sampled_from([0, 1, KEEP_MS // 2, KEEP_MS]), st.lists(senders, max_size=8)),
    max_size=12,
)


class RememberedModel:
    """Rounds of one stream, and when each name was stored last."""

    def __init__(self) -> None:
        self.waiting = WaitingAppends(SIZE_MAX)
        self.tracking = Tracking(BOUNDS)
        self.now = KEEP_MS
        self.room = TrackingRoom(2**30)
        self.room.join(self.tracking, self.now)
        self.stored: dict[str | bytes, int] = {}
        self.next_offset = 0
        self._numbers = itertools.count()

    def append(self, by_key: bool, name: str) -> Append:
        if by_key:
            return an_append(Conditions(WithKey(hash_of(name.encode()))))
        number = next(self._numbers)
        return an_append(Conditions(FromProducer(name, 0, AppendMode.TRANSACTION, number)))

    def round(self, sent: list[tuple[bool, str]]) -> list[asyncio.Future[Appended]]:
        answers = []
        for by_key, name in sent:
            try:
                answers.append(self.waiting.add(self.append(by_key, name)))
            except Overloaded:
                continue  # The same key is waiting.
        while self.waiting:
            self._write()
        return answers

    def _write(self) -> None:
        self.room.tell(self.now)
        chosen = self.waiting.choose(self.tracking, self.next_offset)
        appends = [one.append for one in chosen]
        if not appends:
            return
        sealed = seal_round(
            appends,
            next_offset=self.next_offset,
            timestamp=self.now,
            epoch=1,
            chunk_size_max=SIZE_MAX,
        )
        for chunk in sealed.chunks:
            self.tracking.take_chunk(chunk.first_offset, chunk.timestamp, chunk.entries)
        for one, (first, count) in zip(chosen, sealed.placements, strict=True):
            self.waiting.settle(one.waiting, Appended(first, first + count, self.now, count))
            identity = one.append.conditions.identity
            assert identity is not None
            name = identity.key_hash if isinstance(identity, WithKey) else identity.producer_id
            self.stored[name] = self.now
        self.next_offset = sealed.next_offset

    def forgotten(self) -> list[str | bytes]:
        """Names that were stored within their time, and are not known."""
        known: set[str | bytes] = {*self.tracking.producers, *self.tracking.keys}
        fresh = [name for name, at in self.stored.items() if self.now - at < KEEP_MS]
        return [name for name in fresh if name not in known]


async def _play(played: list[tuple[int, list[tuple[bool, str]]]]) -> list[str | bytes]:
    model = RememberedModel()
    for later, sent in played:
        model.now += later
        for answer in model.round(sent):
            error = answer.exception()
            assert error is None or getattr(error, "code", None) is Code.QUOTA_EXCEEDED
        if found := model.forgotten():
            return found
    return []


@settings(deadline=None, derandomize=True, max_examples=300)
@given(rounds)
def test_nobody_is_forgotten_within_the_hour_whatever_a_round_brings(
    played: list[tuple[int, list[tuple[bool, str]]]],
) -> None:
    assert asyncio.run(_play(played)) == []


@pytest.mark.parametrize("by_key", [True, False])
async def test_a_round_takes_as_many_new_names_as_there_is_room_for(by_key: bool) -> None:
    model = RememberedModel()
    model.round([(by_key, "a"), (by_key, "b")])
    answers = model.round([(by_key, name) for name in "cdef"])
    codes = [getattr(answer.exception(), "code", None) for answer in answers]
    assert codes == [None] + [Code.QUOTA_EXCEEDED] * 3
    model.now += KEEP_MS
    answers = model.round([(by_key, name) for name in "ghijk"])
    assert [answer.exception() is None for answer in answers] == [True] * 3 + [False] * 2


async def test_a_name_that_may_be_forgotten_keeps_its_place_if_it_comes_first() -> None:
    model = RememberedModel()
    model.round([(False, "a")])
    model.now += KEEP_MS
    model.round([(False, "b"), (False, "c")])
    answers = model.round([(False, "a"), (False, "d")])
    assert [answer.exception() is None for answer in answers] == [True, False]
    assert set(model.tracking.producers) == {"a", "b", "c"}


async def test_without_counting_what_a_round_has_chosen_a_name_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Must fail: the guard is taken out, and each append is decided by the state before."""
    remove(monkeypatch, "the places that a round has given away", lambda *_: None)
    model = RememberedModel()
    model.round([(False, "a"), (False, "b")])
    model.round([(False, name) for name in "cdef"])
    assert model.forgotten()
