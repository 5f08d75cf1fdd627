"""Where an S3 store is, and for how long it is waited for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024
READ_AT_ONCE: Final = frozenset(
    {
        "STANDARD",
        "STANDARD_IA",
        "ONEZONE_IA",
        "INTELLIGENT_TIERING",
        "GLACIER_IR",
        "REDUCED_REDUNDANCY",
    }
)
"""Storage classes whose objects answer a read at once. Of all others they have to be restored first, or
they are not known here."""
BYTES_PER_SECOND_MIN: Final = MIB
"""Slower than this over a whole call counts as stalled."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """Where a store is and how long it is waited for. Credentials come from the usual chain."""

    bucket: str
    prefix: str = ""
    """The prefix of all keys, without slashes at its ends."""
    endpoint: str | None = None
    """The address of a store that is not AWS: `http://host:port`."""
    region: str | None = None
    path_style: bool | None = None
    """The bucket in the path and not in the host's name. Default: where there is an endpoint."""
    ca_path: Path | None = None
    """Certificates to trust instead of the system's."""
    storage_class: str | None = None
    """The storage class of what is put, as S3 names it; None leaves it to the store."""
    connection_count_max: int = 64
    """Calls at the same time; more wait, within their own time."""
    connect_seconds: float = 5.0
    read_seconds: float = 30.0
    """Silence for so long is a lost reply."""
    call_seconds: float = 60.0
    """How long one attempt may take, on top of the time that its bytes take at 1 MiB/s."""
    multipart_bytes: int = 128 * MIB
    """Objects larger than this are put in parts: only such as no retry should send whole again."""
    part_bytes: int = 16 * MIB
    """At least 5 MiB: what S3 allows."""
    part_count_max: int = 4
    """Parts of all objects that are read or under way; each is memory."""
    gets_in_place: bool = True
    """Whether GETs are signed and received by ourselves where they can be; if not, by the library."""

    list_count: int = 1000
    """Keys in one page of a listing: what S3 allows."""
    listed_by_key: bool | None = None
    """Whether the store lists in the order of keys. Default: only AWS is trusted to."""

    @property
    def in_path(self) -> bool:
        """Whether the bucket stands in the path of a URL."""
        return self.endpoint is not None if self.path_style is None else self.path_style

    @property
    def of_class(self) -> dict[str, str]:
        """What a put says of the storage class of its object; nothing where that is left to the store."""
        return {} if self.storage_class is None else {"StorageClass": self.storage_class}

    def seconds_for(self, size: int) -> float:
        """How long one attempt that moves `size` bytes may take."""
        return self.call_seconds + size / BYTES_PER_SECOND_MIN
