"""Records as text, JSON, NDJSON, CSV, Arrow or Parquet, as they come and never all at once."""

import csv
import io
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

import orjson

from bottomless.cli.output import write
from bottomless.cli.template import TemplateWriter

if TYPE_CHECKING:
    from bottomless.client import Record


class RecordForm(StrEnum):
    """How records are written."""

    TEXT = "text"
    JSON = "json"
    NDJSON = "ndjson"
    ARROW = "arrow"
    CSV = "csv"
    PARQUET = "parquet"


class FollowForm(StrEnum):
    """How records are written when there is no end to them."""

    TEXT = "text"
    NDJSON = "ndjson"


class TextWriter:
    """Writes the value of each record and a line feed; with details first offset, time and key."""

    value_encoding = "text"
    """What the server is asked for, so that JSON comes as the text that it is stored as."""

    def __init__(self, *, details: bool) -> None:
        self._details = details

    def write(self, records: Iterable["Record"]) -> None:
        """Write records to stdout."""
        for record in records:
            if self._details:
                key = record.get("key", record.get("key_base64", ""))
                write(f"{record['offset']}\t{record['timestamp']}\t{key}\t".encode())
            write(record.value + b"\n")

    def close(self) -> None:
        """Do nothing: the form has no end of its own."""


class NdjsonWriter:
    """Writes one record per line, as the API shows it."""

    value_encoding = "auto"

    def write(self, records: Iterable["Record"]) -> None:
        """Write records to stdout."""
        for record in records:
            write(orjson.dumps(record) + b"\n")

    def close(self) -> None:
        """Do nothing: the form has no end of its own."""


class JsonWriter:
    """Writes one array of records, as it grows."""

    value_encoding = "auto"

    def __init__(self) -> None:
        self._before = b"[\n"

    def write(self, records: Iterable["Record"]) -> None:
        """Write records to stdout."""
        for record in records:
            write(self._before + orjson.dumps(record))
            self._before = b",\n"

    def close(self) -> None:
        """Write the end of the array."""
        write(b"[]\n" if self._before == b"[\n" else b"\n]\n")


class CsvWriter:
    """Writes one row per record (RFC 4180), after a row of names.

    The columns are always the same.

    Bytes that are not UTF-8 are in the column of base64, and the column of text is then empty.
    """

    value_encoding = "text"
    COLUMNS = (
        *("offset", "timestamp", "event_time", "key", "key_base64"),
        *("value", "value_base64", "headers", "filter_value"),
    )

    def __init__(self, sink: Callable[[bytes], object] = write) -> None:
        self._sink = sink
        self._flush([self.COLUMNS])

    def write(self, records: Iterable["Record"]) -> None:
        """Write records to stdout."""
        self._flush([self._cell(record.get(name)) for name in self.COLUMNS] for record in records)

    def close(self) -> None:
        """Do nothing: the form has no end of its own."""

    def _flush(self, rows: Iterable[Iterable[object]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text).writerows(rows)
        self._sink(text.getvalue().encode())

    @staticmethod
    def _cell(value: object) -> object:
        return orjson.dumps(value).decode() if isinstance(value, dict) else value


Writer = TextWriter | NdjsonWriter | JsonWriter | CsvWriter | TemplateWriter


def writer_of(form: RecordForm | FollowForm, *, details: bool) -> Writer:
    """Make the writer of a form; `details` are for text only."""
    match form.value:
        case "ndjson":
            return NdjsonWriter()
        case "json":
            return JsonWriter()
        case "csv":
            return CsvWriter()
    return TextWriter(details=details)
