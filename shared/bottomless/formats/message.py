"""Arrow messages from outside: what is checked before Arrow's decoder sees them.

    | FFFFFFFF | metadata_size i32 | metadata: a flatbuffer, padded | body: buffers |

Why here, when Arrow validates? Its decoder finds wrong offsets, but it also does what a message
asks for: it allocates what compressed buffers claim to hold, skips buffers that no column uses, and
reads the framing of older versions. Those are refused here, so that one batch has one form. Spec:
docs/formats.md, "Arrow message".
"""

import struct
from typing import Final

import pyarrow as pa

from bottomless.formats.checks import check, corrupt
from bottomless.model.record import Columns

_PREFIX = struct.Struct(
    "<"
    "I"  # continuation, all ones
    "i"  # metadata_size, padding included
)
PREFIX_SIZE: Final = _PREFIX.size
assert PREFIX_SIZE == 8  # docs/formats.md, "Arrow message"
_CONTINUATION: Final = 0xFFFFFFFF

_SHAPES: Final = {
    Columns.VALUE: (1, 3),
    Columns.KEY: (1, 3),
    Columns.HEADERS: (4, 9),
    Columns.EVENT_TIME: (1, 2),
    Columns.CONTENT: (1, 2),
    Columns.FILTER_VALUE: (1, 3),
}
"""Field nodes and buffers that each column takes in a message."""

# Field numbers of Arrow's Message.fbs.
_MESSAGE_HEADER: Final = 2
_BATCH_NODES: Final = 1
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3


def open_message(raw: memoryview | pa.Buffer, columns: Columns) -> pa.ipc.Message:
    """Open the one record batch message that fills `raw`, without reading its buffers.

    Raises:
        Corrupt: it is something else, or a form of it that storage does not keep.
    """
    what = "Arrow message"
    view = memoryview(raw)
    check(what, len(view) > PREFIX_SIZE, f"{len(view)} bytes are too few")
    continuation, metadata_size = _PREFIX.unpack(view[:PREFIX_SIZE])
    check(what, continuation == _CONTINUATION, "it does not start with a continuation mark")
    check(what, metadata_size > 0 and metadata_size % 8 == 0, f"metadata_size={metadata_size}")
    try:
        # Arrow verifies the flatbuffer here, so that the walk below stays inside it.
        message = pa.ipc.read_message(pa.py_buffer(raw))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, EOFError) as error:
        raise corrupt(what, "it is malformed") from error
    check(what, message.type == "record batch", "it is not a record batch")
    check(what, message.metadata_version == pa.ipc.MetadataVersion.V5, "it is not of version 5")
    body_size = 0 if message.body is None else message.body.size
    check(what, PREFIX_SIZE + metadata_size + body_size == len(view), "it does not fill its place")
    _check_batch(memoryview(message.metadata), columns)
    return message


def _check_batch(metadata: memoryview, columns: Columns) -> None:
    what = "Arrow message"
    shapes = [shape for column, shape in _SHAPES.items() if column in columns]
    try:
        batch = _child(metadata, _u32(metadata, 0), _MESSAGE_HEADER)
        compressed = _slot(metadata, batch, _BATCH_COMPRESSION) is not None
        nodes = _u32(metadata, _child(metadata, batch, _BATCH_NODES))
        buffers = _u32(metadata, _child(metadata, batch, _BATCH_BUFFERS))
    except (struct.error, ValueError) as error:
        raise corrupt(what, "its metadata is malformed") from error
    check(what, not compressed, "its buffers are compressed")
    check(what, nodes == sum(shape[0] for shape in shapes), f"it has {nodes} field nodes")
    check(what, buffers == sum(shape[1] for shape in shapes), f"it has {buffers} buffers")


def _child(data: memoryview, table: int, number: int) -> int:
    """Position of the table or vector that a field of a flatbuffer table points at."""
    position = _slot(data, table, number)
    if position is None:
        raise ValueError("a field is missing")
    return position + _u32(data, position)


def _slot(data: memoryview, table: int, number: int) -> int | None:
    """Position of a field's own bytes, None if the table leaves it out."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    entry = 4 + 2 * number
    if entry + 2 > _u16(data, vtable):
        return None
    offset = _u16(data, vtable + entry)
    return table + offset if offset else None


def _u16(data: memoryview, position: int) -> int:
    return int(struct.unpack_from("<H", data, position)[0])


def _u32(data: memoryview, position: int) -> int:
    return int(struct.unpack_from("<I", data, position)[0])
