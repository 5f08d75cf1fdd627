"""Records of AMQP messages: each kind of message becomes the record that the table says."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.rabbitmq import MESSAGES, NOT_AMQP

from bottomless.errors import InvalidRequest
from bottomless.formats.amqp import Described, Pairs, Timestamp
from bottomless.formats.amqp_record import Collected, Source, Taking, parse_source, raw_of
from bottomless.model.limits import RECORD_VALUE_SIZE_MAX
from bottomless.model.record import Content
from bottomless.model.rows import Rows

AT = 1_795_722_108_699
[FULL] = [one for one in MESSAGES if "keys" in one["record"]]


def rows_of(*messages: bytes, **taking: Any) -> Rows:
    collected = Collected(Taking(**taking))
    for offset, message in enumerate(messages):
        collected.add(message, offset, AT)
    return collected.take()


def as_bytes(value: str) -> bytes:
    return bytes.fromhex(value[4:]) if value.startswith("hex:") else value.encode()


@pytest.mark.parametrize("one", MESSAGES)
def test_a_message_becomes_the_record_that_is_said_of_it(one: dict[str, Any]) -> None:
    rows, said = rows_of(bytes.fromhex(one["bytes"])), one["record"]
    headers = {name: as_bytes(value) for name, value in said.get("headers", {}).items()}
    if "section" in said:
        headers["amqp.section"] = said["section"].encode()
    assert rows.headers is not None
    assert dict(rows.headers[0] or []) == headers
    assert rows.values == [as_bytes(said.get("value", f"hex:{one['bytes']}"))]
    assert rows.contents == [Content[said.get("content", "bytes").upper()]]
    assert rows.event_times == [said.get("event_time", AT)]
    assert rows.filter_values == [said.get("filter_value")]
    assert rows.keys == [None]


@pytest.mark.parametrize(("source", "key"), FULL["record"]["keys"].items())
def test_a_key_comes_from_where_it_is_asked_for(source: str, key: str) -> None:
    full, plain = bytes.fromhex(FULL["bytes"]), bytes.fromhex(MESSAGES[1]["bytes"])
    assert rows_of(full, plain, key_from=parse_source(source)).keys == [key.encode(), None]
    # What it comes from stays a header.
    filtered = rows_of(full, plain, filter_from=parse_source(source))
    assert filtered.filter_values == [key, None]


def test_bytes_that_are_no_message_are_taken_as_they_are() -> None:
    collected = Collected(Taking(keep_offsets=True))
    collected.add(NOT_AMQP, 41, AT)
    assert (len(collected), collected.other_count) == (1, 1)
    assert collected.take() == Rows(
        [NOT_AMQP], [Content.BYTES], [None], [[("rabbitmq.offset", b"41")]], [AT], [None]
    )
    assert (len(collected), collected.size) == (0, 0)


def test_the_size_is_that_of_the_rows() -> None:
    collected = Collected(Taking(key_from=parse_source("property:group-id"), keep_offsets=True))
    for offset, one in enumerate(MESSAGES):
        collected.add(bytes.fromhex(one["bytes"]), offset, AT)
    # Rows count keys and filter values with what their columns need besides.
    size = collected.size
    assert size <= collected.take().size <= size + 16 * len(MESSAGES)


def data_section(value: bytes) -> bytes:
    short = len(value) < 256
    size = len(value).to_bytes(1 if short else 4, "big")
    return b"\x00\x53\x75" + (b"\xa0" if short else b"\xb0") + size + value


HEADS = [
    b"",
    # Properties with a message-id and the time of creation.
    bytes.fromhex("005373c0150aa1016d404040404040404083000001a0d2a45b1e"),
    # Application properties, of which one is the filter value.
    bytes.fromhex("005374c11e02a115") + b"x-stream-filter-value" + b"\xa1\x04emea",
    # An array of 200 values that take no byte each: whether it may be there depends on what follows.
    bytes.fromhex("005374c10e02a10161f000000005000000c841"),
    # One section more, of which the value is a part.
    data_section(b"first"),
    b"no message",
]
ONE = st.tuples(
    st.sampled_from(HEADS),
    st.one_of(st.binary(max_size=40), st.just(bytes(300)), st.just(data_section(b"inner"))),
)


@settings(max_examples=150)
@given(st.lists(ONE, max_size=12), st.integers(1, 2_000), st.integers(1, 12))
@example([(HEADS[3], bytes(300)), (HEADS[3], b"")], 2_000, 12)
def test_messages_that_are_taken_together_make_the_records_of_each_alone(
    made: list[tuple[bytes, bytes]], size_max: int, count_max: int
) -> None:
    messages = [head + data_section(value) for head, value in made]
    together, number = Collected(Taking()), 0
    while number < len(messages) and together.size < size_max and len(together) < count_max:
        added = together.add_alike(messages, number, AT, size_max=size_max, count_max=count_max)
        if not added:
            together.add(messages[number], number, AT)
        number += added or 1
    alone = [Collected(Taking()) for _ in messages[:number]]
    for offset, collected in enumerate(alone):
        collected.add(messages[offset], offset, AT)
    sizes = [collected.size for collected in alone]
    assert together.size == sum(sizes)
    # What is one too many is the last one.
    assert all(sum(sizes[:count]) < size_max for count in range(number))
    assert together.other_count == sum(collected.other_count for collected in alone)
    assert columns(together) == [
        [item for one in column for item in one]
        for column in zip(*map(columns, [Collected(Taking()), *alone]), strict=True)
    ]


def columns(collected: Collected) -> list[list[Any]]:
    rows = collected.take()
    optional = (rows.contents, rows.keys, rows.headers, rows.event_times, rows.filter_values)
    return [list(rows.values), *(list(column or ()) for column in optional)]


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (Timestamp(0), b"1970-01-01T00:00:00.000Z"),
        (Timestamp(2**62), str(2**62).encode()),
        (Described("d", Described(1, "x")), b"x"),
        ([1, None, b"\xff", Timestamp(0)], b'[1,null,"/w==","1970-01-01T00:00:00.000Z"]'),
        (Pairs([("a", Pairs([(1, True)])), (None, 2)]), b'{"a":{"1":true},"null":2}'),
        (float("nan"), b"nan"),
    ],
)
def test_a_value_has_one_form_as_bytes(value: Any, raw: bytes) -> None:
    assert raw_of(value) == raw


@pytest.mark.parametrize("text", ["", "group-id", "property:", "body:x", ":x"])
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a source is"):
        parse_source(text)


def message_with(name: bytes, size: int, count: int = 1) -> bytes:
    pairs = b"".join(
        b"\xa1"
        + bytes([len(name) + 3])
        + name
        + b"%03d" % number
        + b"\xb0"
        + size.to_bytes(4, "big")
        + bytes(size)
        for number in range(count)
    )
    head = (4 + len(pairs)).to_bytes(4, "big") + (2 * count).to_bytes(4, "big")
    return b"\x00\x53\x74\xd1" + head + pairs + bytes.fromhex("005375a00161")


@pytest.mark.parametrize(
    ("message", "taking", "why"),
    [
        (bytes(RECORD_VALUE_SIZE_MAX + 1), {}, "value"),
        (message_with(b"n", 1, count=33), {}, "32 properties"),
        (message_with(b"n", 4096), {}, "one of its properties"),
        (message_with(b"n", 1025), {"key_from": "application:n000"}, "its key"),
        (message_with(b"n", 256), {"filter_from": "application:n000"}, "its filter value"),
        (
            message_with(b"n", 1).replace(b"\0\0\0\1\0", b"\0\0\0\1\xff"),
            {"filter_from": "application:n000"},
            "UTF-8",
        ),
    ],
)
def test_a_message_that_makes_no_record_is_refused_and_nothing_is_added(
    message: bytes, taking: dict[str, str], why: str
) -> None:
    sources: dict[str, Source] = {name: parse_source(text) for name, text in taking.items()}
    collected = Collected(Taking(**sources))  # type: ignore[arg-type]
    collected.add(b"before", 0, AT)
    with pytest.raises(InvalidRequest, match=why):
        collected.add(message, 1, AT)
    assert collected.take().values == [b"before"]
