"""Decide what a consumer's commit makes of what is stored, and what is said of it. Pure."""

from dataclasses import dataclass
from typing import Any

from bottomless.errors import Code, InvalidRequest, NotFound, WrongOffset
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.core.preconditions import require_match
from bottomless_server.manifest.consumers.core.lag import Lag


@dataclass(frozen=True, slots=True)
class Commit:
    """What a consumer asks to be stored."""

    consumer: Reference
    next_offset: int
    allow_regression: bool = False
    if_match: str | None = None


def commit(stored: StoredOffset | None, asked: Commit, now: int) -> StoredOffset:
    """What is stored afterwards; what was stored before, if that says the same.

    Raises:
        WrongOffset: `etag-mismatch`, or `offset-regression`: it would go back.
    """
    require_match(asked.if_match, None if stored is None else offset_etag(stored))
    if stored is None:
        return StoredOffset(asked.consumer, asked.next_offset, now, revision=now)
    if asked.next_offset == stored.next_offset:
        return stored
    if asked.next_offset < stored.next_offset and not asked.allow_regression:
        raise WrongOffset(
            "the offset is lower than the stored one; allow_regression stores it all the same",
            code=Code.OFFSET_REGRESSION,
            facts={"offset": _last(stored), "next_offset": stored.next_offset},
        )
    # By the clock, so that an offset that was forgotten and stored anew has another tag.
    revision = max(now, stored.revision + 1)
    return StoredOffset(asked.consumer, asked.next_offset, now, revision)


def check_committed(next_offset: int, committed_next: int) -> None:
    """Refuse to store an offset that lies beyond the end of the stream.

    Raises:
        InvalidRequest: `offset-beyond-end`: nobody can have processed what is not there.
    """
    if next_offset > committed_next:
        raise InvalidRequest(
            "the offset lies beyond the end of the stream",
            code=Code.OFFSET_BEYOND_END,
            facts={"next_offset": committed_next},
        )


def describe_offset(
    stored: StoredOffset, first_offset: int, committed_next: int | None, *, in_snapshot: bool
) -> dict[str, Any]:
    """What is said of a stored offset. What retention removed is no lag: nobody can read it."""
    at = max(stored.next_offset, first_offset)
    return {
        "consumer": stored.consumer,
        "offset": _last(stored),
        "next_offset": stored.next_offset,
        "lag_records": None if committed_next is None else max(0, committed_next - at),
        "clamped_on_resume": stored.next_offset < first_offset,
        "committed_at": format_timestamp(stored.committed_at),
        "durability": "snapshot" if in_snapshot else "coordination",
        "etag": offset_etag(stored),
    }


def describe_lag(lag: Lag) -> dict[str, Any]:
    """What is said of a lag to who looks; null of what nobody knows."""
    return {"lag_records": lag.record_count, "lag_seconds": lag.seconds, "lag_bytes": lag.size}


def offset_etag(stored: StoredOffset) -> str:
    return f'"o{stored.revision}"'


def offset_not_found() -> NotFound:
    return NotFound("this consumer has stored no offset", code=Code.OFFSET_NOT_FOUND)


def _last(stored: StoredOffset) -> int | None:
    """The last record that is processed, None if none is."""
    return stored.next_offset - 1 if stored.next_offset else None
