"""Arrow bodies that are small and name much: bytes are counted before they are looked at.

The time of a body was measured for bodies that programs write, and fuzzing makes small ones; both
were blind to a few MiB that keep a server busy for an hour.
"""

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from support.arrow_ways import is_taken_in_place

from bottomless.errors import InvalidRequest
from bottomless.formats.message_shape import shape_of
from bottomless.model.limits import DECOMPRESSED_SIZE_MAX, MIB
from bottomless_server.ingest.records import arrow_records
from bottomless_server.ingest.records.arrow_in_place import read_in_place
from bottomless_server.ingest.records.arrow_records import read_arrow
from unit.ingest.harness import arrow, arrow_of_batches

VIEW: Final = np.dtype([("size", "<i4"), ("prefix", "S4"), ("buffer", "<i4"), ("offset", "<i4")])


def views(data: bytes, count: int, kind: Any = None, sizes: list[int] | None = None) -> Any:
    """A column of which each value is all of the same data."""
    made = np.zeros(count, VIEW)
    made["size"], made["prefix"] = sizes or len(data), data[:4]
    buffers = [None, pa.py_buffer(made.tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.string_view(), count, buffers)


def with_a_dictionary(values: Any, *rows: int) -> bytes:
    """A body of one batch each with so many rows, all of the first value."""
    batches = []
    for count in rows:
        indices = pa.array([0] * count, pa.int32())
        column = pa.DictionaryArray.from_arrays(indices, values, safe=False)
        batches.append(pa.record_batch({"value": column}))
    return arrow_of_batches(*batches)


def refusal(body: bytes) -> str:
    with pytest.raises(InvalidRequest) as raised:
        read_arrow(body, 8 * MIB)
    return str(raised.value)


def verdict(body: bytes) -> str:
    """Of both ways."""
    assert read_in_place(body, 8 * MIB) is None
    return refusal(body)


NOT_TEXT: Final = b"\xff" * MIB
"""What is found to be wrong as soon as it is looked at."""
TOO_OFTEN: Final = DECOMPRESSED_SIZE_MAX // MIB + 1


def test_views_are_counted_before_they_are_followed() -> None:
    """A million views of one text of a MiB are validated one by one: ten minutes for 17 MiB."""
    assert "decode to more" in verdict(arrow(pa.table({"value": views(NOT_TEXT, TOO_OFTEN)})))
    assert "not valid" in verdict(arrow(pa.table({"value": views(NOT_TEXT, 2)})))


def test_a_view_of_less_than_nothing_makes_others_no_smaller() -> None:
    sizes = [MIB] * TOO_OFTEN + [-(2**31)]
    column = views(NOT_TEXT, TOO_OFTEN + 1, sizes=sizes)
    assert "decode to more" in verdict(arrow(pa.table({"value": column})))


def test_views_among_headers_are_counted_before_they_are_followed() -> None:
    offsets: Any = pa.array([0, TOO_OFTEN], pa.int32())
    names: Any = pa.array([str(number) for number in range(TOO_OFTEN)])
    column = pa.MapArray.from_arrays(offsets, names, views(NOT_TEXT, TOO_OFTEN))
    body = arrow(pa.table({"value": [b"a"], "headers": column}))
    assert "decode to more" in verdict(body)


@pytest.mark.parametrize("data", [NOT_TEXT, b"a" * MIB])
def test_views_of_a_dictionary_are_counted_also_where_no_row_names_them(data: bytes) -> None:
    """All of a dictionary is validated and converted, which made gigabytes of one MiB."""
    assert "decode to more" in verdict(with_a_dictionary(views(data, TOO_OFTEN), 1))


def test_a_dictionary_of_many_values_without_bytes_is_refused() -> None:
    """Its sizes, of which there are as many as it says, took gigabytes."""
    nothing = pa.Array.from_buffers(pa.binary(0), 2**31 - 1, [None, pa.py_buffer(b"")])
    assert "large dictionaries" in verdict(with_a_dictionary(nothing, 1))


def test_a_dictionary_is_counted_with_each_batch_that_it_goes_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is looked at and converted with each: twenty minutes for 60,000 batches of one row."""
    values = pa.array(["a" * 1_000])
    monkeypatch.setattr(arrow_records, "DICTIONARIES_SIZE_MAX", 4_500)
    assert is_taken_in_place(with_a_dictionary(values, 1, 1, 1, 1))
    for rows in ((1, 1, 1, 1, 1), (1, 0, 0, 0, 0)):
        assert "large dictionaries" in refusal(with_a_dictionary(values, *rows))


def test_views_of_a_dictionary_are_counted_with_each_batch_that_it_goes_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow_records, "DICTIONARIES_SIZE_MAX", 60_000)
    values = views(b"a" * 1_000, 10)
    assert is_taken_in_place(with_a_dictionary(values, 1, 1, 1, 1, 1))
    assert "large dictionaries" in refusal(with_a_dictionary(values, 1, 1, 1, 1, 1, 1))


def test_in_place_dictionaries_are_counted_with_each_batch_too() -> None:
    """There are at most 64 batches there, and the other way takes those that name more."""
    for values in (pa.array(["a" * MIB] * 24), views(b"a" * MIB, 18)):
        assert is_taken_in_place(with_a_dictionary(values, 1, 1))
        assert not is_taken_in_place(with_a_dictionary(values, 1, 1, 1))


def test_a_dictionary_of_fewer_values_than_none_is_refused() -> None:
    """To ask for its length was an error of Python's own, which is nobody's answer."""
    body = with_a_dictionary(pa.array([b"a"]), 1)
    start = 8 + int(struct.unpack_from("<i", body, 4)[0])
    size = 8 + int(struct.unpack_from("<i", body, start + 4)[0])
    shape = shape_of(memoryview(body)[start : start + size])
    assert shape is not None
    numbers = shape.read(memoryview(body), start)
    assert numbers is not None
    below = shape.fill(numbers._replace(row_count=(-1,), nodes=(-1, 0)))
    assert "not valid" in verdict(body[:start] + below + body[start + size :])
