"""Records: each line is a whole record already, as `read -o ndjson` writes it."""

from collections.abc import Iterator
from typing import BinaryIO

import orjson

from bottomless.cli.inputs.parts import COLUMNS_READ_ONLY, Part, Taking
from bottomless.cli.inputs.text import loaded_line, parts_of_lines
from bottomless.errors import Code, InvalidRequest


def parts(source: BinaryIO, taking: Taking) -> Iterator[Part]:
    """Read the parts of NDJSON whose lines are whole records.

    Raises:
        InvalidRequest: a line is not a record; the parts before it were given.
    """
    return parts_of_lines(source, taking, encode)


def encode(line: bytes, number: int) -> bytes | None:
    """Encode a line as a record, without offset and time; None for an empty line.

    Raises:
        InvalidRequest: the line is not a record.
    """
    if not line.strip():
        return None
    record = loaded_line(line, number)
    if not isinstance(record, dict):
        raise InvalidRequest(
            "the line is not a record", code=Code.VALIDATION_FAILED, facts={"line": number}
        )
    return orjson.dumps({k: v for k, v in record.items() if k not in COLUMNS_READ_ONLY})
