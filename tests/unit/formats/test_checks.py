import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Code, Corrupt
from bottomless.formats.checks import check, check_magic, crc32c, magic, padded, padding


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(), st.binary())
def test_a_checksum_goes_on_where_it_stopped(first: bytes, second: bytes) -> None:
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


@given(st.integers(0, 2**40))
def test_padding_brings_a_size_to_the_next_multiple_of_8(size: int) -> None:
    assert size + len(padding(size)) == padded(size)
    assert padded(size) % 8 == 0
    assert not any(padding(size))


def test_a_magic_shows_its_letters_in_the_file() -> None:
    assert magic("BLch").to_bytes(4, "little") == b"BLch"


def test_a_false_fact_is_corruption_with_its_reason() -> None:
    check("chunk", True, "nothing")
    with pytest.raises(Corrupt, match="chunk is corrupt: it is cut short") as caught:
        check("chunk", False, "it is cut short")
    assert caught.value.code is Code.DATA_CORRUPT


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(Corrupt, match="version 7 is not known, only 1"):
        check_magic("chunk", magic("BLch"), magic("BLch"), 7)
