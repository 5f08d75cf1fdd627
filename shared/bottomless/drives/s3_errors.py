"""What an S3 store or its connection says, as what a caller can do about it.

The one question that matters for a put: can the store have done it? An answer that
says "no" is believed by its code alone; a lost reply and every other server error
are an unknown outcome, since whoever sent it may stand behind the one who stored.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    ProxyConnectionError,
    ResponseStreamingError,
    SSLError,
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
from bottomless.errors import Corrupt, Outcome, StoreError

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

_LOST: Final = (
    ConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
    ResponseParserError,
)
"""The first is the library's own: not under its `HTTPClientError`, and not an `OSError`."""
_NEVER_SENT: Final = (ConnectTimeoutError, ProxyConnectionError)


@contextmanager
def translated(*, puts: bool = False) -> Iterator[None]:
    """Raise what the library raises as an error of the port; `puts` where it may make an object."""
    try:
        yield
    except ClientError as error:
        raise of_answer(code_of(error), status_of(error), puts=puts) from error
    except (*_LOST, aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _of_connection(error, puts=puts) from error
    except (CredentialRetrievalError, MetadataRetrievalError) as error:
        raise DriveUnavailable("the credentials of the store cannot be fetched now") from error
    except BotoCoreError as error:
        # No credentials, half a profile, a name that is no bucket: nothing was sent.
        raise DriveRefused(
            "the object store cannot be asked as it is set up",
            facts={"reason": type(error).__name__},
        ) from error


def of_answer(code: str, status: int, *, puts: bool) -> StoreError:
    """The error for an S3 error code, or for a status where there is none."""
    facts = {"store_code": code, "store_status": status}
    if code == "PreconditionFailed" or status == 412:
        return ObjectExists("an object of this key exists")
    if code in _MISSING:
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
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def lost(*, puts: bool) -> StoreError:
    """No reply came, or only a part of one."""
    if puts:
        return DriveAmbiguous("the reply of the object store was lost")
    return DriveUnavailable("the reply of the object store was lost", outcome=Outcome.UNKNOWN)


def _of_connection(error: Exception, *, puts: bool) -> StoreError:
    cause = getattr(error, "kwargs", {}).get("error")
    if isinstance(error, SSLError):
        if isinstance(cause, aiohttp.ClientConnectorCertificateError):
            return DriveRefused("the certificate of the object store is not trusted")
        return DriveUnavailable("no secure connection to the object store")
    # The library has one error for a connection that was refused and one that broke.
    unconnected = isinstance(error, EndpointConnectionError) and isinstance(
        cause, aiohttp.ClientConnectorError
    )
    if unconnected or isinstance(error, _NEVER_SENT):
        return DriveUnavailable("the object store cannot be reached")
    return lost(puts=puts)
