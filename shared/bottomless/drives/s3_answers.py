"""What an S3 store answers, translated into errors by what a caller can do about them.

The asynchronous drive and Spark's workers both use it, so nothing here knows how the answer came.
An answer that says "no" is believed by its code alone; every other server error to a put is an
unknown outcome, since the server that sent it may be a proxy for the one that stored the object.
"""

from typing import Final

from botocore.exceptions import (
    ClientError,
    ConnectionError,  # noqa: A004
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
)
from botocore.parsers import ResponseParserError

from bottomless.drives.base import (
    DriveAmbiguous,
    DriveFull,
    DriveRefused,
    DriveUnavailable,
    ObjectExists,
    ObjectMissing,
)
from bottomless.errors import Corrupt, StoreError

_MISSING: Final = frozenset({"NoSuchKey", "404"})
"""The number is all that a HEAD can say."""
_LATER: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "ConditionalRequestConflict",
        "IncompleteBody",
        "NoSuchUpload",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestTimeout",
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "TemporaryRedirect",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
"""The store did not do it, and says that it may the next time."""
_CORRUPT: Final = frozenset(
    {"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
)
_FULL: Final = frozenset({"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"})

LOST: Final = (
    ConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
    ResponseParserError,
)
"""Errors that the library raises when no answer came, or half of one. The first is its own
`ConnectionError`, which is neither an `HTTPClientError` nor an `OSError`.
"""


def of_answer(code: str, status: int, *, puts: bool) -> StoreError:
    """Make the error for an S3 error code, or for an HTTP status where there is no code.

    `puts` says that the request was a put: a condition may then have failed, and a server error
    leaves open whether the object was stored.
    """
    facts = {"store_code": code, "store_status": status}
    if puts and (code == "PreconditionFailed" or status == 412):
        # Nothing else has a condition that could fail.
        return ObjectExists("an object of this key exists")
    if code in _MISSING and not puts:
        return ObjectMissing("no object has this key")
    if code in _CORRUPT:
        return Corrupt("the bytes that reached the store do not match their checksum", facts=facts)
    if code in _FULL or status == 507:
        return DriveFull("there is no room in the object store", facts=facts)
    if code in _LATER or status in (408, 429):
        return DriveUnavailable("the object store asks to come back later", facts=facts)
    if status < 500:
        return DriveRefused("the object store refuses", facts=facts)
    if puts:
        return DriveAmbiguous("the object store failed, and may have stored it", facts=facts)
    return DriveUnavailable("the object store failed", facts=facts)


def code_of(error: ClientError) -> str:
    """Get the error code of S3 from botocore's error; empty where the answer had none."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    """Get the HTTP status of the answer from botocore's error; 0 where there is none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
