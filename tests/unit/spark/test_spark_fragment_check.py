"""Every kind of damage to a fragment's object is seen, named, and does not hide what else there is."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chunks import a_chunk

from bottomless.formats.fragment import (
    HEADER_SIZE,
    decode_fragment_header,
    encode_fragment_header,
    pack_fragment,
)
from bottomless.model.names import StreamId, Uid
from bottomless.spark.jobs.fragment_check import Listed, Read, check_fragment

STREAM = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
OTHER = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12")
CHUNKS = [a_chunk(100 + 10 * number, timestamp=1_000 + number) for number in range(5)]
PACKED = pack_fragment(STREAM, Uid("0" * 31 + "1"), CHUNKS)
DATA = b"".join(bytes(part) for part in PACKED.parts)
INFO = PACKED.info
LISTED = Listed(
    INFO.fragment_id,
    None,
    INFO.first_offset,
    INFO.next_offset,
    INFO.first_timestamp,
    INFO.last_timestamp,
    INFO.record_count,
    INFO.size,
    INFO.index_position,
    INFO.crc,
)


def reading(data: bytes) -> Read:
    return lambda start, size: data[start : start + size]


def kinds(
    data: bytes, listed: Listed = LISTED, stream_id: StreamId = STREAM, range_size: int = 1000
) -> set[str]:
    return {
        fault.what for fault in check_fragment(reading(data), listed, stream_id, range_size).faults
    }


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


@pytest.mark.parametrize("range_size", [1, 500, 1_000_000])
def test_a_sound_fragment_has_no_fault(range_size: int) -> None:
    checked = check_fragment(reading(DATA), LISTED, STREAM, range_size)
    assert (checked.chunk_count, checked.record_count, checked.faults) == (5, 50, [])


@given(position=st.integers(0, len(DATA) - 1))
def test_no_bit_flips_unseen(position: int) -> None:
    found = kinds(flipped(DATA, position))
    assert "checksum" in found
    assert len(found) > 1 or position < HEADER_SIZE


@pytest.mark.parametrize("range_size", [1, 1_000_000])
def test_damage_in_one_chunk_does_not_hide_that_in_another(range_size: int) -> None:
    second, fourth = DATA.index(CHUNKS[1]), DATA.index(CHUNKS[3])
    # The second has a bad header, the fourth a bad body.
    data = flipped(flipped(DATA, second + 20), fourth + 80)
    checked = check_fragment(reading(data), LISTED, STREAM, range_size)
    assert [fault.offset for fault in checked.faults if fault.what == "chunk"] == [110, 130]
    assert "continuity" not in {fault.what for fault in checked.faults}


def test_chunks_are_checked_without_their_index_too() -> None:
    data = flipped(flipped(DATA, LISTED.index_position + 5), DATA.index(CHUNKS[3]) + 80)
    checked = check_fragment(reading(data), LISTED, STREAM)
    found = {(fault.what, fault.offset) for fault in checked.faults}
    assert {("index", None), ("chunk", 130)} <= found


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (DATA[:-1], "object"),
        (DATA + b"x", "object"),
        (DATA[: LISTED.index_position - 10], "object"),
        (b"", "object"),
    ],
)
def test_an_object_of_another_size_is_a_fault(data: bytes, what: str) -> None:
    assert what in kinds(data)


def test_the_object_of_another_stream_is_a_fault() -> None:
    assert kinds(DATA, stream_id=OTHER) == {"header"}


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one._replace(first_timestamp=one.first_timestamp - 1),
        lambda one: one._replace(last_timestamp=one.last_timestamp + 1),
        lambda one: one._replace(record_count=one.record_count - 1),
        lambda one: one._replace(next_offset=one.next_offset + 1),
        lambda one: one._replace(fragment_id=f"{100:020d}-{2:032x}"),
    ],
)
def test_what_the_manifest_says_otherwise_is_a_fault(change: Callable[[Listed], Listed]) -> None:
    assert "header" in kinds(DATA, change(LISTED))


def test_another_checksum_in_the_manifest_is_a_fault() -> None:
    assert kinds(DATA, LISTED._replace(crc=LISTED.crc ^ 1)) == {"checksum"}


def test_chunks_that_the_index_places_otherwise_are_a_fault() -> None:
    """A sound chunk, but not the one that was put here.

    A header that ends with its own checksum adds the same to one around it, whatever it says:
    the object's checksum does not see this, so the comparisons have to.
    """
    older = a_chunk(110, timestamp=999)
    position = DATA.index(CHUNKS[1])
    data = DATA[:position] + older + DATA[position + len(older) :]
    assert kinds(data) == {"index", "continuity"}


def test_a_header_that_tells_of_other_chunks_is_a_fault() -> None:
    header = decode_fragment_header(DATA[:HEADER_SIZE])
    other = encode_fragment_header(header._replace(chunk_count=4))
    assert kinds(other + DATA[HEADER_SIZE:]) == {"header"}
