"""Render records: an Arrow stream as it is, or JSON that shows what JSON writers sent.

JSON is built from columns; the one loop over records makes their dicts. A stored JSON
value is passed through byte for byte, after it was found to be one JSON text that is not
nested beyond what parsers of readers take, so that no stored bytes can break the page that
they are in.

On the record's path: after page.py, before ../routes.py sends it.
"""

from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, cast

import orjson
import pyarrow as pa

from bottomless.model.limits import KIB, TIMESTAMP_MAX, TIMESTAMP_MIN
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.core.shown_values import ValueEncoding, add_text, add_value, shown_header

PIECE_SIZE_MIN: Final = 64 * KIB
"""A buffer of this size is worth a place of its own in what is sent; smaller ones are joined."""


Piece = bytes | memoryview | pa.Buffer


def as_chunk_stream(chunks: Sequence[memoryview]) -> list[Piece]:
    """Chunks in pieces, of which large ones are what was read, not copied."""
    sink = _Pieces()
    for chunk in chunks:
        sink.write(chunk)
    return sink.taken()


def as_arrow_stream(table: pa.Table) -> list[Piece]:
    """One IPC stream in pieces, of which large ones are the table's own buffers, not copied.

    With no records it holds the schema alone.
    """
    sink = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(cast("Any", sink), mode="w"), table.schema) as writer:
        writer.write_table(table)
    return sink.taken()


class _Pieces:
    """A file that keeps what is written to it: Arrow gives it buffers as they are."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._small: list[Piece] = []

    def write(self, data: Piece) -> int:
        size = data.size if isinstance(data, pa.Buffer) else len(data)
        if size >= PIECE_SIZE_MIN:
            self._join()
            self._pieces.append(data)
        else:
            self._small.append(data)
        return size

    def flush(self) -> None:
        """Nothing is put off."""

    def close(self) -> None:
        self.closed = True

    def taken(self) -> list[Piece]:
        self._join()
        return self._pieces

    def _join(self) -> None:
        if self._small:
            self._pieces.append(b"".join(self._small))
            self._small.clear()


def as_json(members: dict[str, Any], table: pa.Table, encoding: ValueEncoding) -> bytes:
    """The body of a page: `members`, with the records in place of its member `records`."""
    whole = {**members, "records": as_json_records(table, encoding)}
    # As all answers for users end their line: see `json_response`.
    return orjson.dumps(whole, option=orjson.OPT_APPEND_NEWLINE)


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
        add_value(record, value, content, encoding)
        if key is not None:
            add_text(record, "key", key)
        if headers is not None:
            record["headers"] = {name: shown_header(part) for name, part in headers}
        if event_time is not None:
            record["event_time"] = timestamp_text(event_time)
        if filter_value is not None:
            record["filter_value"] = filter_value
        records.append(record)
    return records


def as_broker_records(table: pa.Table) -> list[dict[str, Any]]:
    """Offset, timestamp and value of each record, as the broker contract has them."""
    timestamps = table.column("timestamp").cast(pa.int64()).to_pylist()
    records: list[dict[str, Any]] = []
    values: list[Any] = table.column("value").to_pylist()
    for offset, timestamp, value in zip(
        table.column("offset").to_pylist(),
        timestamps,
        values,
        strict=True,
    ):
        record = {"offset": offset, "timestamp": timestamp_text(timestamp)}
        try:
            record["text"] = value.decode("utf-8")
        except UnicodeDecodeError:
            record["base64"] = b64encode(value).decode("ascii")
        records.append(record)
    return records


def _optional(table: pa.Table, name: str) -> list[Any]:
    column = table.column(name)
    if column.null_count == len(column):
        return [None] * len(column)
    return list((column.cast(pa.int64()) if name == "event_time" else column).to_pylist())


@lru_cache(maxsize=1024)
def timestamp_text(timestamp: int) -> str | int:
    """RFC 3339, or the number itself where no year has four digits for it."""
    if TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
        return format_timestamp(timestamp)
    return timestamp
