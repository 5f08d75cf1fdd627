"""Inputs: what `produce` reads; one module a format.

A module has `parts(source, taking)`: the bodies to send, in the order of the input, of all but
the first `taking.skipped` records. It holds one part in memory. What is no such input is an
`InvalidRequest` that says where, after the parts before it.
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
    """What the input is made of; each has a module of that name here."""

    LINES = "lines"
    NDJSON = "ndjson"
    RECORDS = "records"
    RAW = "raw"
    ARROW = "arrow"
    CSV = "csv"
    PARQUET = "parquet"


WITH_MEMBERS = (Format.NDJSON, Format.CSV, Format.PARQUET)
"""Those whose records have members, of which one can be the key."""


WITHOUT_ENVELOPE = (Format.LINES, Format.NDJSON, Format.RAW, Format.CSV, Format.PARQUET)
"""Those whose records bring neither key nor headers, and may be given some."""

_BY_NAME = {
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
}
"""What nobody means as lines of text."""


def format_of(file: Path | None) -> Format:
    """The format that a file's name says; otherwise lines."""
    if file is None:
        return Format.LINES
    name = file.with_suffix("") if file.suffix.lower() in SUFFIXES else file
    return _BY_NAME.get(name.suffix.lower(), Format.LINES)


def parts_of(form: Format) -> Parts:
    """What makes parts of this format; loaded when it is asked for, since some bring libraries."""
    return cast("Parts", import_module(f"{__name__}.{form.value}").parts)
