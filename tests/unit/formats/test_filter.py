"""Filters: no value that was put in is ever missing, whatever becomes of the filter."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.formats.filter import (
    BLOCK_SIZE,
    asked_hashes,
    block_count_for,
    blocks_as_bytes,
    blocks_from,
    build,
    fold,
    grow,
    hash_values,
    is_full,
    may_hold,
    no_blocks,
    union,
)

VALUES = st.lists(st.binary(max_size=20), unique=True, max_size=60)
SIZES = st.sampled_from([1, 2, 4, 8, 32])


def test_a_filter_of_one_value_has_exactly_these_bits() -> None:
    """Worked out by the rule of docs/formats.md alone."""
    number = int.from_bytes(hashlib.sha256(b"emea").digest()[:8], "little")
    high, low = number >> 32, number & 0xFFFFFFFF
    salts = [
        "47b6137b",
        "44974d91",
        "8824ad5b",
        "a2b7289d",
        "705495c7",
        "2df1424b",
        "9efc4947",
        "5c6bfb31",
    ]
    words = [1 << ((low * int(salt, 16) % 2**32) >> 27) for salt in salts]
    wanted = b"".join(word.to_bytes(4, "little") for word in words)
    at = (high * 4) >> 32
    data = blocks_as_bytes(build(hash_values([b"emea"]), 4))
    assert data == bytes(BLOCK_SIZE * at) + wanted + bytes(BLOCK_SIZE * (3 - at))
    assert hash_values([b"emea"]).tolist() == [number]


@given(VALUES, SIZES)
def test_no_value_is_ever_missing(values: list[bytes], size: int) -> None:
    hashes = hash_values(values)
    assert may_hold(build(hashes, size), hashes).all()


@given(VALUES, SIZES, SIZES)
def test_a_folded_filter_is_the_filter_of_that_size(
    values: list[bytes], one: int, other: int
) -> None:
    hashes = hash_values(values)
    small, large = sorted((one, other))
    assert np.array_equal(fold(build(hashes, large), small), build(hashes, small))


@given(VALUES, SIZES, SIZES)
def test_a_grown_filter_holds_all_that_it_held(values: list[bytes], one: int, other: int) -> None:
    hashes = hash_values(values)
    small, large = sorted((one, other))
    grown = grow(build(hashes, small), large)
    assert may_hold(grown, hashes).all()
    assert np.array_equal(fold(grown, small), build(hashes, small))


@given(st.lists(st.tuples(VALUES, SIZES), min_size=1, max_size=4))
def test_a_union_misses_nothing_of_its_parts(parts: list[tuple[list[bytes], int]]) -> None:
    filters = [build(hash_values(values), size) for values, size in parts]
    joined = union(filters)
    assert len(joined) == max(size for _, size in parts)
    for values, _ in parts:
        assert may_hold(joined, hash_values(values)).all()


@given(VALUES, VALUES, SIZES)
def test_a_union_of_equal_sizes_is_the_filter_of_all(
    left: list[bytes], right: list[bytes], size: int
) -> None:
    one, other = hash_values(left), hash_values(right)
    both = build(np.concatenate((one, other)), size)
    assert np.array_equal(union([build(one, size), build(other, size)]), both)


@given(VALUES, SIZES)
def test_filters_come_back_from_their_bytes(values: list[bytes], size: int) -> None:
    blocks = build(hash_values(values), size)
    assert np.array_equal(blocks_from(blocks_as_bytes(blocks)), blocks)


@pytest.mark.parametrize(
    ("values", "largest", "blocks"),
    [
        (0, 32, 0),
        (1, 32, 1),
        (25, 32, 1),
        (26, 32, 2),
        (200, 8, 8),
        (201, 8, 8),
        (320, 8, 8),
        (321, 8, 0),
        (1_280, 32, 32),
        (1_281, 32, 0),
        (40, 1, 1),
        (41, 1, 0),
    ],
)
def test_sizes_follow_the_rule(values: int, largest: int, blocks: int) -> None:
    assert block_count_for(values, largest) == blocks


@pytest.mark.parametrize(("values", "most"), [(25, 0.035), (40, 0.12)])
def test_few_answers_are_false(values: int, most: float) -> None:
    """The same values in every run: what they give is a fact and no chance."""
    blocks = build(hash_values(f"in {n}".encode() for n in range(values * 32)), 32)
    others = hash_values(f"out {n}".encode() for n in range(5_000))
    assert may_hold(blocks, others).mean() <= most


def test_a_filter_is_full_at_three_of_four_bits() -> None:
    blocks = np.full((2, 8), 0xFFFFFFFF, dtype=np.uint32)
    blocks[1, 4:] = 0
    assert not is_full(blocks)
    blocks[1, 4] = 1
    assert is_full(blocks)


def test_what_is_asked_is_hashed_and_the_empty_text_is_a_value() -> None:
    asked = asked_hashes([b""], keys=[b"k"])
    assert asked.values is not None
    assert asked.keys is not None
    assert asked.values.tolist() == hash_values([b""]).tolist()
    assert asked.keys.tolist() == hash_values([b"k"]).tolist()
    assert asked_hashes(None, match_unfiltered=True) == (None, True, None)
    assert len(no_blocks()) == 0
