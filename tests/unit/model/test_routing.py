import re
import struct
import tracemalloc
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bottomless.model.limits import RECORD_KEY_SIZE_MAX
from bottomless.model.routing import (
    NO_ROUTE,
    SEED,
    Keys,
    equal_keys,
    hash_keys,
    keys_of,
    partitions_by_hash,
    partitions_by_key,
)

_SPEC: Final = Path(__file__).parents[3] / "docs" / "formats.md"
_ROUTING = _SPEC.read_text("utf-8").partition("### Routing\n")[2].partition("\n## ")[0]
VECTORS = {
    text.strip(): int(number)
    for text, number in re.findall(r"^\| `(.+)` \| ([0-9]+) \|$", _ROUTING, re.MULTILINE)
}
"""Hashes that other programs compute, as the specification has them."""

keys = st.lists(st.binary(max_size=40), max_size=30)


def rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & 0xFFFFFFFF


def one_hash(key: bytes) -> int:
    """MurmurHash3 of 32 bits of one key, byte by byte, without numpy."""
    value = SEED
    whole = len(key) // 4 * 4
    words = [*struct.unpack(f"<{whole // 4}I", key[:whole])]
    tail = int.from_bytes(key[whole:], "little")
    for number, word in enumerate([*words, tail]):
        scrambled = rotated(word * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        value ^= scrambled
        if number < len(words):
            value = (rotated(value, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    value ^= len(key)
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


def test_the_hashes_are_those_that_other_programs_compute() -> None:
    assert len(VECTORS) == 8
    hashes = hash_keys(keys_of(text.encode() for text in VECTORS))
    assert hashes.tolist() == list(VECTORS.values())
    assert [one_hash(text.encode()) for text in VECTORS] == list(VECTORS.values())


def test_ten_keys_go_to_the_partitions_that_other_clients_choose() -> None:
    """Scenario P1."""
    ten = keys_of(f"hello{number}".encode() for number in range(1, 11))
    assert partitions_by_hash(ten, 3).tolist() == [1, 0, 1, 2, 0, 2, 0, 1, 0, 2]


def test_keys_of_any_alphabet_have_a_partition() -> None:
    """Scenario P2."""
    some = keys_of(text.encode() for text in ("", "é", "日本", "😀"))
    assert partitions_by_hash(some, 3).tolist() == [1, 1, 1, 0]


@given(keys)
@example([])
@example([b""])
@example([b"\xff" * RECORD_KEY_SIZE_MAX, b"", b"\xff" * 3])
def test_all_keys_together_have_the_hashes_that_each_has_alone(keys: list[bytes]) -> None:
    assert hash_keys(keys_of(keys)).tolist() == [one_hash(key) for key in keys]


@given(keys, st.integers(0, 5), st.integers(1, 1_000))
def test_keys_may_lie_anywhere_in_a_buffer(keys: list[bytes], before: int, count: int) -> None:
    """A slice of an Arrow column begins within its buffer, and may end before its end."""
    whole = keys_of(keys)
    data = np.concatenate([np.full(before, 7, np.uint8), whole.data, np.zeros(3, np.uint8)])
    moved = Keys(data, whole.positions + before)
    assert partitions_by_hash(moved, count).tolist() == [one_hash(key) % count for key in keys]


@given(st.lists(st.binary(max_size=3), unique=True, max_size=20), keys, st.data())
def test_a_key_goes_to_the_binding_key_that_equals_it(
    binding_keys: list[bytes], others: list[bytes], data: st.DataObject
) -> None:
    pool = [*binding_keys, *others]
    asked = data.draw(st.lists(st.sampled_from(pool), max_size=30)) if pool else []
    expected = [binding_keys.index(key) if key in binding_keys else NO_ROUTE for key in asked]
    assert partitions_by_key(keys_of(asked), binding_keys).tolist() == expected


@pytest.mark.parametrize("differs_at", [None, 0, 7, 8, 15, 16, 19, 21, 22])
def test_keys_of_one_size_are_told_apart_at_each_byte(differs_at: int | None) -> None:
    """Whole words, half words and single bytes are compared apart; a hash would hide a slip."""
    bound = bytes(range(23))
    asked = bytearray(bound)
    if differs_at is not None:
        asked[differs_at] ^= 1
    same = equal_keys(keys_of([bytes(asked), bound]), keys_of([bound, bound]))
    assert same.tolist() == [differs_at is None, True]


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20), st.booleans())))
def test_keys_are_compared_as_bytes_are(pairs: list[tuple[bytes, bytes, bool]]) -> None:
    pairs = [(one, one if same else other, same) for one, other, same in pairs]
    left, right = keys_of(one for one, _, _ in pairs), keys_of(other for _, other, _ in pairs)
    assert equal_keys(left, right).tolist() == [one == other for one, other, _ in pairs]


def test_comparing_keys_holds_less_than_the_keys() -> None:
    """What is allocated is counted, so this says the same on every machine."""
    keys = keys_of(b"%020d" % (number % 7) for number in range(100_000))
    tracemalloc.start()
    try:
        same = equal_keys(keys, keys)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert same.all()
    assert peak < keys.data.nbytes / 2


@pytest.mark.parametrize("turned", [False, True])
def test_keys_of_one_hash_are_told_apart(turned: bool) -> None:
    pair = colliding()
    bound = pair[::-1] if turned else pair
    other = b"#" + pair[0]
    found = partitions_by_key(keys_of([*pair, other]), bound)
    assert found.tolist() == [bound.index(pair[0]), bound.index(pair[1]), NO_ROUTE]
    alone = partitions_by_key(keys_of(pair), bound[:1])
    assert sorted(alone.tolist()) == [NO_ROUTE, 0]


def colliding() -> list[bytes]:
    """Two keys of one hash: among 200,000 keys some such pair is to be expected, and these have."""
    several = [b"%d" % number for number in range(200_000)]
    hashes = hash_keys(keys_of(several))
    order = np.argsort(hashes, kind="stable")
    [at, *_] = np.flatnonzero(np.diff(hashes[order].astype(np.int64)) == 0).tolist()
    return [several[order[at]], several[order[at + 1]]]
