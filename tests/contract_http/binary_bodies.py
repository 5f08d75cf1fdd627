"""Bodies that are no JSON, as small as they can be and good."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from bottomless.formats.batch import Codec, encode_frame, schema_of
from bottomless.model.record import Columns

FRAMES: Final = "application/vnd.bottomless.batches"


def arrow_of(values: Sequence[bytes]) -> bytes:
    """An Arrow IPC stream of records with these values."""
    sink = pa.BufferOutputStream()
    table = pa.table({"value": list(values)})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def frame_of(values: Sequence[bytes], codec: Codec = Codec.NONE) -> bytes:
    """A batch frame of records with these values."""
    schema = schema_of(Columns.VALUE)
    arrays = [pa.array(list(values), schema.field(0).type)]
    return encode_frame(pa.record_batch(arrays, schema=schema), codec)
