"""A record that was read has one shape, in whatever form its value travelled."""

from base64 import b64encode
from typing import Any

import orjson
import pytest

from bottomless import Record
from bottomless.client.record import records_of

BASE: dict[str, Any] = {"offset": 7, "timestamp": "2026-11-22T08:00:00.250Z"}


def base64(raw: bytes) -> str:
    return b64encode(raw).decode()


@pytest.mark.parametrize(
    ("form", "value", "json"),
    [
        ({"value": "12"}, b"12", 12),
        ({"value": '{"id": 7}'}, b'{"id": 7}', {"id": 7}),
        ({"json": {"id": 7, "total": 12.5}}, b'{"id":7,"total":12.5}', {"id": 7, "total": 12.5}),
        ({"json": None}, b"null", None),
        ({"json": "ü"}, '"ü"'.encode(), "ü"),
        ({"value_base64": base64(b"[1]")}, b"[1]", [1]),
    ],
)
def test_every_form_has_bytes_text_and_json(form: dict[str, Any], value: bytes, json: Any) -> None:
    record = Record({**BASE, **form})
    assert (record.value, record.text, record.json()) == (value, value.decode(), json)
    assert record.offset == 7
    assert record.timestamp == 1_795_334_400_250


def test_what_is_no_text_and_no_json_says_so_as_a_value_error() -> None:
    record = Record({**BASE, "value_base64": base64(b"\xff")})
    assert record.value == b"\xff"
    with pytest.raises(UnicodeDecodeError):
        _ = record.text
    with pytest.raises(ValueError):  # noqa: PT011
        Record({**BASE, "value": "no json"}).json()


def test_key_headers_and_event_time_are_bytes_and_numbers_or_nothing() -> None:
    bare = Record({**BASE, "value": ""})
    assert (bare.key, bare.headers, bare.event_time) == (None, {}, None)
    full = Record(
        {
            **BASE,
            "value": "",
            "key_base64": base64(b"\xff"),
            "headers": {"a": "text", "b": {"base64": base64(b"\0")}, "c": None},
            "event_time": "1969-12-31T23:59:59.999Z",
        }
    )
    assert (full.key, full.event_time) == (b"\xff", -1)
    assert full.headers == {"a": b"text", "b": b"\0", "c": None}
    assert Record({**BASE, "key": "ü", "event_time": -5}).key == "ü".encode()
    assert Record({**BASE, "event_time": -5}).event_time == -5


def test_it_stays_the_mapping_that_the_answer_is() -> None:
    members = [{**BASE, "json": {"id": 7}}, {**BASE, "value": "x"}]
    records = records_of([dict(one) for one in members])
    assert records == members
    assert orjson.dumps(records) == orjson.dumps(members)
    assert (records[0]["json"], records[1].get("json")) == ({"id": 7}, None)
    assert not hasattr(records[0], "__dict__")
