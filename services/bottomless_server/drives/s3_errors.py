"""What the drive's library raises about S3, as what a caller can do about it.

The one question that matters for a put: can the store have done it? Answers are judged
by `s3_answers.py`; a lost reply is an unknown outcome.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    MetadataRetrievalError,
    ProxyConnectionError,
    SSLError,
)

from bottomless.drives.base import DriveAmbiguous, DriveRefused, DriveUnavailable
from bottomless.drives.s3_answers import LOST, code_of, of_answer, status_of
from bottomless.errors import Outcome, StoreError

_NEVER_SENT: Final = (ConnectTimeoutError, ProxyConnectionError)


@contextmanager
def translated(*, puts: bool = False) -> Iterator[None]:
    """Raise what the library raises as an error of the port; `puts` where it may make an object."""
    try:
        yield
    except ClientError as error:
        raise of_answer(code_of(error), status_of(error), puts=puts) from error
    except (*LOST, aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _of_connection(error, puts=puts) from error
    except (CredentialRetrievalError, MetadataRetrievalError) as error:
        raise DriveUnavailable("the credentials of the store cannot be fetched now") from error
    except BotoCoreError as error:
        # No credentials, half a profile, a name that is no bucket: nothing was sent.
        raise DriveRefused(
            "the object store cannot be asked as it is set up",
            facts={"reason": type(error).__name__},
        ) from error


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
