from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import ChunkHead, decode_header, split_chunks
from bottomless.formats.fragment import (
    FOOTER_SIZE,
    HEADER_SIZE,
    FragmentIndex,
    decode_footer,
    decode_fragment_header,
    decode_index,
    decode_stored_filters,
    encode_footer,
    encode_fragment_header,
    frame_fragment,
    pack_fragment,
)
from bottomless.formats.segment import INDEX_RECORD_DTYPE
from bottomless.model.chunk import ChunkFlags, ChunkKind
from bottomless.model.fragment import FragmentFooter, FragmentHeader
from bottomless.model.limits import (
    CHUNK_RECORD_COUNT_MAX,
    CHUNK_SIZE_MAX,
    FRAGMENT_CHUNK_COUNT_MAX,
    OFFSET_MAX,
)
from unit.formats.examples import (
    STREAM_ID,
    TIMESTAMP,
    UID,
    a_bare_chunk,
    a_chunk,
    a_fragment,
    a_tracking_chunk,
    assert_refuses_damage,
    filtered_fragment,
    seal,
    some_chunks,
)

HEADER = FragmentHeader(
    stream_id=STREAM_ID,
    uid=UID,
    first_offset=1040,
    next_offset=1044,
    first_timestamp=TIMESTAMP,
    last_timestamp=TIMESTAMP + 1,
    epoch=3,
    record_count=4,
    data_size=624,
    chunk_count=2,
)
FOOTER = FragmentFooter(
    index_position=752,
    data_size=624,
    index_size=96,
    chunk_count=2,
    index_crc=0x01020304,
    data_crc=0x05060708,
)
FOOTER_BYTES = bytes.fromhex(
    "f0 02 00 00 00 00 00 00"  # index_position: 752
    "70 02 00 00 00 00 00 00"  # data_size: 624
    "60 00 00 00"  # index_size: 96
    "02 00 00 00"  # chunk_count: 2
    "04 03 02 01"  # index_crc
    "08 07 06 05"  # data_crc
    "00 00 00 00 00 00 00 00 00 00 00 00"  # reserved
    "00 00 00 00 00 00 00 00 00 00 00"  # reserved
    "01"  # version: 1
    "8d dd 69 f5"  # footer_crc
    "72 66 4c 42"  # magic: rfLB
)


def index_of(count: int = 3) -> bytes:
    """Index and footer, as a reader gets them."""
    return b"".join(a_fragment(count).parts[-2:])


def altered(number: int, name: str, value: int) -> bytes:
    """An index with right checksums and one record that lies."""
    records = np.frombuffer(index_of()[:-FOOTER_SIZE], INDEX_RECORD_DTYPE).copy()
    records[number][name] = value
    for row in range(len(records)):
        records["record_crc"][row] = crc32c(records[row : row + 1].tobytes()[:-4])
    raw = records.tobytes()
    footer = decode_footer(index_of()[-FOOTER_SIZE:])
    return raw + encode_footer(footer._replace(index_crc=crc32c(raw)))


def test_a_footer_has_exactly_these_bytes() -> None:
    assert encode_footer(FOOTER) == FOOTER_BYTES
    assert decode_footer(FOOTER_BYTES) == FOOTER


def test_a_fragment_is_described_from_both_ends() -> None:
    packed = a_fragment()
    whole = b"".join(packed.parts)
    header = decode_fragment_header(whole[:HEADER_SIZE])
    index = decode_index(whole[packed.info.index_position :])
    assert header == HEADER
    assert index.footer.index_position == packed.info.index_position == 752
    assert index.footer.data_crc == crc32c(whole[HEADER_SIZE:752])
    assert (packed.info.size, packed.info.crc) == (len(whole), crc32c(whole))
    assert packed.info.fragment_id == f"00000000000000001040-{UID}"
    assert (packed.info.first_offset, packed.info.next_offset) == (1040, 1044)
    assert (packed.info.first_timestamp, packed.info.last_timestamp) == (TIMESTAMP, TIMESTAMP + 1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_runs_are_packed_however_they_are_cut(runs: list[int]) -> None:
    chunks = some_chunks(sum(runs))
    ends = list(accumulate(runs))
    cut = [b"".join(chunks[end - size : end]) for size, end in zip(runs, ends, strict=True)]
    packed = pack_fragment(STREAM_ID, UID, cut)
    assert packed.info == pack_fragment(STREAM_ID, UID, chunks).info
    whole = b"".join(packed.parts)
    index = decode_index(whole[packed.info.index_position :])
    assert len(index) == len(chunks)
    for number, chunk in enumerate(chunks):
        place = index.place(number)
        assert whole[place.position : place.position + place.size] == chunk
        assert place.first_offset == 2 * number


def test_an_index_is_searched_like_a_list() -> None:
    index = decode_index(index_of(5))
    places = [index.place(number) for number in range(5)]
    for offset in range(1040, 1050):
        holding = [p.first_offset <= offset < p.next_offset for p in places]
        assert index.at_offset(offset) == holding.index(True)
    for timestamp in range(TIMESTAMP - 2, TIMESTAMP + 8):
        later = [p.timestamp >= timestamp for p in places]
        assert index.since(timestamp) == (later.index(True) if any(later) else 5)


def test_an_offset_below_the_fragment_is_the_callers_mistake() -> None:
    with pytest.raises(AssertionError):
        decode_index(index_of()).at_offset(1039)


def test_a_tracking_chunk_takes_no_offset() -> None:
    tracking = a_tracking_chunk(0)
    packed = pack_fragment(STREAM_ID, UID, [tracking, *some_chunks(2)])
    index = decode_index(b"".join(packed.parts[-2:]))
    assert packed.info.record_count == 4
    assert index.at_offset(0) == 1


def test_every_damage_to_a_header_is_refused() -> None:
    assert decode_fragment_header(encode_fragment_header(HEADER)) == HEADER
    assert_refuses_damage(decode_fragment_header, encode_fragment_header(HEADER))


def test_every_damage_to_a_footer_is_refused() -> None:
    assert_refuses_damage(decode_footer, FOOTER_BYTES)


def test_every_damage_to_an_index_is_refused() -> None:
    assert_refuses_damage(decode_index, index_of())


def test_every_damage_to_a_fragment_is_refused() -> None:
    """By a reader that looks at all of it."""
    position = a_fragment().info.index_position

    def read(whole: bytes) -> None:
        header = decode_fragment_header(whole[:HEADER_SIZE])
        index = decode_index(whole[position:])
        list(split_chunks(whole[HEADER_SIZE : HEADER_SIZE + header.data_size]))
        assert len(index) == header.chunk_count

    assert_refuses_damage(read, b"".join(a_fragment().parts))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    for decode, size in (
        (decode_fragment_header, HEADER_SIZE),
        (decode_footer, FOOTER_SIZE),
        (decode_index, 0),
    ):
        for random in (data, data.ljust(size, b"\0")[-size:]):
            with pytest.raises(Corrupt):
                decode(random)


def test_reserved_bytes_are_ignored() -> None:
    header, footer = bytearray(encode_fragment_header(HEADER)), bytearray(FOOTER_BYTES)
    header[5:8], header[100:124] = b"\xff" * 3, b"\xff" * 24
    footer[32:55] = b"\xff" * 23
    assert decode_fragment_header(seal(bytes(header))) == HEADER
    assert decode_footer(seal(bytes(footer), 8)) == FOOTER


def test_an_unknown_version_is_named() -> None:
    header, footer = bytearray(encode_fragment_header(HEADER)), bytearray(FOOTER_BYTES)
    header[4] = footer[55] = 3
    with pytest.raises(Corrupt, match="version 3 is not known, only 1 and 2"):
        decode_fragment_header(seal(bytes(header)))
    with pytest.raises(Corrupt, match="version 3 is not known, only 1 and 2"):
        decode_footer(seal(bytes(footer), 8))


def test_a_fragment_without_filters_is_of_version_1() -> None:
    """What version 2 has is reserved in version 1, and is passed over there."""
    footer = bytearray(FOOTER_BYTES)
    footer[32:40] = b"\xff" * 8
    assert decode_footer(seal(bytes(footer), 8)) == FOOTER
    footer[32:40], footer[55] = bytes(8), 2
    with pytest.raises(Corrupt, match="it has no filters"):
        decode_footer(seal(bytes(footer), 8))


def test_a_fragment_made_of_headers_alone_has_the_same_filters() -> None:
    data = b"".join(filtered_fragment().parts)
    footer = decode_footer(data[-64:])
    tables = decode_stored_filters(data[footer.filters_position : footer.index_position], footer)
    chunks = data[128 : footer.filters_position]
    heads = [ChunkHead(header, bytes(chunk[:64])) for header, chunk in split_chunks(chunks)]
    frame = frame_fragment(STREAM_ID, UID, heads, tables)
    assert b"".join((frame.head, chunks, frame.filters, frame.chunk_index, frame.footer)) == data
    assert frame.info == filtered_fragment().info
    assert crc32c(data) == frame.info.crc


def test_damaged_filters_are_refused_by_their_checksum() -> None:
    data = b"".join(filtered_fragment().parts)
    footer = decode_footer(data[-64:])
    filters = bytearray(data[footer.filters_position : footer.index_position])
    filters[40] ^= 1
    with pytest.raises(Corrupt, match="checksum"):
        decode_stored_filters(bytes(filters), footer)


@pytest.mark.parametrize(
    "header",
    [
        HEADER._replace(next_offset=1045),
        HEADER._replace(next_offset=1040, record_count=0),
        HEADER._replace(first_offset=OFFSET_MAX, next_offset=OFFSET_MAX + 4),
        HEADER._replace(last_timestamp=TIMESTAMP - 1),
        HEADER._replace(chunk_count=0),
        HEADER._replace(chunk_count=FRAGMENT_CHUNK_COUNT_MAX + 1, data_size=2**40),
        HEADER._replace(data_size=127),
    ],
)
def test_an_impossible_header_is_not_written(header: FragmentHeader) -> None:
    with pytest.raises(Corrupt):
        encode_fragment_header(header)


@pytest.mark.parametrize(
    "footer",
    [
        FOOTER._replace(chunk_count=0, index_size=0),
        FOOTER._replace(
            chunk_count=FRAGMENT_CHUNK_COUNT_MAX + 1,
            index_size=(FRAGMENT_CHUNK_COUNT_MAX + 1) * 48,
        ),
        FOOTER._replace(index_size=95),
        FOOTER._replace(index_position=753),
        FOOTER._replace(data_size=2**64 - 1),
    ],
)
def test_an_impossible_footer_is_not_written(footer: FragmentFooter) -> None:
    with pytest.raises(Corrupt):
        encode_footer(footer)


@pytest.mark.parametrize(
    ("number", "name", "value", "why"),
    [
        (0, "size", CHUNK_SIZE_MAX + 8, "size="),
        (1, "size", CHUNK_SIZE_MAX + 8, "a chunk is too large"),
        (1, "size", 2**32 - 1, "a chunk is too large"),
        (1, "size", 0, "a chunk is too small"),
        (1, "record_count", CHUNK_RECORD_COUNT_MAX + 1, "too many records"),
        (1, "position", 2**64 - 8, "overlap or miss"),
        (0, "position", 64, "overlap or miss"),
        (2, "size", 320, "overlap or miss"),
        (1, "first_offset", 1043, "not dense"),
        (2, "first_offset", 2**64 - 1, "not dense"),
        (1, "timestamp", TIMESTAMP - 1, "timestamps decrease"),
        (1, "timestamp", -(2**63), "timestamps decrease"),
        (2, "epoch", 4, "spans epochs"),
    ],
)
def test_an_index_that_lies_is_refused(number: int, name: str, value: int, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode_index(altered(number, name, value))


def test_an_index_beyond_all_offsets_is_refused() -> None:
    records = np.frombuffer(index_of()[:-FOOTER_SIZE], INDEX_RECORD_DTYPE).copy()
    records["first_offset"] += np.uint64(OFFSET_MAX - 1044)
    for row in range(len(records)):
        records["record_crc"][row] = crc32c(records[row : row + 1].tobytes()[:-4])
    raw = records.tobytes()
    footer = decode_footer(index_of()[-FOOTER_SIZE:])._replace(index_crc=crc32c(raw))
    with pytest.raises(Corrupt, match="next_offset="):
        decode_index(raw + encode_footer(footer))


def test_an_index_of_another_size_than_its_footer_says_is_refused() -> None:
    with pytest.raises(Corrupt, match="bytes, not 144"):
        decode_index(index_of()[48:])
    with pytest.raises(Corrupt, match="too few"):
        decode_index(index_of()[-FOOTER_SIZE:])


def test_a_fragment_of_a_damaged_chunk_is_not_packed() -> None:
    with pytest.raises(Corrupt, match="checksum of its body"):
        pack_fragment(STREAM_ID, UID, [a_chunk()[:-1] + b"\x01"])


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ([], "it holds no chunk"),
        ([b""], "it holds no chunk"),
        ([a_chunk(0), a_chunk(3)], "not dense"),
        ([a_chunk(2), a_chunk(0)], "not dense"),
        ([a_chunk(0), a_chunk(2, epoch=4)], "spans epochs"),
        ([a_chunk(0), a_chunk(2, timestamp=TIMESTAMP - 1)], "timestamps decrease"),
        ([a_chunk(0), a_chunk(2, flags=ChunkFlags.MORE_FOLLOWS)], "ends inside an append"),
        (
            [a_chunk(0, flags=ChunkFlags.MORE_FOLLOWS), a_bare_chunk(ChunkKind.TRACKING, 2)],
            "ends inside an append",
        ),
        ([a_bare_chunk(ChunkKind.TRACKING, 2)], "it holds no record"),
        ([a_chunk(0)[:-8]], "cut short"),
    ],
)
def test_chunks_that_are_not_one_whole_run_are_not_packed(chunks: list[bytes], why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        pack_fragment(STREAM_ID, UID, chunks)


def test_an_append_of_several_chunks_may_lie_inside() -> None:
    group = [a_chunk(0, flags=ChunkFlags.MORE_FOLLOWS), a_chunk(2)]
    assert pack_fragment(STREAM_ID, UID, group).info.next_offset == 4


def test_an_index_knows_its_size() -> None:
    assert isinstance(decode_index(index_of(1)), FragmentIndex)
    assert len(decode_index(index_of(1))) == 1


def heads_of(chunks: list[bytes]) -> list[ChunkHead]:
    return [ChunkHead(decode_header(chunk), chunk[:64]) for chunk in chunks]


@given(count=st.integers(1, 30), tracking=st.booleans())
def test_a_fragment_of_headers_alone_is_that_of_the_chunks(count: int, tracking: bool) -> None:
    chunks = some_chunks(count, 1040)
    if tracking:
        chunks.insert(0, a_tracking_chunk(1040))
    packed = pack_fragment(STREAM_ID, UID, chunks)

    frame = frame_fragment(STREAM_ID, UID, heads_of(chunks))

    assert frame.info == packed.info
    whole = b"".join([frame.head, *chunks, frame.chunk_index, frame.footer])
    assert whole == b"".join(packed.parts)
    assert crc32c(whole) == frame.info.crc


def test_damage_in_any_chunk_gives_another_checksum_than_the_headers_say() -> None:
    chunks = some_chunks(3)
    frame = frame_fragment(STREAM_ID, UID, heads_of(chunks))
    for number in range(3):
        for position in (0, 63, 64, len(chunks[number]) - 1):
            damaged = [bytearray(chunk) for chunk in chunks]
            damaged[number][position] ^= 1
            assert (
                crc32c(b"".join([frame.head, *damaged, frame.chunk_index, frame.footer]))
                != frame.info.crc
            )


def test_headers_that_make_no_fragment_are_refused() -> None:
    chunks = some_chunks(3)
    hole = heads_of(chunks[:1])[0]
    hole = hole._replace(header=hole.header._replace(kind=ChunkKind.HOLE))
    for heads in (
        [],
        heads_of([chunks[0], chunks[2]]),
        heads_of([chunks[0], a_chunk(2, epoch=9)]),
        heads_of([a_chunk(flags=ChunkFlags.MORE_FOLLOWS)]),
        [hole],
    ):
        with pytest.raises(Corrupt):
            frame_fragment(STREAM_ID, UID, heads)
