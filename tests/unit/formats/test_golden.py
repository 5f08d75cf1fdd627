"""The golden files: today's code writes exactly these bytes, and reads them back.

They are frozen: whoever changes one, or what its example makes, changes what others have on
their disks and in their buckets.
"""

import re
import shutil
from pathlib import Path

import pytest
from fuzz.decoders import DECODERS
from golden import regenerate
from golden.regenerate import (
    EXAMPLES,
    FOLDER,
    FROZEN,
    OPERATION,
    PLAN,
    PLAN_2,
    a_filtered_group,
    a_filtered_root,
    a_group,
    a_high_group,
    a_root,
    a_root_on_drives,
    an_empty_root,
    as_text,
    frozen_faults,
    golden,
)

from bottomless.errors import Corrupt, NotServed
from bottomless.formats.api_key import decode_key_object, decode_key_record
from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import VERSION, VERSION_2
from bottomless.formats.chunk import batches_of, decode_trailer, split_chunks, trailer_of
from bottomless.formats.consumers import decode_offset, decode_snapshot
from bottomless.formats.drive_objects import decode_drives, decode_marker
from bottomless.formats.envelope import decode_envelope
from bottomless.formats.filter import asked_hashes
from bottomless.formats.fragment import HEADER_SIZE as FRAGMENT_HEADER_SIZE
from bottomless.formats.fragment import decode_fragment_header, decode_index, decode_stored_filters
from bottomless.formats.fragment_filters import chunks_to_read
from bottomless.formats.manifest import decode_node
from bottomless.formats.message_file import Finding, check_file_header, reads_of, scan
from bottomless.formats.message_file import decode_record as decode_message
from bottomless.formats.placing import place
from bottomless.formats.queue_home import decode_home, decode_home_object
from bottomless.formats.queue_object import decode_queue_object
from bottomless.formats.rdq import decode_rdq_record, scan_rdq
from bottomless.formats.segment import (
    HEADER_SIZE,
    decode_checkpoint,
    decode_index_header,
    decode_index_record,
    decode_segment_header,
)
from bottomless.formats.stream_record import (
    REPLICAS,
    SERVED,
    SUPER,
    TIERS,
    decode_record,
    decode_registry,
)
from bottomless.formats.super_record import decode_super, decode_super_object
from bottomless.formats.tracking import decode_tracking
from bottomless.formats.wal import decode_wal
from bottomless.model.chunk import ChunkFlags, ChunkKind, ChunkPlace
from bottomless.model.fragment import Presence
from bottomless.model.manifest import Node
from bottomless.model.record import Columns
from bottomless.model.stream import StreamState
from bottomless_server.ingest.producers.commit_plan import decode_plan
from bottomless_server.leaderless.instance import decode_instance
from bottomless_server.leaderless.tail_format import (
    Known,
    decode_entry,
    decode_held,
    decode_known,
    decode_tail,
)
from bottomless_server.stores import generation
from bottomless_server.stores.operations import decode_operation
from bottomless_server.tree.filters import entries_to_read
from unit.formats.examples import (
    API_KEY_OBJECT,
    API_KEY_RECORD,
    CHECKPOINT,
    CONSUMERS,
    DRIVE_MARKER,
    DRIVE_REGISTRY,
    ENTRY,
    FILTERED_RECORD,
    FULL_ENTRY,
    HELD,
    LEADERLESS_RECORD,
    NOTE,
    OTHER_STREAM_ID,
    PARTITION_RECORD,
    PLACED_SUPER_RECORD,
    QUEUE_HOME,
    QUEUE_HOME_OBJECT,
    QUEUE_MESSAGE,
    QUEUE_OBJECT,
    RECORD,
    REPLICATED_RECORD,
    SEGMENT_HEADER,
    STREAM_ID,
    SUPER_RECORD,
    TAIL,
    TAIL_ENTRY,
    TIERED_RECORD,
    TIMESTAMP,
    TRACKED,
    UID,
    WAL_INSTANCE,
    a_batch,
    a_fragment,
    a_full_batch,
    a_msg_id,
    filtered_fragment,
)

READ_ONLY = {"frame_zstd", "frame_lz4"}
"""Other compressors write other bytes that decompress to the same."""


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - READ_ONLY))
def test_the_code_writes_exactly_these_bytes(name: str) -> None:
    assert as_text(EXAMPLES[name]()) == as_text(golden(name))


def test_every_golden_file_has_its_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.hex")} == set(EXAMPLES)


def test_the_golden_files_are_as_they_were_frozen() -> None:
    assert frozen_faults(FOLDER) == []


def test_a_golden_file_that_was_changed_by_a_byte_is_noticed(tmp_path: Path) -> None:
    """Must fail: a file changed, one gone, one more. And no bytes but the frozen ones are as good."""
    copy = tmp_path / "golden"
    shutil.copytree(FOLDER, copy)
    assert frozen_faults(copy) == []
    changed = (copy / "chunk.hex").read_text().replace("42 4c 63 68 01", "42 4c 63 68 02", 1)
    (copy / "chunk.hex").write_text(changed)
    (copy / "segment.hex").unlink()
    (copy / "another.hex").write_text("00")
    assert frozen_faults(copy) == ["another.hex", "chunk.hex", "segment.hex"]


def test_a_frozen_file_is_never_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "golden"
    shutil.copytree(FOLDER, copy)
    monkeypatch.setattr(regenerate, "FOLDER", copy)
    monkeypatch.setitem(EXAMPLES, "chunk", lambda: b"something else")
    assert regenerate.main() == 0
    assert frozen_faults(copy) == []
    assert (copy / FROZEN).read_text() == (FOLDER / FROZEN).read_text()


NEWEST = {"drives": 3} | dict.fromkeys(
    (
        "plan",
        "plan 2",
        "registry",
        "registry 2",
        "registry of a partition",
        "record",
        "record 2",
        "record of a partition",
        "registry with replicas",
        "record with replicas",
        "registry with tiers",
        "record with tiers",
        "tombstone",
        "filtered record",
        "filtered registry",
        "root",
        "root 2",
        "root with drives 2",
        "root with sizes 2",
        "empty root",
        "group",
        "group 2",
        "group with sizes 2",
        "high group",
        "fragment header",
        "fragment header 2",
        "fragment index",
        "fragment index 2",
        "super record",
        "super record on nodes and drives",
        "super object",
        "super object on nodes and drives",
    ),
    2,
)
"""Of those that have more than one version."""
VERSIONLESS = {
    "index record",
    "offset",
    "operation",
    "generation",
    "tail entry",
    "held member",
    "known value",
    "what is going",
    # Its version is that of the fragment.
    "fragment filters",
    # What nodes say to each other: they refuse it in words of their own, or have a path for each
    # version.
    "replica body",
    "replica opening",
    "replica answers",
    # Not of ours: what they refuse stands in their own tests.
    "message file",
    "envelope",
    "rdq",
}
VERSIONED = sorted(
    (name, version)
    for name, decoder in DECODERS.items()
    if name not in VERSIONLESS
    for version in (0, NEWEST.get(name, VERSION) + 1)
)


@pytest.mark.parametrize(("name", "version"), VERSIONED)
def test_another_version_is_refused_by_its_number(name: str, version: int) -> None:
    decoder = DECODERS[name]
    if decoder.good.startswith(b"{"):
        data = re.sub(rb'^{"format":\d', b'{"format":%d' % version, decoder.good)
    else:
        place = -9 if name.startswith("fragment index") else 4
        raw = bytearray(decoder.good)
        assert raw[place] == (VERSION_2 if name.endswith(" 2") else VERSION)
        raw[place] = version
        data = decoder.sealed(bytes(raw))
    with pytest.raises(Corrupt, match=f"version {version} is not known, only {VERSION}"):
        decoder.decode(data)


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
    ("name", "node"),
    [
        ("manifest_root", a_root()),
        ("manifest_root_empty", an_empty_root()),
        ("manifest_group", a_group()),
        ("manifest_group_high", a_high_group()),
    ],
)
def test_the_nodes_are_read(name: str, node: Node) -> None:
    found = decode_node(golden(name))
    assert found.entries.tobytes() == node.entries.tobytes()
    assert (found.uid, found.height, found.version) == (node.uid, node.height, node.version)
    assert (found.first_offset, found.next_offset) == (node.first_offset, node.next_offset)


def test_the_records_are_read() -> None:
    assert decode_record(golden("stream_record")) == RECORD
    assert decode_registry(golden("stream_registry")).config == RECORD.config


def test_the_records_of_a_leaderless_stream_are_read_by_who_serves_them() -> None:
    assert decode_record(golden("stream_record_2")) == LEADERLESS_RECORD
    registry = decode_registry(golden("stream_registry_2"))
    assert registry.config == LEADERLESS_RECORD.config
    for decode, name in (
        (decode_record, "stream_record_2"),
        (decode_registry, "stream_registry_2"),
    ):
        with pytest.raises(Corrupt, match="its feature leaderless is not served by this release"):
            decode(golden(name), frozenset())


def test_a_super_stream_and_its_partitions_are_read_by_who_serves_them() -> None:
    assert decode_super(golden("super_record")) == SUPER_RECORD
    assert decode_super_object(golden("super_object")) == SUPER_RECORD
    served = frozenset({SUPER})
    assert decode_record(golden("stream_record_super"), served) == PARTITION_RECORD
    registry = decode_registry(golden("stream_registry_super"), served)
    assert registry.partition_of == PARTITION_RECORD.partition_of
    for decode, name in (
        (decode_record, "stream_record_super"),
        (decode_registry, "stream_registry_super"),
    ):
        with pytest.raises(NotServed, match="its feature super is not served by this release"):
            decode(golden(name), frozenset())


@pytest.mark.parametrize("feature", [REPLICAS, TIERS])
def test_a_super_stream_on_several_nodes_and_drives_is_read_by_who_serves_it(feature: str) -> None:
    assert decode_super(golden("super_record_2")) == PLACED_SUPER_RECORD
    assert decode_super_object(golden("super_object_2")) == PLACED_SUPER_RECORD
    for decode, name in ((decode_super, "super_record_2"), (decode_super_object, "super_object_2")):
        with pytest.raises(NotServed, match=f"its feature {feature} is not served by this release"):
            decode(golden(name), SERVED - {feature})


def test_the_records_of_a_filtered_stream_are_read() -> None:
    assert decode_record(golden("stream_record_2_filter")) == FILTERED_RECORD
    assert decode_registry(golden("stream_registry_2_filter")).config == FILTERED_RECORD.config
    for decode, name in (
        (decode_record, "stream_record_2_filter"),
        (decode_registry, "stream_registry_2_filter"),
    ):
        with pytest.raises(Corrupt, match="its feature filter is not served by this release"):
            decode(golden(name), frozenset())


def test_the_records_of_a_stream_with_replicas_are_read() -> None:
    assert decode_record(golden("stream_record_2_replicas")) == REPLICATED_RECORD
    registry = decode_registry(golden("stream_registry_2_replicas"))
    assert registry.config == REPLICATED_RECORD.config
    assert (registry.members, registry.in_sync) == (REPLICATED_RECORD.members, ())
    for decode, name in (
        (decode_record, "stream_record_2_replicas"),
        (decode_registry, "stream_registry_2_replicas"),
    ):
        with pytest.raises(NotServed, match="its feature replicas is not served by this release"):
            decode(golden(name), frozenset())


def test_the_records_of_a_stream_with_tiers_are_read() -> None:
    assert decode_record(golden("stream_record_2_tiers")) == TIERED_RECORD
    registry = decode_registry(golden("stream_registry_2_tiers"))
    assert (registry.config, registry.drives) == (TIERED_RECORD.config, TIERED_RECORD.drives)
    for decode, name in (
        (decode_record, "stream_record_2_tiers"),
        (decode_registry, "stream_registry_2_tiers"),
    ):
        with pytest.raises(NotServed, match="its feature tiers is not served by this release"):
            decode(golden(name), frozenset())


def test_the_node_with_drives_is_read() -> None:
    node, found = a_root_on_drives(), decode_node(golden("manifest_root_2_drives"))
    assert found.entries["drive"].tolist() == [7, 0]
    assert found.entries["copy"].tolist() == [0xFEED, 0]
    assert found.entries.tobytes() == node.entries.tobytes()


def test_the_fragment_with_filters_is_read() -> None:
    raw, info = golden("fragment_2"), filtered_fragment().info
    header = decode_fragment_header(raw[:FRAGMENT_HEADER_SIZE])
    index = decode_index(raw[info.index_position :])
    footer = index.footer
    assert (header.version, footer.version, info.version) == (2, 2, 2)
    assert [index.place(number).first_offset for number in range(len(index))] == [1040, 1043]
    chunks = raw[FRAGMENT_HEADER_SIZE : footer.filters_position]
    assert [header.first_offset for header, _ in split_chunks(chunks)] == [1040, 1043]
    values, keys = decode_stored_filters(
        raw[footer.filters_position : footer.index_position], footer
    )
    assert (values.column, keys.column) == (Columns.FILTER_VALUE, Columns.KEY)
    assert (values.distinct_count, keys.distinct_count) == (2, 2)
    assert values.lines["presence"].tolist() == [Presence.SOME | Presence.NONE, Presence.NONE]
    assert chunks_to_read([values, keys], 2, asked_hashes(["é".encode()])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("manifest_root_2", a_filtered_root()),
        ("manifest_group_2", a_filtered_group()),
        ("manifest_root_2_sizes", a_filtered_root(sized=True)),
        ("manifest_group_2_sizes", a_filtered_group(sized=True)),
    ],
)
def test_the_nodes_with_filters_are_read(name: str, node: Node) -> None:
    found = decode_node(golden(name))
    assert found.filters.tobytes() == node.filters.tobytes()
    names = ("filter_position", "filter_blocks", "filters_size", "first_offset", "uid")
    assert all(found.entries[name].tolist() == node.entries[name].tolist() for name in names)
    known = entries_to_read(found, asked_hashes([b"nowhere"]))
    assert known.tolist() == ([False, False, True, False] if len(known) > 1 else [False])
    assert entries_to_read(found, asked_hashes([b"emea"]))[0]


def test_the_consumers_snapshot_is_read() -> None:
    assert decode_snapshot(golden("consumers")) == CONSUMERS


def test_the_registry_of_drives_and_the_marker_of_one_are_read() -> None:
    assert decode_drives(golden("drive_registry")) == DRIVE_REGISTRY
    assert decode_marker(golden("drive_marker")) == DRIVE_MARKER


def test_an_api_key_is_read() -> None:
    assert decode_key_object(golden("api_key")) == API_KEY_OBJECT
    assert decode_key_record(golden("api_key_record")) == API_KEY_RECORD


def test_a_tombstone_is_read() -> None:
    assert decode_registry(golden("stream_tombstone")).state is StreamState.DELETING


def test_what_stands_in_coordination_beside_records_is_read() -> None:
    assert decode_offset(golden("consumer_offset")) == CONSUMERS.consumers[1]
    assert decode_operation(golden("operation")) == OPERATION
    assert generation.decode_generation(golden("generation")) == 2


def test_the_wal_object_is_read() -> None:
    raw = golden("wal")
    directory = decode_wal(raw)
    assert (directory.header.instance, directory.header.sequence) == (UID, 5)
    assert directory.stream_ids() == [STREAM_ID, OTHER_STREAM_ID]
    assert directory.note(0) == NOTE
    assert [directory.line(number).record_count for number in range(3)] == [4, 2, 2]
    line = directory.line(2)
    [placed] = place(
        raw[line.position :], first_offset=1040, record_count=2, timestamp=TIMESTAMP, epoch=3
    )
    assert placed.front + placed.body == golden("chunk"), "what it becomes is an ordinary chunk"


def test_what_coordination_keeps_of_leaderless_streams_is_read() -> None:
    assert decode_tail(golden("tail_record")) == TAIL
    assert decode_entry(golden("tail_entry")) == TAIL_ENTRY
    assert decode_held(golden("held_member")) == HELD
    assert decode_known(golden("tail_producer")) == Known(1040, TRACKED[:2])
    assert decode_instance(golden("wal_instance")) == WAL_INSTANCE


def test_the_plan_of_a_commit_is_read() -> None:
    assert decode_plan(golden("staged_plan")) == PLAN
    assert decode_plan(golden("staged_plan_2")) == PLAN_2


def test_an_append_of_two_chunks_is_read() -> None:
    chunks = list(split_chunks(golden("chunk_group")))
    assert [header.flags for header, _ in chunks] == [ChunkFlags.MORE_FOLLOWS, ChunkFlags.NONE]
    entries = [entry for each in chunks for entry in decode_trailer(trailer_of(*each))]
    assert [entry.base_sequence for entry in entries] == [70, 72]
    assert entries[1] == entries[0]._replace(base_sequence=72)


def test_the_message_file_is_read() -> None:
    data = golden("message_file")
    check_file_header(data)
    found = list(scan(reads_of(data), len(data)))
    assert [(one.what, one.size) for one in found] == [
        (Finding.MESSAGE, 143),
        (Finding.HOLE, 37),
        (Finding.HOLE, 3),
        (Finding.MESSAGE, 21),
        (Finding.REPEATED, 143),
    ]
    message = decode_message(data[64 : 64 + 143])
    assert message.msg_id == a_msg_id(1)
    read = decode_envelope(message.body)
    assert read._replace(value=bytes(read.value)) == QUEUE_MESSAGE
    assert bytes(message.body) == golden("envelope")


def test_the_registry_object_of_a_queue_is_read() -> None:
    assert decode_queue_object(golden("queue_object")) == QUEUE_OBJECT


def test_the_home_of_queues_is_read() -> None:
    assert decode_home_object(golden("queue_home")) == QUEUE_HOME_OBJECT
    assert decode_home(golden("queue_home_record")) == QUEUE_HOME


def test_the_file_of_version_1_is_read() -> None:
    data = golden("rdq")
    found = list(scan_rdq(reads_of(data), len(data), [a_msg_id(1), a_msg_id(3)]))
    terms = [decode_rdq_record(data[one.position : one.position + one.size])[1] for one in found]
    assert [bytes(term) for term in terms] == [b"\x83one", b"\x83"]
