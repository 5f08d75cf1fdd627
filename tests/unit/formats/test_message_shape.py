"""The structure of a batch's metadata is known by its bytes, and numbers are never structure."""

import struct
from typing import Any

import pyarrow as pa
import pytest

from bottomless.formats import flatbuffers as fb
from bottomless.formats.message_shape import PREFIX, MessageShape, Numbers, shape_of


def metadata_of(batch: pa.RecordBatch) -> bytes:
    message = batch.serialize().to_pybytes()
    return message[: PREFIX.size + PREFIX.unpack_from(message)[1]]


def known(message: bytes) -> MessageShape:
    shape = shape_of(memoryview(message))
    assert shape is not None
    return shape


ONE = pa.record_batch({"a": pa.array([b"x", b"yz"]), "b": pa.array([1, None], pa.int8())})


def test_batches_of_one_schema_have_one_shape_and_their_own_numbers() -> None:
    other = pa.record_batch(
        {"a": pa.array([b"xyz"] * 9), "b": pa.array([None] * 8 + [1], pa.int8())}
    )
    shape = known(metadata_of(ONE))
    numbers = shape.read(memoryview(b"before" + metadata_of(other)), 6)
    assert numbers is not None
    assert numbers.row_count == (9,)
    assert numbers.nodes == (9, 0, 9, 8)
    assert numbers.buffers[:4] == (0, 0, 0, 40)
    assert shape.fill(numbers) == metadata_of(other)


def test_another_structure_is_not_this_shape() -> None:
    shape, message = known(metadata_of(ONE)), metadata_of(ONE)
    assert shape.read(memoryview(message), 0) is not None
    assert shape.read(memoryview(message[:-1]), 0) is None
    assert shape.read(memoryview(metadata_of(ONE.select(["a"]))), 0) is None
    numbers = {at for place in places_of(message) for at in place}
    for at in set(range(len(message))) - numbers:
        other = message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
        assert shape.read(memoryview(other), 0) is None
    for at in numbers:
        other = message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
        assert shape.read(memoryview(other), 0) not in (None, shape.read(memoryview(message), 0))


def places_of(message: bytes) -> list[range]:
    """Bytes of the numbers, walked to by hand."""
    data = memoryview(message)[PREFIX.size :]
    table = fb.u32(data, 0)
    batch = fb.child(data, table, fb.MESSAGE_HEADER)
    nodes, buffers = (fb.child(data, batch, one) for one in (fb.BATCH_NODES, fb.BATCH_BUFFERS))
    size = fb.slot(data, table, fb.MESSAGE_BODY_SIZE)
    count = fb.slot(data, batch, fb.BATCH_LENGTH)
    assert size is not None
    assert count is not None
    found = [(size, 8), (count, 8), (nodes + 4, 2 * 16), (buffers + 4, 5 * 16)]
    return [range(PREFIX.size + at, PREFIX.size + at + length) for at, length in found]


def repointed(message: bytes, field: int, target: int) -> bytes:
    """With a vector of the batch elsewhere in the metadata."""
    data = memoryview(message)[PREFIX.size :]
    slot = fb.slot(data, fb.child(data, fb.u32(data, 0), fb.MESSAGE_HEADER), field)
    assert slot is not None
    at = PREFIX.size + slot
    return message[:at] + struct.pack("<I", target - slot) + message[at + 4 :]


def vector(message: bytes, field: int) -> int:
    data = memoryview(message)[PREFIX.size :]
    return fb.child(data, fb.child(data, fb.u32(data, 0), fb.MESSAGE_HEADER), field)


def is_good_for_arrow(message: bytes) -> bool:
    try:
        return bool(pa.ipc.read_message(pa.py_buffer(message + bytes(1_000))).type)
    except (pa.ArrowException, OSError):
        return False


@pytest.mark.parametrize(
    ("moved", "onto"), [(fb.BATCH_NODES, fb.BATCH_BUFFERS), (fb.BATCH_BUFFERS, fb.BATCH_NODES)]
)
def test_numbers_that_stand_on_other_numbers_are_no_shape(moved: int, onto: int) -> None:
    """Arrow's verifier lets it pass; whoever changed one number would change the other."""
    message = metadata_of(ONE)
    other = repointed(message, moved, vector(message, onto))
    assert is_good_for_arrow(other)
    assert shape_of(memoryview(other)) is None


def test_a_vector_that_begins_within_another_is_no_shape() -> None:
    """So that a number of one is the count of the other, or is among its numbers."""
    message = metadata_of(ONE)
    found = 0
    own, start = (vector(message, one) for one in (fb.BATCH_NODES, fb.BATCH_BUFFERS))
    for target in range(start, len(message) - PREFIX.size, 4):
        other = repointed(message, fb.BATCH_NODES, target)
        count = struct.unpack_from("<I", other, PREFIX.size + target)[0]
        if target != own and count and is_good_for_arrow(other):
            found += 1
            assert shape_of(memoryview(other)) is None
    assert found


def test_numbers_that_stand_on_structure_are_no_shape() -> None:
    """A table may name its fields anywhere: here among the numbers of nodes, which a sender changes."""
    message = metadata_of(ONE)
    data = bytearray(message[PREFIX.size :])
    batch = fb.child(memoryview(data), fb.u32(memoryview(data), 0), fb.MESSAGE_HEADER)
    names = fb.vtable_of(memoryview(data), batch)
    size = fb.u16(memoryview(data), names)
    count_at = len(data) + 4
    numbers = bytes(data[names : names + size]).ljust(32, b"\0")
    data += bytes(4) + struct.pack("<I", 2) + numbers
    struct.pack_into("<i", data, batch, batch - (count_at + 4))
    longer = repointed(PREFIX.pack(0xFFFFFFFF, len(data)) + bytes(data), fb.BATCH_NODES, count_at)
    assert is_good_for_arrow(longer)
    assert shape_of(memoryview(longer)) is None


def test_a_message_of_another_kind_is_no_shape_whatever_its_fields() -> None:
    message = metadata_of(ONE)
    data = memoryview(message)[PREFIX.size :]
    kind_at = fb.slot(data, fb.u32(data, 0), fb.MESSAGE_HEADER_TYPE)
    assert kind_at is not None
    at = PREFIX.size + kind_at
    assert shape_of(memoryview(message[:at] + b"\x04" + message[at + 1 :])) is None


def test_what_extends_a_dictionary_is_no_shape() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, pa.schema([("a", kind)]), options=options) as writer:
        for known_values in (["x"], ["x", "y"]):
            indices: Any = pa.array([0], pa.int8())
            column = pa.DictionaryArray.from_arrays(indices, pa.array(known_values))
            writer.write_batch(pa.record_batch({"a": column}))
    body = sink.getvalue().to_pybytes()
    found, position = [], 0
    with pa.ipc.open_stream(body) as reader:
        assert reader.read_all()["a"].to_pylist() == ["x", "x"]
    reader_of_messages = pa.ipc.MessageReader.open_stream(body)
    for message in reader_of_messages:
        size = PREFIX.size + PREFIX.unpack_from(body, position)[1]
        if message.type == "dictionary":
            found.append(shape_of(memoryview(body)[position : position + size]))
        position += size + (0 if message.body is None else message.body.size)
    assert [shape is None for shape in found] == [False, True]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_buffers_are_no_shape(compression: Any) -> None:
    options: Any = pa.ipc.IpcWriteOptions(compression=compression)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ONE.schema, options=options) as writer:
        writer.write_batch(
            pa.record_batch({"a": pa.array([b"x" * 999]), "b": pa.array([1], pa.int8())})
        )
    body = sink.getvalue().to_pybytes()
    start = PREFIX.size + PREFIX.unpack_from(body)[1]
    size = PREFIX.size + PREFIX.unpack_from(body, start)[1]
    assert is_good_for_arrow(body[start : start + size])
    assert shape_of(memoryview(body)[start : start + size]) is None


def test_what_is_no_batch_is_no_shape() -> None:
    assert shape_of(memoryview(ONE.schema.serialize().to_pybytes())) is None
    assert shape_of(memoryview(b"\xff" * 4 + bytes(60))) is None
    assert shape_of(memoryview(b"")) is None


def test_numbers_have_a_form_without_views() -> None:
    assert Numbers((1,), (2,), (), ()).variadic_counts == ()
