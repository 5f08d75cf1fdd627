"""Inputs: what `produce` reads; one module a format.

A module has `parts(source, taking)`: the bodies to send, in the order of the input, of all but
the first `taking.skipped` records. It holds one part in memory. What is no such input is an
`InvalidRequest` that says where, after the parts before it.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib import import_module
from typing import BinaryIO, cast

from bottomless.cli.inputs.parts import Part, Taking

Parts = Callable[[BinaryIO, Taking], Iterator[Part]]


class Format(StrEnum):
    """What the input is made of; each has a module of that name here."""

    LINES = "lines"
    NDJSON = "ndjson"
    RECORDS = "records"
    RAW = "raw"
    ARROW = "arrow"


WITH_MEMBERS = (Format.NDJSON,)
"""Those whose records have members, of which one can be the key."""


def parts_of(form: Format) -> Parts:
    """What makes parts of this format; loaded when it is asked for, since some bring libraries."""
    return cast("Parts", import_module(f"{__name__}.{form.value}").parts)
