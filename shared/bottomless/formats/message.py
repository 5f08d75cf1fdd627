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
from bottomless.formats.flatbuffers import (
    BATCH_BUFFERS,
    BATCH_COMPRESSION,
    BATCH_NODES,
    MESSAGE_HEADER,
    child,
    slot,
    u32,
)
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
        batch = child(metadata, u32(metadata, 0), MESSAGE_HEADER)
        compressed = slot(metadata, batch, BATCH_COMPRESSION) is not None
        nodes = u32(metadata, child(metadata, batch, BATCH_NODES))
        buffers = u32(metadata, child(metadata, batch, BATCH_BUFFERS))
    except (struct.error, ValueError) as error:
        raise corrupt(what, "its metadata is malformed") from error
    check(what, not compressed, "its buffers are compressed")
    check(what, nodes == sum(shape[0] for shape in shapes), f"it has {nodes} field nodes")
    check(what, buffers == sum(shape[1] for shape in shapes), f"it has {buffers} buffers")
