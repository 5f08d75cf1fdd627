"""What a commit accepts of the pieces of a stream that nobody owns, by what coordination knows.

The rules themselves are shown in ../test_producers.py, over both profiles.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless.errors import Code, Outcome, StoreError
from bottomless.model.chunk import AppendMode
from bottomless_server.core.short_hash import hash_of
from bottomless_server.core.tracking.known_producers import TrackingBounds
from bottomless_server.ingest.leaderless.core.pieces import TrimAgain
from bottomless_server.ingest.leaderless.core.telling import refused
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import Conditions, FromProducer
from bottomless_server.ingest.records.intake import Append
from bottomless_server.leaderless.decided import KnownName
from bottomless_server.leaderless.tail import TailState
from bottomless_server.leaderless.tail_changes import Refusal, TailBounds
from unit.ingest.leaderless.unowned import KEEP_MS, UnownedStream, a_piece, waiting
from unit.ingest.test_producers import (
    BOUNDS,
    Stream,
    an_append,
    highwater,
    keyed,
    strict,
    transaction,
)

LARGE = TrackingBounds(100, 5, 100, 10**9)


@pytest.fixture
def stream() -> UnownedStream:
    return UnownedStream(BOUNDS)


def at(offset: int, append: Append) -> Append:
    """The same append, if the stream ends at an offset."""
    return replace(append, conditions=replace(append.conditions, expected_offset=offset))


def codes(answers: list[Appended | StoreError]) -> list[int | Code | None]:
    """First offsets of what is stored, codes of what is refused."""
    return [one.code if isinstance(one, StoreError) else one.first_offset for one in answers]


# Several in one commit


def test_each_append_sees_those_before_it_in_the_same_commit(stream: UnownedStream) -> None:
    answers = stream.send_together([strict(0, 2), strict(2, 3), strict(7, 1), strict(2, 3)])

    assert codes(answers) == [0, 2, Code.PRODUCER_SEQUENCE_GAP, 2]
    assert answers[3] == Appended(2, 5, 10_000, 0, 3, replayed=True)
    assert stream.next_offset == 5
    known = stream.producer("p")
    assert known is not None
    assert [one.first_offset for one in known.appends] == [0, 2]


def test_appends_of_others_stand_between_those_of_a_producer(stream: UnownedStream) -> None:
    plain = an_append(4, Conditions())

    assert codes(stream.send_together([plain, strict(0, 2), plain, strict(2, 1)])) == [0, 4, 6, 10]


def test_an_expected_offset_is_that_after_the_pieces_before(stream: UnownedStream) -> None:
    answers = stream.send_together([at(0, strict(0, 2)), at(2, keyed(b"k")), at(0, strict(2, 1))])

    assert codes(answers) == [0, 2, Code.OFFSET_MISMATCH]
    assert isinstance(answers[2], StoreError)
    assert answers[2].facts == {"next_offset": 4}


def test_neighbours_without_a_promise_share_a_piece_and_each_has_its_answer() -> None:
    """Rows come before frames in a chunk, so places do not follow the order of the appends."""
    stream = UnownedStream(BOUNDS)
    stream.send(an_append(3, Conditions()))
    ones = [waiting(an_append(count, Conditions())) for count in (2, 5)]
    piece = a_piece(ones[0])
    other = a_piece(ones[1])
    piece.appends = ones
    placements = [other.round.placements[0]._replace(first_offset=5, record_count=2)]
    placements.append(other.round.placements[0])
    piece.round = other.round._replace(placements=placements)

    assert stream.commit([piece]) == [
        Appended(8, 10, 10_000, 2),
        Appended(3, 8, 10_000, 5),
    ]


def test_a_key_that_is_used_twice_in_one_commit_is_stored_once(stream: UnownedStream) -> None:
    first, again, other = stream.send_together([keyed(b"k"), keyed(b"k"), keyed(b"k", b"else")])

    assert isinstance(first, Appended)
    assert again == first._replace(replayed=True)
    assert isinstance(other, StoreError)
    assert other.code is Code.IDEMPOTENCY_MISMATCH
    assert (stream.next_offset, stream.tail.key_count) == (2, 1)


# Records with numbers


def test_records_that_are_stored_meanwhile_are_sealed_anew_without_them(
    stream: UnownedStream,
) -> None:
    piece = a_piece(waiting(highwater(3, 4, 6)))
    stream.send(highwater(1, 4))

    assert stream.commit([piece]) == [TrimAgain(2)]
    assert stream.next_offset == 2
    [one] = piece.appends
    assert stream.commit([a_piece(one, 2, 1)]) == [Appended(2, 3, 10_000, 1, 2)]


def test_records_of_a_producer_that_is_forgotten_meanwhile_are_all_stored(
    stream: UnownedStream,
) -> None:
    stream.send(highwater(1, 4))
    piece = a_piece(waiting(highwater(3, 4, 6)), duplicates=2, trim_count=1)
    stream.forget("p")

    assert stream.commit([piece]) == [TrimAgain(0)]


def test_a_piece_that_is_overtaken_again_and_again_is_refused(stream: UnownedStream) -> None:
    stream.send(highwater(1, 4))
    piece = a_piece(waiting(highwater(3, 4, 6)), duplicates=1, trim_count=3)

    [said] = stream.commit([piece])
    assert isinstance(said, StoreError)
    assert (said.code, said.outcome) == (Code.OVERLOADED, Outcome.NONE)


def test_nothing_is_stored_after_a_piece_that_is_overtaken_again_and_again(
    stream: UnownedStream,
) -> None:
    stream.send(highwater(1, 4))
    pieces = [
        a_piece(waiting(highwater(3, 4, 6)), duplicates=1, trim_count=3),
        a_piece(waiting(highwater(7, 9))),
    ]

    _, second = stream.commit(pieces)
    assert second == TrimAgain(0)
    assert stream.next_offset == 2


def test_no_append_of_a_producer_passes_one_that_is_sealed_anew(stream: UnownedStream) -> None:
    """All records of the first would count as stored once the second is."""
    stream.send(highwater(1, 4))
    pieces = [a_piece(waiting(one)) for one in (highwater(3, 4, 6), highwater(7, 9))]

    assert stream.commit(pieces) == [TrimAgain(2), TrimAgain(0)]
    assert stream.next_offset == 2


def test_without_the_order_of_numbered_appends_records_are_lost(
    stream: UnownedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the order of appends whose records have numbers", lambda *_: False)
    with pytest.raises(AssertionError):
        test_no_append_of_a_producer_passes_one_that_is_sealed_anew(stream)


def test_what_is_sealed_anew_goes_on_in_its_order(stream: UnownedStream) -> None:
    stream.send(highwater(1, 4))
    first = waiting(highwater(3, 4, 6))
    second = waiting(highwater(7, 9))

    answers = stream.commit_all([a_piece(first), a_piece(second)])
    assert [one for one, _ in answers] == [first, second]
    assert codes([said for _, said in answers]) == [2, 3]


# Streams that take nothing new


def sent_to_one_that_refuses(stream: UnownedStream) -> list[Appended | StoreError]:
    stream.send(strict(0, 2))
    stream.send(keyed(b"k"))
    stream.tail = stream.tail._replace(state=TailState.FENCED)
    fresh = [strict(2, 1), strict(2, 1), strict(2, 1, body=b"others"), keyed(b"new")]
    return stream.send_together([strict(0, 2), keyed(b"k"), keyed(b"k", b"else"), *fresh])


def test_what_is_stored_is_answered_though_the_stream_is_fenced(stream: UnownedStream) -> None:
    """A repeat of what this very commit would have stored is none: nothing of it is stored."""
    assert codes(sent_to_one_that_refuses(stream)) == [
        0,
        2,
        Code.IDEMPOTENCY_MISMATCH,
        *[Code.STREAM_FENCED] * 4,
    ]
    assert (stream.next_offset, stream.tail.key_count) == (4, 1)


def test_without_the_look_at_what_counts_alone_a_repeat_is_told_of_nothing(
    stream: UnownedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "what is told of an append although its stream is refused"
    remove(monkeypatch, name, lambda *_: True)
    with pytest.raises(AssertionError):
        test_what_is_stored_is_answered_though_the_stream_is_fenced(stream)


def test_an_offset_that_only_this_commit_would_have_reached_is_no_reason() -> None:
    stream = UnownedStream(BOUNDS, TailBounds(2**40, 0))
    [first, second] = stream.send_together([strict(0, 2), at(0, keyed(b"k"))])

    assert codes([first, second]) == [Code.TAIL_BOUND] * 2
    assert codes(stream.send_together([at(7, keyed(b"k"))])) == [Code.OFFSET_MISMATCH]


def test_the_end_that_an_old_repeat_is_told_is_one_that_was_reached(stream: UnownedStream) -> None:
    for number in range(7):
        stream.send(strict(number, 1))
    stream.tail = stream.tail._replace(state=TailState.FENCED)

    [_, old] = stream.send_together([keyed(b"k"), strict(0, 1)])
    assert old == Appended(None, 7, None, 0, 1, replayed=True)


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal.GONE, Code.STREAM_NOT_FOUND),
        (Refusal.FENCED, Code.STREAM_FENCED),
        (Refusal.FULL, Code.TAIL_BOUND),
        (Refusal.DAMAGED, Code.DATA_CORRUPT),
        (Refusal.ENDED, Code.NUMBER_OUT_OF_RANGE),
    ],
)
def test_each_refusal_is_an_answer_that_says_that_nothing_is_stored(
    refusal: Refusal, code: Code
) -> None:
    said = refused(refusal)
    assert (said.code, said.outcome) == (code, Outcome.NONE)
    assert (said.retry_after_seconds is not None) == (refusal is Refusal.FULL)


# Bounds


def test_producers_and_keys_are_those_that_the_tail_counts(stream: UnownedStream) -> None:
    names = [strict(0, 1, who=name) for name in "abcdef"]
    assert codes(stream.send_together(names))[3:] == [3, Code.QUOTA_EXCEEDED, Code.QUOTA_EXCEEDED]
    keys = [keyed(name) for name in (b"a", b"b", b"c", b"d", b"a", b"e")]
    assert codes(stream.send_together(keys)) == [4, 6, 8, 10, 4, Code.QUOTA_EXCEEDED]

    assert stream.send(strict(1, 1, who="d")).first_offset == 12
    with pytest.raises(StoreError, match="can remember no more producers"):
        stream.raise_epoch("e")
    stream.raise_epoch("a")
    stream.forget("b")
    stream.raise_epoch("e")
    assert (stream.tail.producer_count, stream.tail.key_count) == (4, 4)


def test_without_the_number_in_the_tail_names_have_no_bound(
    stream: UnownedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the number of producers and keys in the tail", lambda *_: True)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_producers_and_keys_are_those_that_the_tail_counts(stream)


def test_names_are_kept_for_their_time_after_they_were_heard_last(stream: UnownedStream) -> None:
    stream.send_together([strict(0), keyed(b"k")])
    stream.now += 500
    stream.send(strict(10))
    stream.raise_epoch("q")

    kept = {name.name: until for name, until in stream.forget_at.items()}
    assert kept == {
        "p": 10_500 + KEEP_MS,
        "q": 10_500 + KEEP_MS,
        hash_of(b"k").hex(): 10_000 + BOUNDS.keep_ms,
    }


def test_a_key_stands_for_its_request_until_it_is_forgotten(stream: UnownedStream) -> None:
    """Whoever forgets it goes by one clock; a node whose clock is ahead does not."""
    first = stream.send(keyed(b"k"))
    stream.now += 10 * BOUNDS.keep_ms
    assert stream.send(keyed(b"k")) == first._replace(replayed=True)


def test_a_producer_that_is_not_known_cannot_be_forgotten(stream: UnownedStream) -> None:
    with pytest.raises(StoreError) as unknown:
        stream.forget("p")
    assert unknown.value.code is Code.PRODUCER_NOT_FOUND


# Commits of several objects


def test_the_pieces_of_a_staged_commit_are_one_append(stream: UnownedStream) -> None:
    stream.send(strict(0, 4, who="other"))
    identity = FromProducer("job", 0, AppendMode.TRANSACTION, 7)
    whole = waiting(an_append(12, Conditions(identity)))
    pieces = [a_piece(waiting(an_append(count, Conditions(identity)))) for count in (5, 4, 3)]
    pieces[0].appends, pieces[1].appends, pieces[2].appends = [whole], [], []

    assert stream.commit(pieces) == [Appended(4, 16, 10_000, 12)]
    [again] = stream.commit([a_piece(whole)])
    assert again == Appended(4, 16, 10_000, 0, 12, replayed=True)
    assert stream.commit(pieces) == [again], "none of the pieces is stored without the first"
    assert stream.next_offset == 16
    known = stream.producer("job")
    assert known is not None
    assert [one.record_count for one in known.appends] == [12]


# Any history

names = st.sampled_from("pqr")
fresh = st.one_of(
    st.builds(strict, st.integers(0, 9), st.integers(1, 4), epoch=st.integers(0, 2), who=names),
    st.builds(lambda low, who: highwater(low, low + 2, who=who), st.integers(0, 12), names),
    st.builds(transaction, st.integers(0, 9)),
    st.builds(keyed, st.sampled_from([b"a", b"b"]), st.sampled_from([b"x", b"y"])),
    st.builds(an_append, st.integers(1, 3), st.just(Conditions())),
)
appends = st.one_of(fresh, fresh, st.builds(at, st.integers(0, 12), fresh))
histories = st.lists(
    st.one_of(
        st.lists(appends, min_size=1, max_size=5),
        st.builds(lambda name: ("raise", name), names),
        st.builds(lambda name: ("forget", name), names),
    ),
    max_size=14,
)


def outcome(send: Stream, append: Append) -> object:
    try:
        return send.send(append)
    except StoreError as error:
        return (error.code, error.facts)


def changed(stream: Stream | UnownedStream, what: str, name: str) -> object:
    try:
        (stream.raise_epoch if what == "raise" else stream.forget)(name)
    except StoreError as error:
        return error.code
    return stream.producer(name)


@given(histories)
def test_any_history_is_decided_as_in_a_stream_with_an_owner(
    history: list[list[Append] | tuple[str, str]],
) -> None:
    owned, unowned = Stream(LARGE), UnownedStream(LARGE)
    for step in history:
        owned.now = unowned.now = owned.now + 7
        if isinstance(step, tuple):
            assert changed(unowned, *step) == changed(owned, *step)
            continue
        for one, said in unowned.commit_all([a_piece(waiting(append)) for append in step]):
            told = (said.code, said.facts) if isinstance(said, StoreError) else said
            assert told == outcome(owned, one.append)
        assert unowned.next_offset == owned.next_offset
        for name in "pqr":
            assert unowned.producer(name) == owned.producer(name)
        assert {one for one in unowned.values if not one.is_producer} == {
            KnownName(key.hex(), is_producer=False) for key in owned.tracking.keys
        }
    counts = (unowned.tail.producer_count, unowned.tail.key_count)
    assert counts == (len(owned.tracking.producers), len(owned.tracking.keys))
