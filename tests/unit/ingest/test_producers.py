"""The tables of api.md, section 4, case by case; and state that is the same after a restart."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Code, StoreError
from bottomless.formats.chunk import split_chunks, trailer_of
from bottomless.formats.tracking import decode_tracking
from bottomless.model.chunk import AppendEntry, AppendMode
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.core.short_hash import hash_of
from bottomless_server.core.tracking.known_producers import Producer, TrackingBounds
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.log.core.batcher import seal_round, seal_state
from bottomless_server.ingest.producers.producer_changes import forget, raise_epoch
from bottomless_server.ingest.producers.producers import Appended, New, decide
from bottomless_server.ingest.producers.tracking_room import TrackingRoom
from bottomless_server.ingest.records.conditions import (
    SEQUENCE_MAX,
    Conditions,
    FromProducer,
    WithKey,
)
from bottomless_server.ingest.records.intake import Append
from unit.ingest.leaderless.unowned import UnownedStream

BOUNDS = TrackingBounds(producer_count_max=4, append_count_max=5, key_count_max=4, keep_ms=1_000)
HIGHWATER, TRANSACTION = AppendMode.HIGHWATER, AppendMode.TRANSACTION


def an_append(count: int, conditions: Conditions, body: bytes = b"body", **members: Any) -> Append:
    rows = Rows([b"v"] * count, [Content.BYTES] * count)
    return Append(count, rows.size, len(body), rows, conditions=conditions, **members)


def strict(
    number: int,
    count: int = 10,
    *,
    epoch: int = 0,
    body: bytes = b"body",
    who: str = "p",
    start_any: bool = False,
) -> Append:
    identity = FromProducer(who, epoch, AppendMode.STRICT, number, start_any)
    return an_append(count, Conditions(identity), body)


def highwater(*ids: int, who: str = "p", epoch: int = 0) -> Append:
    conditions = Conditions(FromProducer(who, epoch, HIGHWATER))
    return an_append(len(ids), conditions, ids=np.array(ids, np.int64))


def transaction(number: int, count: int = 3, body: bytes = b"body") -> Append:
    return an_append(count, Conditions(FromProducer("p", 0, TRANSACTION, number)), body)


def keyed(key: bytes, body: bytes = b"body") -> Append:
    return an_append(2, Conditions(WithKey(hash_of(key))), body, body_hash=hash_of(body))


class Stream:
    """Decides and stores as the appender does, without a disk."""

    def __init__(self, bounds: TrackingBounds = BOUNDS) -> None:
        self.tracking = Tracking(bounds)
        self.next_offset = 0
        self.now = 10_000
        self.room = TrackingRoom(2**30)
        self.room.tell(self.now)
        self.room.join(self.tracking, self.now)
        self.written: list[tuple[int, list[AppendEntry]]] = []

    def send(self, append: Append) -> Appended:
        self.room.tell(self.now)
        verdict = decide(self.tracking, append, self.next_offset)
        if isinstance(verdict, Appended):
            return verdict
        rest = append.without_first(verdict.duplicates)
        sealed = seal_round(
            [rest],
            next_offset=self.next_offset,
            timestamp=self.now,
            epoch=1,
            chunk_size_max=1_000_000,
        )
        [chunk] = sealed.chunks
        self.written.append((self.next_offset, list(chunk.entries)))
        self.tracking.take_chunk(self.next_offset, self.now, chunk.entries)
        first, self.next_offset = self.next_offset, sealed.next_offset
        return Appended(first, self.next_offset, self.now, rest.record_count, verdict.duplicates)

    def producer(self, producer_id: str) -> Producer | None:
        return self.tracking.producers.get(producer_id)

    def raise_epoch(self, producer_id: str) -> None:
        self.tracking.take_tracked(raise_epoch(self.tracking, producer_id, self.now))

    def forget(self, producer_id: str) -> None:
        self.tracking.take_tracked(forget(self.tracking, producer_id, self.now))

    def restarted(self) -> "Stream":
        """The same stream after its state went through a tracking chunk."""
        chunk = seal_state(
            self.tracking.snapshot(), first_offset=self.next_offset, timestamp=self.now, epoch=1
        )
        [(header, data)] = split_chunks(b"".join(chunk.buffers))
        other = Stream(self.tracking.bounds)
        other.room.leave(other.tracking)
        other.tracking.take_tracked(decode_tracking(trailer_of(header, data)))
        other.next_offset, other.now = self.next_offset, self.now
        other.room.tell(self.now)
        other.room.join(other.tracking, header.timestamp)
        return other


AnyStream = Stream | UnownedStream


@pytest.fixture(params=["local", "leaderless"])
def stream(request: pytest.FixtureRequest) -> AnyStream:
    """A stream of each profile: the rules are the same ones."""
    return Stream() if request.param == "local" else UnownedStream(BOUNDS)


def refused_by(stream: AnyStream, append: Append) -> tuple[Code, dict[str, object]]:
    """Why an append is refused; nothing of it is stored."""
    before = stream.next_offset
    with pytest.raises(StoreError) as refused:
        stream.send(append)
    assert stream.next_offset == before
    assert refused.value.outcome == "none"
    return refused.value.code, refused.value.facts


# Strict sequences


def test_a_new_append_is_stored_and_its_repeat_gets_its_offsets(stream: AnyStream) -> None:
    assert stream.send(strict(0)) == Appended(0, 10, 10_000, 10)
    stream.now += 5

    assert stream.send(strict(0)) == Appended(0, 10, 10_000, 0, 10, replayed=True)
    assert stream.send(strict(10, 1)).first_offset == 10


def test_each_of_the_last_five_is_remembered_and_what_is_older_only_counted(
    stream: AnyStream,
) -> None:
    for number in range(7):
        stream.send(strict(number, 1))

    for number in range(2, 7):
        assert stream.send(strict(number, 1)).first_offset == number
    for number in range(2):
        assert stream.send(strict(number, 1)) == Appended(None, 7, None, 0, 1, replayed=True)


@pytest.mark.parametrize(
    "other",
    [
        strict(0, body=b"others"),
        strict(0, epoch=1),
        strict(0, 5),
        strict(5, 5),
        strict(5),
        strict(0, 11),
        strict(9, 1),
    ],
    ids=["bytes", "epoch", "shorter", "end", "overlap", "longer", "last"],
)
def test_numbers_that_are_taken_by_something_else_are_refused(
    stream: AnyStream, other: Append
) -> None:
    stream.send(strict(0))

    assert refused_by(stream, other) == (Code.PRODUCER_SEQUENCE_OVERLAP, {"last_seq": 9})


def test_a_range_across_what_is_remembered_is_an_overlap(stream: AnyStream) -> None:
    for number in range(7):
        stream.send(strict(number, 1))

    assert refused_by(stream, strict(0, 3))[0] is Code.PRODUCER_SEQUENCE_OVERLAP
    assert stream.send(strict(0, 2)).first_offset is None


def test_a_gap_names_what_is_expected_and_may_be_tried_again(stream: AnyStream) -> None:
    stream.send(strict(0))

    with pytest.raises(StoreError) as gap:
        stream.send(strict(11))
    assert gap.value.code is Code.PRODUCER_SEQUENCE_GAP
    assert gap.value.facts == {"expected_seq": 10, "received_seq": 11}
    assert gap.value.retryable


def test_a_higher_epoch_goes_on_with_the_numbers_and_fences_the_lower(stream: AnyStream) -> None:
    stream.send(strict(0))
    stream.send(strict(10, epoch=2))

    code, facts = refused_by(stream, strict(20, epoch=1))
    assert (code, facts) == (Code.PRODUCER_FENCED, {"current_epoch": 2})
    assert refused_by(stream, strict(0))[0] is Code.PRODUCER_FENCED
    assert stream.send(strict(20, epoch=2)).first_offset == 20


def test_what_an_earlier_epoch_wrote_is_never_confirmed_to_a_later_one(stream: AnyStream) -> None:
    for number in range(3):
        stream.send(strict(number, 1))
    for number in range(3, 12):
        stream.send(strict(number, 1, epoch=1))

    assert refused_by(stream, strict(2, 1, epoch=1))[0] is Code.PRODUCER_SEQUENCE_OVERLAP
    assert refused_by(stream, strict(2, 2, epoch=1))[0] is Code.PRODUCER_SEQUENCE_OVERLAP
    assert stream.send(strict(3, 1, epoch=1)).first_offset is None


def test_an_unknown_producer_begins_at_zero_or_says_that_it_means_it(stream: AnyStream) -> None:
    assert refused_by(stream, strict(500))[0] is Code.PRODUCER_UNKNOWN
    assert stream.send(strict(500, start_any=True)).first_offset == 0

    assert refused_by(stream, strict(0))[0] is Code.PRODUCER_SEQUENCE_OVERLAP
    assert stream.send(strict(510)).first_offset == 10


def test_numbers_end_where_json_ends(stream: AnyStream) -> None:
    assert refused_by(stream, strict(SEQUENCE_MAX, 2, start_any=True))[0] is Code.BAD_HEADER
    stream.send(strict(SEQUENCE_MAX, 1, start_any=True))
    assert (
        refused_by(stream, strict(SEQUENCE_MAX, 1, body=b"x"))[0] is Code.PRODUCER_SEQUENCE_OVERLAP
    )


def test_producers_do_not_know_of_each_other(stream: AnyStream) -> None:
    stream.send(strict(0, who="a"))
    stream.send(strict(0, who="b"))
    assert stream.next_offset == 20


@pytest.mark.parametrize("other", [highwater(1), transaction(1)])
def test_a_producer_has_one_mode(stream: AnyStream, other: Append) -> None:
    stream.send(strict(0))

    assert refused_by(stream, other) == (Code.PRODUCER_MODE_CONFLICT, {"mode": "strict"})


# Epochs and forgetting


def test_a_raised_epoch_fences_and_says_where_to_go_on(stream: AnyStream) -> None:
    stream.send(strict(0))
    stream.raise_epoch("p")

    known = stream.producer("p")
    assert known is not None
    assert (known.epoch, known.last_sequence) == (1, 9)
    assert refused_by(stream, strict(10))[0] is Code.PRODUCER_FENCED
    assert refused_by(stream, strict(0, epoch=1))[0] is Code.PRODUCER_SEQUENCE_OVERLAP
    assert stream.send(strict(10, epoch=1)).first_offset == 10


def test_an_epoch_can_be_raised_before_anything_was_written(stream: AnyStream) -> None:
    stream.raise_epoch("p")
    stream = stream.restarted()

    known = stream.producer("p")
    assert known is not None
    assert known.last_sequence is None
    assert refused_by(stream, strict(0))[0] is Code.PRODUCER_FENCED
    assert refused_by(stream, strict(5, epoch=1)) == (
        Code.PRODUCER_SEQUENCE_GAP,
        {"expected_seq": 0, "received_seq": 5},
    )
    assert stream.send(highwater(7, epoch=1)).first_offset == 0


def test_a_producer_that_only_raised_its_epoch_may_begin_where_it_says(stream: AnyStream) -> None:
    stream.raise_epoch("p")

    assert stream.send(strict(500, epoch=1, start_any=True)).first_offset == 0
    assert stream.send(strict(510, epoch=1)).first_offset == 10


def test_a_forgotten_producer_is_unknown(stream: AnyStream) -> None:
    stream.send(strict(0))
    stream.forget("p")

    assert refused_by(stream, strict(10))[0] is Code.PRODUCER_UNKNOWN
    with pytest.raises(StoreError) as unknown:
        stream.forget("p")
    assert unknown.value.code is Code.PRODUCER_NOT_FOUND


# High water, transactions, keys, expected offsets


def test_highwater_stores_what_is_new_and_counts_the_rest(stream: AnyStream) -> None:
    assert stream.send(highwater(1, 2, 5)).record_count == 3

    assert stream.send(highwater(3, 6)) == Appended(3, 4, 10_000, 1, 1)
    assert stream.send(highwater(3, 6)) == Appended(None, 4, None, 0, 2, replayed=True)
    assert stream.send(highwater(7, 9)).record_count == 2


def test_highwater_of_an_older_epoch_is_fenced(stream: AnyStream) -> None:
    stream.send(highwater(1, epoch=2))
    assert refused_by(stream, highwater(2))[0] is Code.PRODUCER_FENCED


def test_a_transaction_number_at_or_below_the_last_answers_the_first_result(
    stream: AnyStream,
) -> None:
    stream.send(transaction(4))
    stream.send(transaction(9))

    again = stream.send(transaction(4, body=b"anything"))
    assert (again.first_offset, again.next_offset, again.record_count) == (0, 3, 0)
    assert stream.next_offset == 6


def test_a_transaction_number_that_was_passed_over_is_refused_as_long_as_that_is_known(
    stream: AnyStream,
) -> None:
    """It was answered as a repeat once, though nothing was ever stored under it."""
    for number in (4, 9):
        stream.send(transaction(number))
    code, facts = refused_by(stream, transaction(5))
    assert (code, facts["last_seq"]) == (Code.PRODUCER_SEQUENCE_OVERLAP, 9)
    for number in range(10, 15):
        stream.send(transaction(number))
    assert stream.send(transaction(5)).first_offset is None


def test_a_transaction_number_below_the_first_is_refused_as_long_as_all_are_known(
    stream: AnyStream,
) -> None:
    """Nothing can be stored under it; the checks before looked at numbers in between only."""
    for number in (4, 5, 6, 7):
        stream.send(transaction(number))
    code, facts = refused_by(stream, transaction(3))
    assert (code, facts["last_seq"]) == (Code.PRODUCER_SEQUENCE_OVERLAP, 7)
    stream.send(transaction(8))
    assert stream.send(transaction(3)).replayed, "an earlier one may be forgotten by now"


def test_a_key_gets_the_same_answer_for_the_same_body(stream: AnyStream) -> None:
    first = stream.send(keyed(b"k"))

    assert stream.send(keyed(b"k")) == first._replace(replayed=True)
    assert refused_by(stream, keyed(b"k", b"else"))[0] is Code.IDEMPOTENCY_MISMATCH
    assert stream.send(keyed(b"other")).first_offset == 2


def test_a_key_is_free_again_after_its_window() -> None:
    stream = Stream()
    stream.send(keyed(b"k"))
    stream.now += 999
    assert stream.send(keyed(b"k", b"body")).replayed
    stream.now += 1
    assert stream.send(keyed(b"k", b"else")).first_offset == 2
    assert len(stream.tracking.keys) == 1


def test_an_expected_offset_lets_through_what_is_new_at_that_place(stream: AnyStream) -> None:
    plain = an_append(3, Conditions(None, 0))
    assert stream.send(plain).first_offset == 0

    assert refused_by(stream, plain) == (Code.OFFSET_MISMATCH, {"next_offset": 3})
    both = strict(0)
    both = replace(both, conditions=replace(both.conditions, expected_offset=3))
    assert stream.send(both).first_offset == 3
    assert stream.send(both).replayed, "a repeat is a repeat wherever the stream ends now"


# Bounds


def test_producers_beyond_the_bound_wait_until_one_was_silent_for_long() -> None:
    stream = Stream()
    for name in "abcd":
        stream.send(strict(0, who=name))
    assert refused_by(stream, strict(0, who="e"))[0] is Code.QUOTA_EXCEEDED
    with pytest.raises(StoreError, match="can remember no more producers"):
        raise_epoch(stream.tracking, "e", stream.now)
    stream.now += 999
    stream.send(strict(10, who="a"))
    stream.now += 1

    stream.send(strict(0, who="e"))
    assert set(stream.tracking.producers) == {"c", "d", "a", "e"}


def test_keys_beyond_the_bound_are_refused_and_not_forgotten() -> None:
    stream = Stream()
    for name in (b"a", b"b", b"c", b"d"):
        stream.send(keyed(name))
    assert refused_by(stream, keyed(b"e"))[0] is Code.QUOTA_EXCEEDED
    assert stream.send(keyed(b"a")).replayed
    stream.now += 1_000
    assert stream.send(keyed(b"e")).first_offset == 8
    assert list(stream.tracking.keys) == [hash_of(b"e")]


# Durable state

names = st.sampled_from("pqrstu")
sent = st.one_of(
    st.builds(strict, st.integers(0, 12), st.integers(1, 4), epoch=st.integers(0, 2), who=names),
    st.builds(lambda low, who: highwater(low, low + 2, who=who), st.integers(0, 20), names),
    st.builds(transaction, st.integers(0, 9)),
    st.builds(keyed, st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])),
)


@given(st.lists(st.tuples(sent, st.integers(0, 400)), max_size=25), st.integers(0, 25))
def test_state_is_the_same_after_a_snapshot_and_the_chunks_behind_it(
    steps: list[tuple[Append, int]], cut: int
) -> None:
    stream = Stream()
    other = stream.restarted()
    for number, (append, pause) in enumerate(steps):
        if number == cut:
            other = stream.restarted()
        stream.now += pause
        before = len(stream.written)
        try:
            stream.send(append)
        except StoreError:
            continue
        for offset, entries in stream.written[before:]:
            other.room.tell(stream.now)
            other.tracking.take_chunk(offset, stream.now, entries)
        other.next_offset = stream.next_offset

    assert other.tracking.producers == stream.tracking.producers
    assert list(other.tracking.producers) == list(stream.tracking.producers)
    assert list(other.tracking.keys.items()) == list(stream.tracking.keys.items())


def test_the_parts_of_a_large_append_are_one_append() -> None:
    values = [b"x" * 3_000] * 8
    rows = Rows(values, [Content.BYTES] * 8)
    conditions = Conditions(FromProducer("p", 0, AppendMode.STRICT, 0))
    append = Append(8, rows.size, 7, rows, conditions=conditions)
    sealed = seal_round([append], next_offset=40, timestamp=5, epoch=1, chunk_size_max=4_096)
    assert len(sealed.chunks) > 2
    tracking = Tracking(BOUNDS)
    for chunk in sealed.chunks:
        assert not tracking
        tracking.take_chunk(chunk.first_offset, 5, chunk.entries, more_follows=chunk.more_follows)

    assert [chunk.entries[0].base_sequence for chunk in sealed.chunks][:2] == [0, 1]
    repeat = decide(tracking, append, 48)
    assert repeat == Appended(40, 48, 5, 0, 8, replayed=True)


def test_nothing_known_is_nothing_decided() -> None:
    tracking = Tracking(BOUNDS)
    assert decide(tracking, strict(0), 0) == New()
    assert decide(tracking, highwater(3), 0) == New()
    assert tracking.snapshot() == []
