"""Rows of tables as lines of JSON: from there on they are handled as NDJSON."""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import orjson

from bottomless.cli.inputs.ndjson import encoder
from bottomless.cli.inputs.parts import Part, Taking
from bottomless.cli.inputs.text import parts_of_encoded
from bottomless.errors import Code, InvalidRequest


def parts_of_rows(rows: Iterable[dict[str, Any]], taking: Taking) -> Iterator[Part]:
    """Make parts of rows: each row is a record whose JSON has a member for each column."""
    return parts_of_encoded(_lines(rows), taking, encoder(taking))


def _lines(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    # A time without a zone is one in UTC, as Arrow and Parquet count it from there.
    for number, row in enumerate(rows, 1):
        try:
            yield orjson.dumps(row, default=_json_of, option=orjson.OPT_NAIVE_UTC)
        except orjson.JSONEncodeError as error:
            raise InvalidRequest(
                "a row holds what JSON has no form for",
                code=Code.VALIDATION_FAILED,
                facts={"line": number},
            ) from error


def _json_of(value: Any) -> str:
    """What JSON has no type for, and has one obvious text."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError
