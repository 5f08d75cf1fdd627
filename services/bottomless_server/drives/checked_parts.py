"""The bytes of a put, and whether they are those that the caller has a checksum of."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

import numpy as np

from bottomless.drives.base import Body, Source
from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless.guards import guard
from bottomless.model.limits import MIB

BLOCK_SIZE: Final = MIB
"""Bytes of a source that are read at once."""


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


def size_of(body: Body) -> int:
    """Bytes of an object that is to be put."""
    if isinstance(body, Sequence):
        return sum(memoryview(part).nbytes for part in body)
    return body.size


async def blocks_of(source: Source, size: int = BLOCK_SIZE) -> AsyncIterator[memoryview]:
    """The bytes of a source in order, in memory of their own: whoever gets a block may keep it."""
    for position in range(0, source.size, size):
        block = np.empty(min(size, source.size - position), dtype=np.uint8).data
        await source.read_into(position, block)
        yield block


async def parts_in_memory(body: Body) -> Sequence[bytes | memoryview]:
    """All of it, for who has to have it at once."""
    if isinstance(body, Sequence):
        return body
    return [block async for block in blocks_of(body)]


async def sum_of(body: Body) -> int:
    """The CRC-32C of the bytes as they are now."""
    found = 0
    if isinstance(body, Sequence):
        for part in body:
            found = crc32c(part, found)
    else:
        async for block in blocks_of(body):
            found = crc32c(block, found)
    return found


@guard("the checksum of a put, before the object is there")
def require_sum(found: int, crc: int) -> None:
    """Refuse bytes that are not those of which the caller has the checksum.

    Raises:
        Corrupt
    """
    if found != crc:
        raise Corrupt("the bytes to be put do not match their checksum")
