from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.batch import (
    FIELDS,
    HEADER_SIZE,
    Codec,
    FrameHeader,
    columns_of,
    decode_frame_header,
    decode_frames,
    decode_message,
    encode_frame,
    encode_frame_header,
    schema_of,
    split_frames,
)
from bottomless.formats.checks import crc32c, padding
from bottomless.model.limits import CHUNK_RECORD_COUNT_MAX, FRAME_SIZE_MAX
from bottomless.model.record import Columns
from unit.formats.examples import (
    a_batch,
    a_frame,
    a_full_batch,
    assert_refuses_damage,
    damaged,
    seal,
)

MASKS = [Columns(mask) for mask in range(1, 64, 2)]
CODECS = list(Codec)


def read(frame: bytes) -> list[pa.RecordBatch]:
    """All that a careful reader does with frames from outside."""
    return [
        decode_message(header, stored, full=True)
        for header, stored in split_frames(memoryview(frame))
    ]


def a_header(**changed: Any) -> FrameHeader:
    good = FrameHeader(Codec.NONE, Columns.VALUE, 1, 200, 200, 0)
    return good._replace(**changed)


def frame_of(
    stored: bytes, raw_size: int, codec: Codec = Codec.NONE, columns: int = 1, count: int = 2
) -> bytes:
    header = FrameHeader(codec, Columns(columns), count, len(stored), raw_size, crc32c(stored))
    return encode_frame_header(header) + stored + padding(len(stored))


@pytest.mark.parametrize("codec", CODECS)
@given(values=st.lists(st.binary(max_size=30), min_size=1, max_size=20))
def test_values_come_back(codec: Codec, values: list[bytes]) -> None:
    [batch] = read(a_frame(values, codec))
    assert batch.column("value").to_pylist() == values


@pytest.mark.parametrize("mask", MASKS)
def test_every_set_of_columns_comes_back(mask: Columns) -> None:
    wanted = a_full_batch().select(schema_of(mask).names)
    [batch] = read(encode_frame(wanted))
    assert batch.equals(wanted)
    assert columns_of(batch.schema) == mask


def test_frames_follow_each_other() -> None:
    frames = a_frame([b"1"]) + a_frame([b"2", b"3"], Codec.ZSTD) + a_frame([b"4"], Codec.LZ4)
    assert [b.column("value").to_pylist() for b in decode_frames(memoryview(frames))] == [
        [b"1"],
        [b"2", b"3"],
        [b"4"],
    ]


def test_an_uncompressed_batch_is_viewed_in_place() -> None:
    frame = a_frame([b"x" * 4096])
    before = pa.total_allocated_bytes()
    [batch] = decode_frames(memoryview(frame))
    assert pa.total_allocated_bytes() - before < 4096
    assert batch.column("value")[0].as_py() == b"x" * 4096


@pytest.mark.parametrize("codec", CODECS)
def test_every_damage_to_a_frame_is_refused(codec: Codec) -> None:
    def one(frame: bytes) -> None:
        # A frame cut to nothing holds no batch, which its reader expects.
        if len(read(frame)) != 1:
            raise Corrupt("no frame")

    assert_refuses_damage(one, a_frame([b"abcd" * 20, b""], codec))


@pytest.mark.parametrize("mask", [Columns.VALUE, Columns.ALL])
def test_a_damaged_message_under_a_right_checksum_is_refused_or_harmless(mask: Columns) -> None:
    message = a_full_batch().select(schema_of(mask).names).serialize().to_pybytes()
    refused = 0
    for _, data in damaged(message):
        if not data:
            continue
        try:
            [batch] = read(frame_of(data, len(data), columns=mask, count=3))
        except Corrupt:
            refused += 1
            continue
        assert batch.num_rows == 3
        batch.validate(full=True)
    assert refused > len(message)


@given(st.binary(min_size=1, max_size=300), st.sampled_from(CODECS))
def test_random_messages_are_refused(data: bytes, codec: Codec) -> None:
    with pytest.raises(Corrupt):
        read(frame_of(data, len(data), codec))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_frame_header(data)


UNFIT_HEADERS = [
    a_header(columns=Columns.KEY),
    a_header(record_count=0),
    a_header(record_count=CHUNK_RECORD_COUNT_MAX + 1),
    a_header(stored_size=0, raw_size=0),
    a_header(stored_size=FRAME_SIZE_MAX + 1, raw_size=FRAME_SIZE_MAX + 1),
    a_header(codec=Codec.ZSTD, raw_size=FRAME_SIZE_MAX + 1),
    a_header(codec=Codec.ZSTD, raw_size=0),
    a_header(raw_size=201),
]


@pytest.mark.parametrize("header", UNFIT_HEADERS)
def test_an_impossible_header_is_not_written(header: FrameHeader) -> None:
    with pytest.raises(Corrupt):
        encode_frame_header(header)


@pytest.mark.parametrize(
    ("position", "value", "why"),
    [
        (0, b"B", "magic"),
        (4, b"\x02", "version 2 is not known, only 1"),
        (5, b"\x00", "codec 0"),
        (5, b"\x04", "codec 4"),
        (6, b"\x41", "columns 0x41"),
        (6, b"\x02", "no value column"),
        (8, b"\x00", "records=0"),
        (12, b"\x01", "uncompressed sizes differ"),
        (15, b"\xff", "stored_size="),
        (19, b"\xff", "raw_size="),
    ],
)
def test_a_header_that_no_writer_made_is_refused(position: int, value: bytes, why: str) -> None:
    header = bytearray(a_frame()[:HEADER_SIZE])
    header[position] = value[0] ^ (0 if position else 1)
    with pytest.raises(Corrupt, match=why):
        decode_frame_header(seal(bytes(header)))


def test_reserved_bytes_are_ignored() -> None:
    frame = bytearray(a_frame()[:HEADER_SIZE])
    frame[24:28] = b"\xff" * 4
    assert decode_frame_header(seal(bytes(frame))) == decode_frame_header(a_frame())


def test_a_message_of_another_size_than_its_header_says_is_refused() -> None:
    [(header, stored)] = split_frames(memoryview(a_frame()))
    with pytest.raises(Corrupt, match="bytes, not"):
        decode_message(header, stored[:-8])


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
@pytest.mark.parametrize("wrong", [-1, 1, 1000])
def test_decompression_to_another_size_is_refused(codec: Codec, wrong: int) -> None:
    [(header, stored)] = split_frames(memoryview(a_frame([b"abcd" * 100], codec)))
    with pytest.raises(Corrupt, match="does not decompress to its size"):
        decode_message(header._replace(raw_size=header.raw_size + wrong), stored)


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
@pytest.mark.parametrize("tail", [b"x", b"\0" * 8, b"\x28\xb5\x2f\xfd"])
def test_bytes_after_the_compressed_message_are_refused(codec: Codec, tail: bytes) -> None:
    [(header, stored)] = split_frames(memoryview(a_frame([b"abcd" * 100], codec)))
    with pytest.raises(Corrupt, match="does not decompress to its size"):
        read(frame_of(bytes(stored) + tail, header.raw_size, codec))


def test_a_bomb_is_stopped_at_the_size_in_the_header() -> None:
    bomb = pa.Codec("zstd").compress(bytes(FRAME_SIZE_MAX * 2)).to_pybytes()
    assert len(bomb) < 20_000
    before = pa.total_allocated_bytes()
    with pytest.raises(Corrupt, match="does not decompress to its size"):
        read(frame_of(bomb, 1000, Codec.ZSTD))
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("count", [1, 3])
def test_a_count_other_than_the_batchs_is_refused(count: int) -> None:
    message = a_batch().serialize().to_pybytes()
    with pytest.raises(Corrupt, match="record count"):
        read(frame_of(message, len(message), count=count))


@pytest.mark.parametrize("name", ["value", "content"])
def test_a_null_where_none_may_be_is_refused(name: str) -> None:
    columns = Columns.VALUE | Columns.CONTENT
    fields: dict[str, list[Any]] = {"value": [b"a", b"b"], "content": [0, 1]}
    fields[name] = [None, None]
    types: dict[str, pa.DataType] = {"value": pa.binary(), "content": pa.uint8()}
    batch = pa.record_batch({n: pa.array(rows, types[n]) for n, rows in fields.items()})
    message = batch.serialize().to_pybytes()
    with pytest.raises(Corrupt, match=f"its {name} column has nulls"):
        read(frame_of(message, len(message), columns=columns))


def test_text_that_is_not_utf8_is_refused_by_full_validation() -> None:
    batch = pa.record_batch({"value": [b"a"], "filter_value": pa.array([b"\xff"], pa.binary())})
    message = batch.serialize().to_pybytes()
    with pytest.raises(Corrupt, match="not a valid Arrow record batch"):
        read(frame_of(message, len(message), columns=33, count=1))


@pytest.mark.parametrize("rows", [[None], [{"key": None, "value": b"1"}]])
def test_a_null_header_or_name_is_refused(rows: list[object]) -> None:
    entry = pa.struct([("key", pa.utf8()), ("value", pa.binary())])
    headers = pa.array([rows], pa.list_(entry))
    message = pa.record_batch({"value": [b"a"], "headers": headers}).serialize().to_pybytes()
    with pytest.raises(Corrupt, match="not a valid Arrow record batch"):
        read(frame_of(message, len(message), columns=5, count=1))


def test_padding_other_than_zero_is_refused_where_a_frame_stands_alone() -> None:
    frame = bytearray(frame_of(b"12345", 5))
    frame[-1] = 1
    with pytest.raises(Corrupt, match="padding is not zero"):
        list(split_frames(memoryview(bytes(frame))))


def test_a_mask_names_one_schema() -> None:
    assert schema_of(Columns.VALUE) == pa.schema([FIELDS[Columns.VALUE]])
    assert schema_of(Columns.ALL).names == [column.name.lower() for column in FIELDS if column.name]
    with pytest.raises(AssertionError):
        columns_of(pa.schema([("value", pa.utf8())]))
