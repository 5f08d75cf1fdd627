"""Segments of RabbitMQ: those that a node wrote, and damage of every kind."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest
from support.rabbitmq import (
    GOLDEN,
    Publishing,
    compressed,
    publish_everything,
    sub_entry,
)

from bottomless.errors import Corrupt
from bottomless.formats.amqp import decode_message
from bottomless.formats.osiris import (
    CHUNK_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    ChunkHeader,
    ChunkKind,
    SubEntryCodec,
    check_segment_header,
    decode_chunk_header,
    decompress,
    entries_of,
    verify_data,
)
from bottomless.model.limits import DECOMPRESSED_SIZE_MAX

SEGMENTS = sorted(GOLDEN.glob("*.segment"))
TEXT = b"a text that repeats, a text that repeats, a text that repeats" * 40


def chunks(data: bytes) -> Iterator[tuple[ChunkHeader, bytes]]:
    check_segment_header(data)
    position = SEGMENT_HEADER_SIZE
    while position < len(data):
        header = decode_chunk_header(data[position : position + CHUNK_HEADER_SIZE])
        start = position + CHUNK_HEADER_SIZE + header.filter_size
        body = data[start : start + header.data_size]
        verify_data(header, body)
        yield header, body
        position += header.size
    assert position == len(data)


def test_a_node_s_segments_hold_what_was_published_in_order() -> None:
    published = Publishing(None, "golden")
    publish_everything(published)
    read = [
        message
        for path in SEGMENTS
        for header, data in chunks(path.read_bytes())
        if header.kind is ChunkKind.USER
        for entry in entries_of(header, data)
        for message in entry.messages
    ]
    assert len(read) == len(published.records) == 1_221
    for message, record in zip(read, published.records, strict=True):
        if "bytes" in record:
            assert message.hex() == record["bytes"]
        elif record["value"].startswith("bytes of"):
            assert message == record["value"].encode()
        else:
            assert decode_message(message).value == record["value"].encode()


def test_a_node_writes_every_codec_and_chunks_without_messages() -> None:
    kinds: Counter[object] = Counter()
    next_offset = 0
    for path in SEGMENTS:
        assert int(path.stem) == next_offset
        for header, data in chunks(path.read_bytes()):
            assert header.chunk_id == next_offset
            next_offset = header.next_offset
            kinds[header.kind] += 1
            if header.kind is ChunkKind.USER:
                kinds.update(entry.codec for entry in entries_of(header, data))
    assert {*ChunkKind, *SubEntryCodec, None} <= set(kinds)


def a_chunk(data: bytes, *, entries: int = 1, records: int = 1, **changed: int) -> bytes:
    values = {
        "magic": 0x50,
        "kind": 0,
        "entries": entries,
        "records": records,
        "timestamp": 1_795_722_108_699,
        "epoch": 3,
        "chunk_id": 700,
        "crc": zlib.crc32(data),
        "size": len(data),
        "trailer": 0,
        "filter": 0,
    } | changed
    return struct.pack(">BBHIqQQIIIB3x", *values.values()) + data


def test_a_header_has_exactly_these_bytes() -> None:
    header = decode_chunk_header(a_chunk(b"data", entries=2, records=9, trailer=5, filter=16))
    assert header == ChunkHeader(
        ChunkKind.USER, 2, 9, 1_795_722_108_699, 3, 700, zlib.crc32(b"data"), 4, 5, 16
    )
    assert (header.size, header.next_offset) == (48 + 16 + 4 + 5, 709)


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"magic": 0x51}, "begins with"), ({"kind": 3}, "kind 3"), ({"size": 2**30}, "bytes")],
)
def test_a_header_that_nobody_writes_is_refused(changed: dict[str, int], why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode_chunk_header(a_chunk(b"", **changed))


@pytest.mark.parametrize("data", [b"", b"OSIL", b"OSII\0\0\0\1", b"OSIL\0\0\0\2"])
def test_a_file_that_is_no_segment_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        check_segment_header(data)


def test_each_changed_bit_of_the_data_is_noticed() -> None:
    header = decode_chunk_header(a_chunk(b"data"))
    for bit in range(32):
        damaged = (int.from_bytes(b"data", "big") ^ 1 << bit).to_bytes(4, "big")
        with pytest.raises(Corrupt, match="checksum"):
            verify_data(header, damaged)
    with pytest.raises(Corrupt, match="3 bytes of 4"):
        verify_data(header, b"dat")


@pytest.mark.parametrize(
    ("data", "entries", "records"),
    [
        (b"\0\0\0\x05data", 1, 1),  # beyond the data
        (b"\0\0\0\x04datax", 1, 1),  # it goes on
        (b"\0\0\0\x04data", 2, 2),  # another entry is missing
        (b"\0\0\0\x04data", 1, 2),  # another message is missing
        (b"\x80\0\0\1\0", 1, 1),
        (b"\x80\0\2" + struct.pack(">II", 5, 5) + b"\0\0\0\1a", 1, 2),  # one message, not two
        (b"\x80\0\1" + struct.pack(">II", 5, 9) + b"\0\0\0\1a", 1, 1),
        (b"\x80\0\1" + struct.pack(">II", 6, 5) + b"\0\0\0\1a", 1, 1),
        (b"\x80\0\1" + struct.pack(">II", 3, 3) + b"\0\0\0", 1, 1),
        (b"\x80\0\1" + struct.pack(">II", 5, 5) + b"\0\0\0\2a", 1, 1),
        (b"\xd0\0\1" + struct.pack(">II", 5, 5) + b"\0\0\0\1a", 1, 1),  # codec 5
        (b"\x90\0\1" + struct.pack(">II", DECOMPRESSED_SIZE_MAX + 1, 5) + b"\0\0\0\1a", 1, 1),
    ],
)
def test_data_that_is_not_what_its_header_says_is_refused(
    data: bytes, entries: int, records: int
) -> None:
    header = decode_chunk_header(a_chunk(data, entries=entries, records=records))
    verify_data(header, data)
    with pytest.raises(Corrupt):
        list(entries_of(header, data))


@pytest.mark.parametrize("codec", SubEntryCodec)
@pytest.mark.parametrize("raw", [b"", b"a", TEXT, bytes(range(256)) * 600])
def test_every_codec_gives_back_what_was_compressed(codec: SubEntryCodec, raw: bytes) -> None:
    assert decompress(codec, compressed(codec, raw), len(raw)) == raw


@pytest.mark.parametrize("codec", SubEntryCodec)
def test_what_decompresses_to_another_size_is_refused(codec: SubEntryCodec) -> None:
    stored = compressed(codec, TEXT)
    for size in (0, 1, len(TEXT) - 1, len(TEXT) + 1):
        with pytest.raises(Corrupt):
            decompress(codec, stored, size)


@pytest.mark.parametrize("codec", [one for one in SubEntryCodec if one])
def test_what_is_cut_or_damaged_does_not_decompress(codec: SubEntryCodec) -> None:
    stored = compressed(codec, TEXT)
    for size in range(0, len(stored), 7):
        with pytest.raises(Corrupt):
            decompress(codec, stored[:size], len(TEXT))
    with pytest.raises(Corrupt):
        decompress(codec, b"\0" * 20, len(TEXT))


def test_a_bomb_makes_no_more_than_it_says() -> None:
    for codec in SubEntryCodec:
        with pytest.raises(Corrupt):
            decompress(codec, compressed(codec, bytes(1_000_000)), 1_000)


def test_blocks_of_snappy_are_checked_one_by_one() -> None:
    good = compressed(SubEntryCodec.SNAPPY, TEXT)
    padding = b"\xfe\x02\x00\x00ab"
    assert decompress(SubEntryCodec.SNAPPY, good + padding + good[:10], len(TEXT)) == TEXT
    for damaged in (
        good[:14] + bytes([good[14] ^ 1]) + good[15:],  # the checksum
        good + b"\x02\x00\x00\x00",  # a kind that is none
        good + b"\xff\x01\x00\x00s",
        good + b"\x00\x02\x00\x00ab",
        good + b"\x00\x09\x00\x00" + b"\xff" * 9,
        good[10:],
    ):
        with pytest.raises(Corrupt):
            decompress(SubEntryCodec.SNAPPY, damaged, len(TEXT))


def test_a_sub_entry_is_read_with_its_codec() -> None:
    data = sub_entry(SubEntryCodec.GZIP, [b"one", b"two"]) + b"\0\0\0\5three"
    header = decode_chunk_header(a_chunk(data, entries=2, records=3))
    found = list(entries_of(header, data))
    assert [(one.codec, one.messages) for one in found] == [
        (SubEntryCodec.GZIP, [b"one", b"two"]),
        (None, [b"three"]),
    ]
