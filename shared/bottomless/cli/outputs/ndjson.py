"""Records as NDJSON: one JSON object per line."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import orjson

from bottomless.cli.output import write

if TYPE_CHECKING:
    from bottomless.client import Record


class NdjsonWriter:
    """Writes one record per line, as the API shows it."""

    value_encoding = "auto"

    def write(self, records: Iterable["Record"]) -> None:
        """Write records to stdout."""
        for record in records:
            write(orjson.dumps(record) + b"\n")

    def close(self) -> None:
        """Do nothing: the form has no end of its own."""
