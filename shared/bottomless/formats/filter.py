"""Filters: small sets of values that may say "perhaps" and never miss a value that was put in.

    | block 32 | block 32 | ...     a power of two of blocks, each of 8 words of 32 bits

A value sets one bit in each word of one block, so that a test reads 32 bytes. The same values give
the same blocks in any order. Filters of different sizes can be joined, since a filter of half the
size is made of the larger one alone.

Everything here works on arrays of hashes, never on one record after the other.

On the record's path: made by services/bottomless_server/core/filter_making.py, asked by
services/bottomless_server/tree/filters.py. Spec: docs/formats.md, "Filter".
"""

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.model.filter import Filter

BLOCK_SIZE: Final = 32
WORD_COUNT: Final = 8
"""Words of a block, each of 32 bits."""
SALT: Final = np.array(
    [
        0x47B6137B,
        0x44974D91,
        0x8824AD5B,
        0xA2B7289D,
        0x705495C7,
        0x2DF1424B,
        0x9EFC4947,
        0x5C6BFB31,
    ],
    dtype=np.uint32,
)
"""One odd factor for each word; docs/formats.md, "Filter"."""
VALUES_OF_A_BLOCK: Final = 25
"""Values of one block in a filter that may be as large as it has to be: 1 to 3 of 100 answers are
false."""
VALUES_OF_A_BLOCK_MAX: Final = 40
"""Values of one block in a filter that may not become larger: 11 of 100 answers are false."""
FULL_SHARE: Final = 0.75
"""A filter with more than this share of its bits set is not worth its bytes."""

Blocks = NDArray[np.uint32]
"""A filter, or several after each other: an array of blocks by WORD_COUNT."""
Hashes = NDArray[np.uint64]


class AskedHashes(NamedTuple):
    """What is looked for, as filters know it. Both kinds together mean that a record has both."""

    values: Hashes | None
    """Hashes of filter values, any of which will do. It is None where nobody asks by value."""
    match_unfiltered: bool = False
    """Whether a record without a filter value will do as well."""
    keys: Hashes | None = None
    """Hashes of keys, any of which will do. It is None where nobody asks by key."""


def asked_hashes(
    values: Iterable[bytes] | None,
    *,
    match_unfiltered: bool = False,
    keys: Iterable[bytes] | None = None,
) -> AskedHashes:
    """Hash what is looked for: filter values as UTF-8, and keys."""
    return AskedHashes(
        None if values is None else hash_values(values),
        match_unfiltered,
        None if keys is None else hash_values(keys),
    )


def asked_by(wanted: Filter) -> AskedHashes:
    """Hash what a filter asks for."""
    values = None if wanted.values is None else (one.encode() for one in wanted.values)
    return asked_hashes(values, match_unfiltered=wanted.match_unfiltered, keys=wanted.keys)


def hash_values(values: Iterable[bytes]) -> Hashes:
    """Hash values one by one: of each the first 8 bytes of its SHA-256, as a number."""
    joined = b"".join(hashlib.sha256(value).digest()[:8] for value in values)
    return np.frombuffer(joined, dtype="<u8").astype(np.uint64)


def no_blocks() -> Blocks:
    """Make the filter that says nothing: an array of no block."""
    return np.empty((0, WORD_COUNT), dtype=np.uint32)


def blocks_from(data: bytes | memoryview) -> Blocks:
    """View bytes as blocks, in place; their size must be a multiple of BLOCK_SIZE."""
    return np.frombuffer(data, dtype="<u4").reshape(-1, WORD_COUNT)


def blocks_as_bytes(blocks: Blocks) -> bytes:
    """Encode blocks: BLOCK_SIZE bytes each."""
    return np.ascontiguousarray(blocks, dtype="<u4").tobytes()


def is_block_count(count: int) -> bool:
    """Tell whether a filter may have so many blocks: a power of two."""
    return count > 0 and count & (count - 1) == 0


def block_count_for(value_count: int, block_count_max: int) -> int:
    """Tell how many blocks a filter of so many different values has, at most `block_count_max`.

    It is 0 where there are no values, and where there are too many for the largest filter.
    """
    if value_count == 0:
        return 0
    count = 1
    while count < block_count_max and value_count > VALUES_OF_A_BLOCK * count:
        count *= 2
    return count if value_count <= VALUES_OF_A_BLOCK_MAX * count else 0


def build(hashes: Hashes, block_count: int) -> Blocks:
    """Make the filter of some hashes, with a power of two of blocks."""
    assert is_block_count(block_count)
    blocks = np.zeros((block_count, WORD_COUNT), dtype=np.uint32)
    places = block_of(hashes, np.uint64(block_count))
    np.bitwise_or.at(blocks, places.astype(np.intp), masks_of(hashes))
    return blocks


def may_hold(blocks: Blocks, hashes: Hashes) -> NDArray[np.bool_]:
    """Tell of each hash whether the filter may hold it; False is certain."""
    wanted = masks_of(hashes)
    found = blocks[block_of(hashes, np.uint64(len(blocks))).astype(np.intp)]
    held: NDArray[np.bool_] = np.all(found & wanted == wanted, axis=-1)
    return held


def block_of(hashes: Hashes, block_counts: np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Tell the number of the block of each hash in filters with so many blocks; both broadcast."""
    return ((hashes >> np.uint64(32)) * block_counts) >> np.uint64(32)


def masks_of(hashes: Hashes) -> Blocks:
    """Make the bits of each hash in its block: one in each word."""
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    # Products wrap at 2^32, as they should: both sides are 32 bits wide.
    return np.uint32(1) << ((low[..., np.newaxis] * SALT) >> np.uint32(27))


def fold(blocks: Blocks, block_count: int) -> Blocks:
    """Make the filter of the same values with so many blocks, which is no more than it has."""
    assert is_block_count(block_count)
    assert block_count <= len(blocks)
    folded: Blocks = np.bitwise_or.reduce(blocks.reshape(block_count, -1, WORD_COUNT), axis=1)
    return folded


def grow(blocks: Blocks, block_count: int) -> Blocks:
    """Make a filter with so many blocks, no less than it has, that holds what this one may hold."""
    assert is_block_count(block_count)
    assert block_count >= len(blocks)
    return np.repeat(blocks, block_count // len(blocks), axis=0)


def union(filters: Iterable[Blocks]) -> Blocks:
    """Make the filter of all values of some filters, as large as the largest of them.

    Smaller ones grow, since folding the larger ones would fill them.
    """
    by_size: dict[int, list[Blocks]] = {}
    for blocks in filters:
        by_size.setdefault(len(blocks), []).append(blocks)
    size = max(by_size)
    joined = [grow(np.bitwise_or.reduce(np.stack(one), axis=0), size) for one in by_size.values()]
    united: Blocks = np.bitwise_or.reduce(np.stack(joined), axis=0)
    return united


def is_full(blocks: Blocks) -> bool:
    """Tell whether so many bits are set that the filter says "perhaps" to nearly everything."""
    return int(np.bitwise_count(blocks).sum()) > FULL_SHARE * blocks.size * 32
