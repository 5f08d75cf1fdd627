"""Lines: each is a record with that text, or with those bytes if they are not text."""

from base64 import b64encode
from collections.abc import Iterator
from typing import BinaryIO

import orjson

from bottomless.cli.inputs.parts import Part, Taking
from bottomless.cli.inputs.text import parts_of_lines


def parts(source: BinaryIO, taking: Taking) -> Iterator[Part]:
    """Read the parts of lines.

    Raises:
        InvalidRequest: a line is too long; the parts before it were given.
    """
    shared = taking.shared

    def encode(line: bytes, _number: int) -> bytes:
        return orjson.dumps({**value_member(line), **shared})

    return parts_of_lines(source, taking, encode)


def value_member(value: bytes) -> dict[str, str]:
    """Make the member of a record that fits a value: text, or base64 of other bytes."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": b64encode(value).decode()}
