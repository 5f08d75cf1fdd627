"""NDJSON: each line is a JSON value; one of its members may be the record's key."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import orjson

from bottomless.cli.inputs.parts import Part, Taking
from bottomless.cli.inputs.text import Encode, loaded_line, parts_of_lines
from bottomless.errors import Code, InvalidRequest


def parts(source: BinaryIO, taking: Taking) -> Iterator[Part]:
    """Read the parts of NDJSON.

    Raises:
        InvalidRequest: a line is not JSON, or has no key; the parts before it were given.
    """
    return parts_of_lines(source, taking, encoder(taking))


def encoder(taking: Taking) -> Encode:
    """Make the function that encodes such a line as a record."""

    shared = taking.shared

    def encode(line: bytes, number: int) -> bytes | None:
        if not line.strip():
            return None
        record: dict[str, Any] = {"json": orjson.Fragment(line.strip()), **shared}
        key = _key_of(loaded_line(line, number), number, taking)
        if key is not None:
            record["key"] = key
        return orjson.dumps(record)

    return encode


def _key_of(value: Any, number: int, taking: Taking) -> str | None:
    """The key of a record, from the member that is named for it.

    Raises:
        InvalidRequest: there is no such member, where each record shall have it: a misspelt name
            would store them all without keys.
    """
    if taking.key_field is None:
        return None
    key = value.get(taking.key_field) if isinstance(value, dict) else None
    if key is not None:
        return key if isinstance(key, str) else orjson.dumps(key).decode()
    if not taking.key_optional:
        raise InvalidRequest(
            "the record has no member of the name that --key-field says; --key-optional takes "
            "such records, without a key",
            code=Code.VALIDATION_FAILED,
            facts={"line": number},
        )
    taking.keyless_count += 1
    return None
