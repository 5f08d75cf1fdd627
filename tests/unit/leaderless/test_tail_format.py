"""The bytes of tails in coordination: they sort as their numbers, and no other bytes are taken."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.model.limits import OFFSET_MAX, WAL_SEQUENCE_MAX, WAL_SIZE_MAX
from bottomless_server.leaderless.tail import Tail, TailEntry, TailState
from bottomless_server.leaderless.tail_format import (
    Known,
    after_offset,
    after_sequence,
    decode_entry,
    decode_held,
    decode_known,
    decode_tail,
    encode_entry,
    encode_held,
    encode_known,
    encode_tail,
)
from unit.formats.examples import (
    HELD,
    TAIL,
    TAIL_ENTRY,
    TRACKED,
    UID,
    assert_refuses_damage,
    seal,
)


def test_every_damage_to_a_tail_record_is_refused() -> None:
    assert_refuses_damage(decode_tail, encode_tail(TAIL))


@pytest.mark.parametrize("state", TailState)
def test_tails_come_back(state: TailState) -> None:
    tail = TAIL._replace(state=state)
    assert decode_tail(encode_tail(tail)) == tail


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (5, b"\0"),
        (5, b"\4"),
        (16, (2**53 + 1).to_bytes(8, "little")),
        (32, (2**62).to_bytes(8, "little")),
        (56, (1048).to_bytes(8, "little")),
        (56, (1043).to_bytes(8, "little")),
        (64, (9_008).to_bytes(8, "little")),
        (72, (1039).to_bytes(8, "little")),
        (72, (1048).to_bytes(8, "little")),
        (96, bytes(4)),
    ],
)
def test_a_tail_that_no_writer_made_is_refused(place: int, value: bytes) -> None:
    raw = bytearray(encode_tail(TAIL))
    raw[place : place + len(value)] = value
    with pytest.raises(Corrupt):
        decode_tail(seal(bytes(raw)))


def test_an_impossible_tail_is_the_callers_mistake() -> None:
    with pytest.raises(AssertionError):
        encode_tail(TAIL._replace(pruned_next=1047))


@given(st.lists(st.tuples(st.integers(1, OFFSET_MAX + 1), st.integers(1, 2**64 - 1)), max_size=8))
def test_entries_sort_as_their_offsets(numbers: list[tuple[int, int]]) -> None:
    entries = [
        TAIL_ENTRY._replace(next_offset=offset, number=number, record_count=1)
        for offset, number in numbers
    ]
    raw = sorted(encode_entry(entry) for entry in entries)
    assert [(one.next_offset, one.number) for one in map(decode_entry, raw)] == sorted(numbers)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 400))
def test_the_entry_that_holds_an_offset_is_the_first_after_its_bytes(
    counts: list[int], offset: int
) -> None:
    """As an index answers: the first member that sorts after the given bytes."""
    ends = [sum(counts[: n + 1]) for n in range(len(counts))]
    entries = [
        TAIL_ENTRY._replace(next_offset=end, record_count=count)
        for end, count in zip(ends, counts, strict=True)
    ]
    raw = [encode_entry(entry) for entry in entries]
    after = [decode_entry(member) for member in raw if member > after_offset(offset)]
    holding = [entry for entry in entries if entry.first_offset <= offset < entry.next_offset]
    assert after[:1] == holding


@pytest.mark.parametrize(
    "changed",
    [
        {"next_offset": OFFSET_MAX + 2},
        {"record_count": 0},
        {"record_count": 1048},
        {"timestamp": 2**62},
        {"size": 0},
        {"size": 625},
        {"log_end": 616},
        {"position": 4},
        {"position": WAL_SIZE_MAX},
        {"number": 0},
    ],
)
def test_an_entry_that_no_writer_made_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        encode_entry(TAIL_ENTRY._replace(**changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"sequence": WAL_SEQUENCE_MAX + 1},
        {"shard": 16},
        {"committed_at": 2**62},
        {"entry_count": 0},
    ],
)
def test_a_held_member_that_no_writer_made_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        encode_held(HELD._replace(**changed))


@given(st.lists(st.integers(0, WAL_SEQUENCE_MAX), max_size=8), st.integers(0, WAL_SEQUENCE_MAX))
def test_held_members_sort_as_sequences(sequences: list[int], wanted: int) -> None:
    raw = sorted(encode_held(HELD._replace(sequence=one)) for one in sequences)
    assert [decode_held(one).sequence for one in raw] == sorted(sequences)
    found = [decode_held(one).sequence for one in raw if one > after_sequence(wanted)]
    assert found == sorted(one for one in sequences if one >= wanted)


def test_what_is_known_comes_back() -> None:
    assert decode_known(encode_known(1040, TRACKED)) == Known(1040, TRACKED)


@pytest.mark.parametrize(
    "data", [b"", bytes(7), bytes(8), b"\xff" * 8, encode_known(1, TRACKED)[:-8]]
)
def test_a_known_value_that_no_writer_made_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_known(data)


@pytest.mark.parametrize("size", [0, 31, 33, 63, 65, 127, 129])
def test_another_size_is_refused(size: int) -> None:
    for decode in (decode_tail, decode_entry, decode_held):
        with pytest.raises(Corrupt, match=f"{size} bytes, not"):
            decode(bytes(size))


def test_the_fields_of_a_value_are_in_the_order_of_its_bytes() -> None:
    assert TailEntry._fields.index("instance") == 4
    assert Tail._fields[0] == "state"
    assert UID.encode() not in encode_entry(TAIL_ENTRY)
