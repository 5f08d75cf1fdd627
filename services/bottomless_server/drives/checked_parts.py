"""The bytes of a put, and whether they are those that the caller has a checksum of."""

from collections.abc import Sequence

from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c


def checked_parts(parts: Sequence[bytes | memoryview], crc: int) -> list[memoryview]:
    """Views of the bytes of all parts; nothing is copied.

    Raises:
        Corrupt: their CRC-32C is not `crc`.
    """
    views = [memoryview(part).cast("B") for part in parts]
    found = 0
    for view in views:
        found = crc32c(view, found)
    if found != crc:
        raise Corrupt("the bytes to be put do not match their checksum")
    return views
