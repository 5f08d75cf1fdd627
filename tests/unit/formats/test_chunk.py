from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import (
    HEADER_SIZE,
    batches_of,
    decode_header,
    decode_trailer,
    encode_header,
    encode_trailer,
    seal_chunk,
    split_chunks,
    trailer_of,
    verify_body,
)
from bottomless.model.chunk import AppendEntry, AppendMode, ChunkFlags, ChunkHeader, ChunkKind
from bottomless.model.limits import (
    CHUNK_BATCH_COUNT_MAX,
    CHUNK_RECORD_COUNT_MAX,
    CHUNK_SIZE_MAX,
    OFFSET_MAX,
    TIMESTAMP_MAX,
)
from unit.formats.examples import (
    ENTRY,
    FULL_ENTRY,
    TIMESTAMP,
    a_bare_chunk,
    a_chunk,
    a_frame,
    assert_refuses_damage,
    seal,
    some_chunks,
)

HEADER = ChunkHeader(
    kind=ChunkKind.DATA,
    flags=ChunkFlags.MORE_FOLLOWS,
    total_size=312,
    record_count=2,
    first_offset=1040,
    timestamp=1_700_000_000_000,
    epoch=3,
    batch_count=1,
    filter_size=0,
    batches_size=216,
    trailer_size=32,
    body_crc=0x202820EB,
)
HEADER_BYTES = bytes.fromhex(
    "42 4c 63 68"  # magic: BLch
    "01"  # version: 1
    "01"  # kind: DATA
    "01 00"  # flags: MORE_FOLLOWS
    "38 01 00 00"  # total_size: 312
    "02 00 00 00"  # record_count: 2
    "10 04 00 00 00 00 00 00"  # first_offset: 1040
    "00 68 e5 cf 8b 01 00 00"  # timestamp: 2023-11-14T22:13:20.000Z
    "03 00 00 00 00 00 00 00"  # epoch: 3
    "01 00 00 00"  # batch_count: 1
    "00 00 00 00"  # filter_size: 0
    "d8 00 00 00"  # batches_size: 216
    "20 00 00 00"  # trailer_size: 32
    "eb 20 28 20"  # body_crc
    "85 cd fd 0f"  # header_crc
)

FULL_ENTRY_BYTES = bytes.fromhex(
    "50 00"  # entry_size: 80
    "02"  # mode: STRICT
    "07"  # present: producer_id, idempotency_hash, principal_hash
    "02 00 00 00"  # first_record: 2
    "03 00 00 00"  # record_count: 3
    "de ca fa 00"  # body_crc
    "46 00 00 00 00 00 00 00"  # base_sequence: 70
    "04 00 00 00 00 00 00 00"  # producer_epoch: 4
    "00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f"  # idempotency_hash
    "10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f"  # principal_hash
    "08 6c 6f 61 64 65 72 2d 37"  # producer_id: 8 characters, loader-7
    "00 00 00 00 00 00 00"  # padding
)

digests = st.none() | st.binary(min_size=16, max_size=16)
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
entries = st.builds(
    AppendEntry,
    st.sampled_from(AppendMode),
    u32,
    u32,
    u32,
    u64,
    u64,
    st.none() | st.text(st.characters(max_codepoint=127), max_size=255),
    digests,
    digests,
    digests,
)


def test_a_header_has_exactly_these_bytes() -> None:
    assert encode_header(HEADER) == HEADER_BYTES
    assert decode_header(HEADER_BYTES) == HEADER


@given(st.integers(0, OFFSET_MAX - 1), st.integers(0, TIMESTAMP_MAX), u64, st.booleans())
def test_a_header_comes_back(offset: int, timestamp: int, epoch: int, more: bool) -> None:
    header = HEADER._replace(
        first_offset=offset, timestamp=timestamp, epoch=epoch, flags=ChunkFlags(more)
    )
    assert decode_header(b"12345678" + encode_header(header), 8) == header


@pytest.mark.parametrize(
    "changed",
    [
        {"flags": ChunkFlags(2)},
        {"flags": ChunkFlags(0x8001)},
        {"total_size": 320},
        {"total_size": 304},
        {"total_size": CHUNK_SIZE_MAX + 8, "batches_size": CHUNK_SIZE_MAX + 8 - 96},
        {"record_count": 0},
        {"record_count": CHUNK_RECORD_COUNT_MAX + 1},
        {"first_offset": OFFSET_MAX},
        {"first_offset": 2**64 - 1},
        {"timestamp": TIMESTAMP_MAX + 1},
        {"timestamp": -(2**63)},
        {"batch_count": 0},
        {"batch_count": CHUNK_BATCH_COUNT_MAX + 1},
        {"filter_size": 4, "batches_size": 212},
        {"batches_size": 212, "trailer_size": 36},
        {"batches_size": 0, "trailer_size": 248},
        {"kind": ChunkKind.TRACKING},
        {"kind": ChunkKind.HOLE, "total_size": 311},
        {"kind": ChunkKind.HOLE, "total_size": 56},
    ],
)
def test_an_impossible_header_is_neither_written_nor_read(changed: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        encode_header(HEADER._replace(**changed))


@pytest.mark.parametrize(
    ("position", "value", "why"),
    [
        (0, 0x43, "magic"),
        (4, 2, "version 2 is not known, only 1"),
        (5, 0, "kind 0"),
        (5, 4, "kind 4"),
        (6, 3, "flags 0x3"),
        (7, 1, "flags 0x101"),
        (11, 0xFF, "total_size="),
        (8, 0x40, "do not add up"),
    ],
)
def test_a_header_that_no_writer_made_is_refused(position: int, value: int, why: str) -> None:
    raw = bytearray(HEADER_BYTES)
    raw[position] = value
    with pytest.raises(Corrupt, match=why):
        decode_header(seal(bytes(raw)))


@given(st.binary(max_size=HEADER_SIZE * 2))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_header(data)


def test_every_damage_to_a_chunk_is_refused() -> None:
    def one(data: bytes) -> None:
        [(header, chunk)] = split_chunks(data) if data else [(HEADER, memoryview(b""))]
        decode_frames(batches_of(header, chunk))
        decode_trailer(trailer_of(header, chunk))
        verify_body(header, chunk)

    assert_refuses_damage(one, a_chunk(1040))


def test_a_sealed_chunk_keeps_its_frames_as_they_were() -> None:
    frames = [a_frame([b"1"]), a_frame([b"2", b"3"])]
    parts = seal_chunk(
        frames, [ENTRY, FULL_ENTRY], record_count=3, first_offset=7, timestamp=TIMESTAMP, epoch=1
    )
    [(header, chunk)] = split_chunks(b"".join(parts))
    assert parts[1:3] == frames
    assert batches_of(header, chunk) == b"".join(frames)
    assert decode_trailer(trailer_of(header, chunk)) == [ENTRY, FULL_ENTRY]
    assert (header.first_offset, header.next_offset, header.batch_count) == (7, 10, 2)


def test_a_chunk_of_frames_that_do_not_hold_its_records_is_not_sealed() -> None:
    with pytest.raises(AssertionError):
        a_chunk(record_count=3)
    with pytest.raises(AssertionError):
        a_chunk(frames=[a_frame() + bytes(8)])


def test_chunks_are_walked_with_holes_and_tracking_between() -> None:
    run = [
        *some_chunks(2),
        a_bare_chunk(ChunkKind.TRACKING, 4, body=encode_trailer([FULL_ENTRY])),
        a_bare_chunk(ChunkKind.HOLE, 4, 2, bytes(40)),
        *some_chunks(1, 6),
    ]
    found = list(split_chunks(b"".join(run)))
    assert [bytes(chunk) for _, chunk in found] == run
    assert [header.first_offset for header, _ in found] == [0, 2, 4, 4, 6]


def test_what_lies_in_a_hole_does_not_matter() -> None:
    hole = a_bare_chunk(ChunkKind.HOLE, 4, 2, b"whatever")
    [(header, _)] = split_chunks(hole[:-8] + b"anything")
    assert header.kind is ChunkKind.HOLE


def test_a_damaged_chunk_stops_the_walk_after_the_good_ones() -> None:
    first, second = some_chunks(2)
    walk = split_chunks(first + second[:-1] + b"\x01")
    assert bytes(next(walk)[1]) == first
    with pytest.raises(Corrupt, match="checksum of its body"):
        next(walk)


def test_an_entry_has_exactly_these_bytes() -> None:
    assert encode_trailer([FULL_ENTRY]) == FULL_ENTRY_BYTES
    assert decode_trailer(FULL_ENTRY_BYTES) == [FULL_ENTRY]


@given(st.lists(entries, max_size=5))
def test_a_trailer_comes_back(wanted: list[AppendEntry]) -> None:
    assert decode_trailer(encode_trailer(wanted)) == wanted


@given(st.binary(min_size=1, max_size=200))
def test_a_random_trailer_is_refused_or_written_the_same_way(data: bytes) -> None:
    try:
        found = decode_trailer(data)
    except Corrupt:
        return
    assert encode_trailer(found) == data


@pytest.mark.parametrize(
    ("position", "value", "why"),
    [
        (0, 0, "its size is 0"),
        (0, 48, "a hash is cut short|producer id is cut short"),
        (0, 84, "its size is 84"),
        (0, 88, "its size is 88"),
        (2, 0, "mode 0"),
        (2, 6, "mode 6"),
        (3, 16, "present 0x10"),
        (3, 3, "does not describe|cut short"),
        (3, 0, "does not describe"),
        (64, 200, "producer id is cut short"),
        (65, 200, "not ASCII"),
        (79, 1, "does not describe"),
    ],
)
def test_an_entry_that_no_writer_made_is_refused(position: int, value: int, why: str) -> None:
    raw = bytearray(FULL_ENTRY_BYTES)
    raw[position] = value
    with pytest.raises(Corrupt, match=why):
        decode_trailer(bytes(raw))


def test_an_entry_cut_within_its_hashes_is_refused() -> None:
    for present in (2, 4, 6):
        raw = bytearray(encode_trailer([ENTRY])) + bytes(8)
        raw[0], raw[3] = 40, present
        with pytest.raises(Corrupt, match="a hash is cut short"):
            decode_trailer(bytes(raw))


def test_every_truncation_of_a_trailer_is_refused() -> None:
    for size in range(1, len(FULL_ENTRY_BYTES)):
        with pytest.raises(Corrupt):
            decode_trailer(FULL_ENTRY_BYTES[:size])


def test_a_hash_of_another_size_is_not_written() -> None:
    with pytest.raises(AssertionError):
        encode_trailer([ENTRY._replace(principal_hash=b"short")])


def test_an_entry_without_a_producer_is_32_bytes() -> None:
    assert len(encode_trailer([ENTRY])) == 32
