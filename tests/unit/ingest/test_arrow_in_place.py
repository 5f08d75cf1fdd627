"""Arrow bodies by both ways: whatever is taken in place has the verdict and the bytes of Arrow's way.

Where the two could differ is in numbers that lie and in metadata that is not what it seems, so most
of what is tried here is wrong. Which real programs' bodies are taken: `test_arrow_writers.py`.
"""

import io
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arrow_ways import is_taken_in_place
from support.edited_bytes import EDITS, Edit, edited

from bottomless.errors import InvalidRequest
from bottomless.formats.message_shape import MessageShape, Numbers, shape_of
from bottomless.formats.rows import Frame
from bottomless.model.limits import ARROW_RECORD_COUNT_MAX, MIB
from bottomless_server.ingest.records.arrow_in_place import read_in_place
from bottomless_server.ingest.records.arrow_plan import plan_of
from bottomless_server.ingest.records.arrow_records import BATCH_COUNT_KEPT
from unit.ingest.harness import arrow, arrow_of_batches
from unit.ingest.test_append_costs import bytes_made
from unit.ingest.test_arrow_writers import WRITERS

COUNT: Final = int(os.environ.get("BOTTOMLESS_FUZZ_EXAMPLES", "50"))
MAP: Final = pa.map_(pa.string(), pa.binary())
WORDS: Final = [0, 1, 8, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
"""Numbers that nobody means: as halves of sizes, offsets and counts, and as flatbuffers' own."""

TEXT_TYPES: Final[list[Any]] = [pa.string(), pa.large_string(), pa.string_view()]
BYTE_TYPES: Final[list[Any]] = [pa.binary(), pa.large_binary(), pa.binary_view()]
INDEX_TYPES: Final[list[Any]] = [pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int64()]
UNITS: Final[list[Any]] = ["s", "ms", "us", "ns"]

short_texts: Final = st.text(max_size=20)


@st.composite
def strings(draw: st.DrawFn, count: int, kinds: list[Any], *, nulls: bool) -> Any:
    """A column of text or bytes, plain or with a dictionary."""
    values = st.none() | short_texts if nulls else short_texts
    texts = draw(st.lists(values, min_size=count, max_size=count))
    kind = draw(st.sampled_from(kinds))
    if draw(st.booleans()):
        return pa.array(texts, kind)
    given = list(dict.fromkeys(texts))
    places = [None if one is None and draw(st.booleans()) else given.index(one) for one in texts]
    indices: Any = pa.array(places, draw(st.sampled_from(INDEX_TYPES)))
    return pa.DictionaryArray.from_arrays(indices, pa.array(given, kind))


@st.composite
def headers(draw: st.DrawFn, count: int) -> Any:
    names = st.text("abc", max_size=2)
    one = st.none() | st.lists(st.tuples(names, short_texts), max_size=3)
    kinds = (draw(st.sampled_from(TEXT_TYPES[:2])), draw(st.sampled_from(BYTE_TYPES[:2])))
    return pa.array(draw(st.lists(one, min_size=count, max_size=count)), pa.map_(*kinds))


@st.composite
def times(draw: st.DrawFn, count: int) -> Any:
    unit, zone = draw(st.sampled_from(UNITS)), draw(st.sampled_from(["UTC", "Asia/Tokyo"]))
    moments = st.none() | st.integers(-(2**62), 2**62) | st.integers(-(10**10), 10**10)
    return pa.array(
        draw(st.lists(moments, min_size=count, max_size=count)), pa.timestamp(unit, zone)
    )


@st.composite
def contents(draw: st.DrawFn, count: int) -> Any:
    kind = draw(st.sampled_from([pa.uint8(), pa.int64(), pa.int32()]))
    largest = draw(st.sampled_from([0, 1, 2, 3]))
    return pa.array(draw(st.lists(st.integers(0, largest), min_size=count, max_size=count)), kind)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Records in any of the types that a column may come in, and some that it may not."""
    count = draw(st.integers(1, 12))
    columns = {"value": draw(strings(count, TEXT_TYPES + BYTE_TYPES, nulls=False))}
    for name, column in {
        "key": strings(count, TEXT_TYPES + BYTE_TYPES, nulls=True),
        "filter_value": strings(count, TEXT_TYPES, nulls=True),
        "headers": headers(count),
        "event_time": times(count),
        "content": contents(count),
        "publishing_id": st.just(pa.array(range(count))),
    }.items():
        if draw(st.integers(0, 2)) == 0:
            columns[name] = draw(column)
    return pa.table({name: columns[name] for name in draw(st.permutations(list(columns)))})


@st.composite
def written(draw: st.DrawFn) -> tuple[bytes, bool]:
    """A body as a program may write it, and whether its records are numbered."""
    table = draw(tables())
    if draw(st.booleans()):
        table = table.slice(draw(st.integers(0, len(table) - 1)))
    if draw(st.booleans()):
        table = pa.concat_tables([table, table])
    stream = io.BytesIO()
    if draw(st.integers(0, 2)) == 0 and "headers" not in table.column_names:
        compat = draw(st.sampled_from([pl.CompatLevel.oldest(), pl.CompatLevel.newest()]))
        with suppress(pl.exceptions.PolarsError):
            pl.from_arrow(table).write_ipc_stream(stream, compat_level=compat)  # type: ignore[union-attr]
    if not stream.tell():
        options = pa.ipc.IpcWriteOptions(
            emit_dictionary_deltas=draw(st.booleans()), unify_dictionaries=draw(st.booleans())
        )
        with pa.ipc.new_stream(stream, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=draw(st.sampled_from([1, 3, 100])))
    body = stream.getvalue()
    return body[:-8] if draw(st.booleans()) else body, "publishing_id" in table.column_names


@settings(max_examples=COUNT)
@given(written(), st.sampled_from([8 * MIB, 600]))
def test_both_ways_say_the_same_of_any_table(body: tuple[bytes, bool], frame_size_max: int) -> None:
    with suppress(InvalidRequest):
        is_taken_in_place(body[0], numbered=body[1], frame_size_max=frame_size_max)


DAMAGED: Final = [
    *("pyarrow, all columns", "pyarrow, several batches", "pyarrow, dictionaries"),
    *("Polars", "Polars, without views"),
]


@pytest.mark.parametrize("name", DAMAGED)
@settings(max_examples=COUNT)
@given(edits=EDITS, cold=st.booleans())
def test_both_ways_say_the_same_of_damaged_bodies(name: str, edits: list[Edit], cold: bool) -> None:
    """With the schema known from a good body before, and unknown."""
    if cold:
        plan_of.cache_clear()
    else:
        assert is_taken_in_place(_written_once(name))
    with suppress(InvalidRequest):
        is_taken_in_place(edited(_written_once(name), edits))


@cache
def _written_once(name: str) -> bytes:
    return WRITERS[name]()


SMALL: Final[dict[str, Callable[[], bytes]]] = {
    "plain": lambda: arrow(
        pa.table(
            {
                "value": ["a", "bc", ""],
                "key": pa.array([b"k", None, b""]),
                "event_time": pa.array([1, None, 3], pa.timestamp("ms", "UTC")),
            }
        )
    ),
    "dictionary": lambda: arrow(
        pa.table({"value": pa.array([b"a", b"b", b"a"]).dictionary_encode()})
    ),
    "views": lambda: arrow(pa.table({"value": pa.array(["a", "b" * 20, "c"], pa.string_view())})),
    "headers": lambda: arrow(
        pa.table({"value": [b"a"], "headers": pa.array([[("n", b"v")]], MAP)})
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_both_ways_say_the_same_with_any_word_of_a_body_replaced(name: str) -> None:
    """Offsets outside, negative, overlapping; counts that are huge; tables that point elsewhere."""
    body = SMALL[name]()
    assert is_taken_in_place(body)
    first = _schema_size(body)
    for at in range(first, len(body) - 3, 4):
        for word in WORDS:
            damaged = body[:at] + struct.pack("<I", word) + body[at + 4 :]
            with suppress(InvalidRequest):
                is_taken_in_place(damaged)
    assert is_taken_in_place(body), "what was learned of damaged bodies spoils good ones"


def test_both_ways_say_the_same_with_any_half_word_of_a_schema_replaced() -> None:
    """Other types, other columns, another order of bytes."""
    body = arrow(pa.table({"value": ["a", "bc"], "content": pa.array([1, 0], pa.uint8())}))
    for at in range(8, _schema_size(body), 2):
        for half in (*range(0, 26, 2), 1, 3, 5, 0xFFFF):
            with suppress(InvalidRequest):
                is_taken_in_place(body[:at] + struct.pack("<H", half) + body[at + 2 :])


def renumbered(body: bytes, change: Callable[[Numbers], Numbers]) -> bytes:
    """The body with other numbers in the metadata of its first batch."""
    start = _schema_size(body)
    size = 8 + int(struct.unpack_from("<i", body, start + 4)[0])
    shape = shape_of(memoryview(body)[start : start + size])
    assert shape is not None
    numbers = shape.read(memoryview(body), start)
    assert numbers is not None
    return body[:start] + shape.fill(change(numbers)) + body[start + size :]


def _first_message(body: bytes) -> tuple[MessageShape, Numbers]:
    start = _schema_size(body)
    size = 8 + int(struct.unpack_from("<i", body, start + 4)[0])
    shape = shape_of(memoryview(body)[start : start + size])
    assert shape is not None
    numbers = shape.read(memoryview(body), start)
    assert numbers is not None
    return shape, numbers


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("count", [0, -1, 2, 2**31, 2**62])
def test_both_ways_say_the_same_of_counts_that_lie_together(name: str, count: int) -> None:
    """The batch's and those of all its fields, so that none contradicts another."""

    def change(numbers: Numbers) -> Numbers:
        nodes = tuple(count if at % 2 == 0 else 0 for at in range(len(numbers.nodes)))
        return numbers._replace(row_count=(count,), nodes=nodes)

    body = SMALL[name]()
    for damaged in (renumbered(body, change), renumbered(body, change)[:-8] + _batches_of(body)):
        with suppress(InvalidRequest):
            is_taken_in_place(damaged)


def _batches_of(body: bytes) -> bytes:
    return body[_schema_size(body) :]


def _schema_size(body: bytes) -> int:
    return 8 + int(struct.unpack_from("<i", body, 4)[0])


def short(body: bytes, frame_size_max: int = 8 * MIB) -> tuple[Frame, ...] | None:
    found = read_in_place(body, frame_size_max)
    return None if found is None else found[0]


ONE: Final = pa.table({"value": [b"a", b"b"]})


def many_batches(count: int) -> bytes:
    return arrow_of_batches(*[ONE.to_batches()[0]] * count)


def replaced_dictionary() -> bytes:
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = [
        pa.record_batch({"value": pa.array([text, text]).dictionary_encode().cast(kind)})
        for text in ("a", "b")
    ]
    return arrow_of_batches(*batches)


UNUSUAL: Final = {
    "an older version": arrow(ONE, metadata_version=pa.ipc.MetadataVersion.V4),
    "more batches than are kept": many_batches(BATCH_COUNT_KEPT + 1),
    "an empty batch": arrow_of_batches(
        ONE.to_batches()[0], pa.record_batch({"value": pa.array([], pa.binary())})
    ),
    "a dictionary that is replaced": replaced_dictionary(),
    "JSON": arrow(pa.table({"value": [b"{}"], "content": pa.array([2], pa.uint8())})),
    "bytes that are said to be text": arrow(
        pa.table({"value": [b"a"], "content": pa.array([1], pa.uint8())})
    ),
    "headers of views": arrow(
        pa.table(
            {
                "value": ["a"],
                "headers": pa.array([[("n", "v")]], pa.map_(pa.string(), pa.string_view())),
            }
        )
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_not_usual_is_taken_the_long_way(name: str) -> None:
    assert not is_taken_in_place(UNUSUAL[name])


def test_headers_of_which_no_record_has_any_are_as_arrow_writes_them() -> None:
    """Of no names it keeps as many offsets as the sender's program wrote, found by the property."""
    for count in (1, 3):
        empty = pa.array([[]] * count, MAP)
        with suppress(InvalidRequest):
            is_taken_in_place(arrow(pa.table({"value": [b"a"] * count, "headers": empty})))
    table = pa.table({"value": [b"a"] * 2, "headers": pa.array([[("n", b"v")], []], MAP)})
    for start in (0, 1):
        assert is_taken_in_place(arrow(table.slice(start, 1))) is (start == 0)


ENTRY: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
WITH_NULLS: Final[dict[str, list[Any]]] = {
    "name": [{"key": "n", "value": b"v"}, {"key": None, "value": b"w"}],
    "value": [{"key": "n", "value": b"v"}, {"key": "m", "value": None}],
    "header": [{"key": "n", "value": b"v"}, None],
}


def with_null_in_headers(which: str) -> bytes:
    """No program writes such a map, but a list of pairs lies in the same buffers."""
    listed = arrow(
        pa.table({"value": [b"a"], "headers": pa.array([WITH_NULLS[which]], pa.list_(ENTRY))})
    )
    good = SMALL["headers"]()
    return good[: _schema_size(good)] + _batches_of(listed)


@pytest.mark.parametrize("which", WITH_NULLS)
def test_nulls_within_headers_are_refused_both_ways(which: str) -> None:
    """Of a null name Arrow ended the process. What was made up and damaged before never had one:
    no writer makes it, and a count alone, without the buffer that goes with it, is refused earlier.
    """
    with pytest.raises(InvalidRequest):
        is_taken_in_place(with_null_in_headers(which))


_UNGUARDED: Final = """
import sys
from support.guards import replace
from bottomless_server.ingest.records.arrow_in_place import read_in_place
replace("no nulls among the names of headers", lambda _nulls: None)
read_in_place(sys.stdin.buffer.read(), 2**20)
"""


def test_without_the_look_at_names_arrow_ends_the_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _UNGUARDED],
        input=with_null_in_headers("name"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGABRT, ended.stderr.decode()


def test_metadata_of_a_size_that_is_not_usual_is_left_to_arrow() -> None:
    body = arrow(ONE)
    start = _schema_size(body)
    size = int(struct.unpack_from("<i", body, start + 4)[0])
    end = start + 8 + size
    odd = struct.pack("<i", size + 4) + body[start + 8 : end] + bytes(4)
    with suppress(InvalidRequest):
        assert not is_taken_in_place(body[: start + 4] + odd + body[end:])


def test_shapes_that_nobody_sends_twice_keep_a_usual_one_from_no_place() -> None:
    """The table of a schema's shapes has a bound, and what is newest goes in."""
    body = arrow(ONE)
    plan_of.cache_clear()
    plan = plan_of(body[: _schema_size(body)], False)
    assert plan is not None
    start = _schema_size(body)
    for junk in range(1, 40):
        # The padding of the metadata's own tables may be anything.
        made = bytearray(body)
        made[start + 12 : start + 16] = struct.pack("<I", junk)
        plan.read(memoryview(bytes(made)), start)
    assert plan.read(memoryview(body), start) is not None
    assert len(plan.shapes) == 16
    assert plan.shapes[0].read(memoryview(body), start) is not None, "it is learned each time"


def test_a_batch_before_its_dictionary_is_refused() -> None:
    body = SMALL["dictionary"]()
    start = _schema_size(body)
    shape, numbers = _first_message(body)
    end = start + shape.size + numbers.body_size[0]
    with pytest.raises(InvalidRequest):
        is_taken_in_place(body[:start] + body[end:])
    with pytest.raises(InvalidRequest):
        is_taken_in_place(body[:start] + body[end:-8] + body[start:end] + body[-8:])


def test_a_dictionary_of_no_column_is_refused() -> None:
    body = SMALL["dictionary"]()
    two = arrow(
        pa.table({name: pa.array([b"a", b"b"]).dictionary_encode() for name in ("value", "key")})
    )
    # Those of another schema, whose second dictionary nobody knows here.
    with pytest.raises(InvalidRequest):
        is_taken_in_place(body[: _schema_size(body)] + _batches_of(two))


def test_records_are_counted_over_all_batches() -> None:
    half = pa.array([b""] * (ARROW_RECORD_COUNT_MAX // 2 + 1), pa.binary())
    batch = pa.record_batch({"value": half})
    assert is_taken_in_place(arrow_of_batches(batch))
    with pytest.raises(InvalidRequest):
        is_taken_in_place(arrow_of_batches(batch, batch))


def test_as_many_batches_as_are_kept_are_taken_in_place() -> None:
    assert is_taken_in_place(many_batches(BATCH_COUNT_KEPT))


REFUSED: Final = {
    "compressed by Arrow": arrow(pa.table({"value": [b"a" * 1_000]}), compression="zstd"),
    "bytes after the end": arrow(ONE) + bytes(8),
    "two streams": arrow(ONE) * 2,
    "nulls": arrow(pa.table({"value": [b"a", None]})),
    "too large a value": arrow(pa.table({"value": [b"a" * (MIB + 1)]})),
    "too large a key": arrow(pa.table({"value": [b"a"], "key": [b"k" * 1_025]})),
    "too large a filter value": arrow(pa.table({"value": [b"a"], "filter_value": ["k" * 256]})),
    "a time without a date": arrow(
        pa.table({"value": [b"a"], "event_time": pa.array([2**60], pa.timestamp("ms", "UTC"))})
    ),
    "another column": arrow(pa.table({"value": [b"a"], "offset": [1]})),
    "a registered extension": arrow(pa.table({"value": pa.array(["{}"], pa.json_())})),
    "no record": arrow(pa.table({"value": pa.array([], pa.binary())})),
    "nothing": b"",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_never_taken_in_place(name: str) -> None:
    assert short(REFUSED[name]) is None
    with pytest.raises(InvalidRequest):
        is_taken_in_place(REFUSED[name])


def lying(kind: pa.DataType, count: int, buffers: list[bytes | None], nulls: int = 0) -> bytes:
    """A body of a column that Arrow's writer believes."""
    given = [None if one is None else pa.py_buffer(one) for one in buffers]
    return arrow(pa.table({"value": pa.Array.from_buffers(kind, count, given, nulls)}))


def test_text_that_is_not_utf_8_is_never_taken_in_place() -> None:
    """Neither a byte that is none, nor a character that two values share."""
    assert is_taken_in_place(
        lying(pa.string(), 2, [None, struct.pack("<3i", 0, 2, 4), b"\xc3\xa9" * 2])
    )
    for offsets, data in (((0, 1, 2), b"a\xff"), ((0, 1, 2), b"\xc3\xa9")):
        body = lying(pa.string(), 2, [None, struct.pack("<3i", *offsets), data])
        with pytest.raises(InvalidRequest):
            is_taken_in_place(body)


def test_what_writers_leave_between_buffers_is_not_stored() -> None:
    """Arrow's writer has zeros there, whatever stood in the body."""
    body = bytearray(arrow(pa.table({"value": [b"abc"], "key": [b"k"]})))
    at = body.rindex(b"abc") + 3
    assert body[at : at + 5] == bytes(5)
    body[at : at + 5] = b"junk!"
    [frame] = short(bytes(body)) or ()
    assert b"junk!" not in bytes(frame.data)
    assert is_taken_in_place(bytes(body))


def test_a_batch_larger_than_a_frame_is_divided_the_long_way() -> None:
    body = arrow(pa.table({"value": [b"a" * 100] * 20}))
    assert is_taken_in_place(body, frame_size_max=4_000)
    assert not is_taken_in_place(body, frame_size_max=1_500)
    assert not is_taken_in_place(body, frame_size_max=2_200), "its buffers alone would have room"


def test_a_dictionary_that_names_a_large_value_often_is_not_decoded() -> None:
    often = pa.array([0] * 1_000, pa.int32())
    body = arrow(pa.table({"value": pa.DictionaryArray.from_arrays(often, pa.array([b"a" * MIB]))}))
    assert bytes_made(lambda: short(body)) < 2 * MIB
    assert short(body) is None


def test_bodies_that_are_taken_are_not_copied() -> None:
    body = arrow(pa.table({"value": [bytes(100)] * 10_000, "key": [b"0123456789"] * 10_000}))
    [frame] = short(body) or ()
    assert len(frame.parts) == 2
    last = frame.parts[1]
    assert isinstance(last, memoryview)
    assert last.obj is body
    assert bytes_made(lambda: short(body)) < len(body) // 10
