"""Bodies of requests to queues are read strictly, and each fault has a pointer to its place."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Code, InvalidRequest
from bottomless.model.queue import LeaveReason, QueueConfig
from bottomless.model.record import Content
from bottomless_server.queues.bodies.answers import (
    fan_out_members,
    peeked_members,
    published_members,
    queue_etag,
    queue_members,
    raw_answer_headers,
    received_members,
    settled_members,
)
from bottomless_server.queues.bodies.asking import (
    ExtendAsked,
    NackAsked,
    ReceiveAsked,
    RedriveAsked,
    read_ack,
    read_extend,
    read_nack,
    read_purge,
    read_receive,
    read_redrive,
)
from bottomless_server.queues.bodies.publishing import (
    Published,
    check_repeats,
    read_fan_out,
    read_messages,
    read_raw,
)
from bottomless_server.queues.calls import (
    OutMessage,
    PeekedMessage,
    PublishedMessage,
    PublishedTo,
    QueueDescription,
    ReceivedMessage,
    Settlement,
)
from bottomless_server.queues.core.origin import Origin
from bottomless_server.queues.core.receipt import Receipt, write_receipt
from bottomless_server.queues.ledger.base import Sums, Totals
from bottomless_server.runtime.http.app import encode_json

SIZE_MAX = 100
ONE, TWO = (write_receipt(Receipt(bytes(4), 1, number, 1, bytes(6))) for number in range(2))


def messages(*given: Any) -> tuple[OutMessage, ...]:
    return read_messages({"messages": [*given]}, encode_json, SIZE_MAX).messages


def places(read: Callable[[], Any]) -> list[tuple[str | None, str]]:
    """Pointers and codes of the faults that a body is refused for."""
    with pytest.raises(InvalidRequest) as refused:
        read()
    return [(fault.pointer, fault.code) for fault in refused.value.faults]


# Publish


def test_a_message_is_text_json_or_bytes() -> None:
    assert messages({"value": "é"}, {"json": {"a": [1]}}, {"value_base64": "AAE="}) == (
        OutMessage("é".encode(), Content.TEXT),
        OutMessage(b'{"a":[1]}', Content.JSON),
        OutMessage(b"\0\1", Content.BYTES),
    )


def test_a_message_says_its_priority_times_headers_and_repeats() -> None:
    [message] = messages(
        {
            "value": "a",
            "headers": {"kind": "x", "raw": {"base64": "/w=="}},
            "priority": 9,
            "delay_ms": 0,
            "ttl_ms": 1,
            "dedup_id": "order 7",
        }
    )
    headers = (("kind", b"x"), ("raw", b"\xff"))
    assert message == OutMessage(b"a", Content.TEXT, headers, 9, 0, 1, "order 7")


@pytest.mark.parametrize(
    ("member", "place", "code"),
    [
        ({"value": 1}, "/value", "validation-failed"),
        ({"value": "a", "json": 1}, "", "validation-failed"),
        ({}, "", "validation-failed"),
        (7, "", "validation-failed"),
        ({"value_base64": "AB=="}, "/value_base64", "validation-failed"),
        ({"json": 2**64}, "/json", "number-out-of-range"),
        ({"value": "a", "key": "k"}, "", "unknown-member"),
        ({"value": "a", "priority": 10}, "/priority", "validation-failed"),
        ({"value": "a", "priority": True}, "/priority", "validation-failed"),
        ({"value": "a", "delay_ms": 14 * 86_400_000 + 1}, "/delay_ms", "validation-failed"),
        ({"value": "a", "delay_ms": "1"}, "/delay_ms", "validation-failed"),
        ({"value": "a", "ttl_ms": 0}, "/ttl_ms", "validation-failed"),
        ({"value": "a", "dedup_id": ""}, "/dedup_id", "validation-failed"),
        ({"value": "a", "dedup_id": "x" * 256}, "/dedup_id", "validation-failed"),
        ({"value": "a", "headers": {"a": 1}}, "/headers", "validation-failed"),
        ({"value": "a", "headers": {"a": "b", "": "c"}}, "/headers", "validation-failed"),
        ({"value": "a", "headers": {"queue": "mine"}}, "/headers", "validation-failed"),
        ({"value": "a", "headers": {"queue-reason": "mine"}}, "/headers", "validation-failed"),
        (
            {"value": "a", "headers": {str(n): "" for n in range(29)}},
            "/headers",
            "validation-failed",
        ),
    ],
)
def test_a_fault_of_a_message_has_its_place(member: Any, place: str, code: str) -> None:
    found = places(lambda: messages({"value": "good"}, member))
    assert found == [(f"/messages/1{place}", code)]


def test_all_faults_of_all_messages_are_told_up_to_a_hundred() -> None:
    assert len(places(lambda: messages({"value": 1}, {"value": 2}))) == 2
    assert len(places(lambda: messages(*[{} for _ in range(200)]))) == 100


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ([], ""),
        ({}, "/messages"),
        ({"messages": []}, "/messages"),
        ({"messages": {}}, "/messages"),
        ({"messages": [{"value": "a"}], "more": 1}, ""),
    ],
)
def test_a_body_without_messages_is_refused(body: Any, place: str) -> None:
    assert [found for found, _ in places(lambda: read_messages(body, encode_json, 1))] == [place]


def test_a_value_beyond_the_bound_and_too_many_messages_are_told_as_such() -> None:
    with pytest.raises(InvalidRequest) as refused:
        messages({"value": "a" * 101})
    assert refused.value.code is Code.RECORD_TOO_LARGE
    assert refused.value.facts == {"limit_bytes": 100}
    assert refused.value.faults[0].pointer == "/messages/0/value"
    assert len(messages(*[{"value": ""}] * 1_000)) == 1_000
    with pytest.raises(InvalidRequest) as refused:
        messages(*[{"value": ""}] * 1_001)
    assert refused.value.code is Code.BATCH_TOO_LARGE


def test_a_fan_out_names_each_of_its_queues_once() -> None:
    body = {"queues": ["a", "b"], "messages": [{"value": "x"}]}
    read = read_fan_out(body, encode_json, SIZE_MAX)
    assert read == Published(("a", "b"), (OutMessage(b"x", Content.TEXT),))
    for queues, found in (
        ([], ["/queues"]),
        ("a", ["/queues"]),
        ([f"q{n}" for n in range(65)], ["/queues"]),
        (["a", "a", "-", 1], ["/queues/1", "/queues/2", "/queues/3"]),
    ):
        bad = {**body, "queues": queues}
        refused = places(lambda bad=bad: read_fan_out(bad, encode_json, SIZE_MAX))  # type: ignore[misc]
        assert [pointer for pointer, _ in refused] == found
        with pytest.raises(InvalidRequest, match=r"^the queues are not valid at /queues"):
            read_fan_out(bad, encode_json, SIZE_MAX)


def test_a_raw_body_is_one_message_whose_headers_say_the_rest() -> None:
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"message-priority", b"7"),
        (b"message-delay-ms", b"1000"),
        (b"message-ttl-ms", b"5000"),
        (b"message-header-kind", b"photo"),
        (b"message-header-x", b""),
    ]
    [message] = read_raw(b"\0body", headers, SIZE_MAX).messages
    own = (("kind", b"photo"), ("x", b""))
    assert message == OutMessage(b"\0body", Content.BYTES, own, 7, 1_000, 5_000)
    assert read_raw(b"", [], SIZE_MAX).messages == (OutMessage(b""),)


@pytest.mark.parametrize(
    "header",
    [
        (b"message-priority", b"10"),
        (b"message-priority", b"07"),
        (b"message-delay-ms", b"-1"),
        (b"message-delay-ms", b"99999999999999999999"),
        (b"message-more", b"1"),
        (b"message-header-", b"1"),
        (b"message-header-a", b"\xe9"),
        (b"message-header-a", b"x" * 5_000),
        (b"message-header-queue", b"mine"),
    ],
)
def test_a_header_of_a_raw_message_that_is_none_is_refused(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_raw(b"", [header], SIZE_MAX)
    assert refused.value.code is Code.BAD_HEADER


def test_a_header_of_a_raw_message_comes_once() -> None:
    for name in (b"message-priority", b"message-header-a"):
        with pytest.raises(InvalidRequest):
            read_raw(b"", [(name, b"1"), (name, b"1")], SIZE_MAX)


def test_a_repeat_is_recognised_in_one_way_only() -> None:
    plain = Published((), (OutMessage(b"a"),))
    named = Published((), (OutMessage(b"a", dedup_id="x"),))
    check_repeats(None, named)
    check_repeats("key", plain)
    for key, published in (("key", named), ("", plain), ("é", plain), ("x" * 256, plain)):
        with pytest.raises(InvalidRequest) as refused:
            check_repeats(key, published)
        assert refused.value.code is Code.BAD_HEADER


# What is asked of messages


def test_what_is_not_said_has_its_default() -> None:
    assert read_receive({}) == ReceiveAsked(10, 0, None, 4 * 2**20)
    assert read_nack({"receipts": [ONE]}) == NackAsked((ONE,), 0, False)
    assert read_extend({"receipts": [ONE]}) == ExtendAsked((ONE,), None)
    assert read_redrive({}) == RedriveAsked(1_000, None)
    assert read_purge({}) is False


def test_what_is_said_is_read() -> None:
    asked = {"limit": 100, "max_wait_ms": 30_000, "visibility_ms": 0, "max_bytes": 16 * 2**20}
    assert read_receive(asked) == ReceiveAsked(100, 30_000, 0, 16 * 2**20)
    assert read_ack({"receipts": [ONE, TWO]}) == (ONE, TWO)
    back = {"receipts": [ONE], "delay_ms": 5, "dead_letter": True}
    assert read_nack(back) == NackAsked((ONE,), 5, True)
    assert read_extend({"receipts": [ONE], "visibility_ms": 7}) == ExtendAsked((ONE,), 7)
    assert read_redrive({"limit": 1, "to": "jobs"}) == RedriveAsked(1, "jobs")
    assert read_purge({"state": "damaged"}) is True
    assert read_purge({"state": "all"}) is False


@pytest.mark.parametrize(
    ("read", "body", "pointers"),
    [
        (read_receive, [], [""]),
        (read_receive, {"limit": 0, "max_wait_ms": 30_001}, ["/limit", "/max_wait_ms"]),
        (read_receive, {"max_bytes": 0}, ["/max_bytes"]),
        (read_receive, {"visibility_ms": None}, ["/visibility_ms"]),
        (read_receive, {"wait": 1}, [""]),
        (read_ack, {}, ["/receipts"]),
        (read_ack, {"receipts": []}, ["/receipts"]),
        (read_ack, {"receipts": [ONE] * 1_001}, ["/receipts"]),
        (read_ack, {"receipts": [ONE, 1]}, ["/receipts/1"]),
        (read_ack, {"receipts": [ONE, "nonsense"]}, ["/receipts/1"]),
        (read_nack, {"receipts": [ONE[:-1]]}, ["/receipts/0"]),
        (read_extend, {"receipts": [ONE, ONE + "A"]}, ["/receipts/1"]),
        (read_nack, {"receipts": [ONE], "dead_letter": 1}, ["/dead_letter"]),
        (read_extend, {"receipts": [ONE], "visibility_ms": 43_200_001}, ["/visibility_ms"]),
        (read_redrive, {"to": "-"}, ["/to"]),
        (read_purge, {"state": "ready"}, ["/state"]),
    ],
)
def test_faults_of_what_is_asked_have_their_places(
    read: Callable[[Any], Any], body: Any, pointers: list[str]
) -> None:
    assert [pointer for pointer, _ in places(lambda: read(body))] == pointers


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("receipts"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["messages", "queues", "receipts", "value", "headers", "limit", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ANY_JSON)
def test_any_json_is_read_or_refused(body: Any) -> None:
    reads: list[Callable[[Any], Any]] = [read_receive, read_ack, read_nack, read_extend]
    reads += [read_purge, read_redrive, lambda one: read_messages(one, encode_json, 9)]
    reads.append(lambda one: read_fan_out(one, encode_json, 9))
    for read in reads:
        with suppress(InvalidRequest):
            read(body)


# Answers

ORIGIN = Origin("jobs", LeaveReason.EXPIRED, 3, 1_000)
RECEIVED = ReceivedMessage(
    "receipt", bytes(15) + b"\1", 7, 2, 1_000, 5, Content.JSON, (("k", b"v"),), b'{"a":1}', ORIGIN
)


def test_a_publish_hears_the_ids_and_the_sequences_of_its_messages() -> None:
    published = PublishedTo("jobs", bytes(16), [PublishedMessage(bytes(15) + b"\1", 4, False)])
    shown = {
        "queue_id": "0" * 32,
        "messages": [{"message_id": "0" * 31 + "1", "sequence": 4, "duplicate": False}],
    }
    assert published_members(published) == shown
    assert fan_out_members([published]) == {"queues": [{"queue": "jobs", **shown}]}


def test_a_received_message_shows_what_its_publisher_sent() -> None:
    [shown] = received_members([RECEIVED])["messages"]
    assert encode_json(shown.pop("json")) == b'{"a":1}'
    assert shown == {
        "receipt": "receipt",
        "message_id": "0" * 31 + "1",
        "sequence": 7,
        "deliveries": 2,
        "published_at": "1970-01-01T00:00:01.000Z",
        "priority": 5,
        "headers": {"k": "v"},
        "dead_letter": {
            "queue": "jobs",
            "reason": "expired",
            "deliveries": 3,
            "at": "1970-01-01T00:00:01.000Z",
        },
    }
    plain = RECEIVED._replace(value=b"\xff", content=Content.BYTES, headers=(), dead_letter=None)
    [shown] = received_members([plain])["messages"]
    assert shown["value_base64"] == "/w=="
    assert "headers" not in shown
    assert "dead_letter" not in shown


def test_a_peek_shows_no_receipt_and_of_damaged_bytes_no_value() -> None:
    peeked = PeekedMessage(
        bytes(16), 0, "damaged", 0, 0, 0, None, None, None, Content.BYTES, (), None
    )
    shown = peeked_members(peeked)
    assert shown["state"] == "damaged"
    assert not {"receipt", "value", "json", "value_base64"} & shown.keys()


def test_what_became_of_receipts_is_told() -> None:
    assert settled_members("acked", Settlement(2, ["g"], [])) == {
        "acked": 2,
        "gone": ["g"],
        "stale": [],
    }


def test_headers_that_http_cannot_carry_are_left_out_of_a_raw_answer_and_counted() -> None:
    own = (("Kind", b"a b"), ("with space", b"x"), ("lines", b"a\r\nb"), ("utf", "é".encode()))
    headers = dict(raw_answer_headers(RECEIVED._replace(headers=own)))
    assert headers[b"message-header-kind"] == b"a b"
    assert headers[b"message-headers-left-out"] == b"3"
    assert headers[b"message-receipt"] == b"receipt"
    assert headers[b"message-content"] == b"json"
    assert headers[b"message-dead-letter-reason"] == b"expired"
    assert not any(b"\n" in value for value in headers.values())


def test_names_that_http_takes_for_one_are_left_out_but_for_the_first() -> None:
    own = (("k", b"first"), ("other", b"x"), ("K", b"second"))
    headers = raw_answer_headers(RECEIVED._replace(headers=own))
    assert [value for name, value in headers if name == b"message-header-k"] == [b"first"]
    assert dict(headers)[b"message-headers-left-out"] == b"1"


def test_a_queue_shows_its_configuration_and_what_is_in_it() -> None:
    config = QueueConfig(visibility_ms=5)
    queue = QueueDescription(
        bytes(16), "jobs", config, 2, Sums(1, 2, 3, 4, 50), Totals(published=9), 10, 0, 6
    )
    shown = queue_members(queue)
    assert (shown["ready"], shown["in_flight"], shown["delayed"], shown["damaged"]) == (1, 2, 3, 4)
    assert (shown["bytes"], shown["outgoing"], shown["next_sequence"]) == (50, 6, 10)
    assert (shown["visibility_ms"], shown["overflow"]) == (5, "reject")
    assert shown["totals"]["published"] == 9
    assert shown["oldest_published_at"] == "1970-01-01T00:00:00.000Z"
    assert queue_etag(queue) == f'"{"0" * 32}.c2"'
