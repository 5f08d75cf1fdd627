"""The body of an append: its media type, its compression, and records as JSON. Pure.

There are three forms: JSON as people write it, an Arrow IPC stream for tables, and frames, which
the server stores as they are sent. The last two are in tables.py, which is loaded when one of them
is first made: loading Arrow takes longer than asking a question.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import orjson

from bottomless.errors import Code, InvalidRequest

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
FRAMES: Final = "application/vnd.bottomless.batches"
OCTETS: Final = "application/octet-stream"

Compression: TypeAlias = Literal["zstd", "lz4"]


class EncodedBody(NamedTuple):
    """The body of an append, and what its headers say about it."""

    body: bytes
    media_type: str
    encoding: str | None
    record_count: int


def json_body(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode records in their JSON form as the body of an append.

    Raises:
        InvalidRequest: `validation-failed`: one holds a value that has no JSON form.
    """
    try:
        return orjson.dumps({"records": list(records)})
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(
            "a record holds a value that JSON cannot express", code=Code.VALIDATION_FAILED
        ) from error


def joined_json_body(encoded: Iterable[bytes]) -> bytes:
    """Encode records that are JSON texts already as the body of an append."""
    return b'{"records":[' + b",".join(encoded) + b"]}"


def messages_body(messages: Iterable[Mapping[str, Any]], more: Mapping[str, Any]) -> bytes:
    """Encode messages in their JSON form as the body of a publish, with `more` members beside them.

    Raises:
        InvalidRequest: `validation-failed`: one holds a value that has no JSON form.
    """
    try:
        return orjson.dumps({**more, "messages": list(messages)})
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(
            "a message holds a value that JSON cannot express", code=Code.VALIDATION_FAILED
        ) from error
