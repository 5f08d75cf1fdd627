"""Bodies of the broker contract: read whole, or refused whole with a pointer to what is wrong."""

import json
from base64 import b64encode
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import InvalidRequest
from bottomless_server.core.broker.asked import (
    Fetched,
    Produced,
    Sender,
    read_consume,
    read_produce,
)
from bottomless_server.core.broker.names import PARTITION_COUNT_MAX, Place

ONE: Final = {"topic": "orders", "partition": 3, "records": ["a"]}
FETCH: Final = {"topic": "orders", "partition": 3, "fetch_offset": 7}


def produce(**changes: Any) -> list[Produced]:
    return read_produce({"topic_partitions": [{**ONE, **changes}]})


def refused(value: Any, read: Any = read_produce) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read(value)
    assert caught.value.code == "bad-parameter"
    (fault,) = caught.value.faults
    return str(fault.pointer)


def test_a_partition_is_the_ordinary_append_of_its_stream() -> None:
    [one] = produce(
        records=["text", {"base64": "AAEC/w=="}, ""],
        producer={"id": "p", "epoch": 2, "seq": 9},
        expected_offset=5,
    )

    assert one.place.stream == "orders-3"
    assert json.loads(one.body) == {
        "records": [{"value": "text"}, {"value_base64": "AAEC/w=="}, {"value": ""}]
    }
    assert one.sender == Sender("p", 2, 9)
    assert dict(one.headers) == {
        b"content-type": b"application/json",
        b"content-length": b"%d" % len(one.body),
        b"producer-id": b"p",
        b"producer-epoch": b"2",
        b"producer-seq": b"9",
        b"stream-expected-offset": b"5",
    }


def test_the_same_records_are_the_same_body_however_they_are_written() -> None:
    """By it a repeat is known."""
    escaped = json.loads('{"records": ["\\u00e9"]}')
    assert produce(**escaped)[0].body == produce(records=["é"])[0].body


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"topic": ""}, "/topic"),
        ({"topic": 5}, "/topic"),
        ({"topic": "\ud800"}, "/topic"),
        ({"partition": -1}, "/partition"),
        ({"partition": True}, "/partition"),
        ({"partition": 1.0}, "/partition"),
        ({"partition": "1"}, "/partition"),
        ({"partition": None}, "/partition"),
        ({"partition": 2**31}, "/partition"),
        ({"records": []}, "/records"),
        ({"records": "a"}, "/records"),
        ({"records": [""] * 10_001}, "/records"),
        ({"records": [5]}, "/records/0"),
        ({"records": ["a", "\udfff"]}, "/records/1"),
        ({"records": [{}]}, "/records/0/base64"),
        ({"records": [{"base64": "AA"}]}, "/records/0/base64"),
        ({"records": [{"base64": "AAE="}, {"base64": "A A="}]}, "/records/1/base64"),
        ({"records": [{"base64": "é"}]}, "/records/0/base64"),
        ({"records": [{"base64": 5}]}, "/records/0/base64"),
        ({"records": [{"base64": "AAE=", "text": ""}]}, "/records/0"),
        ({"more": 1}, ""),
        ({"producer": {"id": "p", "epoch": 0}}, "/producer/seq"),
        ({"producer": {"id": "a b", "epoch": 0, "seq": 0}}, "/producer/id"),
        ({"producer": {"id": "p", "epoch": True, "seq": 0}}, "/producer/epoch"),
        ({"producer": None}, "/producer"),
        ({"expected_offset": -1}, "/expected_offset"),
        ({"expected_offset": None}, "/expected_offset"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_one_wrong_member_refuses_all_of_it(changes: dict[str, Any], place: str) -> None:
    good = {"topic": "other", "partition": 0, "records": ["a"]}
    pointer = refused({"topic_partitions": [good, {**ONE, **changes}]})
    assert pointer == f"/topic_partitions/1{place}"


@pytest.mark.parametrize("read", [read_produce, read_consume])
def test_a_body_that_is_no_list_of_partitions_is_refused(read: Any) -> None:
    assert refused([], read) == refused("a", read) == refused(None, read) == ""
    assert refused({}, read) == "/topic_partitions"
    assert refused({"topic_partitions": []}, read) == "/topic_partitions"
    assert refused({"topic_partitions": [5]}, read) == "/topic_partitions/0"
    assert refused({"topic_partitions": [], "more": 1}, read) == ""


def test_a_partition_stands_there_once_and_there_are_not_too_many() -> None:
    assert refused({"topic_partitions": [ONE, ONE]}) == "/topic_partitions/1"
    many = [{**ONE, "partition": number} for number in range(PARTITION_COUNT_MAX + 1)]
    assert refused({"topic_partitions": many}) == "/topic_partitions"
    assert len(read_produce({"topic_partitions": many[1:]})) == PARTITION_COUNT_MAX


def test_a_fetch_has_its_bounds_and_their_defaults() -> None:
    fetch = read_consume({"topic_partitions": [FETCH]})
    assert fetch.partitions == [Fetched(Place("orders", 3), 7, 1024 * 1024)]
    assert (fetch.wait_ms, fetch.size_min, fetch.size_max) == (0, 1, 4 * 1024 * 1024)
    given = {"max_wait_ms": 5, "min_bytes": 0, "max_bytes": 9}
    fetch = read_consume({"topic_partitions": [{**FETCH, "partition_max_bytes": 2}], **given})
    assert (fetch.wait_ms, fetch.size_min, fetch.size_max) == (5, 0, 9)
    assert fetch.partitions[0].size_max == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_wait_ms", 30_001),
        ("max_wait_ms", True),
        ("min_bytes", -1),
        ("max_bytes", 0),
        ("max_bytes", 16 * 1024 * 1024 + 1),
    ],
)
def test_a_bound_of_a_fetch_out_of_its_range_is_refused(name: str, value: Any) -> None:
    assert refused({"topic_partitions": [FETCH], name: value}, read_consume) == f"/{name}"


def test_an_offset_of_a_fetch_is_needed_and_has_a_range() -> None:
    for wrong in ({"fetch_offset": -1}, {"fetch_offset": None}, {"partition_max_bytes": 0}):
        pointer = refused({"topic_partitions": [{**FETCH, **wrong}]}, read_consume)
        assert pointer == f"/topic_partitions/0/{next(iter(wrong))}"
    short = {"topic": "a", "partition": 0}
    assert refused({"topic_partitions": [short]}, read_consume).endswith("/fetch_offset")


texts = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.lists(texts | st.binary(max_size=20), min_size=1, max_size=5), texts.filter(bool))
def test_every_record_and_every_topic_comes_through(values: list[str | bytes], topic: str) -> None:
    records = [
        value if isinstance(value, str) else {"base64": b64encode(value).decode()}
        for value in values
    ]
    [one] = produce(topic=topic, records=records)

    assert one.place == Place(topic, 3)
    sent = json.loads(one.body)["records"]
    for value, envelope in zip(values, sent, strict=True):
        if isinstance(value, str):
            assert envelope == {"value": value}
        else:
            assert envelope == {"value_base64": b64encode(value).decode()}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["topic_partitions", "topic", "partition", "records", "base64", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(anything)
def test_nothing_that_json_can_say_is_more_than_refused(value: Any) -> None:
    for read in (read_produce, read_consume):
        try:
            read(value)
        except InvalidRequest as error:
            assert error.faults  # noqa: PT017


@given(st.sets(st.tuples(st.text(min_size=1, max_size=4), st.integers(0, 99)), max_size=20))
def test_no_two_partitions_are_one_stream(places: set[tuple[str, int]]) -> None:
    assert len({Place(*place).stream for place in places}) == len(places)
