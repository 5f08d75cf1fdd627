"""WAL objects: packed without copies, read by their directory alone, never believed unchecked."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import WalKey, parse_wal_key, wal_key
from bottomless.formats.wal import (
    HEADER_SIZE,
    LINE_SIZE,
    decode_directory,
    decode_wal,
    decode_wal_header,
    encode_wal_header,
    pack_wal,
    verify_piece,
)
from bottomless.model.limits import WAL_NOTE_COUNT_MAX, WAL_SEQUENCE_MAX, WAL_SIZE_MAX
from bottomless.model.names import StreamId, Uid, stream_id_bytes, stream_id_from_bytes
from bottomless.model.wal import Note, Piece, WalFlags
from unit.formats.examples import (
    NOTE,
    OTHER_STREAM_ID,
    STREAM_ID,
    TIMESTAMP,
    UID,
    a_piece,
    a_wal,
    assert_refuses_damage,
    seal,
)

stream_ids = st.binary(min_size=16, max_size=16).map(stream_id_from_bytes)


def whole(*pieces: Piece, notes: tuple[Note, ...] = (), sequence: int = 5) -> bytes:
    packed = pack_wal(
        UID, sequence, pieces, notes, noted_below=0, attempt=0, created_at=TIMESTAMP, generation=1
    )
    return b"".join(packed.parts)


def test_every_damage_is_refused() -> None:
    assert_refuses_damage(decode_wal, whole(a_piece(), notes=(NOTE,)))
    with pytest.raises(Corrupt, match="bytes, not"):
        decode_wal(whole(a_piece()) + bytes(8))


def test_the_directory_is_read_without_the_data() -> None:
    packed = a_wal()
    data = b"".join(packed.parts)
    directory = decode_directory(data[: packed.header.data_position])
    assert directory.header == decode_wal_header(data[:HEADER_SIZE]) == packed.header
    assert [directory.line(number) for number in range(3)] == packed.lines
    assert list(directory.pieces_of(STREAM_ID)) == [0, 1]
    assert list(directory.pieces_of(OTHER_STREAM_ID)) == [2]
    assert list(directory.pieces_of(stream_id_from_bytes(bytes(16)))) == []
    with pytest.raises(Corrupt, match="cut short"):
        decode_directory(data[: packed.header.data_position - 1])


def test_who_packs_is_told_the_number_of_each_piece() -> None:
    """In the order in which they were given; that of the directory goes by streams."""
    given = [a_piece(OTHER_STREAM_ID), a_piece(count=2), a_piece()]
    packed = a_wal(pieces=given)
    assert packed.numbers == [2, 0, 1]
    for piece, number in zip(given, packed.numbers, strict=True):
        line = packed.lines[number]
        assert (line.stream_id, line.record_count) == (piece.stream_id, piece.record_count)


def test_a_damaged_piece_is_found_without_the_others() -> None:
    packed = a_wal()
    data = bytearray(b"".join(packed.parts))
    data[packed.lines[1].position + 70] ^= 1
    pieces = [bytes(data[line.position :][: line.size]) for line in packed.lines]
    verify_piece(packed.lines[0], pieces[0])
    verify_piece(packed.lines[2], pieces[2])
    with pytest.raises(Corrupt, match="checksum"):
        verify_piece(packed.lines[1], pieces[1])
    with pytest.raises(Corrupt, match="not"):
        verify_piece(packed.lines[0], pieces[0][:-8])


@given(st.lists(stream_ids, max_size=6), st.booleans())
def test_pieces_lie_in_the_order_of_streams_and_of_their_appends(
    ids: list[StreamId], twice: bool
) -> None:
    ids = ids * 2 if twice else ids
    pieces = [a_piece(one, values=[f"{n}".encode(), b""]) for n, one in enumerate(ids)]
    data = whole(*pieces)
    directory = decode_wal(data)
    found = [directory.line(number) for number in range(len(pieces))]
    wanted = sorted(range(len(ids)), key=lambda n: (stream_id_bytes(ids[n]), n))
    assert [line.stream_id for line in found] == [ids[n] for n in wanted]
    for line, n in zip(found, wanted, strict=True):
        assert data[line.position :][: line.size] == b"".join(pieces[n].parts)
        assert line.crc == crc32c(b"".join(pieces[n].parts))
    assert directory.stream_ids() == sorted(set(ids), key=stream_id_bytes)


def test_bodies_are_not_copied_and_the_checksum_is_that_of_the_object() -> None:
    """Small pieces are summed twice, large ones put together: both ways give one sum."""
    large = a_piece(OTHER_STREAM_ID, values=[bytes(1_000_000), bytes(1_000_000)])
    small = a_piece()
    packed = pack_wal(
        UID, 0, [large, small], noted_below=0, attempt=0, created_at=TIMESTAMP, generation=0
    )
    assert packed.parts[1:] == [*small.parts, *large.parts]
    assert all(a is b for a, b in zip(packed.parts[1:], [*small.parts, *large.parts], strict=True))
    data = b"".join(packed.parts)
    assert packed.crc == crc32c(data)
    assert decode_wal(data).header == packed.header


def test_an_object_of_notes_alone_is_valid() -> None:
    directory = decode_wal(whole(notes=(NOTE, NOTE._replace(sequence=4))))
    assert directory.header.piece_count == 0
    assert [directory.note(number).sequence for number in range(2)] == [3, 4]
    assert directory.stream_ids() == []


@pytest.mark.parametrize(
    "changed",
    [
        {"sequence": 5},
        {"piece_count": 0},
        {"first_piece": 65_535},
        {"first_offset": 2**53},
        {"timestamp": 2**62},
        {"timestamp": -(2**62)},
    ],
)
def test_a_note_that_no_writer_made_is_refused(changed: dict[str, int]) -> None:
    with pytest.raises(Corrupt, match="note is corrupt"):
        whole(a_piece(), notes=(NOTE._replace(**changed),))


def lines_changed(offset: int, value: bytes) -> bytes:
    """An object whose first line has other bytes, under right checksums."""
    data = bytearray(b"".join(a_wal().parts))
    data[HEADER_SIZE + offset : HEADER_SIZE + offset + len(value)] = value
    lines = bytes(data[HEADER_SIZE : HEADER_SIZE + 3 * LINE_SIZE])
    data[76:80] = crc32c(lines).to_bytes(4, "little")
    return seal(bytes(data[:HEADER_SIZE])) + bytes(data[HEADER_SIZE:])


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (0, b"\xff" * 16, "not in order"),
        (16, (392).to_bytes(4, "little"), "not at the data"),
        (20, (8).to_bytes(4, "little"), "overlap or miss"),
        (20, (0xFFFF_FFF8).to_bytes(4, "little"), "overlap or miss"),
        (20, (629).to_bytes(4, "little"), "overlap or miss"),
        (24, bytes(4), "too few records"),
        (28, bytes(4), "no chunk"),
        (28, (11).to_bytes(4, "little"), "too small"),
        (36, bytes(4), "no append"),
    ],
)
def test_a_line_that_no_writer_made_is_refused(offset: int, value: bytes, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode_directory(lines_changed(offset, value))


def test_reserved_bytes_of_lines_are_ignored() -> None:
    assert decode_wal(lines_changed(40, b"\xff" * 24)).line(0).record_count == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"sequence": WAL_SEQUENCE_MAX + 1},
        {"noted_below": 6},
        {"attempt": 2**63},
        {"created_at": 2**62},
        {"piece_count": 65_536, "data_position": HEADER_SIZE + 64 * 65_537},
        {"note_count": WAL_NOTE_COUNT_MAX + 1, "data_position": HEADER_SIZE + 64 * 65_539},
        {"data_position": 0},
        {"data_size": WAL_SIZE_MAX + 1},
        {"data_size": WAL_SIZE_MAX},
        {"data_size": 0},
    ],
)
def test_a_header_that_no_writer_made_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        encode_wal_header(a_wal().header._replace(**changed))


def test_flags_that_are_not_known_are_refused() -> None:
    data = bytearray(encode_wal_header(a_wal().header))
    data[5] = 2
    with pytest.raises(Corrupt, match="flags 0x2 are not known"):
        decode_wal_header(seal(bytes(data)))
    assert decode_wal_header(encode_wal_header(a_wal().header)).flags is WalFlags.SYNC


def test_an_object_that_is_too_large_is_never_packed() -> None:
    piece = a_piece()._replace(parts=[memoryview(bytearray(WAL_SIZE_MAX // 4))] * 4)
    with pytest.raises(Corrupt, match=f"it has {WAL_SIZE_MAX + HEADER_SIZE + LINE_SIZE} bytes"):
        whole(piece)


@given(st.integers(0, WAL_SEQUENCE_MAX))
def test_a_key_is_read_back(sequence: int) -> None:
    assert parse_wal_key(wal_key(UID, sequence)) == WalKey(UID, sequence)


@pytest.mark.parametrize(
    "change",
    [
        lambda key: key + "x",
        lambda key: key.replace(UID, "x" * 32),
        lambda key: key.replace("wal/", "keys/"),
        lambda key: key.replace("000000000007", "7"),
        lambda key: key.replace("000000000007", "999999999999"),
    ],
)
def test_another_key_is_none_of_a_wal_object(change: Callable[[str], str]) -> None:
    assert wal_key(Uid(UID), 7) == f"_system/wal/{UID}/000000000007.wal"
    assert parse_wal_key(change(wal_key(Uid(UID), 7))) is None
