"""To which partition of a super stream each record goes, by its key.

Two strategies: by the hash of the key, or by a list of keys that each name their partition. Keys
come as Arrow holds them, all in one buffer with the positions at which they begin, so nothing here
is done key by key. Spec: docs/formats.md, "Routing".
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

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
_WORD_SIZE: Final = 8
_PAIR_COUNT: Final = 4096
"""Pairs of keys that are compared at once."""


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
        equal = equal_keys(keys, bound, rows, other)
        found[rows[equal]] = other[equal]
        rows, step = rows[~equal], step + 1
    return found


def equal_keys(
    left: Keys,
    right: Keys,
    rows: NDArray[np.int64] | None = None,
    other: NDArray[np.int64] | None = None,
) -> NDArray[np.bool_]:
    """Whether keys are equal, pair by pair: those of `rows` and the `other` ones, or all.

    Some thousands of pairs at a time, so that what it holds does not grow with the keys.
    """
    count = len(left.positions) - 1 if rows is None else len(rows)
    equal = np.empty(count, np.bool_)
    for start in range(0, count, _PAIR_COUNT):
        end = min(start + _PAIR_COUNT, count)
        here = np.arange(start, end) if rows is None else rows[start:end]
        there = here if other is None else other[start:end]
        equal[start:end] = _equal_pairs(left, here, right, there)
    return equal


def _equal_pairs(
    left: Keys, rows: NDArray[np.int64], right: Keys, other: NDArray[np.int64]
) -> NDArray[np.bool_]:
    at, against = left.positions[rows], right.positions[other]
    sizes = left.positions[rows + 1] - at
    equal: NDArray[np.bool_] = sizes == right.positions[other + 1] - against
    # Whole words first, one of each pair at a time; then what is left, which is shorter than a word.
    pairs, number = np.flatnonzero(equal & (sizes >= _WORD_SIZE)), 0
    while len(pairs):
        place = number * _WORD_SIZE
        ours = _numbers(left.data, at[pairs] + place, _WORD_SIZE)
        equal[pairs] = ours == _numbers(right.data, against[pairs] + place, _WORD_SIZE)
        number += 1
        pairs = pairs[equal[pairs] & (sizes[pairs] >= (number + 1) * _WORD_SIZE)]
    left_over = sizes % _WORD_SIZE
    places = sizes - left_over
    for size in (4, 2, 1):
        pairs = np.flatnonzero(equal & (left_over & size > 0))
        if len(pairs):
            ours = _numbers(left.data, at[pairs] + places[pairs], size)
            equal[pairs] = ours == _numbers(right.data, against[pairs] + places[pairs], size)
            places[pairs] += size
    return equal


def _numbers(data: NDArray[np.uint8], at: NDArray[np.int64], size: int) -> NDArray[Any]:
    """Read `size` bytes at each position as one number; they need not lie as numbers do."""
    anywhere: NDArray[Any] = np.ndarray(
        (len(data) - size + 1,), np.dtype(f"u{size}"), data, strides=(1,)
    )
    return anywhere[at]


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
