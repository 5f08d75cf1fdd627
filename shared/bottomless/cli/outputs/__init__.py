"""Outputs: how `read` and `tail` write records; one module per form.

A writer writes records as they come and never holds all of them. Arrow and Parquet are written
from whole tables, by `read.py`.
"""

from enum import StrEnum

from bottomless.cli.outputs.csv import CsvWriter
from bottomless.cli.outputs.json import JsonWriter
from bottomless.cli.outputs.ndjson import NdjsonWriter
from bottomless.cli.outputs.template import TemplateWriter
from bottomless.cli.outputs.text import TextWriter


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
