"""Objects as a Spark worker reads them: synchronously, in ranges, counted.

The drives are asynchronous and made for services; a worker has no event loop and reads some ranges
at a time, from threads. Here is what all such readers have in common, and the one for a directory;
`s3_objects.py` has that for S3, `url_objects.py` that for presigned URLs.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, Protocol

from bottomless.drives.base import DriveRefused, DriveUnavailable, ObjectMissing
from bottomless.errors import StoreError
from bottomless.model.backoff import backoff
from bottomless.spark.plan import Stored

ATTEMPT_COUNT_MAX: Final = 4
"""Attempts of one ranged read: with the waits between them a second or two, enough for a moment
of throttling. Spark is more patient: it runs the task again."""
CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 30
"""Silence for this long counts as a lost reply."""
READ_SECONDS_MAX: Final = 120
"""Bounds all attempts of one ranged read: no new one is begun after it."""
_WAIT_SECONDS: Final = 0.2
"""After the first attempt; twice as long after each further one."""
_JITTER_SECONDS: Final = 0.3
CONNECTION_COUNT_MAX: Final = 16
"""As many ranges as can be under way at once in a worker process."""


class StorePlace(NamedTuple):
    """Where a store is, as the fragment list names it and the job's options change it."""

    kind: str
    root: str
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    ca: str | None = None
    """File of certificates to trust, on the machine of the worker."""
    credentials: str | None = None
    """File of credentials, on the machine of the worker; None for those of its environment."""


@dataclass(slots=True)
class Counts:
    """What one task read, and from where."""

    object_reads: int = 0
    """Ranged reads of objects, made by this task itself."""
    object_bytes: int = 0
    presigned_reads: int = 0
    """Reads that were made with a presigned URL."""
    url_requests: int = 0
    """Requests to the reader for such URLs."""
    page_reads: int = 0
    """Requests to the reader for records."""
    page_bytes: int = 0
    record_count: int = 0
    batch_count: int = 0
    lost_offsets: int = 0
    """Offsets that were skipped, since they were trimmed before they were read."""
    corrupt_offsets: int = 0
    """Offsets that were skipped, since the chunk that holds them is damaged."""
    left_out_fragments: int = 0
    """Fragments that no task reads, since filters say that they hold nothing of what is asked for."""
    left_out_bytes: int = 0
    """Bytes of these fragments, and of chunks that tasks left unread for the same reason."""

    def add_object_read(self, size: int, *, presigned: bool = False) -> None:
        """Count one ranged read of `size` bytes; from any thread."""
        # Ranges are read by several threads, and `+=` is not one step.
        with _counting:
            self.object_reads += 1
            self.presigned_reads += presigned
            self.object_bytes += size


_counting: Final = threading.Lock()


class Objects(Protocol):
    """Ranged reads of one store."""

    def read(self, fragment: Stored, start: int, size: int) -> bytes:
        """Read `size` bytes of a fragment's object from byte `start`.

        Fewer where it ends before.

        Raises:
            ObjectMissing: there is no such object (any more).
            DriveUnavailable: the store did not give them, however often it was asked.
            DriveRefused: the store does not give them to this worker.
        """
        ...


def patiently(read: Callable[[], bytes]) -> bytes:
    """Repeat a read, after growing waits, while the store fails or asks to come back later.

    Raises:
        StoreError: that of the last attempt.
    """
    # By hand: executors have no library for it.
    end = time.monotonic() + READ_SECONDS_MAX
    for failures in range(ATTEMPT_COUNT_MAX - 1):
        try:
            return read()
        except StoreError as error:
            if not error.retryable or time.monotonic() >= end:
                raise
        # A store says nothing when it is well again. Apart from each other, so that all workers do
        # not come back at once.
        jitter = random.uniform(0, _JITTER_SECONDS)  # noqa: S311
        time.sleep(backoff(failures, _WAIT_SECONDS, READ_SECONDS_MAX, jitter))
    return read()


def check_ca(ca: str | None) -> None:
    """Check that a file of certificates is there; without one there is nothing to check.

    The libraries only say that they cannot connect.

    Raises:
        DriveRefused: it is not.
    """
    if ca is not None and not Path(ca).is_file():
        raise DriveRefused("the option s3.ca names no file on the machine of this worker")


def check_range(content_range: str | None, start: int, length: int, size: int) -> None:
    """Check what the store is about to send, before gigabytes of it are in memory.

    Raises:
        DriveRefused: it is not the range that was asked for.
    """
    if content_range is None or not content_range.startswith(f"bytes {start}-") or length > size:
        raise DriveRefused("the object store sends other ranges than it is asked for")


class LocalObjects:
    """Objects that are files below a directory."""

    def __init__(self, root: Path, counts: Counts) -> None:
        self._root = root
        self._counts = counts

    def read(self, fragment: Stored, start: int, size: int) -> bytes:
        """Read `size` bytes of a fragment's file from byte `start`; fewer where it ends before.

        Raises:
            ObjectMissing: there is no such file (any more).
            DriveUnavailable: the file cannot be read.
        """
        assert fragment.object_key is not None
        assert ".." not in PurePosixPath(fragment.object_key).parts
        try:
            descriptor = os.open(self._root / fragment.object_key, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ObjectMissing("an object is not there (any more)") from error
        except OSError as error:
            raise _unavailable() from error
        try:
            data = _read_all(descriptor, start, size)
        except OSError as error:
            raise _unavailable() from error
        finally:
            os.close(descriptor)
        self._counts.add_object_read(len(data))
        return data


def _read_all(descriptor: int, start: int, size: int) -> bytes:
    data = os.pread(descriptor, size, start)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


def _unavailable() -> DriveUnavailable:
    return DriveUnavailable("an object cannot be read")
