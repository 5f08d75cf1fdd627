"""Records as CSV, a row for each after a row of names."""

import csv
import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import orjson

from bottomless.cli.output import write

if TYPE_CHECKING:
    from bottomless.client import Record


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
