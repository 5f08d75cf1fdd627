"""Records as text: their values, with details also where and when each is stored, and its key."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bottomless.cli.output import write

if TYPE_CHECKING:
    from bottomless.client import Record


class TextWriter:
    """Writes the value of each record and a line feed; with details first offset, time and key, and
    before them the partition of a record of a super stream."""

    value_encoding = "text"
    """What the server is asked for, so that JSON comes as the text that it is stored as."""

    def __init__(self, *, details: bool) -> None:
        self._details = details

    def write(self, records: Iterable["Record"]) -> None:
        """Write records to stdout."""
        for record in records:
            if self._details:
                key = record.get("key", record.get("key_base64", ""))
                if record.partition is not None:
                    write(f"{record.partition}\t".encode())
                write(f"{record['offset']}\t{record['timestamp']}\t{key}\t".encode())
            write(record.value + b"\n")

    def close(self) -> None:
        """Do nothing: the form has no end of its own."""
