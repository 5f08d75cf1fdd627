"""The golden files: today's code writes exactly these bytes, and reads them back."""

import pytest
from golden.regenerate import EXAMPLES, FOLDER, a_group, a_root, as_text, golden

from bottomless.formats.api_key import decode_key_object, decode_key_record
from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of, decode_trailer, split_chunks, trailer_of
from bottomless.formats.consumers import decode_snapshot
from bottomless.formats.fragment import HEADER_SIZE as FRAGMENT_HEADER_SIZE
from bottomless.formats.fragment import decode_fragment_header, decode_index
from bottomless.formats.manifest import decode_node
from bottomless.formats.segment import (
    HEADER_SIZE,
    decode_checkpoint,
    decode_index_header,
    decode_index_record,
    decode_segment_header,
)
from bottomless.formats.stream_record import decode_record, decode_registry
from bottomless.formats.tracking import decode_tracking
from bottomless.model.chunk import ChunkKind, ChunkPlace
from bottomless.model.manifest import Node
from unit.formats.examples import (
    API_KEY_OBJECT,
    API_KEY_RECORD,
    CHECKPOINT,
    CONSUMERS,
    ENTRY,
    FULL_ENTRY,
    RECORD,
    SEGMENT_HEADER,
    TIMESTAMP,
    TRACKED,
    a_batch,
    a_fragment,
    a_full_batch,
)

READ_ONLY = {"frame_zstd", "frame_lz4"}
"""Other compressors write other bytes that decompress to the same."""


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - READ_ONLY))
def test_the_code_writes_exactly_these_bytes(name: str) -> None:
    assert as_text(EXAMPLES[name]()) == as_text(golden(name))


def test_every_golden_file_has_its_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.hex")} == set(EXAMPLES)


def test_the_chunk_is_read() -> None:
    [(header, chunk)] = split_chunks(golden("chunk"))
    assert (header.kind, header.first_offset, header.next_offset) == (ChunkKind.DATA, 1040, 1042)
    assert (header.timestamp, header.epoch) == (TIMESTAMP, 3)
    assert decode_frames(batches_of(header, chunk)) == [a_batch()]
    assert decode_trailer(trailer_of(header, chunk)) == [ENTRY]


def test_the_hole_and_the_tracking_chunk_are_read() -> None:
    [(hole, _)] = split_chunks(golden("chunk_hole"))
    [(tracking, chunk)] = split_chunks(golden("chunk_tracking"))
    assert (hole.kind, hole.first_offset, hole.next_offset) == (ChunkKind.HOLE, 1040, 1042)
    assert (tracking.kind, tracking.next_offset) == (ChunkKind.TRACKING, 1040)
    assert decode_tracking(trailer_of(tracking, chunk)) == TRACKED


def test_the_frames_are_read() -> None:
    compressible = a_batch([b"abcd" * 50] * 2)
    for name, batch in (
        ("frame_plain", a_batch()),
        ("frame_all_columns", a_full_batch()),
        ("frame_zstd", compressible),
        ("frame_lz4", compressible),
    ):
        assert decode_frames(memoryview(golden(name))) == [batch]


def test_the_segment_is_read() -> None:
    raw = golden("segment")
    assert decode_segment_header(raw[:HEADER_SIZE]) == SEGMENT_HEADER
    [(first, _), (second, chunk)] = split_chunks(raw[HEADER_SIZE:])
    assert (first.first_offset, second.first_offset, second.next_offset) == (1040, 1042, 1047)
    assert decode_frames(batches_of(second, chunk)) == [a_batch(), a_full_batch()]
    assert decode_trailer(trailer_of(second, chunk)) == [ENTRY, FULL_ENTRY]


def test_the_segment_index_is_read() -> None:
    raw = golden("segment_index")
    assert decode_index_header(raw[:HEADER_SIZE]) == SEGMENT_HEADER
    assert decode_index_record(raw[HEADER_SIZE:]) == ChunkPlace(1040, TIMESTAMP, 64, 3, 312, 2)


def test_the_checkpoint_is_read() -> None:
    assert decode_checkpoint(golden("checkpoint")) == CHECKPOINT


def test_the_fragment_is_read() -> None:
    raw, info = golden("fragment"), a_fragment().info
    header = decode_fragment_header(raw[:FRAGMENT_HEADER_SIZE])
    index = decode_index(raw[info.index_position :])
    assert (header.uid, header.first_offset, header.next_offset) == (info.uid, 1040, 1044)
    assert [index.place(number).first_offset for number in range(len(index))] == [1040, 1042]


@pytest.mark.parametrize(
    ("name", "node"), [("manifest_root", a_root()), ("manifest_group", a_group())]
)
def test_the_nodes_are_read(name: str, node: Node) -> None:
    found = decode_node(golden(name))
    assert found.entries.tobytes() == node.entries.tobytes()
    assert (found.uid, found.height, found.version) == (node.uid, node.height, node.version)
    assert (found.first_offset, found.next_offset) == (node.first_offset, node.next_offset)


def test_the_records_are_read() -> None:
    assert decode_record(golden("stream_record")) == RECORD
    assert decode_registry(golden("stream_registry")).config == RECORD.config


def test_the_consumers_snapshot_is_read() -> None:
    assert decode_snapshot(golden("consumers")) == CONSUMERS


def test_an_api_key_is_read() -> None:
    assert decode_key_object(golden("api_key")) == API_KEY_OBJECT
    assert decode_key_record(golden("api_key_record")) == API_KEY_RECORD
