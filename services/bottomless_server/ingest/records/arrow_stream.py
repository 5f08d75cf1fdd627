"""Walk an Arrow IPC stream before Arrow's own reader sees it.

    | FFFFFFFF | metadata_size i32 | metadata: a flatbuffer | body | ... | FFFFFFFF | 0 |

Arrow's reader stops at the end mark and is silent about what follows, and it allocates
what compressed buffers claim to hold. So two streams one after the other, which would
be half an append, and compressed buffers are refused here.
"""

import struct
from typing import Final, NamedTuple

from bottomless.errors import InvalidRequest
from bottomless_server.ingest.records.faults import column_fault

_PREFIX = struct.Struct("<Ii")
_CONTINUATION: Final = 0xFFFFFFFF

# Field numbers and header types of Arrow's Message.fbs.
_HEADER_TYPE: Final = 1
_HEADER: Final = 2
_BODY_LENGTH: Final = 3
_DICTIONARY_DATA: Final = 1
_BATCH_COMPRESSION: Final = 3
_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3

MESSAGE_COUNT_MAX: Final = 65_535
"""Bounds the Python work on one body; real writers send a handful."""


class _Message(NamedTuple):
    size: int
    compressed: bool


def check_stream(body: bytes) -> None:
    """Refuse what Arrow's reader would skip, or obey.

    Raises:
        InvalidRequest: `validation-failed`.
    """
    view = memoryview(body)
    position = 0
    for _ in range(MESSAGE_COUNT_MAX):
        if position == len(view):
            # The end mark may be left out; a body cut by the network never gets here.
            return
        try:
            message = _message(view[position:])
        except (struct.error, ValueError, IndexError):
            raise _malformed("the body is not an Arrow IPC stream") from None
        if message is None:
            if position + _PREFIX.size != len(view):
                raise _malformed("bytes follow the end of the Arrow stream")
            return
        if message.compressed:
            raise _malformed(
                "buffers compressed by Arrow are not taken: compress the whole stream instead, "
                "with Content-Encoding: zstd or lz4"
            )
        position += message.size
        if position > len(view):
            raise _malformed("the Arrow stream is cut short")
    raise _malformed(f"an append must have at most {MESSAGE_COUNT_MAX} Arrow messages")


def _malformed(sentence: str) -> InvalidRequest:
    return column_fault("", sentence)


def _message(view: memoryview) -> _Message | None:
    continuation, size = _PREFIX.unpack_from(view)
    if continuation != _CONTINUATION or size < 0:
        raise ValueError
    if size == 0:
        return None
    metadata = view[_PREFIX.size : _PREFIX.size + size]
    table = _u32(metadata, 0)
    kind_at = _field(metadata, table, _HEADER_TYPE)
    length_at = _field(metadata, table, _BODY_LENGTH)
    body_size = 0 if length_at is None else struct.unpack_from("<q", metadata, length_at)[0]
    if body_size < 0:
        raise ValueError
    kind = 0 if kind_at is None else metadata[kind_at]
    compressed = False
    if kind in (_RECORD_BATCH, _DICTIONARY_BATCH):
        batch = _child(metadata, table, _HEADER)
        if kind == _DICTIONARY_BATCH:
            batch = _child(metadata, batch, _DICTIONARY_DATA)
        compressed = _field(metadata, batch, _BATCH_COMPRESSION) is not None
    return _Message(_PREFIX.size + size + body_size, compressed)


def _child(data: memoryview, table: int, number: int) -> int:
    position = _field(data, table, number)
    if position is None:
        raise ValueError
    return position + _u32(data, position)


def _field(data: memoryview, table: int, number: int) -> int | None:
    vtable = table - int(_unpack("<i", data, table))
    entry = 4 + 2 * number
    if entry + 2 > int(_unpack("<H", data, vtable)):
        return None
    offset = int(_unpack("<H", data, vtable + entry))
    return table + offset if offset else None


def _u32(data: memoryview, position: int) -> int:
    return int(_unpack("<I", data, position))


def _unpack(form: str, data: memoryview, position: int) -> int:
    # A negative position would count from the end.
    if position < 0 or position >= len(data):
        raise ValueError
    return int(struct.unpack_from(form, data, position)[0])
