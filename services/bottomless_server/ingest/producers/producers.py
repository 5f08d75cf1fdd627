"""Decide of an append whether it is new, a repeat, or out of order: the tables of api.md, section 4.

Asked by the stream's appender when it chooses what goes into the next chunk, against what
is committed. What is pending is not asked: of one producer, or one key, the appender takes
one append at a time, and the next is decided when the outcome of the first is known. So a
repeat is confirmed only after its original is durable, and nothing is ever built upon an
append that then fails.

On the record's path: after records/intake.py, before log/core/batcher.py.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from bottomless.errors import (
    Code,
    InvalidRequest,
    Overloaded,
    StoreError,
    WrongOffset,
)
from bottomless.model.chunk import AppendMode
from bottomless_server.core.faults import bad_header
from bottomless_server.core.tracking.known_producers import Producer, Remembered
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.commit_parts import OpenCommit, open_commit
from bottomless_server.ingest.producers.places import Places, check_place
from bottomless_server.ingest.records.conditions import SEQUENCE_MAX, FromProducer, WithKey
from bottomless_server.ingest.records.intake import Append

MODES: Final = {
    AppendMode.STRICT: "strict",
    AppendMode.HIGHWATER: "highwater",
    AppendMode.TRANSACTION: "txn",
}
"""Modes as answers name them."""


class Appended(NamedTuple):
    """What an append is answered: its records are durable and visible."""

    first_offset: int | None
    """Where its records begin; None if the original is too old to be remembered."""
    next_offset: int
    """After its records; the end of the stream where they are not remembered."""
    timestamp: int | None
    record_count: int
    """Records that this request stored."""
    duplicates: int = 0
    """Records of this request that were stored before."""
    replayed: bool = False
    """Whether nothing was stored: this is what the original was answered."""


class New(NamedTuple):
    """The append is to be stored, but for its first records, which are there."""

    duplicates: int = 0


def decide(
    tracking: Tracking, append: Append, next_offset: int, places: Places | None = None
) -> New | Appended:
    """What becomes of an append, if the stream ends at `next_offset`.

    `places` are those that the round still has, where it holds other appends already. For what
    is new room is kept, until the round gives it back.

    Raises:
        StoreError: it is refused, by the codes of api.md; nothing is stored of it.
    """
    verdict = known_of(tracking, append, next_offset)
    identity = append.conditions.identity
    if isinstance(verdict, New) and identity is not None:
        check_place(tracking, identity, places or Places(tracking))
    return verdict


def known_of(tracking: Tracking, append: Append, next_offset: int) -> New | Appended:
    """What `decide` would say of an append, without keeping room for one that is new.

    Raises:
        StoreError: it is refused, by the codes of api.md; `quota-exceeded` is not among them.
    """
    conditions = append.conditions
    verdict: New | Appended = New()
    if isinstance(conditions.identity, WithKey):
        verdict = _decide_key(tracking, append, conditions.identity)
    elif conditions.identity is not None:
        verdict = _decide_producer(tracking, append, conditions.identity, next_offset)
    expected = conditions.expected_offset
    if isinstance(verdict, New) and expected is not None and expected != next_offset:
        raise WrongOffset(
            "the stream does not end at the expected offset; read it from there, then decide",
            facts={"next_offset": next_offset},
        )
    return verdict


def in_flight() -> Overloaded:
    return Overloaded(
        "a request with this key is being written",
        code=Code.IDEMPOTENCY_IN_FLIGHT,
        retry_after_seconds=1,
    )


def _decide_key(tracking: Tracking, append: Append, asked: WithKey) -> New | Appended:
    use = tracking.key(asked.key_hash)
    if use is None:
        return New()
    if (use.body_hash, use.body_crc) != (append.body_hash, append.body_crc):
        raise InvalidRequest("this key was used for another body", code=Code.IDEMPOTENCY_MISMATCH)
    end = use.first_offset + use.record_count
    # Word for word what the original was answered: no record counts as a duplicate.
    return Appended(use.first_offset, end, use.timestamp, use.record_count, 0, replayed=True)


def _decide_producer(
    tracking: Tracking, append: Append, asked: FromProducer, next_offset: int
) -> New | Appended:
    if asked.part_of is not None:
        return _decide_part(tracking, append, asked.number, asked.part_of, next_offset)
    known = tracking.producers.get(asked.producer_id)
    if known is not None:
        check_known(known, asked)
    if asked.mode is AppendMode.TRANSACTION:
        return _decide_transaction(tracking, known, append, asked, next_offset)
    if known is None or known.mode is AppendMode.PLAIN:
        # It has no number yet, but a commit of several parts may be on its way to one.
        _check_not_open(open_commit(tracking, asked.producer_id), asked.number)
    if asked.mode is AppendMode.STRICT:
        return _decide_strict(known, append, asked, next_offset)
    if known is None or known.last_sequence is None:
        return New()
    return _decide_highwater(known.last_sequence, append, next_offset)


def check_known(known: Producer, asked: FromProducer) -> None:
    """Refuse a run of a producer that is fenced, and another mode than the producer's.

    Raises:
        WrongOffset: `producer-mode-conflict`, `producer-fenced`.
    """
    if known.mode not in (AppendMode.PLAIN, asked.mode):
        raise conflict(
            Code.PRODUCER_MODE_CONFLICT,
            "this producer id is used in another mode; take another id, or delete the producer",
            mode=MODES[known.mode],
        )
    if asked.epoch < known.epoch:
        raise conflict(
            Code.PRODUCER_FENCED,
            "a newer run of this producer has begun; let only one run",
            current_epoch=known.epoch,
        )


def _decide_strict(
    known: Producer | None, append: Append, asked: FromProducer, next_offset: int
) -> New | Appended:
    first, last = asked.number, asked.number + append.record_count - 1
    if last > SEQUENCE_MAX:
        raise bad_header("producer-seq", f"the last number must be at most {SEQUENCE_MAX}")
    if known is None or known.last_sequence is None:
        if first == 0 or asked.start_any:
            return New()
        if known is None:
            raise conflict(
                Code.PRODUCER_UNKNOWN,
                "the stream does not know this producer; look at what is stored, then start with Producer-Start: any",
            )
        # Its epoch was raised, so it is about to write from 0 on.
        raise _gap(0, first)
    if first == known.last_sequence + 1:
        return New()
    if first > known.last_sequence:
        raise _gap(known.last_sequence + 1, first)
    original = _same(known.appends, append, asked)
    if original is not None:
        return repeat_of(original, append)
    oldest = known.appends[0].sequence if known.appends else known.last_sequence + 1
    if asked.epoch == known.epoch and known.epoch_sequence <= first and last < oldest:
        return _too_old(append, next_offset)
    raise conflict(
        Code.PRODUCER_SEQUENCE_OVERLAP,
        "numbers of this append belong to other records that are stored; continue after last_seq",
        last_seq=known.last_sequence,
    )


def _gap(expected: int, received: int) -> WrongOffset:
    return WrongOffset(
        "an earlier append of this producer is missing; send the one that begins with expected_seq first",
        code=Code.PRODUCER_SEQUENCE_GAP,
        retryable=True,
        facts={"expected_seq": expected, "received_seq": received},
    )


def _same(appends: Sequence[Remembered], append: Append, asked: FromProducer) -> Remembered | None:
    wanted = (asked.number, append.record_count, append.body_crc, asked.epoch)
    return next((found for found in appends if found[:4] == wanted), None)


def _decide_highwater(last: int, append: Append, next_offset: int) -> New | Appended:
    assert append.ids is not None
    # The ids increase, so those that are known stand at the front.
    known = int(np.searchsorted(append.ids, last, side="right"))
    return New(known) if known < append.record_count else _too_old(append, next_offset)


def _decide_transaction(
    tracking: Tracking,
    known: Producer | None,
    append: Append,
    asked: FromProducer,
    next_offset: int,
) -> New | Appended:
    if known is not None and _is_past(known, asked.number):
        return _decide_past(tracking, known, append, asked.number, next_offset)
    begun = open_commit(tracking, asked.producer_id)
    if asked.parts_before:
        _check_last_part(begun, asked)
    else:
        _check_not_open(begun, asked.number)
    return New()


def _is_past(known: Producer, number: int) -> bool:
    return known.last_sequence is not None and number <= known.last_sequence


def _decide_past(
    tracking: Tracking, known: Producer, append: Append, number: int, next_offset: int
) -> Appended:
    """The answer for a number that is not above the last one of its producer."""
    for found in known.appends:
        if found.sequence == number:
            return repeat_of(found, append)
    has_all = tracking.bounds.has_all(known.appends)
    if known.appends and (has_all or number > known.appends[0].sequence):
        # What was stored since is remembered, or all that ever was, and this is not among it.
        raise conflict(
            Code.PRODUCER_SEQUENCE_OVERLAP,
            "this producer has skipped the number, and nothing is stored under it; take one above last_seq",
            last_seq=known.last_sequence,
        )
    return _too_old(append, next_offset)


def _decide_part(
    tracking: Tracking, append: Append, number: int, whole: FromProducer, next_offset: int
) -> New | Appended:
    """Decide about a part before the last: each follows the one before it, and none is stored that
    the last one would not follow. What its producer is may have changed while it waited for room:
    a fence, another mode, or the same number in one piece."""
    known = tracking.producers.get(whole.producer_id)
    if known is not None:
        check_known(known, whole)
        if _is_past(known, whole.number):
            return _decide_past(tracking, known, append, whole.number, next_offset)
    begun = open_commit(tracking, whole.producer_id)
    if begun is not None and begun.number != whole.number:
        raise unfinished(begun.number, whole.number)
    if number != (0 if begun is None else begun.part_count):
        raise _other_part()
    return New()


def _check_last_part(begun: OpenCommit | None, asked: FromProducer) -> None:
    if begun != (asked.number, asked.parts_before):
        raise _other_part()


def _check_not_open(begun: OpenCommit | None, number: int) -> None:
    if begun is not None:
        raise unfinished(begun.number, number)


def unfinished(expected: int, received: int) -> WrongOffset:
    """A later number waits for the commit that is begun."""
    return WrongOffset(
        "an earlier commit of this producer is not finished",
        code=Code.PRODUCER_SEQUENCE_GAP,
        retryable=True,
        facts={"expected_seq": expected, "received_seq": received},
    )


def _other_part() -> StoreError:
    sentence = "another commit has taken the place of a part"
    return conflict(Code.PRODUCER_SEQUENCE_OVERLAP, sentence)


def repeat_of(original: Remembered, append: Append) -> Appended:
    """The answer for an append that is stored already."""
    end = original.first_offset + original.record_count
    return Appended(
        original.first_offset, end, original.timestamp, 0, append.record_count, replayed=True
    )


def _too_old(append: Append, next_offset: int) -> Appended:
    return Appended(None, next_offset, None, 0, append.record_count, replayed=True)


def conflict(code: Code, sentence: str, **facts: object) -> StoreError:
    """The refusal of an append that does not fit to what is known of its producer."""
    return WrongOffset(sentence, code=code, facts=facts)
