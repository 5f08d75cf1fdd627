"""Records on stdout: as text, JSON, NDJSON or Arrow, as they come and never all at once."""

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

import orjson

from bottomless.cli.output import write

if TYPE_CHECKING:
    from bottomless.client import Record


class RecordForm(StrEnum):
    """How records are written."""

    TEXT = "text"
    JSON = "json"
    NDJSON = "ndjson"
    ARROW = "arrow"


class FollowForm(StrEnum):
    """How records are written that never end."""

    TEXT = "text"
    NDJSON = "ndjson"


class TextWriter:
    """The value of each record and a line feed; with details offset, time and key before it."""

    value_encoding = "text"
    """What the server is asked for, so that JSON comes as the text that it is stored as."""

    def __init__(self, *, details: bool) -> None:
        self._details = details

    def write(self, records: Iterable["Record"]) -> None:
        for record in records:
            if self._details:
                key = record.get("key", record.get("key_base64", ""))
                write(f"{record['offset']}\t{record['timestamp']}\t{key}\t".encode())
            write(record.value + b"\n")

    def close(self) -> None:
        pass


class NdjsonWriter:
    """A record a line, as the API shows it."""

    value_encoding = "auto"

    def write(self, records: Iterable["Record"]) -> None:
        for record in records:
            write(orjson.dumps(record) + b"\n")

    def close(self) -> None:
        pass


class JsonWriter:
    """One array, written as it grows."""

    value_encoding = "auto"

    def __init__(self) -> None:
        self._before = b"[\n"

    def write(self, records: Iterable["Record"]) -> None:
        for record in records:
            write(self._before + orjson.dumps(record))
            self._before = b",\n"

    def close(self) -> None:
        write(b"[]\n" if self._before == b"[\n" else b"\n]\n")


Writer = TextWriter | NdjsonWriter | JsonWriter


def writer_of(form: RecordForm | FollowForm, *, details: bool) -> Writer:
    match form.value:
        case "ndjson":
            return NdjsonWriter()
        case "json":
            return JsonWriter()
    return TextWriter(details=details)
