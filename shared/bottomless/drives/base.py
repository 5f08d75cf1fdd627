"""The protocol of a drive: where objects live, and what a caller may rely on.

Objects are immutable: they are put once, if absent, and deleted once. A put that
returned is durable. Nothing here retries: one call is one attempt, so that the
caller can tell a failure from an unknown outcome (`stores/objects.py` has the loop).

Object keys are relative to the drive's prefix, ASCII, with `/` as separator.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from bottomless.errors import Code, NotFound, Outcome, StoreError, Unavailable


class ObjectMissing(NotFound):
    """No object has this key."""

    default_code = Code.DATA_MISSING


class ObjectExists(StoreError):
    """An object has this key already; nothing was changed."""


class DriveUnavailable(Unavailable):
    """The store did not do it, for now; nothing was changed. Retry with backoff."""

    default_code = Code.OBJECT_STORE_UNAVAILABLE


class DriveRefused(Unavailable):
    """The store refuses for good: credentials, permissions, a bucket that is not there."""

    default_code = Code.OBJECT_STORE_UNAVAILABLE
    default_retryable = False


class DriveFull(Unavailable):
    """There is no room; nothing was stored."""

    default_code = Code.STORAGE_FULL


class DriveAmbiguous(Unavailable):
    """The reply was lost: the object may or may not have been put."""

    default_code = Code.OBJECT_STORE_UNAVAILABLE
    default_outcome = Outcome.UNKNOWN


class ObjectFacts(NamedTuple):
    """What a store says of one object."""

    object_key: str
    size: int
    modified: int
    """The store's own time of the put, in ms since 1970."""
    crc: int | None
    """CRC-32C of the object, where it was asked for."""


@dataclass(frozen=True, slots=True)
class Location:
    """How another process opens this drive: no secrets."""

    kind: str
    """`file` or `s3`."""
    root: str
    """Directory, or `bucket/prefix`."""
    endpoint: str | None = None
    region: str | None = None
    """Where it is set; else each process has its own."""
    path_style: bool | None = None
    """Whether the bucket stands in the path of a URL; None for what has no buckets."""


class Drive(Protocol):
    """One store under one prefix. Calls may run at the same time."""

    @property
    def location(self) -> Location: ...

    async def put(self, object_key: str, parts: Sequence[bytes | memoryview], crc: int) -> None:
        """Store an object whose bytes are `parts` joined, if the key is absent.

        `crc` is the CRC-32C of all bytes; the store checks it. When this returns the
        object is durable and visible; after a crash it is there whole or not at all.

        Raises:
            ObjectExists, DriveUnavailable, DriveRefused, DriveFull, DriveAmbiguous, Corrupt
            (the bytes that arrived do not match `crc`; nothing is stored).
        """
        ...

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        """Bytes from `start`, `size` of them or all; fewer where the object ends before.

        Raises:
            ObjectMissing, DriveUnavailable, DriveRefused
        """
        ...

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        """Facts of one object; its checksum only where asked, since some stores must read for it.

        Raises:
            ObjectMissing, DriveUnavailable, DriveRefused
        """
        ...

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        """Every object whose key starts with `prefix` and sorts after `after`, in key order.

        For recovery and for garbage collection only: never on the way of a record.

        Raises:
            DriveUnavailable, DriveRefused
        """
        ...

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        """Delete objects; an absent one counts as deleted. Returns the failures by key.

        When this returns, every key that is not among the failures is durably gone.
        """
        ...

    async def tidy(self, prefix: str) -> None:
        """Take away what the store itself keeps below a prefix that ends in a slash: directories,
        where it has some. For one without objects, below which nobody puts any on purpose; what is
        there all the same stays, and what is put later is put.

        Raises:
            DriveUnavailable, DriveRefused
        """
        ...

    @property
    def has_own_clock(self) -> bool:
        """Whether `clock` says more than this machine's own clock does."""
        ...

    async def clock(self) -> int:
        """The store's own time in ms since 1970, some seconds exact: for comparing clocks.

        Raises:
            DriveUnavailable, DriveRefused
        """
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Presigning(Protocol):
    """A drive whose store also takes URLs that carry a permission in themselves."""

    async def presigned_get(self, object_key: str, *, valid_seconds: int) -> str:
        """A URL with which anybody may read one object for a while, without credentials.

        Made without asking the store, so it says nothing of whether the object is there.

        Raises:
            DriveRefused, DriveUnavailable: there are no credentials to sign it with.
        """
        ...
