"""JSON values to columns, by Arrow's own parser and without a loop per record. Pure.

Each value is put into a line of its own, `{"n":5,"v":…}`, and all lines are parsed at once. The
number shows that no value has run into the next one: a value that is not JSON by itself could
become JSON together with its neighbour.

A value that does not fit makes all columns of its record null. Arrow says only that there is such a
value; it is found by trying halves, and halves of them.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from bottomless.errors import Code, InvalidRequest

_PARSED_AS_TEXT: Final = (pa.date32(),)
"""What Arrow's parser does not know, and its casts do."""


def parse_json(values: "pa.Array[Any]", wanted: pa.StructType, *, strict: bool) -> pa.StructArray:
    """Make one struct per value, with the members that are wanted.

    Members that are absent are null, others are left out. A value that is no JSON object, or has a
    member of another type, gives a struct of nulls, or with `strict` an error.

    Raises:
        InvalidRequest: `validation-failed`, with `strict`.
    """
    line_type = pa.struct([pa.field("n", pa.int64()), pa.field("v", _parsed(wanted))])
    parts = list(_parts(values, line_type, wanted, strict=strict))
    if not parts:
        return pa.array([], wanted)  # type: ignore[return-value]  # an array of structs
    joined: Any = pa.concat_arrays(parts) if len(parts) > 1 else parts[0]
    return joined  # type: ignore[no-any-return]


def check_types(kind: pa.DataType) -> None:
    """Refuse types that JSON values cannot be turned into.

    Raises:
        InvalidRequest: a type is not among those that are known here.
    """
    if pa.types.is_struct(kind):
        for member in kind:
            check_types(member.type)
    elif pa.types.is_list(kind):
        check_types(kind.value_type)
    elif not _is_simple(kind):
        raise InvalidRequest(
            "jsonSchema knows boolean, byte, short, int, long, float, double, decimal, string, "
            "date, timestamp, array and struct"
        )


def _is_simple(kind: pa.DataType) -> bool:
    known = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_string,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    return any(knows(kind) for knows in known)


def _parts(
    values: "pa.Array[Any]", line_type: pa.StructType, wanted: pa.StructType, *, strict: bool
) -> Any:
    if not len(values):
        return
    parsed = _parse(values, line_type, wanted)
    if parsed is not None:
        yield parsed
    elif len(values) > 1:
        middle = len(values) // 2
        yield from _parts(values.slice(0, middle), line_type, wanted, strict=strict)
        yield from _parts(values.slice(middle), line_type, wanted, strict=strict)
    elif strict:
        raise InvalidRequest(
            "a value is no JSON object with members of these types; onBadJson=null would leave "
            "its columns null",
            code=Code.VALIDATION_FAILED,
        )
    else:
        yield pa.nulls(1, wanted)


def _parse(
    values: "pa.Array[Any]", line_type: pa.StructType, wanted: pa.StructType
) -> "pa.Array[Any] | None":
    """All of these values, or None where one of them does not fit."""
    numbers = pa.array(np.arange(len(values))).cast(pa.string()).cast(pa.binary())
    texts = (b'{"n":', b',"v":', b"}\n", b"")
    opens, between, closes, nothing = (pa.scalar(text) for text in texts)
    join: Any = pc.binary_join_element_wise
    lines = join(opens, numbers, between, values, closes, nothing)
    data = _bytes_of(lines)
    source: Any = pa.BufferReader(data)
    try:
        table = arrow_json.read_json(
            source,
            # In one block: what is cut is parsed as it comes, and takes longer.
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=pa.schema(list(line_type)),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        ).combine_chunks()
        found = table.column("v").combine_chunks().cast(wanted)
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(values):
        return None
    if not np.array_equal(table.column("n").to_numpy(), np.arange(len(values))):
        return None
    array: pa.Array[Any] = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
    return array


def _bytes_of(lines: "pa.Array[Any]") -> pa.Buffer:
    """The data of a binary array that was just made: one line after the other."""
    buffers: Any = lines.buffers()
    _, offsets, data = buffers
    ends = np.frombuffer(offsets, dtype=np.int32, count=len(lines) + 1)
    whole: pa.Buffer = data.slice(int(ends[0]), int(ends[-1] - ends[0]))
    return whole


def _parsed(kind: pa.DataType) -> pa.DataType:
    """The type as Arrow's parser takes it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(member.name, _parsed(member.type)) for member in kind])
    if pa.types.is_list(kind):
        return pa.list_(_parsed(kind.value_type))
    return pa.string() if kind in _PARSED_AS_TEXT else kind
