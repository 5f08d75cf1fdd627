"""What the broker contract calls each problem: one table over the whole registry of codes. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from bottomless.errors import Code


class ErrorType(StrEnum):
    """Why nothing was done for a partition, by what its client does next."""

    BACK_PRESSURE = "BackPressureRejected"
    """A bound is reached: wait, and send the same again."""
    LOG_FENCED = "LogFenced"
    """The stream takes no appends until somebody lifts that."""
    UNKNOWN_PARTITION = "UnknownPartition"
    """No stream has this name, or none can have it."""
    PRODUCER_REJECTED = "ProducerRejected"
    """The producer's numbers, or its epoch, do not fit what the stream knows of it."""
    OFFSET_MISMATCH = "OffsetMismatch"
    """The stream does not end where it was expected to."""
    OFFSET_OUT_OF_RANGE = "OffsetOutOfRange"
    """The offset lies outside what the stream holds; both bounds stand beside it."""
    INVALID_BATCH = "InvalidBatch"
    """The records themselves are refused."""
    DENIED = "Denied"
    """The credential does not allow this on a stream that it may see."""
    UNAVAILABLE = "Unavailable"
    """Something that is needed does not answer or is damaged; `retryable` says whether to wait."""


CODES: Final[Mapping[ErrorType, tuple[Code, ...]]] = {
    ErrorType.BACK_PRESSURE: (
        Code.OVERLOADED,
        Code.TAIL_BOUND,
        Code.DISK_BOUND,
        Code.RATE_LIMITED,
    ),
    ErrorType.LOG_FENCED: (Code.STREAM_FENCED,),
    ErrorType.UNKNOWN_PARTITION: (Code.STREAM_NOT_FOUND, Code.NOT_FOUND, Code.BAD_NAME),
    ErrorType.PRODUCER_REJECTED: (
        Code.PRODUCER_FENCED,
        Code.PRODUCER_SEQUENCE_GAP,
        Code.PRODUCER_SEQUENCE_OVERLAP,
        Code.PRODUCER_UNKNOWN,
        Code.PRODUCER_MODE_CONFLICT,
        Code.PRODUCER_NOT_FOUND,
        Code.IDEMPOTENCY_IN_FLIGHT,
        Code.IDEMPOTENCY_MISMATCH,
    ),
    ErrorType.OFFSET_MISMATCH: (Code.OFFSET_MISMATCH,),
    ErrorType.OFFSET_OUT_OF_RANGE: (
        Code.OFFSET_TRIMMED,
        Code.OFFSET_OUT_OF_RANGE,
        Code.OFFSET_BEYOND_END,
        Code.RANGE_CONDEMNED,
    ),
    ErrorType.INVALID_BATCH: (
        Code.MALFORMED_JSON,
        Code.UNKNOWN_PARAMETER,
        Code.DUPLICATE_PARAMETER,
        Code.BAD_PARAMETER,
        Code.BAD_OFFSET_SPEC,
        Code.BAD_HEADER,
        Code.BODY_TOO_LARGE,
        Code.RECORD_TOO_LARGE,
        Code.BATCH_TOO_LARGE,
        Code.DECOMPRESSED_TOO_LARGE,
        Code.VALIDATION_FAILED,
        Code.NUMBER_OUT_OF_RANGE,
        Code.CRC_MISMATCH,
        Code.NO_ROUTE,
        Code.DRIVE_UNKNOWN,
        Code.UNSUPPORTED_MEDIA_TYPE,
        Code.NOT_ACCEPTABLE,
        Code.METHOD_NOT_ALLOWED,
        Code.URI_TOO_LONG,
        Code.HEADERS_TOO_LARGE,
    ),
    ErrorType.DENIED: (
        Code.UNAUTHENTICATED,
        Code.FORBIDDEN,
        Code.HOST_NOT_ALLOWED,
        Code.ORIGIN_NOT_ALLOWED,
    ),
    ErrorType.UNAVAILABLE: (
        Code.QUEUE_NOT_FOUND,
        Code.CONSUMER_NOT_FOUND,
        Code.OPERATION_NOT_FOUND,
        Code.LEASE_NOT_FOUND,
        Code.FRAGMENT_NOT_FOUND,
        Code.STAGED_NOT_FOUND,
        Code.OFFSET_NOT_FOUND,
        Code.KEY_NOT_FOUND,
        Code.GROUP_NOT_FOUND,
        Code.MEMBER_EXPIRED,
        Code.REQUEST_TIMEOUT,
        Code.STREAM_EXISTS,
        Code.STREAM_REPLACED,
        Code.OFFSET_REGRESSION,
        Code.CONSUMER_FENCED,
        Code.NOT_ACTIVE,
        Code.GROUP_MISMATCH,
        Code.GROUP_NOT_EMPTY,
        Code.QUEUE_EXISTS,
        Code.QUEUE_IN_USE,
        Code.DRIVE_IN_USE,
        Code.QUEUE_NOT_EMPTY,
        Code.PARTITION_OF_SUPER_STREAM,
        Code.HOME_LIVE,
        Code.IN_SYNC_LIVE,
        Code.NOT_IN_SYNC,
        Code.COORDINATION_INTACT,
        Code.KEY_NOT_ACTIVE,
        Code.ETAG_MISMATCH,
        Code.RANGE_NOT_SATISFIABLE,
        Code.PRECONDITION_REQUIRED,
        Code.MOVED,
        Code.FENCED,
        Code.NOT_OWNER,
        Code.QUEUE_FULL,
        Code.QUOTA_EXCEEDED,
        Code.DRAINING,
        Code.SUPER_STREAM_GROWING,
        Code.INTERNAL,
        Code.OBJECT_STORE_UNAVAILABLE,
        Code.COORDINATION_UNAVAILABLE,
        Code.COORDINATION_REGRESSED,
        Code.PEER_UNAVAILABLE,
        Code.CLOCK_SKEW,
        Code.STORAGE_FULL,
        Code.STORAGE_FAILED,
        Code.NOT_ENOUGH_REPLICAS,
        Code.COMMIT_TIMEOUT,
        Code.DATA_CORRUPT,
        Code.DATA_MISSING,
        Code.LOCAL_LOG_LOST,
    ),
}

TYPE_OF: Final[Mapping[Code, ErrorType]] = {
    code: error_type for error_type, codes in CODES.items() for code in codes
}
"""The type of each code of the registry."""
