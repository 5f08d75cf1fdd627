"""Indexes of classic queues: every entry is read, and what is none ends the reading with its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.classic_messages import (
    fields,
    framed,
    index_2,
    journal_entry,
    placed_2,
    published_1,
    settled_1,
    store_2,
    stored_2,
)

from bottomless.errors import Corrupt
from bottomless.formats.classic_index import (
    Acknowledged,
    Delivered,
    Embedded,
    Entry,
    Published,
    Rest,
    Stored,
    read_journal,
    read_segment,
)
from bottomless.formats.classic_index_2 import (
    FRAME_SIZE,
    Segment,
    Unknown,
    check_store_header,
    read_index,
    read_stored_term,
)
from unit.formats.examples import a_msg_id

ID = a_msg_id(1)


def segment(data: bytes, number: int = 0, entry_count: int = 16) -> list[Entry]:
    return list(read_segment(data, number, entry_count))


def test_a_segment_says_what_was_published_delivered_and_acknowledged() -> None:
    data = published_1(0, ID, expiry=1_700_000_000_000_123) + published_1(1, ID, b"\x83j")
    data += settled_1(0) + settled_1(1) + settled_1(0)
    assert segment(data, 3) == [
        Published(48, True, Stored(ID), 9, 1_700_000_000_000),
        Published(49, True, Embedded(2 + 32 + 2 + 32, 2), 9, None),
        Delivered(48),
        Delivered(49),
        Acknowledged(48),
    ]


def test_what_its_broker_does_not_keep_over_a_restart_is_told_apart() -> None:
    transient = bytes([0x80, 5]) + fields(ID)
    assert segment(transient) == [Published(5, False, Stored(ID), 9, None)]
    kept, lost = journal_entry(0, 7, fields(ID)), journal_entry(1, 8, fields(ID))
    assert list(read_journal(kept + lost)) == [
        Published(7, True, Stored(ID), 9, None),
        Published(8, False, Stored(ID), 9, None),
    ]


@pytest.mark.parametrize(
    "rest",
    [b"\xc0", b"\0\0", bytes(40), published_1(0, ID)[:-1], published_1(16, ID), settled_1(16)],
    ids=["one byte", "no kind", "zeros", "cut off", "beyond the segment", "settled beyond it"],
)
def test_what_is_no_entry_ends_a_segment(rest: bytes) -> None:
    data = published_1(2, ID)
    assert segment(data + rest) == [
        Published(2, True, Stored(ID), 9, None),
        Rest(len(data), len(rest)),
    ]


def test_a_journal_ends_with_zeros_or_where_it_is_cut() -> None:
    data = journal_entry(0, 0, fields(ID)) + journal_entry(2, 0) + journal_entry(3, 2**61)
    entries: list[Entry] = [
        Published(0, True, Stored(ID), 9, None),
        Delivered(0),
        Acknowledged(2**61),
    ]
    assert list(read_journal(data)) == entries
    for rest in (bytes(40), bytes(300), b"\xc0", journal_entry(1, 9, fields(ID))[:-1]):
        assert list(read_journal(data + rest)) == [*entries, Rest(len(data), len(rest))]


def test_a_term_that_is_said_to_be_larger_than_the_file_is_none() -> None:
    huge = published_1(0, ID)[:-4] + b"\xff\xff\xff\xff"
    assert segment(huge) == [Rest(0, len(huge))]


@given(data=st.binary(max_size=200), entry_count=st.integers(1, 2**14))
def test_any_bytes_are_read_to_their_end(data: bytes, entry_count: int) -> None:
    for entries in (segment(data, 1, entry_count), list(read_journal(data))):
        rest = [one for one in entries if isinstance(one, Rest)]
        assert all(one.position + one.size == len(data) for one in rest)
        assert len(rest) < 2
        assert len(entries) <= len(data) // 2 + 1


def test_version_2_has_an_entry_for_each_number() -> None:
    entries = [stored_2(ID), bytes(32), placed_2(64, 11, expiry=5_000), stored_2(ID, flags=0)]
    assert list(read_index(index_2(32, 48, entries))) == [
        Published(32, True, Stored(ID), 9, None),
        Published(34, True, Embedded(64, 11, framed=True), 9, 5),
        Published(35, False, Stored(ID), 9, None),
    ]
    assert list(read_index(index_2(0, 16, [])[:64])) == []


def test_an_entry_that_is_torn_at_the_end_is_none() -> None:
    data = index_2(0, 16, [stored_2(ID), stored_2(ID)])
    for end in range(64, len(data)):
        assert len(list(read_index(data[:end]))) == (end - 64) // 32


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (b"\x02" + stored_2(ID)[1:], "status 2"),
        (b"\x01\x02" + stored_2(ID)[2:], "flags 2"),
        (b"\x01\x01\x00\x03" + stored_2(ID)[4:], "a location of kind 3"),
        (placed_2(1, 2)[:16] + b"\x01" + placed_2(1, 2)[17:], "after its size"),
    ],
)
def test_an_entry_that_says_something_else_is_named(entry: bytes, what: str) -> None:
    [found] = read_index(index_2(0, 16, [entry]))
    assert isinstance(found, Unknown)
    assert what in found.what


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"RCQI", "its header has 4 bytes"),
        (store_2(0, 16, []), "does not begin with RCQI"),
        (b"RCQI\x03" + index_2(0, 16, [])[5:], "version 3 is not known"),
        (index_2(16, 16, []), "from 16 to 16"),
        (index_2(0, 1, [stored_2(ID)] * 2), "it has 2 entries, and says 1"),
    ],
)
def test_what_is_no_index_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        list(read_index(data))


def test_a_term_in_the_store_of_a_queue_is_checked() -> None:
    data = store_2(16, 32, [b"\x83one", b"\x83two"])
    assert check_store_header(data) == Segment(16, 32)
    at = 64 + FRAME_SIZE + 4
    assert bytes(read_stored_term(data[at : at + 12], 4)) == b"\x83two"
    assert bytes(read_stored_term(framed(b"\x83", checksum=False), 1)) == b"\x83"
    one = framed(b"\x83one")
    for bad, why in (
        (one[:-1], "11 bytes lie there, not 12"),
        (framed(b"\x83on") + b"e", "it has 3 bytes, not 4"),
        (one[:-1] + b"f", "checksum"),
        (one[:4] + b"\x02" + one[5:], "flags 2"),
    ):
        with pytest.raises(Corrupt, match=why):
            read_stored_term(bad, 4)
