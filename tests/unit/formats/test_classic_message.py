"""Messages of classic queues: each known shape becomes a message, any other one says that it is none."""

import struct
from collections.abc import Sequence
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.classic_messages import basic_message, container, content, decoded_content
from support.erlang_terms import as_term

from bottomless.errors import Corrupt
from bottomless.formats.amqp import Timestamp
from bottomless.formats.amqp_properties import DEPTH_MAX, decode_properties
from bottomless.formats.classic_message import ClassicMessage, decode_classic_message, queue_message
from bottomless.formats.erlang_term import Atom, Term
from bottomless.model.queue import QueuePlace
from bottomless.model.record import Content

PLACE = QueuePlace(bytes(16), 7)


def short(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


ALL = (
    b"\xff\xfc"
    + short("application/json")
    + short("gzip")
    + long(short("a") + b"S" + long(b"text") + short("n") + b"I" + struct.pack(">i", -3))
    + b"\x02\x05"
    + short("c-7")
    + short("answers")
    + short("60000")
    + short("m-1")
    + struct.pack(">Q", 1_700_000_000)
    + short("order.placed")
    + short("guest")
    + short("till")
    + short("cluster")
)


def read(term: Term) -> ClassicMessage:
    return decode_classic_message(as_term(term))


def test_all_properties_are_read() -> None:
    assert decode_properties(ALL) == {
        "content-type": "application/json",
        "content-encoding": "gzip",
        "headers": {"a": "text", "n": -3},
        "delivery-mode": 2,
        "priority": 5,
        "correlation-id": "c-7",
        "reply-to": "answers",
        "expiration": "60000",
        "message-id": "m-1",
        "timestamp": Timestamp(1_700_000_000_000),
        "type": "order.placed",
        "user-id": "guest",
        "app-id": "till",
        "cluster-id": "cluster",
    }


def test_every_kind_of_field_is_read() -> None:
    fields = {
        "t": (b"t\x01", True),
        "b": (b"b\xff", -1),
        "B": (b"B\xff", 255),
        "s": (b"s\xff\xfe", -2),
        "u": (b"u\xff\xff", 65_535),
        "I": (b"I" + struct.pack(">i", -5), -5),
        "i": (b"i" + struct.pack(">I", 2**32 - 1), 2**32 - 1),
        "l": (b"l" + struct.pack(">q", -(2**40)), -(2**40)),
        "f": (b"f" + struct.pack(">f", 0.5), 0.5),
        "d": (b"d" + struct.pack(">d", 0.1), 0.1),
        "D": (b"D\x02" + struct.pack(">i", 314), Decimal("3.14")),
        "S": (b"S" + long("größe".encode()), "größe"),
        "S2": (b"S" + long(b"\xff"), b"\xff"),
        "x": (b"x" + long(b"\0\1"), b"\0\1"),
        "A": (b"A" + long(b"V" + b"b\x01"), [None, 1]),
        "T": (b"T" + struct.pack(">Q", 3), Timestamp(3_000)),
        "T2": (b"T" + struct.pack(">Q", 2**63), 2**63),
        "F": (b"F" + long(short("in") + b"b\x02"), {"in": 2}),
        "V": (b"V", None),
    }
    table = b"".join(short(name) + raw for name, (raw, _) in fields.items())
    found = decode_properties(b"\x20\x00" + long(table))
    assert found == {"headers": {name: value for name, (_, value) in fields.items()}}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "2 bytes are said to follow"),
        (b"\x00\x01", "more flags"),
        (b"\x00\x00\x00", "1 bytes follow it"),
        (b"\x80\x00\x05abc", "5 bytes are said to follow, and 3 do"),
        (b"\x80\x00\x01\xff", "not UTF-8"),
        (b"\x20\x00\xff\xff\xff\xff", "4294967295 bytes"),
        (b"\x20\x00" + long(short("a") + b"Z"), "of kind 5a"),
        (b"\x20\x00" + long(short("a") + b"d" + struct.pack(">d", float("inf"))), "no number"),
    ],
)
def test_what_are_no_properties_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode_properties(raw)


def test_tables_within_each_other_have_a_bound() -> None:
    inner = b""
    for _ in range(DEPTH_MAX + 1):
        inner = long(short("a") + b"F" + inner) if inner else long(b"")
    with pytest.raises(Corrupt, match="nested more than 32 deep"):
        decode_properties(b"\x20\x00" + inner)


@given(raw=st.binary(max_size=80))
def test_any_bytes_are_properties_or_refused(raw: bytes) -> None:
    try:
        decode_properties(raw)
    except Corrupt as error:
        assert "AMQP properties" in error.message  # noqa: PT017 both are right


def test_a_message_of_3_10_to_3_12_is_read() -> None:
    term = basic_message(content(b"body", ALL), exchange=b"news", key=b"eu")
    message = read(term)
    assert (message.exchange, message.routing_key, message.value) == ("news", "eu", b"body")
    assert message.headers == {"a": "text", "n": -3}
    assert message.properties["message-id"] == "m-1"


def test_fragments_of_a_body_stand_with_the_last_one_first() -> None:
    inner = (*content()[:5], [b"c", b"b", b"a"])  # type: ignore[index]
    assert read(basic_message(inner)).value == b"abc"


def test_a_container_of_3_13_is_read_with_what_its_broker_adds() -> None:
    added: Sequence[tuple[Term, Term]] = (
        (b"x-first-death-queue", b"jobs"),
        (b"x-count", 3),
        (Atom("deaths"), (Atom("deaths"), 1)),
        (Atom("p"), 5),
    )
    message = read(container(content(b"body"), added))
    assert (message.exchange, message.routing_key, message.value) == ("news", "eu", b"body")
    assert message.headers == {"x-first-death-queue": "jobs", "x-count": 3}


def test_zeros_after_a_term_are_room_that_its_broker_did_not_need() -> None:
    raw = as_term(basic_message(content(b"body")))
    assert decode_classic_message(raw + bytes(5)).value == b"body"
    with pytest.raises(Corrupt, match="follow it"):
        decode_classic_message(raw + b"\0\1")


def test_a_dead_letter_has_its_properties_decoded() -> None:
    death: Term = [
        (b"count", Atom("long"), 1),
        (b"time", Atom("timestamp"), 1_700_000_000),
        (b"routing-keys", Atom("array"), [(Atom("longstr"), b"dies")]),
        (b"ratio", Atom("decimal"), (1, 5)),
        (b"raw", Atom("binary"), b"\xff"),
        (b"yes", Atom("bool"), Atom("true")),
        (b"none", Atom("void"), Atom("undefined")),
        (b"half", Atom("double"), 0.5),
    ]
    headers: Term = [(b"x-death", Atom("array"), [(Atom("table"), death)])]
    message = read(
        basic_message(
            decoded_content(
                b"body",
                {"headers": headers, "delivery-mode": 2, "timestamp": 1_700_000_000, "type": b"t"},
            )
        )
    )
    assert message.properties == {
        "delivery-mode": 2,
        "timestamp": Timestamp(1_700_000_000_000),
        "type": "t",
    }
    assert message.headers == {
        "x-death": [
            {
                "count": 1,
                "time": Timestamp(1_700_000_000_000),
                "routing-keys": ["dies"],
                "ratio": Decimal("0.5"),
                "raw": b"\xff",
                "yes": True,
                "none": None,
                "half": 0.5,
            }
        ]
    }


@pytest.mark.parametrize(
    ("term", "why"),
    [
        (7, "a term of another kind"),
        ((Atom("delivery"), 1), "it is a delivery of another shape"),
        ((Atom("mc"), Atom("mc_amqp"), [], 0), "a container of mc_amqp"),
        (basic_message((Atom("content"), 61, 0, 0, 0, [])), "its content has another shape"),
        (basic_message((*content()[:4], Atom("other"), [])), "another protocol"),  # type: ignore[index]
        (basic_message((*content()[:5], [7])), "not bytes"),  # type: ignore[index]
        (basic_message(content(b"", b"\x00")), "AMQP properties"),
        (basic_message(content(), key=b"\xff"), "not UTF-8"),
        ((Atom("basic_message"), 1, [], 0, b"", Atom("true")), "its exchange has another shape"),
        (
            basic_message(decoded_content(b"", {"headers": [(b"a", Atom("who"), 1)]})),
            "a value of kind who",
        ),
        (basic_message(decoded_content(b"", {"type": [1]})), "its type has another shape"),
    ],
)
def test_any_other_shape_says_what_it_is(term: Term, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        read(term)


def as_stored(term: Term, *, priority: int = 0) -> tuple[Content, dict[str, bytes]]:
    message = queue_message(read(term), (PLACE,), published_at=5, expires_at=9, priority=priority)
    return message.content, dict(message.headers)


def test_properties_become_headers() -> None:
    kind, headers = as_stored(basic_message(content(b"{}", ALL), exchange=b"news", key=b"eu"))
    assert kind is Content.JSON
    assert headers == {
        "a": b"text",
        "n": b"-3",
        "amqp-content-type": b"application/json",
        "amqp-content-encoding": b"gzip",
        "amqp-delivery-mode": b"2",
        "amqp-priority": b"5",
        "amqp-correlation-id": b"c-7",
        "amqp-reply-to": b"answers",
        "amqp-expiration": b"60000",
        "amqp-message-id": b"m-1",
        "amqp-timestamp": b"2023-11-14T22:13:20.000Z",
        "amqp-type": b"order.placed",
        "amqp-user-id": b"guest",
        "amqp-app-id": b"till",
        "amqp-cluster-id": b"cluster",
        "amqp-exchange": b"news",
        "amqp-routing-key": b"eu",
    }


def test_values_of_any_kind_become_bytes() -> None:
    table = (
        short("") + b"b\x01" + short("list") + b"A" + long(b"V" + b"D\x01" + struct.pack(">i", 5))
        + short("amqp-type") + b"b\x02" + short("no") + b"V"
    )  # fmt: skip
    properties = b"\x20\x20" + long(table) + short("t")
    _, headers = as_stored(basic_message(content(b"", properties)))
    assert orjson.loads(headers["list"]) == [None, "0.5"]
    assert (headers["amqp-unnamed"], headers["amqp-type"]) == (b"1", b"t")
    assert "no" not in headers


@pytest.mark.parametrize(
    ("said", "value", "kind"),
    [
        ("application/json", b'{"n":1}', Content.JSON),
        ("application/problem+json; charset=utf-8", b"[]", Content.JSON),
        ("application/json", b"{", Content.BYTES),
        ("TEXT/plain", "größe".encode(), Content.TEXT),
        ("text/plain", b"\xff", Content.BYTES),
        ("image/png", b"text", Content.BYTES),
    ],
)
def test_a_content_type_counts_if_it_is_true(said: str, value: bytes, kind: Content) -> None:
    assert as_stored(basic_message(content(value, b"\x80\x00" + short(said))))[0] is kind
    assert as_stored(basic_message(content(value)))[0] is Content.BYTES


def test_a_priority_is_one_that_a_queue_can_have() -> None:
    message = queue_message(
        read(basic_message(content())), (PLACE,), published_at=5, expires_at=9, priority=200
    )
    assert (message.priority, message.published_at, message.expires_at) == (9, 5, 9)
