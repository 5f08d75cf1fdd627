"""The checksum without a compiled library is the same checksum."""

import fastcrc
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bottomless.formats.crc32c import combine_all, iscsi


@given(data=st.binary(max_size=3000), initial=st.none() | st.integers(0, 2**32 - 1))
@example(data=b"123456789", initial=None)
@example(data=bytes(512), initial=0)
@example(data=bytes(range(256)) * 9, initial=2**32 - 1)
def test_it_is_what_the_library_says(data: bytes, initial: int | None) -> None:
    assert iscsi(data, initial) == fastcrc.crc32.iscsi(data, initial)


@pytest.mark.parametrize("size", [2**20, 2**20 + 13, 3 * 2**20 - 1])
def test_it_is_so_for_large_data_too(size: int) -> None:
    data = (b"some text that does not repeat in any power of two" * (size // 50 + 1))[:size]
    assert iscsi(data) == fastcrc.crc32.iscsi(data)
    assert iscsi(memoryview(data)[7:], iscsi(data[:7])) == iscsi(data)


@given(pieces=st.lists(st.binary(max_size=300), max_size=12))
@example(pieces=[])
@example(pieces=[b"", b"", b"a", b""])
def test_the_sum_of_many_pieces_is_put_together_of_theirs(pieces: list[bytes]) -> None:
    sums = np.array([fastcrc.crc32.iscsi(piece) for piece in pieces], dtype=np.uint32)
    sizes = np.array([len(piece) for piece in pieces], dtype=np.uint64)
    assert combine_all(sums, sizes) == fastcrc.crc32.iscsi(b"".join(pieces))


def test_it_is_so_for_many_large_pieces_too() -> None:
    pieces = [bytes([number % 251]) * (number * 37 % 5_000) for number in range(2_000)]
    sums = np.array([fastcrc.crc32.iscsi(piece) for piece in pieces], dtype=np.uint32)
    sizes = np.array([len(piece) for piece in pieces], dtype=np.uint64)
    assert combine_all(sums, sizes) == fastcrc.crc32.iscsi(b"".join(pieces))
