"""How a stored value is shown in JSON: as what its writer sent, wherever that is possible.

A stored JSON value is passed through byte for byte, after it was found to be one JSON text that is
not nested beyond what parsers of readers take, so that no stored bytes can break the answer that they
are in.
"""

from base64 import b64encode
from enum import StrEnum
from typing import Any

import orjson

from bottomless.model.record import Content
from bottomless_server.core.json_nesting import nested_too_deeply


class ValueEncoding(StrEnum):
    AUTO = "auto"
    """`json` for JSON, `value` for what is valid UTF-8, else `value_base64`.

    JSON that an earlier build stored although it is nested too deeply is shown as `value`.
    """
    BASE64 = "base64"
    """Always `value_base64`."""
    TEXT = "text"
    """`value` for what is valid UTF-8, JSON as its text too; else `value_base64`."""


def add_value(
    record: dict[str, Any], value: bytes, content: int | None, encoding: ValueEncoding
) -> None:
    """Add the member that shows a value; `content` is what its writer said of it."""
    if encoding is ValueEncoding.BASE64:
        record["value_base64"] = b64encode(value).decode("ascii")
    elif encoding is ValueEncoding.AUTO and content == Content.JSON and _shown_as_json(value):
        record["json"] = orjson.Fragment(value)
    else:
        add_text(record, "value", value)


def add_text(record: dict[str, Any], member: str, value: bytes) -> None:
    """Add a member with a text, or another one with base64 where it is none."""
    try:
        record[member] = value.decode("utf-8")
    except UnicodeDecodeError:
        record[f"{member}_base64"] = b64encode(value).decode("ascii")


def shown_header(value: bytes | None) -> Any:
    """What shows the value of a header."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode("ascii")}


def _shown_as_json(value: bytes) -> bool:
    try:
        read = orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return not nested_too_deeply(value, read)
