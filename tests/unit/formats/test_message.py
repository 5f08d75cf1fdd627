import struct
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.message import PREFIX_SIZE, open_message
from bottomless.model.record import Columns
from unit.formats.examples import a_batch, a_full_batch


def opened(message: bytes, columns: Columns = Columns.VALUE) -> pa.ipc.Message:
    return open_message(memoryview(message), columns)


def written(batch: pa.RecordBatch, **options: Any) -> bytes:
    """The batch's message as a stream with these options has it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return bytes(reader.read_next_message().serialize().to_pybytes())


def test_a_record_batch_is_taken() -> None:
    assert opened(a_batch().serialize().to_pybytes()).type == "record batch"
    assert opened(a_full_batch().serialize().to_pybytes(), Columns.ALL).type == "record batch"


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_buffers_are_refused_before_they_are_read(compression: str) -> None:
    message = bytearray(written(a_batch([b"x" * 4000]), compression=compression))
    # A bomb: the size that the first compressed buffer claims to have.
    body = PREFIX_SIZE + struct.unpack_from("<i", message, 4)[0]
    for position in range(body, len(message) - 8, 8):
        struct.pack_into("<q", message, position, 2**40)
    with pytest.raises(Corrupt, match="buffers are compressed"):
        opened(bytes(message))


def test_an_older_metadata_version_is_refused() -> None:
    message = written(a_batch(), metadata_version=pa.ipc.MetadataVersion.V4)
    with pytest.raises(Corrupt, match="not of version 5"):
        opened(message)


def test_the_framing_before_arrow_0_15_is_refused() -> None:
    message = a_batch().serialize().to_pybytes()
    with pytest.raises(Corrupt, match="continuation"):
        opened(message[4:])


def test_a_schema_message_is_refused() -> None:
    message = a_batch().schema.serialize().to_pybytes()
    with pytest.raises(Corrupt, match="not a record batch"):
        opened(message)


def test_a_dictionary_message_is_refused() -> None:
    batch = pa.record_batch({"value": pa.array(["x", "y"]).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    dictionary, indexes = reader.read_next_message(), reader.read_next_message()
    with pytest.raises(Corrupt, match="not a record batch"):
        opened(dictionary.serialize().to_pybytes())
    with pytest.raises(Corrupt, match="2 buffers"):
        opened(indexes.serialize().to_pybytes())


def test_buffers_that_no_column_uses_are_refused() -> None:
    message = a_full_batch().select(["value", "key"]).serialize().to_pybytes()
    with pytest.raises(Corrupt, match="2 field nodes"):
        opened(message)
    with pytest.raises(Corrupt, match="2 field nodes"):
        opened(message, Columns.VALUE | Columns.KEY | Columns.CONTENT)


def test_bytes_after_the_message_are_refused() -> None:
    with pytest.raises(Corrupt, match="does not fill its place"):
        opened(a_batch().serialize().to_pybytes() + bytes(8))


@pytest.mark.parametrize("size", [0, -8, 7, 2**31 - 8])
def test_an_impossible_metadata_size_is_refused(size: int) -> None:
    message = a_batch().serialize().to_pybytes()
    with pytest.raises(Corrupt, match=r"metadata_size|malformed"):
        opened(message[:4] + struct.pack("<i", size) + message[8:])


def test_every_truncation_is_refused() -> None:
    message = a_batch().serialize().to_pybytes()
    for size in range(len(message)):
        with pytest.raises(Corrupt):
            opened(message[:size])


def test_metadata_without_a_batch_is_refused() -> None:
    # An empty flatbuffer table: Arrow's verifier takes it, since every field is optional.
    metadata = struct.pack("<I HHHH i", 12, 0, 0, 4, 4, 4).ljust(24, b"\0")
    with pytest.raises(Corrupt):
        opened(struct.pack("<Ii", 0xFFFFFFFF, len(metadata)) + metadata)


@given(st.lists(st.tuples(st.integers(0, 150), st.integers(0, 2**32 - 1)), min_size=1, max_size=4))
def test_hostile_metadata_is_refused_or_harmless(changes: list[tuple[int, int]]) -> None:
    message = bytearray(a_batch().serialize().to_pybytes())
    for position, value in changes:
        struct.pack_into("<I", message, position, value)
    with suppress(Corrupt):
        assert opened(bytes(message)).type == "record batch"
