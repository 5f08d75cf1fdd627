"""Objects of an S3 store, read by a worker with credentials of its own.

The credentials come from where every program finds them: the environment, a profile, the role of
the machine. Nothing of them passes through Spark. A worker process keeps one client, since making
one takes longer than a read.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import botocore.session
import urllib3
from botocore.config import Config
from botocore.credentials import CredentialResolver
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    MetadataRetrievalError,
    SSLError,
)

from bottomless.drives.base import DriveRefused, DriveUnavailable, ObjectMissing
from bottomless.drives.s3_answers import LOST, code_of, of_answer, status_of
from bottomless.spark.plan import Stored
from bottomless.spark.store import (
    CONNECT_SECONDS,
    CONNECTION_COUNT_MAX,
    READ_SECONDS,
    Counts,
    StorePlace,
    check_ca,
    check_range,
    patiently,
)

REGION_DEFAULT: Final = "us-east-1"
"""A signature needs a region: a store of one's own accepts any, and AWS says where the bucket
is."""
_WAY_OUT: Final = "mode=presigned and mode=reader need no credentials in the workers"


class S3Objects:
    """The objects of one S3 store."""

    def __init__(self, place: StorePlace, counts: Counts) -> None:
        self.place = place
        self._counts = counts
        self._bucket, _, prefix = place.root.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""

    def read(self, fragment: Stored, start: int, size: int) -> bytes:
        """Read `size` bytes of a fragment's object from byte `start`.

        Fewer where it ends before.

        Raises:
            ObjectMissing: there is no such object (any more).
            DriveUnavailable: the store did not give them, however often it was asked.
            DriveRefused: the store does not give them to this worker.
        """
        assert fragment.object_key is not None
        object_key = self._prefix + fragment.object_key
        data = patiently(lambda: self._get(object_key, start, size))
        self._counts.add_object_read(len(data))
        return data

    def _get(self, object_key: str, start: int, size: int) -> bytes:
        wanted = f"bytes={start}-{start + size - 1}"
        with _translated():
            try:
                reply = client_of(self.place).get_object(
                    Bucket=self._bucket, Key=object_key, Range=wanted
                )
            except ClientError as error:
                if status_of(error) == 416:
                    return b""
                raise
            with closing(reply["Body"]) as body:
                check_range(reply.get("ContentRange"), start, reply["ContentLength"], size)
                data: bytes = body.read()
                return data


@lru_cache(maxsize=4)
def client_of(place: StorePlace) -> Any:
    """Make the client of a store; one is made in each worker, and is used again by later tasks."""
    check_ca(place.ca)
    session: Any = botocore.session.Session()  # type: ignore[no-untyped-call]
    if place.credentials is not None:
        _use_file(session, place.credentials)
    region = place.region or session.get_config_variable("region")
    config: Any = Config(  # type: ignore[no-untyped-call]
        signature_version="s3v4",
        # Attempts are counted in one place, which also sees a reply that breaks off.
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=CONNECTION_COUNT_MAX,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if place.path_style else "virtual"},
    )
    return session.create_client(
        "s3",
        region_name=region or REGION_DEFAULT,
        endpoint_url=place.endpoint,
        verify=place.ca,
        config=config,
    )


def _use_file(session: Any, credentials: str) -> None:
    """Take credentials from this file alone, whatever else the worker's environment offers."""
    if not Path(credentials).is_file():
        raise DriveRefused("the option credentials names no file on the machine of this worker")
    session.set_config_variable("credentials_file", credentials)
    found = session.get_component("credential_provider").get_provider("shared-credentials-file")
    alone: Any = CredentialResolver([found])  # type: ignore[no-untyped-call]
    session.register_component("credential_provider", alone)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise what the library raises as an error of the port."""
    try:
        yield
    except ClientError as error:
        failure = of_answer(code_of(error), status_of(error), puts=False)
        if isinstance(failure, ObjectMissing):
            raise ObjectMissing("an object is not there (any more)") from error
        if isinstance(failure, DriveRefused):
            _forget_client()
            message = f"the object store refuses this worker; {_WAY_OUT}"
            raise DriveRefused(message, facts=failure.facts) from error
        raise failure from error
    except SSLError as error:
        raise DriveUnavailable(
            "no secure connection to the object store; the option s3.ca names certificates to trust"
        ) from error
    except (*LOST, urllib3.exceptions.HTTPError, OSError) as error:
        raise DriveUnavailable("the object store does not answer this worker") from error
    except (CredentialRetrievalError, MetadataRetrievalError) as error:
        raise DriveUnavailable("the credentials of this worker cannot be fetched now") from error
    except BotoCoreError as error:
        # No credentials, half a profile, no such file of certificates: nothing was sent.
        _forget_client()
        raise DriveRefused(
            f"this worker cannot ask the object store as it is set up; {_WAY_OUT}",
            facts={"reason": type(error).__name__},
        ) from error


def _forget_client() -> None:
    # A client keeps the credentials that it found when it was made, or that there were none.
    client_of.cache_clear()
