"""The protocol of a drive: where objects live, and what a caller may rely on.

Objects are immutable: they are put once, if absent, and deleted once. A put that
returned is durable. Nothing here retries: one call is one attempt, so that the
caller can tell a failure from an unknown outcome (`stores/put_retries.py` has the loop).

Object keys are relative to the drive's prefix, ASCII, with `/` as separator.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from bottomless.errors import Code, NotFound, Outcome, StoreError, Unavailable
from bottomless.model.object_facts import ObjectFacts


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


@dataclass(frozen=True, slots=True)
class Location:
    """How another process opens this drive. It holds no secrets."""

    kind: str
    """`file` or `s3`."""
    root: str
    """Directory, or `bucket/prefix`."""
    endpoint: str | None = None
    region: str | None = None
    """The region, where one is set; otherwise each process uses its own."""
    path_style: bool | None = None
    """Whether the bucket stands in the path of a URL; None for a drive without buckets."""


class Source(Protocol):
    """Bytes that are not in memory. A drive reads them as it needs them, anew in each attempt."""

    @property
    def size(self) -> int: ...

    async def read_into(self, position: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from `position` on; so many are there.

        A buffer of which the reading failed, or was given up, may still be written to: nobody uses
        it for something else.

        Raises:
            StoreError: the bytes cannot be had. A put passes it on, and has stored nothing.
        """
        ...


Body: TypeAlias = Sequence[bytes | memoryview] | Source
"""The bytes of an object: parts that are joined, or a source of them."""


class Drive(Protocol):
    """One store under one prefix. Calls may run at the same time."""

    @property
    def location(self) -> Location:
        """Where the objects are, so that another process can open the same drive; no secrets."""

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        """Store an object, if the key is absent.

        `crc` is the CRC-32C of all bytes; the store checks it. When this returns, the object is
        durable and visible; after a crash it is there whole or not at all. Of a source only some
        MiB are in memory at any time.

        Raises:
            ObjectExists: the key is taken; nothing was changed.
            DriveUnavailable: the store did not do it, for now.
            DriveRefused: the store refuses for good.
            DriveFull: there is no room; nothing was stored.
            DriveAmbiguous: the reply was lost, and the object may have been put.
            Corrupt: the bytes that arrived do not match `crc`; nothing was stored.
            StoreError: whatever a source raised; nothing was stored.
        """
        ...

    async def get(
        self, object_key: str, start: int = 0, size: int | None = None
    ) -> bytes | memoryview:
        """Read `size` bytes from byte `start`, or all from there; fewer where the object ends
        before. A view is of memory that holds nothing else, and nobody writes to it.

        Raises:
            ObjectMissing: no object has this key.
            DriveUnavailable: the store did not do it, for now.
            DriveRefused: the store refuses for good.
        """
        ...

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        """Ask for the facts of one object.

        `checksum` asks for its CRC-32C too. Some stores must read the whole object for it.

        Raises:
            ObjectMissing: no object has this key.
            DriveUnavailable: the store did not do it, for now.
            DriveRefused: the store refuses for good.
        """
        ...

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        """List every object whose key starts with `prefix` and sorts after `after`, in key order.

        This is for recovery and for garbage collection only: no record waits for it.

        Raises:
            DriveUnavailable: the store did not do it, for now.
            DriveRefused: the store refuses for good.
        """
        ...

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        """Delete objects; an absent one counts as deleted. Returns the failures by key.

        When this returns, every key that is not among the failures is durably gone.
        """
        ...

    async def tidy(self, prefix: str) -> None:
        """Remove what the store itself keeps below a prefix that ends in a slash: empty
        directories.

        Call it for a prefix that has no objects left and gets none on purpose. An object that is
        there all the same stays, and a later put below the prefix succeeds.

        Raises:
            DriveUnavailable: the store did not do it, for now.
            DriveRefused: the store refuses for good.
        """
        ...

    @property
    def has_own_clock(self) -> bool:
        """Whether `clock` says more than this machine's own clock does."""
        ...

    async def clock(self) -> int:
        """Ask for the store's own time in ms since 1970, exact to some seconds: for comparing
        clocks.

        Raises:
            DriveUnavailable: the store did not do it, for now.
            DriveRefused: the store refuses for good.
        """
        ...

    async def aclose(self) -> None:
        """Release threads and connections. No other call may follow."""


@runtime_checkable
class Presigning(Protocol):
    """A drive whose store also accepts URLs that carry a permission in themselves."""

    async def presigned_get(self, object_key: str, *, valid_seconds: int) -> str:
        """Make a URL with which anybody may read one object for a while, without credentials.

        The store is not asked, so the URL says nothing about whether the object is there.

        Raises:
            DriveRefused: there are no credentials to sign it with.
            DriveUnavailable: the credentials could not be fetched, for now.
        """
        ...
