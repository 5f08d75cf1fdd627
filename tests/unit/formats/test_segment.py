from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.segment import (
    CHECKPOINT_SIZE,
    HEADER_SIZE,
    INDEX_RECORD_SIZE,
    decode_checkpoint,
    decode_index_header,
    decode_index_record,
    decode_segment_header,
    encode_checkpoint,
    encode_index_header,
    encode_index_record,
    encode_segment_header,
)
from bottomless.model.chunk import ChunkPlace
from bottomless.model.limits import CHUNK_RECORD_COUNT_MAX, CHUNK_SIZE_MAX, OFFSET_MAX
from bottomless.model.segment import Checkpoint, SegmentHeader
from unit.formats.examples import (
    CHECKPOINT,
    SEGMENT_HEADER,
    STREAM_ID,
    TIMESTAMP,
    assert_refuses_damage,
    seal,
)

PLACE = ChunkPlace(1040, TIMESTAMP, 64, 3, 312, 2)
FORMATS: list[tuple[Callable[[bytes], object], bytes, int]] = [
    (decode_segment_header, encode_segment_header(SEGMENT_HEADER), HEADER_SIZE),
    (decode_index_header, encode_index_header(SEGMENT_HEADER), HEADER_SIZE),
    (decode_index_record, encode_index_record(PLACE), INDEX_RECORD_SIZE),
    (decode_checkpoint, encode_checkpoint(CHECKPOINT), CHECKPOINT_SIZE),
]
offsets, u64 = st.integers(0, OFFSET_MAX + 1), st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@given(offsets, u64)
def test_headers_come_back(first_offset: int, epoch: int) -> None:
    header = SegmentHeader(STREAM_ID, first_offset, epoch)
    assert decode_segment_header(encode_segment_header(header)) == header
    assert decode_index_header(encode_index_header(header)) == header


@given(
    st.builds(
        ChunkPlace,
        st.integers(0, OFFSET_MAX - CHUNK_RECORD_COUNT_MAX),
        i64,
        st.integers(0, OFFSET_MAX),
        u64,
        st.integers(0, CHUNK_SIZE_MAX),
        st.integers(0, CHUNK_RECORD_COUNT_MAX),
    )
)
def test_index_records_come_back(place: ChunkPlace) -> None:
    assert decode_index_record(encode_index_record(place)) == place


@given(
    st.builds(
        Checkpoint, st.just(STREAM_ID), offsets, u64, offsets, i64, u64, u64, offsets, offsets
    )
)
def test_checkpoints_come_back(checkpoint: Checkpoint) -> None:
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@pytest.mark.parametrize(("decode", "raw", "size"), FORMATS)
def test_every_damage_is_refused(decode: Callable[[bytes], object], raw: bytes, size: int) -> None:
    assert len(raw) == size
    assert_refuses_damage(decode, raw)
    with pytest.raises(Corrupt, match=f"{size + 1} bytes, not {size}"):
        decode(raw + b"\0")


@given(st.binary(max_size=100))
def test_random_bytes_are_refused(data: bytes) -> None:
    for decode, _, size in FORMATS:
        for random in (data, data.ljust(size, b"\0")[:size]):
            with pytest.raises(Corrupt):
                decode(random)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_an_unknown_version_is_named(number: int) -> None:
    decode, good, _ = FORMATS[number]
    raw = bytearray(good)
    raw[4] = 9
    with pytest.raises(Corrupt, match="version 9 is not known"):
        decode(seal(bytes(raw)))


@pytest.mark.parametrize("number", range(4))
def test_reserved_bytes_are_ignored(number: int) -> None:
    decode, good, _ = FORMATS[number]
    reserved = ([5, 6, 7, *range(40, 60)], [5, *range(40, 60)], range(40, 44), [5, 88, 91])[number]
    raw = bytearray(good)
    for position in reserved:
        raw[position] = 0xFF
    assert decode(seal(bytes(raw))) == decode(good)


def test_an_index_is_not_a_segment() -> None:
    with pytest.raises(Corrupt, match="magic"):
        decode_segment_header(encode_index_header(SEGMENT_HEADER))


def test_impossible_values_are_not_written() -> None:
    with pytest.raises(Corrupt):
        encode_segment_header(SEGMENT_HEADER._replace(first_offset=OFFSET_MAX + 2))
    for place in (
        PLACE._replace(position=2**63),
        PLACE._replace(size=CHUNK_SIZE_MAX + 1),
        PLACE._replace(record_count=CHUNK_RECORD_COUNT_MAX + 1),
        PLACE._replace(first_offset=OFFSET_MAX),
    ):
        with pytest.raises(Corrupt):
            encode_index_record(place)
    for member in ("segment_first_offset", "synced_next", "published_next", "reserved_next"):
        with pytest.raises(Corrupt):
            encode_checkpoint(Checkpoint(**{**CHECKPOINT._asdict(), member: OFFSET_MAX + 2}))


def test_an_impossible_value_under_a_right_checksum_is_refused() -> None:
    raw = bytearray(encode_index_record(PLACE))
    raw[7] = 0xFF
    with pytest.raises(Corrupt, match="first_offset="):
        decode_index_record(seal(bytes(raw)))
    raw = bytearray(encode_checkpoint(CHECKPOINT))
    raw[87] = 0xFF
    with pytest.raises(Corrupt, match="reserved_next="):
        decode_checkpoint(seal(bytes(raw)))
    raw = bytearray(encode_segment_header(SEGMENT_HEADER))
    raw[31] = 0xFF
    with pytest.raises(Corrupt, match="first_offset="):
        decode_segment_header(seal(bytes(raw)))
