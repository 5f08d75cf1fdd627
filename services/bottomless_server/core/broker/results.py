"""What became of each partition, and what that makes of the answer. Pure."""

import math
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from bottomless.errors import Outcome, StoreError
from bottomless_server.core.broker.error_types import TYPE_OF, ErrorType
from bottomless_server.core.broker.names import Place

PAUSE_SECONDS: Final = 1
"""How long to wait where no refusal says it."""


class Verdict(Enum):
    """What the results are together."""

    GOOD = auto()
    """Every partition was served."""
    HELD_BACK = auto()
    """None was, all for a bound that is reached: nothing happened, and the same again is right."""
    FAILED = auto()
    """Some partition was not, for whatever reason; the results say which."""


class Result(NamedTuple):
    """What became of one partition."""

    members: dict[str, Any]
    """The members of it in the answer."""
    failed: ErrorType | None = None
    retry_after_seconds: float | None = None


class Whole(NamedTuple):
    """The answer to a request."""

    verdict: Verdict
    members: dict[str, Any]
    retry_after_seconds: int | None
    """How long to wait, where all was held back."""


def stored(
    place: Place, stream_id: str, first_offset: int | None, next_offset: int, count: int
) -> Result:
    """An append that is durable. The ids name the records by their stream and offsets, which stay true
    wherever the records lie; none leads to a bucket or a key. A repeat whose original is not
    remembered has no offsets and none of these ids."""
    known = first_offset is not None
    members = {
        **place._asdict(),
        "ok": True,
        "start_offset": first_offset,
        "end_offset": next_offset if known else None,
        "count": count,
        "index_key": f"{stream_id}:{first_offset}" if known else None,
        "wal_uri": f"urn:bottomless:wal:{stream_id}:{first_offset}-{next_offset}"
        if known
        else None,
    }
    return Result(members)


def refused(place: Place, error: StoreError, *, write: bool) -> Result:
    """A partition for which nothing was done, or nobody knows; of a read nothing is unknown."""
    error_type = TYPE_OF[error.code]
    outcome = error.outcome or Outcome.NONE
    members = {
        **place._asdict(),
        "ok": False,
        "error_type": error_type.value,
        "error": error.message,
        "code": error.code.value,
        "retryable": error.retryable,
        "outcome": (outcome if write else Outcome.NONE).value,
        **_bounds(error, error_type),
    }
    return Result(members, error_type, error.retry_after_seconds)


def _bounds(error: StoreError, error_type: ErrorType) -> dict[str, Any]:
    """What a client needs to go on: both ends of the stream, or the end that it did not expect."""
    facts = error.facts
    if error_type is ErrorType.OFFSET_OUT_OF_RANGE:
        bounds = {
            "log_start": facts.get("first_offset"),
            "high_watermark": facts.get("next_offset"),
        }
        if "readable_offset" in facts:
            bounds["readable_offset"] = facts["readable_offset"]
        return bounds
    if error_type is ErrorType.OFFSET_MISMATCH:
        return {"high_watermark": facts.get("next_offset")}
    return {}


def whole(results: Sequence[Result]) -> Whole:
    """The answer that has these results, of which there is one at least."""
    assert results
    failures = [one for one in results if one.failed is not None]
    if not failures:
        verdict = Verdict.GOOD
    elif all(one.failed is ErrorType.BACK_PRESSURE for one in results):
        verdict = Verdict.HELD_BACK
    else:
        verdict = Verdict.FAILED
    pause = None
    if verdict is Verdict.HELD_BACK:
        # All of them are sent again together, so the longest wait counts.
        pause = max(math.ceil(one.retry_after_seconds or PAUSE_SECONDS) for one in results)
    members = {
        "results": [one.members for one in results],
        "success_count": len(results) - len(failures),
        "error_count": len(failures),
    }
    return Whole(verdict, members, pause)
