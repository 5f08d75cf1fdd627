"""Records of a WAL object in the form in which the API shows records, without offset and time."""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa

from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of
from bottomless.formats.placing import unplaced_chunks
from bottomless.formats.wal import verify_piece
from bottomless.model.limits import TIMESTAMP_MAX, TIMESTAMP_MIN
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.record import Content
from bottomless.model.wal import PieceLine


def records_of(line: PieceLine, data: memoryview) -> list[dict[str, Any]]:
    """Read all records of a piece, in their order; each is one that an append may have.

    Raises:
        Corrupt: the piece is damaged, or no writer of WAL objects made it.
    """
    verify_piece(line, data)
    return [
        record
        for header, chunk in unplaced_chunks(data)
        for batch in decode_frames(batches_of(header, chunk), verified=True)
        for record in _rows(batch)
    ]


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    count = batch.num_rows
    columns = {name: batch.column(name) for name in batch.schema.names}
    if "event_time" in columns:
        columns["event_time"] = columns["event_time"].cast(pa.int64())
    cells: dict[str, list[Any]] = {name: column.to_pylist() for name, column in columns.items()}
    none = [None] * count
    for value, content, key, headers, event_time, filter_value in zip(
        cells["value"],
        *(
            cells.get(name, none)
            for name in ("content", "key", "headers", "event_time", "filter_value")
        ),
        strict=True,
    ):
        record = _value(value, content)
        if key is not None:
            record |= _text("key", key)
        if headers is not None:
            record["headers"] = {name: _header(part) for name, part in headers}
        if event_time is not None:
            record["event_time"] = _time(event_time)
        if filter_value is not None:
            record["filter_value"] = filter_value
        yield record


def _value(value: bytes, content: int | None) -> dict[str, Any]:
    if content == Content.JSON:
        # It was checked when it was taken, and passes through as it is stored.
        return {"json": orjson.Fragment(value)}
    return _text("value", value)


def _time(timestamp: int) -> str | int:
    shown = TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX
    return format_timestamp(timestamp) if shown else timestamp


def _text(member: str, value: bytes) -> dict[str, Any]:
    try:
        return {member: value.decode()}
    except UnicodeDecodeError:
        return {f"{member}_base64": b64encode(value).decode()}


def _header(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
