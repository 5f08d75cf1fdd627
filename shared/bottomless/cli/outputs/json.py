"""Records as one JSON array, written as it grows."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import orjson

from bottomless.cli.output import write

if TYPE_CHECKING:
    from bottomless.client import Record


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
