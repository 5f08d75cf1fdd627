"""Decide of an append whether it is new, a repeat, or out of order: the tables of api.md, section 4.

Asked by the stream's appender when it chooses what goes into the next chunk, against what
is committed. What is pending is not asked: of one producer, or one key, the appender takes
one append at a time, and the next is decided when the outcome of the first is known. So a
repeat is confirmed only after its original is durable, and nothing is ever built upon an
append that then fails.

On the record's path: after core/intake.py, before core/batcher.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from bottomless.errors import (
    Code,
    InvalidRequest,
    NotFound,
    Overloaded,
    StoreError,
    WrongOffset,
)
from bottomless.model.chunk import AppendMode, TrackedEntry
from bottomless_server.ingest.core.intake import Append
from bottomless_server.ingest.core.places import Places
from bottomless_server.ingest.core.promises import (
    SEQUENCE_MAX,
    FromProducer,
    WithKey,
    bad_header,
)
from bottomless_server.ingest.core.tracking import (
    KEY_SIZE,
    Producer,
    Remembered,
    Tracking,
    forgotten,
    tracked,
)

MODES: Final = {
    AppendMode.STRICT: "strict",
    AppendMode.HIGHWATER: "highwater",
    AppendMode.TRANSACTION: "txn",
}
"""Modes as answers name them."""


class Appended(NamedTuple):
    """What an append is answered: its records are durable and visible."""

    first_offset: int | None
    """None if the original is too old to be remembered."""
    next_offset: int
    """After its records; the end of the stream where they are not remembered."""
    timestamp: int | None
    record_count: int
    """Records that this request stored."""
    duplicates: int = 0
    """Records of this request that were stored before."""
    replayed: bool = False
    """Nothing was stored: this is what the original was answered."""


class New(NamedTuple):
    """The append is to be stored, but for its first records, which are there."""

    duplicates: int = 0


def decide(
    tracking: Tracking, append: Append, next_offset: int, now: int, places: Places | None = None
) -> New | Appended:
    """What becomes of an append, if the stream ends at `next_offset` and the time is `now`.

    `places` are those that the round still has, where it holds other appends already. For what
    is new room is kept, until the round gives it back.

    Raises:
        StoreError: it is refused, by the codes of api.md; nothing is stored of it.
    """
    promise = append.promise
    verdict: New | Appended = New()
    if isinstance(promise.identity, WithKey):
        verdict = _decide_key(tracking, append, promise.identity, now)
    elif promise.identity is not None:
        verdict = _decide_producer(tracking, append, promise.identity, next_offset)
    if isinstance(verdict, New) and promise.identity is not None:
        _check_place(tracking, promise.identity, places or Places(tracking, now), now)
    expected = promise.expected_offset
    if isinstance(verdict, New) and expected is not None and expected != next_offset:
        raise WrongOffset(
            "the stream does not end at the expected offset", facts={"next_offset": next_offset}
        )
    return verdict


def raise_epoch(tracking: Tracking, producer_id: str, now: int) -> list[TrackedEntry]:
    """Entries that raise the epoch of a producer; one that is not known is known from then on.

    Raises:
        Overloaded: `quota-exceeded`.
        InvalidRequest: it was raised as often as can be.
    """
    before = tracking.producers.get(producer_id)
    if before is None:
        identity = FromProducer(producer_id, 0, AppendMode.PLAIN)
        _check_place(tracking, identity, Places(tracking, now), now)
        raised = Producer(AppendMode.PLAIN, 1, None, 0, now)
    else:
        if before.epoch >= SEQUENCE_MAX:
            raise InvalidRequest("the epoch cannot be raised", code=Code.VALIDATION_FAILED)
        begins = 0 if before.last_sequence is None else before.last_sequence + 1
        raised = replace(before, epoch=before.epoch + 1, epoch_sequence=begins, timestamp=now)
    return list(tracked(producer_id, raised))


def forget(tracking: Tracking, producer_id: str, now: int) -> list[TrackedEntry]:
    """Entries that make a producer unknown.

    Raises:
        NotFound: `producer-not-found`.
    """
    if producer_id not in tracking.producers:
        raise producer_not_found()
    return [forgotten(producer_id, now)]


def producer_not_found() -> NotFound:
    return NotFound("the stream knows no such producer", code=Code.PRODUCER_NOT_FOUND)


def in_flight() -> Overloaded:
    return Overloaded(
        "a request with this key is being written",
        code=Code.IDEMPOTENCY_IN_FLIGHT,
        retry_after_seconds=1,
    )


def _decide_key(tracking: Tracking, append: Append, asked: WithKey, now: int) -> New | Appended:
    use = tracking.key(asked.key_hash, now)
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
    known = tracking.producers.get(asked.producer_id)
    if known is not None:
        _check_known(known, asked)
    if asked.mode is AppendMode.STRICT:
        return _decide_strict(known, append, asked, next_offset)
    if known is None or known.last_sequence is None:
        return New()
    if asked.mode is AppendMode.TRANSACTION:
        return _decide_transaction(known, append, asked, next_offset)
    return _decide_highwater(known.last_sequence, append, next_offset)


def _check_known(known: Producer, asked: FromProducer) -> None:
    if known.mode not in (AppendMode.PLAIN, asked.mode):
        raise _conflict(
            Code.PRODUCER_MODE_CONFLICT,
            "this producer writes in another mode",
            mode=MODES[known.mode],
        )
    if asked.epoch < known.epoch:
        raise _conflict(
            Code.PRODUCER_FENCED, "this producer has a newer epoch", current_epoch=known.epoch
        )


def _decide_strict(
    known: Producer | None, append: Append, asked: FromProducer, next_offset: int
) -> New | Appended:
    first, last = asked.number, asked.number + append.record_count - 1
    if last > SEQUENCE_MAX:
        raise bad_header("producer-seq", f"its last number is at most {SEQUENCE_MAX}")
    if known is None or known.last_sequence is None:
        if first == 0 or asked.start_any:
            return New()
        if known is None:
            raise _conflict(Code.PRODUCER_UNKNOWN, "the stream does not know this producer")
        # Its epoch was raised, so it is about to write from 0 on.
        raise _gap(0, first)
    if first == known.last_sequence + 1:
        return New()
    if first > known.last_sequence:
        raise _gap(known.last_sequence + 1, first)
    original = _same(known.appends, append, asked)
    if original is not None:
        return _repeat_of(original, append)
    oldest = known.appends[0].sequence if known.appends else known.last_sequence + 1
    if asked.epoch == known.epoch and known.epoch_sequence <= first and last < oldest:
        return _too_old(append, next_offset)
    raise _conflict(
        Code.PRODUCER_SEQUENCE_OVERLAP,
        "numbers of this append are taken by others",
        last_seq=known.last_sequence,
    )


def _gap(expected: int, received: int) -> WrongOffset:
    return WrongOffset(
        "an earlier append of this producer is missing",
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
    known: Producer, append: Append, asked: FromProducer, next_offset: int
) -> New | Appended:
    assert known.last_sequence is not None
    if asked.number > known.last_sequence:
        return New()
    for found in known.appends:
        if found.sequence == asked.number:
            return _repeat_of(found, append)
    return _too_old(append, next_offset)


def _repeat_of(original: Remembered, append: Append) -> Appended:
    end = original.first_offset + original.record_count
    return Appended(
        original.first_offset, end, original.timestamp, 0, append.record_count, replayed=True
    )


def _too_old(append: Append, next_offset: int) -> Appended:
    return Appended(None, next_offset, None, 0, append.record_count, replayed=True)


def _check_place(
    tracking: Tracking, identity: FromProducer | WithKey, places: Places, now: int
) -> None:
    bounds = tracking.bounds
    if isinstance(identity, WithKey):
        if not places.keys.fits(identity.key_hash):
            raise _quota("idempotency keys", bounds.key_count_max)
        known, size = identity.key_hash in tracking.keys, KEY_SIZE
    else:
        if not places.producers.fits(identity.producer_id):
            raise _quota("producers", bounds.producer_count_max)
        known, size = identity.producer_id in tracking.producers, bounds.producer_size
    if not tracking.keep_room(0 if known else size, now):
        raise Overloaded(
            "this node remembers as many producers and idempotency keys as it may",
            code=Code.QUOTA_EXCEEDED,
            retry_after_seconds=60,
        )


def _quota(what: str, limit: int) -> Overloaded:
    return Overloaded(
        f"the stream remembers as many {what} as it may",
        code=Code.QUOTA_EXCEEDED,
        retry_after_seconds=60,
        facts={"limit_count": limit},
    )


def _conflict(code: Code, sentence: str, **facts: object) -> StoreError:
    return WrongOffset(sentence, code=code, facts=facts)
