"""Our own requests as bytes: appends of Arrow, of frames and of JSON, and pages."""

from typing import Final

import pyarrow as pa

from bottomless.formats.batch import encode_frame, schema_of
from bottomless.model.record import Columns

VALUE_SIZE: Final = 100


def values(count: int) -> list[bytes]:
    """So many records of 100 bytes, all different."""
    return [b"%010d" % number + b"x" * (VALUE_SIZE - 10) for number in range(count)]


def batch(count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values(count), pa.binary())], schema=schema_of(Columns.VALUE))


def arrow_body(count: int) -> bytes:
    """One Arrow IPC stream of one batch."""
    made = batch(count)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_batch(made)
    return bytes(sink.getvalue())


def frames_body(count: int) -> bytes:
    """One frame of our own format."""
    return bytes(encode_frame(batch(count)))


ARROW: Final = "application/vnd.apache.arrow.stream"
FRAMES: Final = "application/vnd.bottomless.batches"
JSON: Final = "application/json"
CHUNKS: Final = "application/vnd.bottomless.chunks"


def append(stream: str, content_type: str, body: bytes, more: str = "") -> bytes:
    """A POST that asks for an answer without a body."""
    head = (
        f"POST /v1/streams/{stream}/records HTTP/1.1\r\nHost: bench\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"Prefer: return=minimal\r\n{more}\r\n"
    )
    return head.encode() + body


def page(stream: str, offset: int, accept: str, max_bytes: int, more: str = "") -> bytes:
    """A GET of one page; `more` goes on with its query."""
    query = f"offset={offset}&max_bytes={max_bytes}{more}"
    return (
        f"GET /v1/streams/{stream}/records?{query} HTTP/1.1\r\n"
        f"Host: bench\r\nAccept: {accept}\r\n\r\n"
    ).encode()
