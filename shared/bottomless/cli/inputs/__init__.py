"""Inputs: what `produce` reads; one module per format.

Each module has `parts(source, taking)`: the bodies to send, in the order of the input, of all
records but the first `taking.skipped`. It holds one part in memory. An input that is not of its
format is an `InvalidRequest` that says where, after the parts before it.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, cast

from bottomless.cli.inputs.packed import SUFFIXES
from bottomless.cli.inputs.parts import Part, Taking

Parts = Callable[[BinaryIO, Taking], Iterator[Part]]


class Format(StrEnum):
    """The format of the input; each has a module of that name here."""

    LINES = "lines"
    NDJSON = "ndjson"
    RECORDS = "records"
    RAW = "raw"
    ARROW = "arrow"
    CSV = "csv"
    PARQUET = "parquet"


WITH_MEMBERS = (Format.NDJSON, Format.CSV, Format.PARQUET)
"""Formats whose records have members, one of which can be the key."""


WITHOUT_ENVELOPE = (Format.LINES, Format.NDJSON, Format.RAW, Format.CSV, Format.PARQUET)
"""Formats whose records bring neither key nor headers, and may be given some."""

_BY_NAME = {
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
    ".csv": Format.CSV,
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
}
_OTHERWISE = frozenset(
    {".json", ".tsv", ".xml", ".yaml", ".yml", ".avro", ".orc", ".xls", ".xlsx", ".zip"}
)
"""What is seldom meant as a record a line, and has no format here that a name alone could say."""


def format_of(file: Path | None) -> Format:
    """Tell the format from a file's name; otherwise it is lines."""
    return _BY_NAME.get(_suffix_of(file), Format.LINES)


def is_doubtful(file: Path | None) -> bool:
    """Tell whether a file is read as lines although its name says something else."""
    return _suffix_of(file) in _OTHERWISE


def _suffix_of(file: Path | None) -> str:
    """How a name ends, before what says that it is packed."""
    if file is None:
        return ""
    name = file.with_suffix("") if file.suffix.lower() in SUFFIXES else file
    return name.suffix.lower()


def parts_of(form: Format) -> Parts:
    """Load the function that makes parts of this format; some formats need further libraries."""
    return cast("Parts", import_module(f"{__name__}.{form.value}").parts)
