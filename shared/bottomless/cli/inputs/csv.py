"""CSV whose first line has names: each row is a record, a JSON object of texts, unchanged.

No types are guessed: 01234 may be a number or an address, and only its writer knows. What is read
is bounded by the line and by the field, so a quote that never closes ends soon.
"""

import csv
from collections.abc import Iterator
from typing import Any, BinaryIO

from bottomless.cli.inputs.parts import Part, Taking
from bottomless.cli.inputs.rows import parts_of_rows
from bottomless.cli.inputs.text import LINE_SIZE_MAX
from bottomless.errors import Code, InvalidRequest


def parts(source: BinaryIO, taking: Taking) -> Iterator[Part]:
    """Read the parts of CSV.

    Raises:
        InvalidRequest: the input is something else; the parts before it were given.
    """
    return parts_of_rows(_rows(source), taking)


def _rows(source: BinaryIO) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(LINE_SIZE_MAX)
    reader = csv.reader(_lines(source), strict=True)
    try:
        names = next(reader, None)
        if not names or len(set(names)) != len(names) or not all(names):
            raise _refused("the first line of CSV names the columns, each once", 1)
        for row in reader:
            if not row:
                continue  # A blank line is no row.
            if len(row) != len(names):
                raise _refused("the row has not as many fields as there are names", reader.line_num)
            yield dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise _refused("the input is not CSV", reader.line_num) from error


def _lines(source: BinaryIO) -> Iterator[str]:
    number = 0
    while line := source.readline(LINE_SIZE_MAX + 1):
        number += 1
        if len(line) > LINE_SIZE_MAX:
            raise _refused("a line is too long for a record", number, Code.RECORD_TOO_LARGE)
        try:
            # Programs that write CSV for spreadsheets begin it with a byte order mark.
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise _refused("the line is not UTF-8", number) from None


def _refused(sentence: str, line: int, code: Code = Code.VALIDATION_FAILED) -> InvalidRequest:
    return InvalidRequest(sentence, code=code, facts={"line": line})
