"""Every decoder of stored bytes, with bytes that it takes and a hand that seals what was damaged.

Half of all damaged bytes get right checksums again, as a hostile writer would give them, so
that what lies behind the checksums is met as well.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import orjson
from golden.regenerate import golden
from unit.formats.examples import REPLICATED_RECORD, TIERED_RECORD, a_msg_id, seal

from bottomless.formats import sealed_json
from bottomless.formats.api_key import (
    decode_key_object,
    decode_key_record,
    encode_key_object,
    encode_key_record,
)
from bottomless.formats.batch import HEADER_SIZE as FRAME_HEADER_SIZE
from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.chunk import (
    batches_of,
    decode_trailer,
    encode_header,
    encode_trailer,
    split_chunks,
    trailer_of,
)
from bottomless.formats.consumers import (
    decode_offset,
    decode_snapshot,
    encode_snapshot,
)
from bottomless.formats.drive_objects import (
    decode_drives,
    decode_marker,
    encode_drives,
    encode_marker,
)
from bottomless.formats.envelope import decode_envelope, encode_envelope
from bottomless.formats.filter import asked_hashes
from bottomless.formats.fragment import (
    FOOTER_SIZE,
    decode_footer,
    decode_fragment_header,
    decode_index,
)
from bottomless.formats.fragment import HEADER_SIZE as FRAGMENT_HEADER_SIZE
from bottomless.formats.fragment_filters import chunks_to_read, decode_filters, encode_filters
from bottomless.formats.manifest import HEADER_SIZE as NODE_HEADER_SIZE
from bottomless.formats.manifest import decode_node, encode_node
from bottomless.formats.message_file import HEADER_SIZE as MESSAGE_FILE_HEADER_SIZE
from bottomless.formats.message_file import (
    Finding,
    check_file_header,
    reads_of,
    scan,
)
from bottomless.formats.message_file import (
    decode_record as decode_message,
)
from bottomless.formats.placing import place
from bottomless.formats.queue_home import (
    decode_home,
    decode_home_object,
    encode_home,
    encode_home_object,
)
from bottomless.formats.queue_object import decode_queue_object, encode_queue_object
from bottomless.formats.queue_start import (
    StartRecord,
    decode_start,
    decode_start_object,
    encode_start,
    encode_start_object,
)
from bottomless.formats.rdq import decode_rdq_record, scan_rdq
from bottomless.formats.segment import HEADER_SIZE as SEGMENT_HEADER_SIZE
from bottomless.formats.segment import (
    INDEX_RECORD_SIZE,
    decode_checkpoint,
    decode_index_header,
    decode_index_record,
    decode_segment_header,
    encode_checkpoint,
)
from bottomless.formats.stream_record import (
    LEADERLESS,
    REPLICAS,
    SUPER,
    TIERS,
    decode_record,
    decode_registry,
    encode_record,
    encode_registry,
)
from bottomless.formats.super_record import (
    decode_super,
    decode_super_object,
    encode_super,
    encode_super_object,
)
from bottomless.formats.tracking import decode_tracking
from bottomless.formats.wal import decode_directory, decode_wal, verify_piece
from bottomless.model.chunk import ChunkKind
from bottomless.model.names import NodeId
from bottomless.model.queue import QueueMessage
from bottomless.model.queue_start import QueueStart
from bottomless_server.ingest.producers.commit_plan import decode_plan, encode_plan
from bottomless_server.leaderless.instance import decode_instance, encode_instance
from bottomless_server.leaderless.tail_format import (
    decode_entry,
    decode_held,
    decode_known,
    decode_tail,
    encode_entry,
    encode_held,
    encode_tail,
)
from bottomless_server.protocol.replica import HEAD_SIZE as REPLICA_HEAD_SIZE
from bottomless_server.protocol.replica import (
    ITEM_SIZE,
    EpochEnd,
    Item,
    Opening,
    Place,
    chunks_of,
    decode_answers,
    decode_items,
    decode_opening,
    encode_items,
    encode_opening,
)
from bottomless_server.stores import generation
from bottomless_server.stores.going import decode_going, encode_going
from bottomless_server.stores.operations import decode_operation

T = TypeVar("T")
Decode = Callable[[bytes], object]


class Decoder(NamedTuple):
    decode: Decode
    good: bytes
    sealed: Callable[[bytes], bytes]
    """Damaged bytes with right checksums."""


def of_chunks(data: bytes) -> None:
    for header, chunk in split_chunks(data):
        assert encode_header(header) == bytes(chunk[:CHUNK_HEADER_SIZE])
        if header.kind is ChunkKind.DATA:
            decode_frames(batches_of(header, chunk))
            trailer = trailer_of(header, chunk)
            assert encode_trailer(decode_trailer(trailer)) == bytes(trailer)
        if header.kind is ChunkKind.TRACKING:
            decode_tracking(trailer_of(header, chunk))


def of_frames(data: bytes) -> None:
    for batch in decode_frames(memoryview(data)):
        assert batch.num_rows > 0


def of_node(data: bytes) -> None:
    # Reserved bytes are ignored, so the first writing may differ; the second cannot.
    again = encode_node(decode_node(data))
    assert encode_node(decode_node(again)) == again


def of_index(data: bytes) -> None:
    index = decode_index(data)
    for number in range(min(len(index), 100)):
        assert index.place(number).size > 0


def in_one_form(decode: Callable[[bytes], T], encode: Callable[[T], bytes]) -> Decode:
    """Whatever is taken is what would be written."""

    def run(data: bytes) -> None:
        assert encode(decode(data)) == data, "there is one form"

    return run


def and_back(decode: Callable[[bytes], T], encode: Callable[[T], bytes]) -> Decode:
    """What is taken can be written, and says the same."""

    def run(data: bytes) -> None:
        taken = decode(data)
        assert decode(encode(taken)) == taken

    return run


def with_crcs(data: bytes, *places: tuple[int, int, int]) -> bytes:
    """Right checksums at positions, each of a range; those that do not fit are left out."""
    raw = bytearray(data)
    for position, start, end in places:
        if len(raw) >= position + 4:
            raw[position : position + 4] = crc32c(bytes(raw[start:end])).to_bytes(4, "little")
    return bytes(raw)


def sealed_frame(data: bytes) -> bytes:
    end = FRAME_HEADER_SIZE + int.from_bytes(data[12:16], "little")
    return with_crcs(data, (20, FRAME_HEADER_SIZE, min(end, len(data))), (28, 0, 28))


def sealed_chunk(data: bytes) -> bytes:
    return with_crcs(data, (56, CHUNK_HEADER_SIZE, len(data)), (60, 0, 60))


def sealed_first_chunk(data: bytes) -> bytes:
    """Of several."""
    size = int.from_bytes(data[8:12], "little")
    return sealed_chunk(data[:size]) + data[size:]


def sealed_node(data: bytes) -> bytes:
    end = NODE_HEADER_SIZE
    return with_crcs(data, (end - 8, end, len(data)), (end - 4, 0, end - 4))


def sealed_node_2(data: bytes) -> bytes:
    """Of entries, filters and header."""
    end = NODE_HEADER_SIZE
    filters = end + 128 * int.from_bytes(data[100:104], "little")
    return with_crcs(
        data, (112, filters, len(data)), (end - 8, end, filters), (end - 4, 0, end - 4)
    )


def with_drives(data: bytes) -> bytes:
    """The node with a fragment that was moved."""
    node = decode_node(data)
    entries = node.entries.copy()
    entries["drive"][0], entries["copy"][0] = 7, 0xFEED
    return encode_node(replace(node, entries=entries))


def of_filters(data: bytes) -> None:
    tables = decode_filters(data, FILTERED_CHUNK_COUNT)
    again = encode_filters(tables, FILTERED_CHUNK_COUNT)
    assert (
        encode_filters(decode_filters(again, FILTERED_CHUNK_COUNT), FILTERED_CHUNK_COUNT) == again
    )
    for values in ([b"emea"], []):
        asked = asked_hashes(values, match_unfiltered=True, keys=[b"k"])
        assert len(chunks_to_read(tables, FILTERED_CHUNK_COUNT, asked)) == FILTERED_CHUNK_COUNT


def of_wal(data: bytes) -> None:
    directory = decode_wal(data)
    for number in range(directory.header.piece_count):
        line = directory.line(number)
        piece = data[line.position : line.position + line.size]
        verify_piece(line, piece)
        count = line.record_count
        placed = place(piece, first_offset=7, record_count=count, timestamp=1, epoch=2)
        assert sum(one.header.record_count for one in placed) == count
        of_chunks(b"".join(part for one in placed for part in (one.front, one.body)))


def of_directory(data: bytes) -> None:
    directory = decode_directory(data)
    for stream_id in directory.stream_ids():
        for number in directory.pieces_of(stream_id):
            assert directory.line(number).stream_id == stream_id
    for number in range(directory.header.note_count):
        assert directory.note(number).sequence < directory.header.sequence


def sealed_wal(data: bytes) -> bytes:
    """Of lines, notes, data and header; positions are those of the golden object's three pieces."""
    lines, start = 128 + 3 * 64, 128 + 4 * 64
    return with_crcs(
        data, (76, 128, lines), (80, lines, start), (84, start, len(data)), (124, 0, 124)
    )


def of_items(data: bytes) -> None:
    items = decode_items(data)
    assert b"".join(encode_items(items)) == data, "there is one form"
    for item in items:
        chunks_of(item)


def sealed_items(data: bytes) -> bytes:
    """Of the head and of the first item's header."""
    end = REPLICA_HEAD_SIZE + ITEM_SIZE
    return with_crcs(
        data,
        (REPLICA_HEAD_SIZE - 4, 0, REPLICA_HEAD_SIZE - 4),
        (end - 4, REPLICA_HEAD_SIZE, end - 4),
    )


def sealed_index(data: bytes) -> bytes:
    """Index and footer."""
    footer = len(data) - FOOTER_SIZE
    if footer < 0:
        return data
    return with_crcs(data, (footer + 24, 0, footer), (footer + 56, footer, footer + 56))


def sealed_object(data: bytes) -> bytes:
    try:
        members = orjson.loads(data)
        members.pop("crc32c", None)
        version = members.pop("format", 1)
        return sealed_json.seal(members, version if type(version) is int else 1)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, AttributeError, TypeError):
        return data


def of_message_file(data: bytes) -> None:
    """What a scan calls a message is one, and what it found tiles the file."""
    check_file_header(data[:MESSAGE_FILE_HEADER_SIZE])
    for known in ((), range(MESSAGE_FILE_HEADER_SIZE, len(data), 37)):
        position = MESSAGE_FILE_HEADER_SIZE
        for found in scan(reads_of(data), len(data), known):
            assert found.position == position
            assert found.size > 0
            if found.what is Finding.MESSAGE:
                message = decode_message(data[position : position + found.size])
                assert (message.msg_id, message.checked) == (found.msg_id, found.checked)
            position += found.size
        assert position == len(data)


def sealed_message_file(data: bytes) -> bytes:
    """Messages with a checksum, as far as their sizes lead from one to the next."""
    raw = bytearray(data)
    position = MESSAGE_FILE_HEADER_SIZE
    while position + 25 <= len(raw):
        size = int.from_bytes(raw[position + 1 : position + 5], "big")
        if raw[position] == 4 and 25 <= size <= len(raw) - position:
            crc = crc32c(
                bytes(raw[position + 25 : position + size]),
                crc32c(bytes(raw[position : position + 21])),
            )
            raw[position + 21 : position + 25] = crc.to_bytes(4, "big")
        elif raw[position] not in (2, 3):
            size = 1
        position += max(size, 1)
    return bytes(raw)


def of_rdq(data: bytes) -> None:
    wanted = [a_msg_id(number) for number in range(4)]
    end = 0
    for found in scan_rdq(reads_of(data), len(data), wanted):
        assert found.position >= end
        end = found.position + found.size
        msg_id, _ = decode_rdq_record(data[found.position : end])
        assert msg_id == found.msg_id
        assert msg_id in wanted


def written(message: QueueMessage) -> bytes:
    return b"".join(encode_envelope(message))


def unsealed(data: bytes) -> bytes:
    """Of what has no checksum."""
    return data


read_record_2 = partial(decode_record, served=frozenset({LEADERLESS}))
read_registry_2 = partial(decode_registry, served=frozenset({LEADERLESS}))
read_record_super = partial(decode_record, served=frozenset({SUPER}))
read_registry_super = partial(decode_registry, served=frozenset({SUPER}))
read_record_replicas = partial(decode_record, served=frozenset({REPLICAS}))
read_registry_replicas = partial(decode_registry, served=frozenset({REPLICAS}))
read_record_tiers = partial(decode_record, served=frozenset({TIERS}))
read_registry_tiers = partial(decode_registry, served=frozenset({TIERS}))
INDEX = golden("segment_index")
INDEX_SIZE = 2 * INDEX_RECORD_SIZE + FOOTER_SIZE
"""Of the fragment in the golden file, which has two chunks."""
HOME_NODE = NodeId("0123456789abcdef" * 2)
HOME_OBJECT = golden("queue_home")
HOME_RECORD = golden("queue_home_record")
QUEUE_START = QueueStart(HOME_NODE, 3, "5a" * 16, "6b" * 16, "node-a:8081", 1_700_000_000_000)
REPLICA_ITEM = Item(
    decode_record(golden("stream_record")).stream_id,
    2**40,
    Place(0, 64),
    0,
    0,
    1,
    begins=True,
    before=0,
    data=golden("chunk"),
)
REPLICA_OPENING = Opening(3, (EpochEnd(1, Place(0, 64), 0), EpochEnd(2, Place(7, 99), 9)), 0, 4, 2)
FILTERED = golden("fragment_2")
FILTERED_FOOTER = decode_footer(FILTERED[-FOOTER_SIZE:])
FILTERED_CHUNK_COUNT = FILTERED_FOOTER.chunk_count
DECODERS = {
    "fragment header 2": Decoder(decode_fragment_header, FILTERED[:FRAGMENT_HEADER_SIZE], seal),
    "fragment index 2": Decoder(of_index, FILTERED[FILTERED_FOOTER.index_position :], sealed_index),
    "fragment filters": Decoder(
        of_filters,
        FILTERED[FILTERED_FOOTER.filters_position : FILTERED_FOOTER.index_position],
        unsealed,
    ),
    "root 2": Decoder(of_node, golden("manifest_root_2"), sealed_node_2),
    "group 2": Decoder(of_node, golden("manifest_group_2"), sealed_node_2),
    "root with sizes 2": Decoder(of_node, golden("manifest_root_2_sizes"), sealed_node_2),
    "group with sizes 2": Decoder(of_node, golden("manifest_group_2_sizes"), sealed_node_2),
    "filtered record": Decoder(
        and_back(decode_record, encode_record), golden("stream_record_2_filter"), unsealed
    ),
    "filtered registry": Decoder(
        and_back(decode_registry, encode_registry),
        golden("stream_registry_2_filter"),
        sealed_object,
    ),
    "frame": Decoder(of_frames, golden("frame_all_columns"), sealed_frame),
    "zstd frame": Decoder(of_frames, golden("frame_zstd"), sealed_frame),
    "lz4 frame": Decoder(of_frames, golden("frame_lz4"), sealed_frame),
    "chunk": Decoder(of_chunks, golden("chunk"), sealed_chunk),
    "tracking chunk": Decoder(of_chunks, golden("chunk_tracking"), sealed_chunk),
    "hole": Decoder(of_chunks, golden("chunk_hole"), sealed_chunk),
    "segment": Decoder(decode_segment_header, golden("segment")[:SEGMENT_HEADER_SIZE], seal),
    "index": Decoder(decode_index_header, INDEX[:SEGMENT_HEADER_SIZE], seal),
    "index record": Decoder(decode_index_record, INDEX[SEGMENT_HEADER_SIZE:][:48], seal),
    "checkpoint": Decoder(
        and_back(decode_checkpoint, encode_checkpoint), golden("checkpoint"), seal
    ),
    "fragment header": Decoder(
        decode_fragment_header, golden("fragment")[:FRAGMENT_HEADER_SIZE], seal
    ),
    "fragment index": Decoder(of_index, golden("fragment")[-INDEX_SIZE:], sealed_index),
    "root with drives 2": Decoder(of_node, with_drives(golden("manifest_root")), sealed_node_2),
    "root": Decoder(of_node, golden("manifest_root"), sealed_node),
    "group": Decoder(of_node, golden("manifest_group"), sealed_node),
    "registry": Decoder(
        and_back(decode_registry, encode_registry), golden("stream_registry"), sealed_object
    ),
    "record": Decoder(and_back(decode_record, encode_record), golden("stream_record"), unsealed),
    "consumers": Decoder(
        in_one_form(decode_snapshot, encode_snapshot), golden("consumers"), sealed_object
    ),
    "offset": Decoder(decode_offset, golden("consumer_offset"), unsealed),
    "key": Decoder(
        in_one_form(decode_key_object, encode_key_object), golden("api_key"), sealed_object
    ),
    "key record": Decoder(
        and_back(decode_key_record, encode_key_record), golden("api_key_record"), unsealed
    ),
    "queue home": Decoder(
        in_one_form(decode_home_object, encode_home_object), HOME_OBJECT, sealed_object
    ),
    "queue home record": Decoder(and_back(decode_home, encode_home), HOME_RECORD, unsealed),
    "queue start": Decoder(
        in_one_form(decode_start_object, encode_start_object),
        encode_start_object(QUEUE_START),
        sealed_object,
    ),
    "queue start record": Decoder(
        and_back(decode_start, encode_start),
        encode_start(StartRecord(QUEUE_START, noted=True)),
        unsealed,
    ),
    "what is going": Decoder(
        and_back(decode_going, lambda going: encode_going(going) or b"[]"),
        b'[[0,"default/a.fragment"],[7,"default/b.fragment"]]',
        unsealed,
    ),
    "drives": Decoder(
        in_one_form(decode_drives, encode_drives), golden("drive_registry"), sealed_object
    ),
    "drive marker": Decoder(
        in_one_form(decode_marker, encode_marker), golden("drive_marker"), sealed_object
    ),
    "operation": Decoder(decode_operation, golden("operation"), unsealed),
    "plan": Decoder(and_back(decode_plan, encode_plan), golden("staged_plan"), sealed_object),
    "plan 2": Decoder(and_back(decode_plan, encode_plan), golden("staged_plan_2"), sealed_object),
    "generation": Decoder(generation.decode_generation, golden("generation"), unsealed),
    "registry 2": Decoder(
        and_back(read_registry_2, encode_registry), golden("stream_registry_2"), sealed_object
    ),
    "record 2": Decoder(
        and_back(read_record_2, encode_record), golden("stream_record_2"), unsealed
    ),
    "registry of a partition": Decoder(
        and_back(read_registry_super, encode_registry),
        golden("stream_registry_super"),
        sealed_object,
    ),
    "record of a partition": Decoder(
        and_back(read_record_super, encode_record), golden("stream_record_super"), unsealed
    ),
    # Their bytes are not frozen, so there is no golden file of them.
    "registry with replicas": Decoder(
        and_back(read_registry_replicas, encode_registry),
        encode_registry(REPLICATED_RECORD),
        sealed_object,
    ),
    "record with replicas": Decoder(
        and_back(read_record_replicas, encode_record), encode_record(REPLICATED_RECORD), unsealed
    ),
    "registry with tiers": Decoder(
        and_back(read_registry_tiers, encode_registry),
        encode_registry(TIERED_RECORD),
        sealed_object,
    ),
    "record with tiers": Decoder(
        and_back(read_record_tiers, encode_record), encode_record(TIERED_RECORD), unsealed
    ),
    "super record": Decoder(and_back(decode_super, encode_super), golden("super_record"), unsealed),
    "super object": Decoder(
        and_back(decode_super_object, encode_super_object), golden("super_object"), sealed_object
    ),
    "super record on nodes and drives": Decoder(
        and_back(decode_super, encode_super), golden("super_record_2"), unsealed
    ),
    "super object on nodes and drives": Decoder(
        and_back(decode_super_object, encode_super_object), golden("super_object_2"), sealed_object
    ),
    "WAL object": Decoder(of_wal, golden("wal"), sealed_wal),
    "WAL directory": Decoder(of_directory, golden("wal")[: 128 + 4 * 64], sealed_wal),
    "WAL instance": Decoder(
        and_back(decode_instance, encode_instance), golden("wal_instance"), unsealed
    ),
    "tail record": Decoder(and_back(decode_tail, encode_tail), golden("tail_record"), seal),
    "tail entry": Decoder(in_one_form(decode_entry, encode_entry), golden("tail_entry"), unsealed),
    "held member": Decoder(and_back(decode_held, encode_held), golden("held_member"), unsealed),
    "known value": Decoder(decode_known, golden("tail_producer"), unsealed),
    "group of chunks": Decoder(of_chunks, golden("chunk_group"), sealed_first_chunk),
    "empty root": Decoder(of_node, golden("manifest_root_empty"), sealed_node),
    "message file": Decoder(of_message_file, golden("message_file"), sealed_message_file),
    "envelope": Decoder(and_back(decode_envelope, written), golden("envelope"), unsealed),
    "rdq": Decoder(of_rdq, golden("rdq"), unsealed),
    "queue object": Decoder(
        and_back(decode_queue_object, encode_queue_object), golden("queue_object"), sealed_object
    ),
    "replica body": Decoder(of_items, b"".join(encode_items([REPLICA_ITEM])), sealed_items),
    "replica opening": Decoder(
        and_back(decode_opening, encode_opening), encode_opening(REPLICA_OPENING), unsealed
    ),
    "replica answers": Decoder(partial(decode_answers, count=1), b'[["ok",0,64]]', unsealed),
    "high group": Decoder(of_node, golden("manifest_group_high"), sealed_node),
    "tombstone": Decoder(
        and_back(decode_registry, encode_registry), golden("stream_tombstone"), sealed_object
    ),
}
"""By name; what they refuse they refuse with Corrupt."""
