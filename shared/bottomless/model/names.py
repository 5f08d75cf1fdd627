"""Names: what users call a stream, and what the store calls it.

A stream name is chosen by the user and may be used again after a deletion; a stream id is ours and
never reused. Files, object keys and Redis keys carry only ids, so a name can never reach a path.
"""

import re
import uuid
from typing import Final, NamedTuple, NewType

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import NAME_SIZE_MAX

StreamName = NewType("StreamName", str)
QueueName = NewType("QueueName", str)
StreamId = NewType("StreamId", str)
"""UUIDv7 in its canonical lowercase form."""
SuperId = NewType("SuperId", str)
"""The id of a super stream, in the form of a stream id; no stream has the same."""
Reference = NewType("Reference", str)
"""The name that a producer or a consumer gives itself; it means something within one stream."""
NodeId = NewType("NodeId", str)
"""Identity of one data directory of an ingest node: 32 hex digits."""
Uid = NewType("Uid", str)
"""128 random bits in hex, which make an object key unique for ever."""


class FullName(NamedTuple):
    """The name of a stream among the streams of all tenants."""

    tenant: str
    name: StreamName


REFERENCE_SIZE_MAX: Final = 255
TENANT_DEFAULT: Final = "default"
"""The tenant of everything while identity is turned off."""
TENANT_SIZE_MAX: Final = 64

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_UID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_STREAM_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_RESERVED_PREFIXES: Final = ("amq.", "__", "internal.")
_DEVICE = re.compile(r"con|prn|aux|nul|(?:com|lpt)[0-9]", re.ASCII | re.IGNORECASE)
"""Device names of Windows: users save streams to files named after them."""


def parse_stream_name(text: str) -> StreamName:
    """Check a stream name: at most 128 ASCII letters, digits, `.`, `_` and `-`, without `..`.

    It starts with a letter or a digit.

    Raises:
        InvalidRequest: `bad-name`.
    """
    return StreamName(_checked_name(text, "stream"))


def parse_queue_name(text: str) -> QueueName:
    """Check the name of a work queue, by the rules of stream names. A stream may have the same.

    Raises:
        InvalidRequest: `bad-name`.
    """
    return QueueName(_checked_name(text, "queue"))


def _checked_name(text: str, what: str) -> str:
    if len(text) > NAME_SIZE_MAX:
        raise InvalidRequest(
            f"a {what} name must have at most {NAME_SIZE_MAX} characters", code=Code.BAD_NAME
        )
    if not _NAME.fullmatch(text) or ".." in text:
        raise InvalidRequest(
            f"a {what} name must start with an ASCII letter or digit, have only letters, digits, "
            "'.', '_' and '-', and not contain '..'",
            code=Code.BAD_NAME,
        )
    if text.startswith(_RESERVED_PREFIXES):
        raise InvalidRequest(
            f"{what} names that start with 'amq.', '__' or 'internal.' are reserved; take another",
            code=Code.BAD_NAME,
        )
    if _DEVICE.fullmatch(text):
        raise InvalidRequest(
            f"this {what} name is reserved, since a device of Windows has it; take another",
            code=Code.BAD_NAME,
        )
    return text


def parse_tenant(text: str) -> str:
    """Check the id of a tenant, which becomes a part of object keys and of keys of coordination.

    It has no character that separates the parts of either, and does not begin with the `_` that
    marks what belongs to no tenant; so two tenants can never mean the same key, whatever their
    streams are called.

    Raises:
        InvalidRequest: `bad-name`.
    """
    if len(text) > TENANT_SIZE_MAX or not _NAME.fullmatch(text) or ".." in text:
        raise InvalidRequest(
            f"a tenant must have at most {TENANT_SIZE_MAX} characters, start with an ASCII letter or "
            "digit, have only letters, digits, '.', '_' and '-', and not contain '..'",
            code=Code.BAD_NAME,
        )
    return text


def parse_reference(text: str) -> Reference:
    """Check the name of a producer or a consumer: as a stream's, but with at most 255 characters.

    Raises:
        InvalidRequest: `bad-name`.
    """
    if len(text) > REFERENCE_SIZE_MAX or not _NAME.fullmatch(text) or ".." in text:
        raise InvalidRequest(
            f"the name of a producer or a consumer must have at most {REFERENCE_SIZE_MAX} characters, "
            "start with an ASCII letter or digit, have only letters, digits, '.', '_' and '-', and "
            "not contain '..'",
            code=Code.BAD_NAME,
        )
    return Reference(text)


def parse_stream_id(text: str) -> StreamId:
    """Check the form of a stream id.

    Raises:
        InvalidRequest: `bad-parameter`: it is not a canonical lowercase UUID.
    """
    if not _STREAM_ID.fullmatch(text):
        raise InvalidRequest("a stream id must be a UUID in lower case", code=Code.BAD_PARAMETER)
    return StreamId(text)


def parse_super_id(text: str) -> SuperId:
    """Check the form of the id of a super stream.

    Raises:
        InvalidRequest: `bad-parameter`: it is not a canonical lowercase UUID.
    """
    return SuperId(parse_stream_id(text))


def stream_id_from(timestamp: int, randomness: bytes) -> StreamId:
    """Make a stream id (UUIDv7, RFC 9562 section 5.7) from a time in ms and ten random bytes."""
    assert 0 <= timestamp < 2**48
    assert len(randomness) == 10
    raw = bytearray(timestamp.to_bytes(6, "big") + randomness)
    raw[6] = 0x70 | raw[6] & 0x0F
    raw[8] = 0x80 | raw[8] & 0x3F
    return StreamId(str(uuid.UUID(bytes=bytes(raw))))


def stream_id_bytes(stream_id: StreamId) -> bytes:
    """Turn a stream id into the 16 bytes that formats carry."""
    return uuid.UUID(stream_id).bytes


def stream_id_from_bytes(raw: bytes) -> StreamId:
    """Read a stream id from the 16 bytes that formats carry."""
    return StreamId(str(uuid.UUID(bytes=bytes(raw))))


def parse_uid(text: str) -> Uid:
    """Check the form of a uid.

    Raises:
        InvalidRequest: `bad-parameter`: it is not 32 lowercase hex digits.
    """
    if not _UID.fullmatch(text):
        raise InvalidRequest("a uid must be 32 hex digits in lower case", code=Code.BAD_PARAMETER)
    return Uid(text)


def uid_from_bytes(raw: bytes) -> Uid:
    """Read a uid from the 16 bytes that formats carry."""
    assert len(raw) == 16
    return Uid(bytes(raw).hex())


def uid_bytes(uid: Uid) -> bytes:
    """Turn a uid into the 16 bytes that formats carry."""
    return bytes.fromhex(uid)
