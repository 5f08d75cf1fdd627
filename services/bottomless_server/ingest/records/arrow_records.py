"""Records of an Arrow IPC stream: validated fully, then cast to the stored types.

Validation comes first and casting second: a cast follows offsets and views, and trusts
them. Sizes are bounded before a dictionary or a view is decoded, since both may name
one large value a million times.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow.compute import call_function

from bottomless.errors import Code
from bottomless.formats.batch import FIELDS, schema_of
from bottomless.formats.rows import Frame, encode_frames
from bottomless.model.limits import (
    ARROW_RECORD_COUNT_MAX,
    DECOMPRESSED_SIZE_MAX,
    FILTER_VALUE_SIZE_MAX,
    RECORD_KEY_SIZE_MAX,
    RECORD_VALUE_SIZE_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
)
from bottomless.model.record import Columns, Content
from bottomless_server.core.json_nesting import nested_too_deeply
from bottomless_server.ingest.records.arrow_columns import (
    ID_NAME,
    check_id_column,
    read_headers,
    read_ids,
)
from bottomless_server.ingest.records.arrow_stream import check_stream
from bottomless_server.ingest.records.arrow_types import (
    dictionary_size,
    is_text,
    sizes_of,
    stored_form,
    viewed_size,
    without_hidden_views,
)
from bottomless_server.ingest.records.faults import (
    batch_too_large,
    column_fault,
    no_records,
    record_too_large,
)

DICTIONARIES_SIZE_MAX: Final = 16 * DECOMPRESSED_SIZE_MAX
"""Bytes of the dictionaries of all batches, each counted with every batch: it is looked at and
converted with each of them."""
BATCH_COUNT_KEPT: Final = 64
"""More batches than this are put together: each frame costs some 200 bytes for ever."""

_NAMES: Final = {field.name: column for column, field in FIELDS.items()}


def read_arrow(
    body: bytes, frame_size_max: int, *, numbered: bool = False
) -> tuple[tuple[Frame, ...], NDArray[np.int64] | None]:
    """Frames of the batches in `body`; with `numbered` also the publishing_id of each record.

    Raises:
        InvalidRequest: `validation-failed`, `record-too-large`, `batch-too-large`,
            `body-too-large` for what would decode to too much.
    """
    check_stream(body)
    given = _read(body, numbered=numbered)
    ids = read_ids([batch.column(ID_NAME) for batch in given]) if numbered else None
    batches = [_stored(batch) for batch in given]
    if len(batches) > BATCH_COUNT_KEPT:
        batches = _together(batches)
    frames = (frame for batch in batches for frame in encode_frames(batch, frame_size_max))
    return tuple(frames), ids


def _read(body: bytes, *, numbered: bool) -> list[pa.RecordBatch]:
    batches, count, work = [], 0, _Work()
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            check_schema(reader.schema, numbered=numbered)
            for batch in reader:
                work.begin(batch)
                if batch.num_rows == 0:
                    continue
                count += batch.num_rows
                if count > ARROW_RECORD_COUNT_MAX:
                    raise batch_too_large(ARROW_RECORD_COUNT_MAX)
                batch.validate()
                work.count_views(batch)
                batch.validate(full=True)
                work.count_decoded(batch)
                batches.append(batch)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise column_fault("", "the Arrow stream is not valid") from error
    if not batches:
        raise no_records("the Arrow stream holds no record")
    return batches


class _Work:
    """What one body makes us look at and decode, which may be far more than its own bytes.

    All methods raise InvalidRequest (`validation-failed`) for too much.
    """

    def __init__(self) -> None:
        self._decoded_size = self._dictionaries_size = 0

    def begin(self, batch: pa.RecordBatch) -> None:
        """Before anything of a batch is looked at, also of one without rows."""
        self._count_dictionaries(sum(dictionary_size(column) for column in batch.columns))

    def count_views(self, batch: pa.RecordBatch) -> None:
        """Before a batch is validated in full, which follows each view."""
        named_size = self._decoded_size
        for column in batch.columns:
            size = viewed_size(column)
            if pa.types.is_dictionary(column.type):
                self._count_dictionaries(size)
                _check_decoded(size)
            else:
                named_size += size
        _check_decoded(named_size)

    def count_decoded(self, batch: pa.RecordBatch) -> None:
        """Before dictionaries and views are decoded."""
        self._decoded_size += sum(decoded_size(column) for column in batch.columns)
        _check_decoded(self._decoded_size)

    def _count_dictionaries(self, size: int) -> None:
        self._dictionaries_size += size
        if self._dictionaries_size > DICTIONARIES_SIZE_MAX:
            raise column_fault(
                "", "too many batches go with large dictionaries: send fewer and larger batches"
            )


def _check_decoded(size: int) -> None:
    if size > DECOMPRESSED_SIZE_MAX:
        raise column_fault("", f"the records decode to more than {DECOMPRESSED_SIZE_MAX} bytes")


def check_schema(schema: pa.Schema, *, numbered: bool) -> None:
    if len(set(schema.names)) != len(schema.names):
        raise column_fault("", "there must be no column twice")
    columns = check_id_column(schema, numbered=numbered)
    for name in columns:
        if name not in _NAMES:
            raise column_fault(
                "", f"the columns of records are {', '.join(_NAMES)}; leave out others"
            )
    if "value" not in schema.names:
        raise column_fault("value", "the column value is required")
    for name in columns:
        if not stored_form(_NAMES[name], schema.field(name).type):
            raise column_fault(
                name, "the column's type does not fit; docs/appending.md lists the types"
            )


def decoded_size(column: Any) -> int:
    sizes = sizes_of(column)
    return column.nbytes if sizes is None else int(sizes.sum()) + 8 * len(column)


def _stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns, arrays = Columns(0), list[Any]()
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "content" not in given and is_text(given["value"].type):
        given["content"] = pa.repeat(pa.scalar(int(Content.TEXT), pa.uint8()), batch.num_rows)
    for column, field in FIELDS.items():
        source = given.get(field.name)
        # A nullable column of nulls alone says nothing.
        if source is None or (field.nullable and source.null_count == len(source)):
            continue
        columns |= column
        arrays.append(stored_column(column, field.name, source))
    stored = pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
    _check_contents(stored)
    return stored


def stored_column(column: Columns, name: str, source: Any) -> Any:
    if not FIELDS[column].nullable and source.null_count:
        raise column_fault(name, "the column must have no nulls")
    if column is Columns.HEADERS:
        return read_headers(source)
    check_sizes(column, name, source)
    try:
        array = _converted(source, FIELDS[column].type)
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise column_fault(name, "a value does not fit the column's type") from error
    if not FIELDS[column].nullable and array.null_count:
        # Of a dictionary that has one among its values, which its indices do not show.
        raise column_fault(name, "the column must have no nulls")
    if column is Columns.FILTER_VALUE:
        array.validate(full=True)
    if column is Columns.EVENT_TIME:
        check_times(name, array)
    return array


def check_stored(batch: pa.RecordBatch) -> None:
    """Hold a batch that has its stored types, and is valid as Arrow, to what records may be.

    Raises:
        InvalidRequest: `validation-failed`, `record-too-large`.
    """
    for column, field in FIELDS.items():
        if field.name not in batch.schema.names:
            continue
        array = batch.column(field.name)
        if column is Columns.HEADERS:
            read_headers(array)
            continue
        check_sizes(column, field.name, array)
        if column is Columns.EVENT_TIME and array.null_count < len(array):
            check_times(field.name, array)
    _check_contents(batch)


def check_times(name: str, array: Any) -> None:
    low, high = pc.min_max(array.cast(pa.int64())).values()
    if low.as_py() < TIMESTAMP_MIN or high.as_py() > TIMESTAMP_MAX:
        raise column_fault(name, "times must lie in the years 1 to 9999")


def _converted(source: Any, kind: pa.DataType) -> Any:
    if pa.types.is_dictionary(source.type):
        # Cast before it is decoded: Arrow takes no views out of a dictionary.
        values = _converted(source.dictionary, kind)
        return pa.DictionaryArray.from_arrays(source.indices, values).dictionary_decode()
    options = pc.CastOptions(kind, allow_time_truncate=True)
    return call_function("cast", [without_hidden_views(source)], options)


_SIZES_MAX: Final = {
    Columns.KEY: RECORD_KEY_SIZE_MAX,
    Columns.FILTER_VALUE: FILTER_VALUE_SIZE_MAX,
}


def check_sizes(column: Columns, name: str, source: Any) -> None:
    sizes = sizes_of(source)
    if sizes is None or not len(sizes):
        return
    largest = int(sizes.max())
    if column is Columns.VALUE and largest > RECORD_VALUE_SIZE_MAX:
        raise record_too_large("/value")
    if largest > _SIZES_MAX.get(column, RECORD_VALUE_SIZE_MAX):
        raise column_fault(name, f"must have at most {_SIZES_MAX[column]} bytes")


def _check_contents(batch: pa.RecordBatch) -> None:
    """What says that it is text or JSON is: readers show it as such."""
    if "content" not in batch.schema.names:
        return
    contents = batch.column("content").to_numpy()
    if contents.max() > max(Content):
        raise column_fault("content", "must be 0 for bytes, 1 for text or 2 for JSON")
    values = batch.column("value")
    for content in (Content.TEXT, Content.JSON):
        marked = contents == content
        if not marked.any():
            continue
        chosen = values if marked.all() else values.filter(pa.array(marked))
        try:
            chosen.cast(pa.utf8()).validate(full=True)
        except MemoryError:
            raise
        except pa.ArrowException as error:
            raise column_fault("value", "a value that is text is not UTF-8") from error
        if content is Content.JSON:
            _check_json(chosen)


def _check_json(values: Any) -> None:
    for value in values.to_pylist():
        try:
            read = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise column_fault("value", "a value that is JSON does not read as such") from error
        # Readers' own parsers stop at such a record, and with it at the page that it stands in.
        if nested_too_deeply(value, read):
            raise column_fault("value", "a value is nested too deeply")
        # It rounds an integer beyond 64 bits without a word, and so would other readers.
        if _MANY_DIGITS.search(value):
            try:
                _WHOLE.decode(value.decode())
            except OverflowError as error:
                code = Code.NUMBER_OUT_OF_RANGE
                raise column_fault("value", "a number is beyond 64 bits", code) from error
            except (ValueError, RecursionError) as error:
                raise column_fault("value", "a value that is JSON does not read as such") from error


def _within_64_bits(digits: str) -> int:
    # Shorter than what `int` takes long for, or far beyond.
    if len(digits) > _DIGITS_MAX or not _INTEGER_MIN <= int(digits) <= _INTEGER_MAX:
        raise OverflowError
    return 0


_DIGITS_MAX: Final = 20
_INTEGER_MIN: Final = -(2**63)
_INTEGER_MAX: Final = 2**64 - 1
_MANY_DIGITS: Final = re.compile(rb"[0-9]{19}")
_WHOLE: Final = json.JSONDecoder(parse_int=_within_64_bits)


def _together(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    # Batches may differ in columns, where one has nothing but nulls: one run for each form.
    joined: list[pa.RecordBatch] = []
    start = 0
    for end in range(1, len(batches) + 1):
        if end == len(batches) or batches[end].schema != batches[start].schema:
            joined.extend(pa.Table.from_batches(batches[start:end]).combine_chunks().to_batches())
            start = end
    return joined
