"""Rows of a DataFrame as the frames that the server stores: columns checked, cast, cut into bodies.

The encoder is the formats' own; here Spark's types become those of a record.

On the record's path: here a row becomes a record; before shared/bottomless/spark/staging.py.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from bottomless.errors import Code, InvalidRequest
from bottomless.formats.batch import FIELDS, schema_of
from bottomless.formats.rows import encode_frames, slices_of
from bottomless.model.limits import MIB
from bottomless.model.record import Columns, Content

BODY_SIZE: Final = 8 * MIB
"""Bytes of a body when it is sent: half of what the server accepts."""
FRAME_SIZE_MAX: Final = 4 * MIB
RECORD_COUNT_MAX: Final = 500_000
"""Records of one body; half of what the server takes. A body ends early before it has more."""

_TEXT: Final = (StringType(), BinaryType())
_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "value": _TEXT,
    "key": _TEXT,
    "headers": tuple(MapType(StringType(), kind) for kind in _TEXT),
    "event_time": (TimestampType(),),
    "filter_value": (StringType(),),
}
_PLACE_COLUMNS: Final = frozenset({"offset", "timestamp", "content"})
"""What reading adds to a record; `content` follows from the type of `value`."""
_BY_NAME: Final = {field.name: column for column, field in FIELDS.items()}


class Body(NamedTuple):
    """Batch frames that are sent in one request."""

    data: bytes
    record_count: int


def check_columns(schema: StructType) -> None:
    """Refuse a DataFrame whose columns are not those of records.

    Raises:
        InvalidRequest: a column is missing, unknown, or of another type.
    """
    kinds = {field.name: field.dataType for field in schema.fields}
    known = ", ".join(
        f"{name} {' or '.join(kind.simpleString() for kind in allowed)}"
        for name, allowed in _TYPES.items()
    )
    if len(kinds) < len(schema.fields):
        raise InvalidRequest("two columns have the same name")
    if "value" not in kinds:
        raise InvalidRequest(f"the column value is missing; the columns are {known}")
    for name, kind in kinds.items():
        if name not in _TYPES or not any(_same(kind, allowed) for allowed in _TYPES[name]):
            hint = "; leave out what a read added" if name in _PLACE_COLUMNS else ""
            zone = "; cast it to timestamp" if isinstance(kind, TimestampNTZType) else ""
            raise InvalidRequest(
                f"{name} {kind.simpleString()} is no column of a record{hint}{zone}; "
                f"the columns are {known}"
            )


def encode_bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[Body]:
    """Encode every row, in order, as bodies that the server accepts; none if there is no row.

    Raises:
        InvalidRequest: a value is null.
    """
    parts: list[bytes | memoryview] = []
    size = count = 0
    for batch in batches:
        for rows in slices_of(batch, record_count=RECORD_COUNT_MAX // 4, size=FRAME_SIZE_MAX):
            for frame in encode_frames(as_records(rows), FRAME_SIZE_MAX):
                full = size + len(frame.data) > BODY_SIZE
                if parts and (full or count + frame.record_count > RECORD_COUNT_MAX):
                    yield Body(b"".join(parts), count)
                    parts, size, count = [], 0, 0
                parts.append(frame.data)
                size += len(frame.data)
                count += frame.record_count
    if parts:
        yield Body(b"".join(parts), count)


def as_records(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Cast rows to the types that are stored.

    Raises:
        InvalidRequest: a value is null.
    """
    value = rows.column("value")
    if value.null_count:
        raise InvalidRequest(
            "a row has no value: a record needs one, if need be an empty one",
            code=Code.VALIDATION_FAILED,
        )
    found = {_BY_NAME[name]: rows.column(name) for name in rows.schema.names}
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        found[Columns.CONTENT] = pa.repeat(pa.scalar(Content.TEXT, pa.uint8()), rows.num_rows)
    columns = Columns(0)
    for column in found:
        columns |= column
    # Microseconds become milliseconds: what is below them is not stored.
    arrays = [
        found[column].cast(field.type, safe=column is not Columns.EVENT_TIME)
        for column, field in FIELDS.items()
        if column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _same(kind: DataType, allowed: DataType) -> bool:
    # A map says whether its values may be null; headers are refused by the server if they are.
    if isinstance(kind, MapType) and isinstance(allowed, MapType):
        return (kind.keyType, kind.valueType) == (allowed.keyType, allowed.valueType)
    return kind == allowed
