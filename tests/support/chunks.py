"""Chunks of real records, for tests that move them and never look inside."""

import pyarrow as pa

from bottomless.formats.batch import encode_frame, schema_of
from bottomless.formats.chunk import seal_chunk
from bottomless.model.chunk import AppendEntry, AppendMode, ChunkFlags
from bottomless.model.record import Columns


def a_chunk(
    first_offset: int,
    record_count: int = 10,
    *,
    epoch: int = 1,
    value_size: int = 1,
    flags: ChunkFlags = ChunkFlags.NONE,
    timestamp: int = 1_000,
) -> bytes:
    """A sound chunk; its values differ by offset."""
    values = [f"{first_offset + n}".encode().rjust(value_size) for n in range(record_count)]
    batch = pa.record_batch([pa.array(values, pa.binary())], schema=schema_of(Columns.VALUE))
    parts = seal_chunk(
        [encode_frame(batch)],
        [AppendEntry(AppendMode.PLAIN, 0, record_count, body_crc=0)],
        record_count=record_count,
        first_offset=first_offset,
        timestamp=timestamp,
        epoch=epoch,
        flags=flags,
    )
    return b"".join(parts)
