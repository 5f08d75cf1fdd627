"""JSON values become columns as a JSON parser of one value at a time has them."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bottomless.errors import InvalidRequest
from bottomless.spark.json_values import check_types, parse_json

WANTED = pa.struct(
    [
        pa.field("a", pa.int64()),
        pa.field("t", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("in", pa.struct([pa.field("list", pa.list_(pa.float64()))])),
    ]
)


def parsed(values: list[bytes], *, strict: bool = False) -> list[Any]:
    found: Any = parse_json(pa.array(values, pa.binary()), WANTED, strict=strict)
    assert found.type.equals(WANTED)
    rows: list[Any] = found.to_pylist()
    return rows


def alone(value: bytes) -> Any:
    """What a parser makes of one value: members that are wanted, or nothing."""
    try:
        members = json.loads(value, object_pairs_hook=once)
    except ValueError:
        return None
    if not isinstance(members, dict):
        return None
    found = {"a": members.get("a"), "t": members.get("t")}
    a_fits = found["a"] is None or (type(found["a"]) is int and -(2**63) <= found["a"] < 2**63)
    return found if a_fits and isinstance(found["t"], str | None) else None


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError
    return dict(pairs)


OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(2**63), 2**63 - 1) | st.just("text") | st.none(),
        "t": st.text(max_size=20) | st.integers(0, 9) | st.none(),
        "other": st.recursive(
            st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3),
        ),
    },
)
PIECES = st.sampled_from([b"", b"5", b"null", b"[1]", b'{"a":1', b',"t":"x"}', b"}", b"\xff", b'"'])
VALUES = st.lists(
    OBJECTS.map(lambda members: json.dumps(members, ensure_ascii=False).encode()) | PIECES,
    max_size=12,
)


@given(VALUES)
@example([b'{"a":[1,', b'{"a":2}]}', b"{}{}"])
@example([b"null"])
@example([b'{"a":1}}\n{"n":9,"v":{"a":7}', b'{"a":2}'])
@example([b'{"t":"', b'"}'])
@example([b'{"a": -9223372036854775808}', b'{"a": 9223372036854775808}'])
def test_each_value_is_parsed_as_if_it_were_alone(values: list[bytes]) -> None:
    for value, row in zip(values, parsed(values), strict=True):
        wanted = alone(value)
        assert (None if row is None else {"a": row["a"], "t": row["t"]}) == wanted, value


def test_types_that_json_does_not_have_are_read_from_text() -> None:
    value = b'{"day":"2013-01-31","at":"2013-01-01T05:00:00.25Z","in":{"list":[1,2.5]}}'
    [row] = parsed([value])
    assert row["day"].isoformat() == "2013-01-31"
    assert row["at"].isoformat() == "2013-01-01T05:00:00.250000+00:00"
    assert row["in"] == {"list": [1.0, 2.5]}


def test_a_value_may_have_lines_and_many_values_may_be_bad() -> None:
    values = [b'{\n "a":\n 4}' if n % 3 else b"no json" for n in range(500)]
    assert [row is None for row in parsed(values)] == [n % 3 == 0 for n in range(500)]


def test_a_bad_value_can_be_an_error() -> None:
    assert parsed([b'{"a":1}'], strict=True)[0]["a"] == 1
    with pytest.raises(InvalidRequest, match="onBadJson=null"):
        parsed([b'{"a":1}', b'{"a":"x"}'], strict=True)


def test_no_value_is_no_row() -> None:
    assert parsed([]) == []


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.map_(pa.string(), pa.int64()), pa.list_(pa.null())]
)
def test_types_that_json_cannot_give_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidRequest, match="jsonSchema knows"):
        check_types(pa.struct([pa.field("x", kind)]))
    check_types(WANTED)
