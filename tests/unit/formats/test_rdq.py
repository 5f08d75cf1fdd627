"""Files of version 1 have no framing that can be trusted: a scan finds what is wanted, and that alone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.message_file import reads_of
from bottomless.formats.rdq import (
    FoundTerm,
    decode_rdq_record,
    encode_rdq_record,
    scan_rdq,
)
from unit.formats.examples import a_msg_id, an_rdq_file

WANTED = [a_msg_id(number) for number in range(50)]
junk = st.binary(max_size=40) | st.integers(1, 40).map(bytes)
records = st.tuples(st.integers(0, 99), st.binary(max_size=30))


@given(parts=st.lists(records | junk, max_size=10))
def test_wanted_messages_are_found_between_dead_ones_zeros_and_anything(
    parts: list[tuple[int, bytes] | bytes],
) -> None:
    """Junk is cut where it could begin a record: none of it says that it has the size of one."""
    data = b""
    there: dict[bytes, tuple[int, bytes]] = {}
    for part in parts:
        if isinstance(part, bytes):
            data += bytes(byte | 0x80 for byte in part) if any(part) else part
        else:
            there.setdefault(a_msg_id(part[0]), (len(data), part[1]))
            data += encode_rdq_record(a_msg_id(part[0]), part[1])
    wanted = {msg_id: place for msg_id, place in there.items() if msg_id in WANTED}
    found = list(scan_rdq(reads_of(data), len(data), WANTED))
    # Junk before a record may swallow it where it happens to name an id: none here does.
    assert {one.msg_id: one.position for one in found} == {
        msg_id: place for msg_id, (place, _) in wanted.items()
    }
    for one in found:
        msg_id, term = decode_rdq_record(data[one.position : one.position + one.size])
        assert (msg_id, bytes(term)) == (one.msg_id, there[one.msg_id][1])


def test_a_record_in_any_place_of_a_large_file_is_found() -> None:
    chance = random.Random(1)
    data, places = b"", []
    for msg_id in WANTED:
        data += bytes(chance.randrange(60_000))
        places.append(FoundTerm(msg_id, len(data), 25 + 300))
        data += encode_rdq_record(msg_id, bytes([255]) * 300)
    assert list(scan_rdq(reads_of(data), len(data), WANTED)) == places


def test_of_two_records_of_a_message_the_first_counts() -> None:
    data = encode_rdq_record(WANTED[1], b"one") * 2
    assert list(scan_rdq(reads_of(data), len(data), WANTED)) == [FoundTerm(WANTED[1], 0, 28)]


def test_a_record_without_its_last_byte_is_none() -> None:
    data = an_rdq_file()
    assert [one.msg_id for one in scan_rdq(reads_of(data), len(data), WANTED)] == WANTED[1:4]
    for end in range(len(data)):
        found = list(scan_rdq(reads_of(data), end, WANTED))
        assert all(one.position + one.size <= end for one in found)
        assert len(found) < 3
    changed = data[:-1] + b"\0"
    assert len(list(scan_rdq(reads_of(changed), len(data), WANTED))) == 2


def test_nothing_is_found_that_nobody_wants() -> None:
    data = an_rdq_file()
    assert list(scan_rdq(reads_of(data), len(data), [])) == []
    assert list(scan_rdq(reads_of(data), len(data), [bytes(16)])) == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bytes(24), "too few"),
        (encode_rdq_record(WANTED[0], b"t") + b"\xff", "says that it has 17"),
        (encode_rdq_record(WANTED[0], b"t")[:-1] + b"\0", "does not end with FF"),
    ],
)
def test_what_is_no_record_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode_rdq_record(data)
