"""What the body of an append is: its media type, its compression, and records as JSON. Pure.

Three forms: JSON as people write it, an Arrow IPC stream for what is a table already, and
frames, which the server stores as they are sent. The other two are tables.py, which is
loaded when one of them is first made: Arrow takes longer to load than a question to ask.
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
    """The body of an append, and what its headers say of it."""

    body: bytes
    media_type: str
    encoding: str | None
    record_count: int


def json_body(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Records in their JSON form as a request.

    Raises:
        InvalidRequest: one holds what JSON cannot say.
    """
    try:
        return orjson.dumps({"records": list(records)})
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(
            "a record holds what JSON cannot say", code=Code.VALIDATION_FAILED
        ) from error


def joined_json_body(encoded: Iterable[bytes]) -> bytes:
    """The body of an append of records that are JSON texts already."""
    return b'{"records":[' + b",".join(encoded) + b"]}"
