from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest

from bottomless.client.accumulator import Extra
from bottomless.client.rows import (
    TOGETHER_COUNT_MAX,
    Row,
    Values,
    json_row_of,
    row_of,
    rows_of,
)
from bottomless.errors import Code, InvalidRequest
from bottomless.model.record import Content


def test_bytes_stay_bytes_and_text_is_remembered_as_text() -> None:
    assert row_of(b"\xff")[:2] == (b"\xff", Content.BYTES)
    assert row_of("ü")[:2] == (b"\xc3\xbc", Content.TEXT)
    assert json_row_of({"a": [1, None]})[:2] == (b'{"a":[1,null]}', Content.JSON)


def test_what_may_change_is_copied() -> None:
    value = bytearray(b"abc")
    row = row_of(value)
    value[0] = 0
    assert row.value == b"abc"
    assert row_of(memoryview(b"abc")).value == b"abc"


def test_what_is_beside_the_value_takes_the_form_of_its_column() -> None:
    moment = datetime(2026, 11, 21, 8, tzinfo=UTC)
    row = row_of("x", "kü", {"a": "1", "b": b"\0"}, moment, "emea")
    assert row.extra == Extra("kü".encode(), [("a", b"1"), ("b", b"\0")], 1795248000000, "emea")
    assert row_of("x", event_time=-5).extra == Extra(event_time=-5)


@pytest.mark.parametrize(
    "given",
    [
        {"value": "\ud800"},
        {"value": b"x" * (2**20 + 1)},
        {"value": "x", "key": b"k" * 1025},
        {"value": "x", "headers": {str(n): b"" for n in range(33)}},
        {"value": "x", "headers": {"name": b"x" * 4093}},
        {"value": "x", "event_time": datetime(2026, 1, 1)},  # noqa: DTZ001  # that is the fault
        {"value": "x", "event_time": 10**15},
        {"value": "x", "filter_value": "ü" * 128},
        {"value": "x", "key": 7},
        {"value": "x", "headers": {"name": 7}},
        {"value": "x", "headers": [("name", "x")]},
        {"value": "x", "headers": {7: b""}},
        {"value": "x", "event_time": 1.5},
        {"value": "x", "filter_value": b"emea"},
    ],
    ids=[
        "surrogate",
        "value",
        "key",
        "headers",
        "header",
        "zone",
        "time",
        "filter value",
        "key of a type",
        "header of a type",
        "pairs of headers",
        "name of a type",
        "time of a type",
        "filter value of a type",
    ],
)
def test_what_no_server_would_take_is_refused_before_it_is_sent(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        row_of(**given)


def test_a_value_that_is_too_large_has_the_code_of_the_server() -> None:
    with pytest.raises(InvalidRequest) as caught:
        row_of(b"x" * (2**20 + 1))
    assert caught.value.code is Code.RECORD_TOO_LARGE


@dataclass
class Pair:
    one: Any
    two: Any


def test_null_and_what_orjson_knows_can_be_said() -> None:
    value = {"a": None, "b": Pair(None, date(2026, 11, 21)), "c": UUID(int=1)}
    assert orjson.loads(json_row_of(value).value) == {
        "a": None,
        "b": {"one": None, "two": "2026-11-21"},
        "c": str(UUID(int=1)),
    }


@pytest.mark.parametrize(
    "value",
    [
        float,
        object(),
        2**70,
        "\ud800",
        float("nan"),
        [None, {"a": (1, float("-inf"))}],
        Pair(1, [float("nan")]),
    ],
    ids=["type", "object", "integer", "surrogate", "nan", "infinity", "nan in a dataclass"],
)
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest):
        json_row_of(value)


def test_a_value_that_is_neither_bytes_nor_text_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="send_json"):
        row_of({"a": 1})  # type: ignore[arg-type]


def test_many_bytes_are_taken_together_and_anything_else_one_by_one() -> None:
    many = [b"%d" % number for number in range(TOGETHER_COUNT_MAX + 2)]
    first, second = rows_of(many)
    assert isinstance(first, Values)
    assert isinstance(second, Values)
    assert [*first.values, *second.values] == many
    assert second.ends == [4, 8]
    assert first.without_first(1).ends[:10] == [*range(1, 10), 11]
    mixed: list[Any] = [[b"a", "b"], (value for value in (b"a", b"b")), [b"a", bytearray(b"b")]]
    for values in mixed:
        rows = list(rows_of(values))
        assert [row.value for row in rows if isinstance(row, Row)] == [b"a", b"b"]
    assert list(rows_of([])) == []


def test_what_stands_before_a_value_that_is_too_large_is_handed_over() -> None:
    rows = rows_of([b"a", b"x" * (2**20 + 1)])
    assert next(rows) == row_of(b"a")
    with pytest.raises(InvalidRequest):
        next(rows)
