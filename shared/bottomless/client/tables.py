"""Rows and tables as bodies of appends: frames and Arrow IPC streams. Pure.

It loads Arrow, so it is imported where a body is made and not at the top of a module.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bottomless.client.encoding import ARROW, Compression, EncodedBody
from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.formats.batch import FIELDS, Codec
from bottomless.formats.rows import build_batch, encode_frames, slices_of
from bottomless.model.limits import (
    ARROW_RECORD_COUNT_MAX,
    BINARY_BODY_SIZE_MAX,
    FILTER_VALUE_SIZE_MAX,
    MIB,
    RECORD_KEY_SIZE_MAX,
    RECORD_VALUE_SIZE_MAX,
)
from bottomless.model.rows import Rows

TABLE_SIZE_MAX: Final = BINARY_BODY_SIZE_MAX // 2
"""Bytes of the rows that are put into one Arrow body: it leaves room for what Arrow adds."""

_COLUMNS: Final = frozenset(field.name for field in FIELDS.values())
_TEXT: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_WITH_LENGTH: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)
_BYTES: Final = (*_TEXT, *_WITH_LENGTH, pa.types.is_binary_view)
_TYPES: Final[dict[str, tuple[Callable[[pa.DataType], bool], ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "filter_value": _TEXT,
    "content": (pa.types.is_integer,),
    "event_time": (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,),
    "headers": (pa.types.is_map,),
}
_SIZES_MAX: Final = {
    "value": RECORD_VALUE_SIZE_MAX,
    "key": RECORD_KEY_SIZE_MAX,
    "filter_value": FILTER_VALUE_SIZE_MAX,
}
_PLACE_COLUMNS: Final = ("offset", "timestamp")
"""What a read adds to a record, and an append does not take."""
_CODECS: Final = {None: Codec.NONE, "zstd": Codec.ZSTD, "lz4": Codec.LZ4}
_FRAME_SIZE_MAX: Final = 4 * MIB
"""Half of what a server takes at the least as one frame."""


def frames_body(rows: Rows, compression: Compression | None = None) -> bytes:
    """Encode rows as frames; the same rows always give the same bytes."""
    batch = build_batch([rows])
    codec = _CODECS[compression]
    return b"".join(frame.data for frame in encode_frames(batch, _FRAME_SIZE_MAX, codec))


def arrow_body(rows: "pa.RecordBatch | pa.Table") -> bytes:
    """Encode rows as an Arrow IPC stream of their own."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return bytes(sink.getvalue().to_pybytes())


def arrow_bodies(
    table: pa.Table, *, size: int, compression: Compression | None = None
) -> Iterator[EncodedBody]:
    """Encode the rows of a table in order, as bodies of about `size` bytes before compression."""
    for batch in table.to_batches():
        for rows in slices_of(batch, record_count=ARROW_RECORD_COUNT_MAX, size=size):
            for fitting in _fitting(rows):
                body = arrow_body(fitting)
                if compression is not None:
                    body = bytes(pa.Codec(compression).compress(body, asbytes=True))
                yield EncodedBody(body, ARROW, compression, fitting.num_rows)


def as_table(rows: Any) -> pa.Table:
    """Turn anything tabular into an Arrow table with the columns of a record.

    It accepts Arrow's own tables and batches, pandas DataFrames, and whatever offers
    `__arrow_c_stream__`, as Polars and DuckDB do. Offsets and times of a read are left out.

    Raises:
        InvalidRequest: it is no table, has no column `value`, or has a column that no record has
            or of another type; or a record must have a value, and this one is null, or larger than any server accepts.
    """
    table = _table(rows)
    kept = [name for name in table.column_names if name not in _PLACE_COLUMNS]
    unknown = sorted(set(kept) - _COLUMNS)
    if unknown or "value" not in kept:
        columns = ", ".join(field.name for field in FIELDS.values())
        raise InvalidRequest(
            f"the columns of a record are {columns}; value is needed",
            code=Code.VALIDATION_FAILED,
            faults=[Fault(Code.VALIDATION_FAILED, "this is not a column of a record", pointer="")],
        )
    table = table.select(kept)
    for name in kept:
        _check_column(name, table.column(name))
    return table


def _check_column(name: str, column: "pa.ChunkedArray[Any]") -> None:
    """What no server takes is refused here, where nothing was handed over yet. The server looks
    closer: at UTF-8, JSON, headers and times."""
    if not _has_type_of(name, column.type):
        raise _column_fault(name, f"the column {name} cannot have the type {column.type}")
    if name == "value" and any(_null_count(chunk) for chunk in column.chunks):
        raise _column_fault(name, "a record must have a value, and this one is null")
    limit = _SIZES_MAX.get(name)
    if limit is None or not any(has_length(column.type) for has_length in _WITH_LENGTH):
        return
    largest = pc.max(pc.binary_length(column)).as_py()
    if largest is not None and largest > limit:
        code = Code.RECORD_TOO_LARGE if name == "value" else Code.VALIDATION_FAILED
        raise _column_fault(name, f"a {name} must have at most {limit} bytes", code)


def _has_type_of(name: str, kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return name not in ("value", "content")
    return any(fits(kind) for fits in _TYPES[name])


def _null_count(chunk: Any) -> int:
    # Indices do not show a null that stands among the values of a dictionary.
    if pa.types.is_dictionary(chunk.type) and chunk.dictionary.null_count:
        chunk = chunk.dictionary_decode()
    return int(chunk.null_count)


def _column_fault(name: str, sentence: str, code: Code = Code.VALIDATION_FAILED) -> InvalidRequest:
    return InvalidRequest(sentence, code=code, faults=[Fault(code, sentence, pointer=f"/{name}")])


def _table(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    try:
        if type(rows).__module__.startswith("pandas."):
            # Its index is of its own and no column of a record.
            return pa.Table.from_pandas(rows, preserve_index=False)
        return pa.table(rows)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidRequest("this is not a table", code=Code.VALIDATION_FAILED) from error


def _fitting(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # Rows of very different sizes: an average says nothing of the largest piece.
    if rows.num_rows > 1 and rows.nbytes > TABLE_SIZE_MAX:
        middle = rows.num_rows // 2
        yield from _fitting(rows.slice(0, middle))
        yield from _fitting(rows.slice(middle))
    elif rows.num_rows:
        yield rows
