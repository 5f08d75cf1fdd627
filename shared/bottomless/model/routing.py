"""To which partition of a super stream each record goes, by its key.

Two strategies: by the hash of the key, or by a list of keys that each name their partition. Keys
come as Arrow holds them, all in one buffer with the positions at which they begin, so nothing here
is done key by key. Spec: docs/formats.md, "Routing".
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SEED: Final = 104_729
"""The seed of the hash, which clients of other systems with super streams use too."""
NO_ROUTE: Final = -1
"""Stands for the partition of a key that is equal to no binding key."""

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_C3: Final = np.uint32(0xE6546B64)
_MIX_1: Final = np.uint32(0x85EBCA6B)
_MIX_2: Final = np.uint32(0xC2B2AE35)
_BLOCK_SIZE: Final = 4


class Strategy(StrEnum):
    """How a super stream finds the partition of a record."""

    HASH = "hash"
    KEY = "key"


class Keys(NamedTuple):
    """Keys as Arrow holds them: key `i` is the bytes from `positions[i]` to `positions[i + 1]`."""

    data: NDArray[np.uint8]
    positions: NDArray[np.int64]


def keys_of(keys: Iterable[bytes]) -> Keys:
    """Put keys into one buffer, as Arrow would hold them."""
    kept = list(keys)
    positions = np.zeros(len(kept) + 1, np.int64)
    np.cumsum([len(key) for key in kept], out=positions[1:])
    return Keys(np.frombuffer(b"".join(kept), np.uint8), positions)


def hash_keys(keys: Keys) -> NDArray[np.uint32]:
    """Compute the hash of each key: MurmurHash3 of 32 bits with `SEED`, unsigned."""
    positions = keys.positions
    sizes = np.diff(positions)
    # Longest first, so that the keys that still have a block are always the first ones.
    order = np.argsort(-sizes, kind="stable")
    starts, sizes = positions[:-1][order], sizes[order]
    hashes = np.full(len(order), SEED, np.uint32)
    block_counts = sizes // _BLOCK_SIZE
    # The counts do not increase, and numpy searches what does not decrease.
    rising = -block_counts
    for number in range(int(block_counts[0]) if len(order) else 0):
        active = int(np.searchsorted(rising, -number, side="left"))
        at = starts[:active] + number * _BLOCK_SIZE
        mixed = _rotated(hashes[:active] ^ _scrambled(_word(keys.data, at, _BLOCK_SIZE)), 13)
        hashes[:active] = mixed * np.uint32(5) + _C3
    ends = starts + block_counts * _BLOCK_SIZE
    left = sizes - block_counts * _BLOCK_SIZE
    for size in range(1, _BLOCK_SIZE):
        rows = np.flatnonzero(left == size)
        hashes[rows] ^= _scrambled(_word(keys.data, ends[rows], size))
    hashed = np.empty_like(hashes)
    hashed[order] = _finished(hashes ^ sizes.astype(np.uint32))
    return hashed


def partitions_by_hash(keys: Keys, count: int) -> NDArray[np.int64]:
    """Find the partition of each key among `count` of them, by its hash."""
    assert count > 0
    return (hash_keys(keys) % np.uint32(count)).astype(np.int64)


def partitions_by_key(keys: Keys, binding_keys: Sequence[bytes]) -> NDArray[np.int64]:
    """Find the partition of each key: the index of the binding key that equals it, or `NO_ROUTE`.

    Binding keys are different from each other.
    """
    bound = keys_of(binding_keys)
    count, bound_count = len(keys.positions) - 1, len(binding_keys)
    found = np.full(count, NO_ROUTE, np.int64)
    if not count or not bound_count:
        return found
    bound_hashes, hashes = hash_keys(bound), hash_keys(keys)
    order = np.argsort(bound_hashes, kind="stable")
    sorted_hashes = bound_hashes[order]
    first = np.searchsorted(sorted_hashes, hashes, side="left")
    # Several binding keys may have one hash: each of them is compared in turn.
    step, rows = 0, np.arange(count)
    while len(rows):
        at: NDArray[np.int64] = first[rows] + step
        rows, at = rows[at < bound_count], at[at < bound_count]
        same = sorted_hashes[at] == hashes[rows]
        rows, other = rows[same], order[at[same]]
        equal = _equal(keys, rows, bound, other)
        found[rows[equal]] = other[equal]
        rows, step = rows[~equal], step + 1
    return found


def _equal(
    left: Keys, rows: NDArray[np.int64], right: Keys, other: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether the keys of `rows` are the `other` ones, pair by pair."""
    sizes = left.positions[rows + 1] - left.positions[rows]
    equal: NDArray[np.bool_] = sizes == right.positions[other + 1] - right.positions[other]
    pairs = np.flatnonzero(equal & (sizes > 0))
    if not len(pairs):
        return equal
    lengths = sizes[pairs]
    # One line for each byte of each pair: its number within the pair.
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ours = left.data[np.repeat(left.positions[rows[pairs]], lengths) + within]
    theirs = right.data[np.repeat(right.positions[other[pairs]], lengths) + within]
    begins = np.cumsum(lengths) - lengths
    equal[pairs] = np.logical_and.reduceat(ours == theirs, begins)
    return equal


def _word(data: NDArray[np.uint8], at: NDArray[np.int64], size: int) -> NDArray[np.uint32]:
    """Read `size` bytes at each position as one little-endian number."""
    word = data[at].astype(np.uint32)
    for number in range(1, size):
        word |= data[at + number].astype(np.uint32) << np.uint32(8 * number)
    return word


def _scrambled(word: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return _rotated(word * _C1, 15) * _C2


def _rotated(word: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _finished(hashes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    hashes = (hashes ^ (hashes >> np.uint32(16))) * _MIX_1
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _MIX_2
    return hashes ^ (hashes >> np.uint32(16))
