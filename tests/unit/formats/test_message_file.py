"""Message files: any layout is found again, and damage of any kind shows no message that was not there."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.message_file import (
    CHECKED_SIZE_MIN,
    HEADER_SIZE,
    RECORD_SIZE_MAX,
    Finding,
    Found,
    check_file_header,
    decode_record,
    encode_file_header,
    encode_record,
    hole_front,
    reads_of,
    record_size,
    scan,
)
from unit.formats.examples import a_hole, a_msg_id, a_record

PERFECT = a_record(99, b"perfect")


class Part(NamedTuple):
    """What a file is made of: a message with its id, or a hole."""

    data: bytes
    number: int | None = None
    body: bytes = b""
    checksum: bool = True


def a_message(number: int, body: bytes, *, checksum: bool = True) -> Part:
    return Part(a_record(number, body, checksum=checksum), number, body, checksum)


bodies = st.binary(max_size=40) | st.integers(1, 3).map(lambda count: PERFECT * count)
messages = st.builds(a_message, st.integers(0, 90), bodies, checksum=st.booleans())
insides = st.binary(min_size=5, max_size=60) | st.integers(1, 3).map(lambda count: PERFECT * count)
# Small holes never follow each other: compaction leaves them between messages alone.
holes = insides.map(lambda inside: Part(a_hole(inside)))
small_holes = st.tuples(st.integers(1, 4), messages | holes).map(
    lambda pair: [Part(a_hole(bytes(pair[0]))), pair[1]]
)
layouts = st.lists((messages | holes).map(lambda one: [one]) | small_holes, max_size=8).map(
    lambda runs: list(itertools.chain.from_iterable(runs))
)


def a_file(parts: list[Part]) -> bytes:
    return encode_file_header() + b"".join(part.data for part in parts)


def scanned(data: bytes, known: Iterable[int] = ()) -> list[Found]:
    found = list(scan(reads_of(data), len(data), list(known)))
    ends = [HEADER_SIZE, *(one.position + one.size for one in found)]
    assert [one.position for one in found] == ends[:-1]
    assert max(ends[-1], HEADER_SIZE) == max(len(data), HEADER_SIZE), "what is found tiles the file"
    return found


def positions(parts: list[Part]) -> list[int]:
    return [HEADER_SIZE, *itertools.accumulate((len(p.data) for p in parts), initial=HEADER_SIZE)][
        1:
    ]


def shown(data: bytes, found: list[Found]) -> list[tuple[bytes, bytes]]:
    """Ids and bodies of what a scan calls messages."""
    return [
        (one.msg_id, bytes(decode_record(data[one.position : one.position + one.size]).body))
        for one in found
        if one.what is Finding.MESSAGE
    ]


def first_of_each(parts: list[Part]) -> list[tuple[bytes, bytes]]:
    found: dict[bytes, bytes] = {}
    for part in parts:
        if part.number is not None:
            found.setdefault(a_msg_id(part.number), part.body)
    return list(found.items())


@given(parts=layouts)
def test_a_scan_finds_every_message_once_and_nothing_that_lies_in_holes_or_bodies(
    parts: list[Part],
) -> None:
    data = a_file(parts)
    found = scanned(data)
    assert shown(data, found) == first_of_each(parts)
    assert {one.what for one in found} <= {Finding.HOLE, Finding.MESSAGE, Finding.REPEATED}
    assert [one.position for one in found] == positions(parts)[: len(parts)]


@settings(max_examples=15)
@given(parts=layouts)
def test_a_file_that_is_torn_at_any_byte_shows_what_is_whole(parts: list[Part]) -> None:
    data = a_file(parts)
    for end in range(HEADER_SIZE, len(data)):
        whole = [p for p, at in zip(parts, positions(parts)[1:], strict=True) if at <= end]
        assert shown(data, scanned(data[:end])) == first_of_each(whole)


def check_every_flip(parts: list[Part], places: Iterable[int]) -> None:
    """Nothing that was not there shows, and of what was there one message at most is gone."""
    data = a_file(parts)
    good = {(a_msg_id(p.number), p.body) for p in parts if p.number is not None}
    known = positions(parts)[:-1]
    for place in places:
        raw = bytearray(data)
        raw[place // 8] ^= 1 << place % 8
        for names in ([], known):
            found = scanned(bytes(raw), names)
            checked = set(shown(bytes(raw), [one for one in found if one.checked]))
            assert checked <= good
            if names:
                assert len(good - checked) <= 1, place


numbered = st.lists(
    bodies.map(lambda body: (body, True)) | insides.map(lambda inside: (inside, False)),
    min_size=1,
    max_size=5,
).map(
    lambda pairs: [
        a_message(number, data) if is_message else Part(a_hole(data))
        for number, (data, is_message) in enumerate(pairs)
    ]
)


@given(parts=numbered, places=st.lists(st.integers(0, 10**6), max_size=10))
def test_a_flipped_bit_loses_one_message_at_most_and_makes_none(
    parts: list[Part], places: list[int]
) -> None:
    size = sum(len(part.data) for part in parts)
    check_every_flip(parts, [8 * HEADER_SIZE + place % (8 * size) for place in places])


def test_each_bit_of_a_file_may_be_flipped() -> None:
    parts = [
        a_message(1, PERFECT),
        Part(a_hole(PERFECT)),
        a_message(2, b"two"),
        Part(a_hole(b"\1" * 5)),
    ]
    check_every_flip(parts, range(8 * HEADER_SIZE, 8 * len(a_file(parts))))


@pytest.mark.parametrize(
    "first", [Part(a_hole(bytes(32))), a_message(9, bytes(11), checksum=False)]
)
def test_a_size_that_leads_past_messages_that_somebody_knows_hides_none_of_them(
    first: Part,
) -> None:
    parts = [first, *(a_message(number, b"seven b") for number in range(4))]
    assert [len(part.data) for part in parts] == [32] * 5
    data = bytearray(a_file(parts))
    data[HEADER_SIZE + 4] ^= 64
    alone = shown(bytes(data), scanned(bytes(data)))
    assert len([body for _, body in alone if body == b"seven b"]) == 2, "nothing else could tell"
    told = shown(bytes(data), scanned(bytes(data), positions(parts)[1:-1]))
    assert told == first_of_each(parts[1:])


def test_without_anybody_who_knows_positions_a_damaged_size_costs_one_message() -> None:
    """The body would show a message that its sender made up, if the damaged size led into it."""
    data = a_file([a_message(1, PERFECT * 3), a_message(2, b"two")])
    for bit in range(32):
        raw = bytearray(data)
        raw[HEADER_SIZE + 4 - bit // 8] ^= 1 << bit % 8
        found = scanned(bytes(raw))
        assert [one.what for one in found] == [Finding.DAMAGED, Finding.MESSAGE], bit
        assert shown(bytes(raw), found) == [(a_msg_id(2), b"two")]


def test_lost_framing_goes_on_where_somebody_knows_a_record_and_else_ends_the_scan() -> None:
    parts = [a_message(1, b"one"), a_message(2, b"two"), a_message(3, b"three")]
    data = bytearray(a_file(parts))
    second, third = positions(parts)[1:3]
    data[second] = 0
    alone = scanned(bytes(data))
    assert [one.what for one in alone] == [Finding.MESSAGE, Finding.LOST]
    told = scanned(bytes(data), [HEADER_SIZE, second, third])
    assert [one.what for one in told] == [Finding.MESSAGE, Finding.LOST, Finding.MESSAGE]
    assert told[2].position == third


def test_a_wrong_checksum_costs_that_message_alone() -> None:
    parts = [a_message(1, b"one"), a_message(2, b"two"), a_message(3, b"three")]
    data = bytearray(a_file(parts))
    data[positions(parts)[2] - 1] ^= 1
    found = scanned(bytes(data))
    assert [one.what for one in found] == [Finding.MESSAGE, Finding.DAMAGED, Finding.MESSAGE]


def test_a_second_record_of_a_message_counts_only_if_the_first_is_damaged() -> None:
    data = bytearray(a_file([a_message(1, b"body"), a_message(1, b"body")]))
    assert [one.what for one in scanned(bytes(data))] == [Finding.MESSAGE, Finding.REPEATED]
    data[HEADER_SIZE + CHECKED_SIZE_MIN] ^= 1
    assert [one.what for one in scanned(bytes(data))] == [Finding.DAMAGED, Finding.MESSAGE]


@pytest.mark.parametrize("count", range(1, 7))
def test_at_most_four_holes_of_one_byte_follow_each_other(count: int) -> None:
    data = encode_file_header() + b"\1" * count + a_record(1, b"one")
    found = [one.what for one in scanned(data)]
    assert found == ([Finding.HOLE, Finding.MESSAGE] if count < 5 else [Finding.LOST])


def test_damaged_messages_without_end_cost_no_more_than_some_reads_of_the_file() -> None:
    read_bytes = 0
    data = encode_file_header() + b"".join(
        a_record(number, b"x")[:-1] + b"y" for number in range(2_000)
    )
    read = reads_of(data)

    def counted(position: int, size: int) -> bytes:
        nonlocal read_bytes
        read_bytes += size
        return bytes(read(position, size))

    found = list(scan(counted, len(data)))
    assert {one.what for one in found} == {Finding.DAMAGED}
    assert len(found) == 2_000
    assert read_bytes < 20 * len(data)


def test_what_is_in_a_hole_is_not_read() -> None:
    places = []
    data = a_file([Part(a_hole(bytes(1_000_000))), a_message(1, b"one")])

    def read(position: int, size: int) -> bytes:
        places.append(range(position, position + size))
        return data[position : position + size]

    assert [one.what for one in scan(read, len(data))] == [Finding.HOLE, Finding.MESSAGE]
    assert sum(len(place) for place in places) < 200


@pytest.mark.parametrize("gap", range(65))
def test_a_gap_of_any_size_is_filled_exactly(gap: int) -> None:
    front = hole_front(gap)
    assert front == (b"\1" * gap if gap < 5 else b"\2" + gap.to_bytes(4, "big"))
    between = front + (PERFECT * 3)[len(front) : gap]
    data = encode_file_header() + a_record(1, b"one") + between + a_record(2, b"two")
    assert len(between) == gap
    found = scanned(data)
    assert shown(data, found) == [(a_msg_id(1), b"one"), (a_msg_id(2), b"two")]
    holes_found = [one for one in found if one.what is Finding.HOLE]
    assert [one.size for one in holes_found] == ([gap] if gap else [])


@pytest.mark.parametrize("checksum", [True, False])
def test_a_record_is_read_where_it_lies(checksum: bool) -> None:
    data = a_record(7, b"body", checksum=checksum)
    assert len(data) == record_size(4, checksum=checksum)
    message = decode_record(data)
    assert (message.msg_id, bytes(message.body), message.checked) == (
        a_msg_id(7),
        b"body",
        checksum,
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes are too few"),
        (a_hole(bytes(30)), "begins with 2, which is no message"),
        (a_record(1, b"one")[:-1], "says that it has 28 bytes, not 27"),
        (a_record(1, b"one") + b"\0", "says that it has 28 bytes, not 29"),
        (a_record(1, b"one")[:-1] + b"E", "its checksum is wrong"),
        (b"\4" + a_record(1, b"", checksum=False)[1:], "too few for a checksum"),
        (bytes(30), "begins with 0"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode_record(data)


def test_a_flipped_bit_of_a_record_is_always_noticed() -> None:
    data = a_record(1, b"a body")
    for place in range(len(data) * 8):
        raw = bytearray(data)
        raw[place // 8] ^= 1 << place % 8
        with pytest.raises(Corrupt):
            decode_record(bytes(raw))


def test_a_header_is_refused_unless_every_byte_of_it_is_right() -> None:
    good = encode_file_header()
    check_file_header(good + b"anything")
    with pytest.raises(Corrupt, match="version 3 is not known, only 2"):
        check_file_header(good[:4] + b"\3" + good[5:])
    for place in range(HEADER_SIZE):
        with pytest.raises(Corrupt):
            check_file_header(good[:place] + b"\x07" + good[place + 1 :])
        with pytest.raises(Corrupt, match=f"{place} bytes"):
            check_file_header(good[:place])


def test_a_hole_that_no_size_can_say_is_refused() -> None:
    with pytest.raises(Corrupt, match="too large"):
        hole_front(RECORD_SIZE_MAX + 1)
    assert hole_front(RECORD_SIZE_MAX) == b"\2\x7f\xff\xff\xff"


def test_the_parts_of_a_body_are_not_copied() -> None:
    parts: list[bytes | memoryview] = [b"one", memoryview(b"two")]
    record = encode_record(a_msg_id(1), parts, checksum=True)
    assert record[1] is parts[0]
    assert record[2] is parts[1]
    assert b"".join(record) == a_record(1, b"onetwo")
