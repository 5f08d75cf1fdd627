"""The bytes of a put, and whether they are those that the caller has a checksum of."""

from collections.abc import Sequence

from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless.guards import guard


def views_of(parts: Sequence[bytes | memoryview]) -> list[memoryview]:
    """Views of the bytes of all parts; nothing is copied."""
    return [memoryview(part).cast("B") for part in parts]


def checked_parts(parts: Sequence[bytes | memoryview], crc: int) -> list[memoryview]:
    """Views of the bytes of all parts; nothing is copied.

    Raises:
        Corrupt: their CRC-32C is not `crc`.
    """
    views = views_of(parts)
    found = 0
    for view in views:
        found = crc32c(view, found)
    require_sum(found, crc)
    return views


@guard("the checksum of a put, before the object is there")
def require_sum(found: int, crc: int) -> None:
    """Refuse bytes that are not those of which the caller has the checksum.

    Raises:
        Corrupt
    """
    if found != crc:
        raise Corrupt("the bytes to be put do not match their checksum")
