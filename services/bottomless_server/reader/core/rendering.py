"""Render records: an Arrow stream as it is, or JSON that shows what JSON writers sent.

JSON is built from columns; the one loop over records makes their dicts. A stored JSON
value is passed through byte for byte, after it was found to be one JSON text, so that no
stored bytes can break the page that they are in.

On the record's path: after page.py, before ../routes.py sends it.
"""

from base64 import b64encode
from enum import StrEnum
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa

from bottomless.model.limits import TIMESTAMP_MAX, TIMESTAMP_MIN
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.record import Content


class ValueEncoding(StrEnum):
    AUTO = "auto"
    """`json` for JSON, `value` for what is valid UTF-8, else `value_base64`."""
    BASE64 = "base64"
    """Always `value_base64`."""
    TEXT = "text"
    """`value` for what is valid UTF-8, JSON as its text too; else `value_base64`."""


def as_arrow_stream(table: pa.Table) -> bytes:
    """One IPC stream; with no records it holds the schema alone."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def as_json(members: dict[str, Any], table: pa.Table, encoding: ValueEncoding) -> bytes:
    """The body of a page: `members`, with the records in place of its member `records`."""
    return orjson.dumps({**members, "records": as_json_records(table, encoding)})


def as_json_records(table: pa.Table, encoding: ValueEncoding) -> list[dict[str, Any]]:
    columns = (
        table.column("offset").to_pylist(),
        table.column("timestamp").cast(pa.int64()).to_pylist(),
        table.column("value").to_pylist(),
        table.column("content").to_pylist(),
        *(_optional(table, name) for name in ("key", "headers", "event_time", "filter_value")),
    )
    records = []
    for offset, timestamp, value, content, key, headers, event_time, filter_value in zip(
        *columns, strict=True
    ):
        record = {"offset": offset, "timestamp": timestamp_text(timestamp)}
        _add_value(record, value, content, encoding)
        if key is not None:
            _add_text(record, "key", key)
        if headers is not None:
            record["headers"] = {name: _header_value(part) for name, part in headers}
        if event_time is not None:
            record["event_time"] = timestamp_text(event_time)
        if filter_value is not None:
            record["filter_value"] = filter_value
        records.append(record)
    return records


def _optional(table: pa.Table, name: str) -> list[Any]:
    column = table.column(name)
    if column.null_count == len(column):
        return [None] * len(column)
    return list((column.cast(pa.int64()) if name == "event_time" else column).to_pylist())


def _add_value(
    record: dict[str, Any], value: bytes, content: int | None, encoding: ValueEncoding
) -> None:
    if encoding is ValueEncoding.BASE64:
        record["value_base64"] = b64encode(value).decode("ascii")
    elif encoding is ValueEncoding.AUTO and content == Content.JSON and _is_json(value):
        record["json"] = orjson.Fragment(value)
    else:
        _add_text(record, "value", value)


def _add_text(record: dict[str, Any], member: str, value: bytes) -> None:
    try:
        record[member] = value.decode("utf-8")
    except UnicodeDecodeError:
        record[f"{member}_base64"] = b64encode(value).decode("ascii")


def _header_value(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode("ascii")}


def _is_json(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


@lru_cache(maxsize=1024)
def timestamp_text(timestamp: int) -> str | int:
    """RFC 3339, or the number itself where no year has four digits for it."""
    if TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
        return format_timestamp(timestamp)
    return timestamp
