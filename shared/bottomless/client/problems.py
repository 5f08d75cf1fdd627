"""Problems to errors: an `application/problem+json` answer becomes the class of its code.

The other direction, errors to problems, is `bottomless_server/runtime/http/problems.py`. Client and
services share this file, so that a caller handles an error in the same way whether it was raised
here or three processes away.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bottomless.errors import (
    Code,
    Corrupt,
    Denied,
    Exists,
    Fault,
    Fenced,
    InvalidRequest,
    NotFound,
    OffsetGone,
    Outcome,
    Overloaded,
    StoreError,
    Unavailable,
    WrongOffset,
)

CLASSES: Final[Mapping[Code, type[StoreError]]] = {
    Code.MALFORMED_JSON: InvalidRequest,
    Code.UNKNOWN_PARAMETER: InvalidRequest,
    Code.DUPLICATE_PARAMETER: InvalidRequest,
    Code.BAD_PARAMETER: InvalidRequest,
    Code.BAD_OFFSET_SPEC: InvalidRequest,
    Code.BAD_HEADER: InvalidRequest,
    Code.BAD_NAME: InvalidRequest,
    Code.UNAUTHENTICATED: Denied,
    Code.FORBIDDEN: Denied,
    Code.HOST_NOT_ALLOWED: Denied,
    Code.ORIGIN_NOT_ALLOWED: Denied,
    Code.NOT_FOUND: NotFound,
    Code.STREAM_NOT_FOUND: NotFound,
    Code.QUEUE_NOT_FOUND: NotFound,
    Code.CONSUMER_NOT_FOUND: NotFound,
    Code.OPERATION_NOT_FOUND: NotFound,
    Code.LEASE_NOT_FOUND: NotFound,
    Code.FRAGMENT_NOT_FOUND: NotFound,
    Code.PRODUCER_NOT_FOUND: NotFound,
    Code.STAGED_NOT_FOUND: NotFound,
    Code.OFFSET_NOT_FOUND: NotFound,
    Code.KEY_NOT_FOUND: NotFound,
    Code.GROUP_NOT_FOUND: NotFound,
    Code.MEMBER_EXPIRED: NotFound,
    Code.METHOD_NOT_ALLOWED: InvalidRequest,
    Code.NOT_ACCEPTABLE: InvalidRequest,
    Code.REQUEST_TIMEOUT: Overloaded,
    Code.UNSUPPORTED_MEDIA_TYPE: InvalidRequest,
    Code.STREAM_EXISTS: Exists,
    Code.STREAM_REPLACED: WrongOffset,
    Code.PRODUCER_FENCED: WrongOffset,
    Code.PRODUCER_SEQUENCE_GAP: WrongOffset,
    Code.PRODUCER_SEQUENCE_OVERLAP: WrongOffset,
    Code.PRODUCER_UNKNOWN: WrongOffset,
    Code.PRODUCER_MODE_CONFLICT: WrongOffset,
    Code.STREAM_FENCED: WrongOffset,
    Code.IDEMPOTENCY_IN_FLIGHT: Overloaded,
    Code.OFFSET_REGRESSION: WrongOffset,
    Code.CONSUMER_FENCED: WrongOffset,
    Code.NOT_ACTIVE: WrongOffset,
    Code.GROUP_MISMATCH: WrongOffset,
    Code.GROUP_NOT_EMPTY: WrongOffset,
    Code.QUEUE_EXISTS: Exists,
    Code.QUEUE_IN_USE: Exists,
    Code.DRIVE_IN_USE: Exists,
    Code.QUEUE_NOT_EMPTY: Exists,
    Code.PARTITION_OF_SUPER_STREAM: Exists,
    Code.HOME_LIVE: Fenced,
    Code.IN_SYNC_LIVE: Fenced,
    Code.NOT_IN_SYNC: Fenced,
    Code.COORDINATION_INTACT: Exists,
    Code.KEY_NOT_ACTIVE: Exists,
    Code.OFFSET_TRIMMED: OffsetGone,
    Code.RANGE_CONDEMNED: OffsetGone,
    Code.OFFSET_MISMATCH: WrongOffset,
    Code.ETAG_MISMATCH: WrongOffset,
    Code.OFFSET_OUT_OF_RANGE: OffsetGone,
    Code.RANGE_NOT_SATISFIABLE: InvalidRequest,
    Code.URI_TOO_LONG: InvalidRequest,
    Code.HEADERS_TOO_LARGE: InvalidRequest,
    Code.BODY_TOO_LARGE: InvalidRequest,
    Code.RECORD_TOO_LARGE: InvalidRequest,
    Code.BATCH_TOO_LARGE: InvalidRequest,
    Code.DECOMPRESSED_TOO_LARGE: InvalidRequest,
    Code.VALIDATION_FAILED: InvalidRequest,
    Code.NUMBER_OUT_OF_RANGE: InvalidRequest,
    Code.CRC_MISMATCH: InvalidRequest,
    Code.IDEMPOTENCY_MISMATCH: InvalidRequest,
    Code.OFFSET_BEYOND_END: InvalidRequest,
    Code.NO_ROUTE: InvalidRequest,
    Code.DRIVE_UNKNOWN: InvalidRequest,
    Code.PRECONDITION_REQUIRED: InvalidRequest,
    Code.MOVED: OffsetGone,
    Code.FENCED: Fenced,
    Code.NOT_OWNER: Unavailable,
    Code.OVERLOADED: Overloaded,
    Code.QUEUE_FULL: Overloaded,
    Code.DISK_BOUND: Overloaded,
    Code.TAIL_BOUND: Overloaded,
    Code.QUOTA_EXCEEDED: Overloaded,
    Code.RATE_LIMITED: Overloaded,
    Code.DRAINING: Unavailable,
    Code.SUPER_STREAM_GROWING: Unavailable,
    Code.INTERNAL: StoreError,
    Code.OBJECT_STORE_UNAVAILABLE: Unavailable,
    Code.COORDINATION_UNAVAILABLE: Unavailable,
    Code.COORDINATION_REGRESSED: Unavailable,
    Code.PEER_UNAVAILABLE: Unavailable,
    Code.CLOCK_SKEW: Unavailable,
    Code.STORAGE_FULL: Unavailable,
    Code.STORAGE_FAILED: Unavailable,
    Code.NOT_ENOUGH_REPLICAS: Unavailable,
    Code.COMMIT_TIMEOUT: Unavailable,
    Code.DATA_CORRUPT: Corrupt,
    Code.DATA_MISSING: Corrupt,
    Code.LOCAL_LOG_LOST: Corrupt,
}
"""The class of each code; a test holds it complete."""

_NOT_FACTS: Final = frozenset(
    {
        "type",
        "title",
        "status",
        "detail",
        "instance",
        "code",
        "retryable",
        "outcome",
        "request_id",
        "errors",
    }
)


def error_from_problem(
    status: int, problem: object, *, retry_after: str | None = None
) -> StoreError:
    """Make the error that an answer with this status and body stands for. It is not raised here.

    `problem` is the decoded JSON body, or anything else if there was none: then the status alone
    decides, since proxies on the way answer with pages of their own. `retry_after` is the header of
    that name.
    """
    members: Mapping[str, Any] = problem if isinstance(problem, dict) else {}
    code = _code(members.get("code"))
    if code is None and status == 401:
        code = Code.UNAUTHENTICATED
    kind = CLASSES[code] if code else _class_of_status(status)
    retryable = members.get("retryable")
    return kind(
        _sentence(status, members),
        code=code,
        retryable=retryable if isinstance(retryable, bool) else None,
        outcome=_outcome(members.get("outcome")),
        retry_after_seconds=_seconds(retry_after),
        faults=_faults(members.get("errors")),
        facts={name: value for name, value in members.items() if name not in _NOT_FACTS},
    )


def _code(value: object) -> Code | None:
    # A newer server may know codes that this client does not.
    return next((code for code in Code if code == value), None)


def _outcome(value: object) -> Outcome | None:
    return next((outcome for outcome in Outcome if outcome == value), None)


def _class_of_status(status: int) -> type[StoreError]:
    if status == 403:
        return Denied
    if status == 404:
        return NotFound
    if status == 429:
        return Overloaded
    if status in {502, 503, 504}:
        return Unavailable
    return InvalidRequest if 400 <= status < 500 else StoreError


def _sentence(status: int, members: Mapping[str, Any]) -> str:
    for name in ("detail", "title"):
        if isinstance(members.get(name), str):
            return str(members[name])
    return f"the answer has status {status}"


def _seconds(text: str | None) -> float | None:
    # The form with a date is for caches; none of our services sends it.
    return float(text) if text and text.isascii() and text.isdigit() else None


def _faults(value: object) -> Sequence[Fault]:
    if not isinstance(value, list):
        return ()
    return [
        Fault(
            code=str(item.get("code", "")),
            detail=str(item.get("detail", "")),
            pointer=item.get("pointer"),
            parameter=item.get("parameter"),
            header=item.get("header"),
        )
        for item in value
        if isinstance(item, dict)
    ]
