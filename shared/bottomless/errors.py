"""Errors, by what the caller can do about them.

    StoreError
    ├── InvalidRequest   change the request
    ├── Denied           present another credential
    ├── NotFound         create it first, or ask for another
    ├── Exists           use what is there, or another name
    ├── WrongOffset      read the tail again, then decide
    ├── OffsetGone       start at `first_offset`, which the answer gives
    ├── Fenced           ask the owner; this process does not own the stream (any more)
    ├── Overloaded       wait `retry_after_seconds`, then the same again
    ├── Unavailable      a part that we need does not answer; retry with backoff
    └── Corrupt          nobody retries; an operator looks at the named object
        └── NotServed    a later release wrote it, and can read it

Anything else that escapes is a bug. Every error carries a code of the registry
below, whether a retry can help, whether a write may have happened, and named
facts; status codes are chosen in one place, `bottomless_server/runtime/http/problems.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Code(StrEnum):
    """Every problem code that an answer can carry; `openapi/components/errors.yaml` lists the same."""

    MALFORMED_JSON = "malformed-json"
    UNKNOWN_PARAMETER = "unknown-parameter"
    DUPLICATE_PARAMETER = "duplicate-parameter"
    BAD_PARAMETER = "bad-parameter"
    BAD_OFFSET_SPEC = "bad-offset-spec"
    BAD_HEADER = "bad-header"
    BAD_NAME = "bad-name"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    HOST_NOT_ALLOWED = "host-not-allowed"
    ORIGIN_NOT_ALLOWED = "origin-not-allowed"
    NOT_FOUND = "not-found"
    STREAM_NOT_FOUND = "stream-not-found"
    QUEUE_NOT_FOUND = "queue-not-found"
    CONSUMER_NOT_FOUND = "consumer-not-found"
    OPERATION_NOT_FOUND = "operation-not-found"
    LEASE_NOT_FOUND = "lease-not-found"
    FRAGMENT_NOT_FOUND = "fragment-not-found"
    PRODUCER_NOT_FOUND = "producer-not-found"
    STAGED_NOT_FOUND = "staged-not-found"
    OFFSET_NOT_FOUND = "offset-not-found"
    KEY_NOT_FOUND = "key-not-found"
    GROUP_NOT_FOUND = "group-not-found"
    MEMBER_EXPIRED = "member-expired"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    NOT_ACCEPTABLE = "not-acceptable"
    REQUEST_TIMEOUT = "request-timeout"
    UNSUPPORTED_MEDIA_TYPE = "unsupported-media-type"
    URI_TOO_LONG = "uri-too-long"
    HEADERS_TOO_LARGE = "headers-too-large"
    STREAM_EXISTS = "stream-exists"
    STREAM_REPLACED = "stream-replaced"
    PRODUCER_FENCED = "producer-fenced"
    PRODUCER_SEQUENCE_GAP = "producer-sequence-gap"
    PRODUCER_SEQUENCE_OVERLAP = "producer-sequence-overlap"
    PRODUCER_UNKNOWN = "producer-unknown"
    PRODUCER_MODE_CONFLICT = "producer-mode-conflict"
    STREAM_FENCED = "stream-fenced"
    IDEMPOTENCY_IN_FLIGHT = "idempotency-in-flight"
    OFFSET_REGRESSION = "offset-regression"
    CONSUMER_FENCED = "consumer-fenced"
    NOT_ACTIVE = "not-active"
    GROUP_MISMATCH = "group-mismatch"
    GROUP_NOT_EMPTY = "group-not-empty"
    QUEUE_EXISTS = "queue-exists"
    QUEUE_IN_USE = "queue-in-use"
    DRIVE_IN_USE = "drive-in-use"
    QUEUE_NOT_EMPTY = "queue-not-empty"
    PARTITION_OF_SUPER_STREAM = "partition-of-super-stream"
    HOME_LIVE = "home-live"
    IN_SYNC_LIVE = "in-sync-live"
    NOT_IN_SYNC = "not-in-sync"
    COORDINATION_INTACT = "coordination-intact"
    KEY_NOT_ACTIVE = "key-not-active"
    OFFSET_TRIMMED = "offset-trimmed"
    RANGE_CONDEMNED = "range-condemned"
    OFFSET_MISMATCH = "offset-mismatch"
    ETAG_MISMATCH = "etag-mismatch"
    OFFSET_OUT_OF_RANGE = "offset-out-of-range"
    RANGE_NOT_SATISFIABLE = "range-not-satisfiable"
    BODY_TOO_LARGE = "body-too-large"
    RECORD_TOO_LARGE = "record-too-large"
    BATCH_TOO_LARGE = "batch-too-large"
    DECOMPRESSED_TOO_LARGE = "decompressed-too-large"
    VALIDATION_FAILED = "validation-failed"
    NUMBER_OUT_OF_RANGE = "number-out-of-range"
    CRC_MISMATCH = "crc-mismatch"
    IDEMPOTENCY_MISMATCH = "idempotency-mismatch"
    OFFSET_BEYOND_END = "offset-beyond-end"
    NO_ROUTE = "no-route"
    DRIVE_UNKNOWN = "drive-unknown"
    PRECONDITION_REQUIRED = "precondition-required"
    MOVED = "moved"
    FENCED = "fenced"
    NOT_OWNER = "not-owner"
    OVERLOADED = "overloaded"
    QUEUE_FULL = "queue-full"
    DISK_BOUND = "disk-bound"
    TAIL_BOUND = "tail-bound"
    QUOTA_EXCEEDED = "quota-exceeded"
    RATE_LIMITED = "rate-limited"
    DRAINING = "draining"
    SUPER_STREAM_GROWING = "super-stream-growing"
    INTERNAL = "internal"
    OBJECT_STORE_UNAVAILABLE = "object-store-unavailable"
    COORDINATION_UNAVAILABLE = "coordination-unavailable"
    COORDINATION_REGRESSED = "coordination-regressed"
    PEER_UNAVAILABLE = "peer-unavailable"
    CLOCK_SKEW = "clock-skew"
    STORAGE_FULL = "storage-full"
    STORAGE_FAILED = "storage-failed"
    NOT_ENOUGH_REPLICAS = "not-enough-replicas"
    COMMIT_TIMEOUT = "commit-timeout"
    DATA_CORRUPT = "data-corrupt"
    DATA_MISSING = "data-missing"
    LOCAL_LOG_LOST = "local-log-lost"


class Outcome(StrEnum):
    """Whether the write that failed may be stored all the same."""

    NONE = "none"
    """Nothing was stored."""
    COMMITTED = "committed"
    """It is stored, although the request failed."""
    UNKNOWN = "unknown"
    """Nobody can tell yet: it may be stored or not."""


_TOLD_FAULT_COUNT: Final = 5
"""So many faults stand in the text of an error; all of them are in its `faults`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a request: where it is and what is wrong there, never what was sent."""

    code: str
    detail: str
    pointer: str | None = None
    """JSON pointer into the body."""
    parameter: str | None = None
    header: str | None = None

    @property
    def place(self) -> str:
        """Where the fault is, as a short name: a pointer, a parameter, a header, or `request`."""
        return self.pointer or self.parameter or self.header or "request"


class StoreError(Exception):
    """The root of all errors that callers are meant to handle.

    `message` is a lowercase sentence without input; `facts` are public members of the answer
    (offsets, limits, ids), never object keys, paths or secrets; `faults` name each part of a
    request that is wrong, and why. `retryable` says whether a retry can help, `outcome` whether the
    write may be stored, and `retry_after_seconds` how long to wait. `str()` gives message, facts
    and faults.
    """

    default_code = Code.INTERNAL
    default_retryable = False
    default_outcome: Outcome | None = Outcome.NONE

    def __init__(
        self,
        message: str,
        *,
        code: Code | None = None,
        retryable: bool | None = None,
        outcome: Outcome | None = None,
        retry_after_seconds: float | None = None,
        faults: Sequence[Fault] = (),
        facts: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.retryable = self.default_retryable if retryable is None else retryable
        self.outcome = outcome or self.default_outcome
        self.retry_after_seconds = retry_after_seconds
        self.faults = tuple(faults)
        self.facts = dict(facts or {})

    def __str__(self) -> str:
        told = self.reasons()
        more = len(told) - _TOLD_FAULT_COUNT
        if more > 0:
            told[_TOLD_FAULT_COUNT:] = [f"and {more} more in its faults"]
        return "; ".join([self.summary, *told])

    def reasons(self) -> list[str]:
        """List the faults with their places, without a fault that the message tells already."""
        details = [fault.detail for fault in self.faults]
        return [
            f"{fault.place}: {fault.detail}"
            for number, fault in enumerate(self.faults)
            if fault.detail
            and (fault.detail not in self.message or fault.detail in details[:number])
        ]

    @property
    def summary(self) -> str:
        """The message with its facts as `name=value`, without the single faults."""
        named = " ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.message}: {named}" if named else self.message


class InvalidRequest(StoreError):
    """The request itself is wrong: sending it again fails again."""

    default_code = Code.BAD_PARAMETER


class Denied(StoreError):
    """The credential is missing, is not valid, or does not allow this."""

    default_code = Code.FORBIDDEN


class NotFound(StoreError):
    """What the request names does not exist."""

    default_code = Code.STREAM_NOT_FOUND


class Exists(StoreError):
    """What the request would create exists already, and differs from it."""

    default_code = Code.STREAM_EXISTS


class WrongOffset(StoreError):
    """The request was made for another state of the stream."""

    default_code = Code.OFFSET_MISMATCH


class OffsetGone(StoreError):
    """The offset lies outside what the stream holds; the facts give the stream's bounds."""

    default_code = Code.OFFSET_TRIMMED


class Fenced(StoreError):
    """Somebody with a newer claim is the owner now: stop, and ask them."""

    default_code = Code.FENCED
    default_retryable = True


class Overloaded(StoreError):
    """A bound is reached. Nothing was stored; the same request may succeed later."""

    default_code = Code.OVERLOADED
    default_retryable = True


class Unavailable(StoreError):
    """A part that is needed does not answer, or must not be used at present."""

    default_code = Code.PEER_UNAVAILABLE
    default_retryable = True


class Corrupt(StoreError):
    """Bytes are not what their checksum or their format says."""

    default_code = Code.DATA_CORRUPT


class NotServed(Corrupt):
    """Bytes are of a later version, or have a feature that this release does not serve.

    Who reads them alone may take them for damaged. Who would give something up for that leaves
    them to a release that can read them.
    """
