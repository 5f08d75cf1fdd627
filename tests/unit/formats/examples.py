"""Small values of every format, for tests and for the golden files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bottomless.errors import Corrupt
from bottomless.formats.api_key import KeyObject
from bottomless.formats.batch import Codec, encode_frame, schema_of
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import encode_header, seal_chunk
from bottomless.formats.consumers import ConsumersSnapshot
from bottomless.formats.envelope import encode_envelope
from bottomless.formats.filter import build, hash_values
from bottomless.formats.fragment import PackedFragment, pack_fragment
from bottomless.formats.fragment_filters import LINE_DTYPE, FilterTable
from bottomless.formats.message_file import encode_file_header, encode_record, hole_front
from bottomless.formats.queue_home import HomeObject
from bottomless.formats.queue_object import QueueObject
from bottomless.formats.rdq import encode_rdq_record
from bottomless.formats.tracking import seal_tracking
from bottomless.formats.wal import PackedWal, pack_wal
from bottomless.model.api_key import ApiKey, KeyId, KeyRecord, KeySecret, hash_secret
from bottomless.model.chunk import (
    AppendEntry,
    AppendMode,
    ChunkFlags,
    ChunkHeader,
    ChunkKind,
    TrackedEntry,
    TrackedKind,
)
from bottomless.model.config import FilterConfig, parse_config, parse_stored_config
from bottomless.model.consumer import StoredOffset
from bottomless.model.drive import DriveMarker, DriveRegistry, RegisteredDrive
from bottomless.model.fragment import Presence
from bottomless.model.names import (
    NodeId,
    StreamId,
    Uid,
    parse_reference,
    parse_stream_id,
    parse_stream_name,
    parse_super_id,
)
from bottomless.model.queue import QueueMessage, QueuePlace, parse_queue_config
from bottomless.model.queue_home import QueueHome
from bottomless.model.record import Columns, Content
from bottomless.model.routing import SEED, Strategy
from bottomless.model.segment import Checkpoint, SegmentHeader
from bottomless.model.stream import (
    EpochStart,
    Intent,
    Lease,
    PartitionOf,
    RootPointer,
    StreamRecord,
    StreamState,
)
from bottomless.model.super_stream import Layout, Partition, SuperRecord, SuperState
from bottomless.model.tiers import Move, Promotion
from bottomless.model.wal import Note, Piece, WalFlags
from bottomless_server.core.filter_making import make_filters
from bottomless_server.leaderless.instance import WalInstance
from bottomless_server.leaderless.tail import HeldMember, Tail, TailEntry, TailState

STREAM_ID = parse_stream_id("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
UID = Uid("000102030405060708090a0b0c0d0e0f")
OTHER_UID = Uid("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
TIMESTAMP = 1_700_000_000_000

ENTRY = AppendEntry(AppendMode.PLAIN, first_record=0, record_count=2, body_crc=0xC0FFEE)
FULL_ENTRY = AppendEntry(
    AppendMode.STRICT,
    first_record=2,
    record_count=3,
    body_crc=0xFACADE,
    base_sequence=70,
    producer_epoch=4,
    producer_id="loader-7",
    idempotency_hash=bytes(range(16)),
    principal_hash=bytes(range(16, 32)),
)
TRACKED = [
    TrackedEntry(
        TrackedKind.PRODUCER, AppendMode.STRICT, 0, TIMESTAMP, 0, 0, 72, 60, 4, "loader-7"
    ),
    TrackedEntry(TrackedKind.APPEND, AppendMode.STRICT, 1037, TIMESTAMP, 3, 0xFACADE, 70, 0, 4),
    TrackedEntry(
        TrackedKind.KEY,
        AppendMode.KEY,
        1035,
        TIMESTAMP - 5,
        2,
        0xC0FFEE,
        0,
        0,
        0,
        idempotency_hash=bytes(range(16)),
        body_hash=bytes(range(32, 48)),
    ),
    TrackedEntry(TrackedKind.FORGOTTEN, AppendMode.PLAIN, 0, TIMESTAMP, 0, 0, 0, 0, 0, "gone"),
]

SEGMENT_HEADER = SegmentHeader(STREAM_ID, first_offset=1040, epoch=3)
CHECKPOINT = Checkpoint(
    STREAM_ID,
    segment_first_offset=1040,
    synced_position=4096,
    synced_next=1100,
    last_timestamp=TIMESTAMP,
    epoch=3,
    version=17,
    published_next=1060,
    reserved_next=100_000,
)
RECORD = StreamRecord(
    stream_id=STREAM_ID,
    name=parse_stream_name("orders"),
    tenant="default",
    state=StreamState.ACTIVE,
    created_at=TIMESTAMP,
    config=parse_config({"retention": {"max_age": "7D"}, "labels": {"team": "é"}}),
    generation=1,
    version=17,
    epoch=3,
    home=NodeId("0123456789abcdef0123456789abcdef"),
    owner_url="http://ingest-0:9000",
    dirty=True,
    reserved_next=100_000,
    epochs=(EpochStart(2, 1000), EpochStart(3, 1040)),
    root=RootPointer(UID, generation=1, epoch=3, version=17, size=384, crc=0xC0FFEE),
    past_roots=(OTHER_UID, UID),
    published_next=1060,
    last_timestamp=TIMESTAMP,
    uploader="run-1",
    intents=(Intent(OTHER_UID, 1060, "run-1"),),
    quarantine=(Intent(UID, 1050, "run-0"),),
    condemned_next=1020,
    leases=(Lease("ls_1", 1030, 1060, TIMESTAMP + 60_000, "spark-7"),),
    registry_version=2,
)


FILTERED_RECORD = replace(
    RECORD,
    config=parse_stored_config(
        {
            "retention": {"max_age": "7D"},
            "filter": {"index": "values", "max_bytes": 128},
            "labels": {"team": "é"},
        }
    ),
)
LEADERLESS_RECORD = replace(
    RECORD,
    config=parse_stored_config(
        {
            "fragment": {"max_age_ms": 600_000},
            "labels": {"team": "é"},
            "profile": "leaderless",
            "fenced": True,
        }
    ),
    epoch=(1 << 40) + 1,
    home=None,
    owner_url=None,
    dirty=False,
    reserved_next=0,
    epochs=(EpochStart((1 << 40) + 1, 0),),
    root=RootPointer(UID, generation=1, epoch=(1 << 40) + 1, version=17, size=384, crc=0xC0FFEE),
)
SUPER_ID = parse_super_id("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c13")
PARTITION_RECORD = replace(
    RECORD, name=parse_stream_name("events-1"), partition_of=PartitionOf(SUPER_ID, 1)
)
OTHER_NODES = (NodeId("89abcdef" * 4), NodeId("fedcba98" * 4))
assert RECORD.home is not None
REPLICATED_RECORD = replace(
    RECORD,
    config=parse_stored_config({"replication": {"replicas": 3, "min_in_sync": None}}),
    members=(RECORD.home, *OTHER_NODES),
    in_sync=(RECORD.home, OTHER_NODES[1]),
)
TIERED_RECORD = replace(
    RECORD,
    config=parse_stored_config(
        {
            "tiers": [
                {"drive": "default", "max_age": "1D", "max_bytes": 2**30},
                {"drive": "cold", "promote_after_reads": 3},
            ]
        }
    ),
    intents=(Intent(OTHER_UID, 1060, "run-1", drive=2),),
    moves=(
        Move(2**63 + 5, 1020, 1030, 0, 2, None, TIMESTAMP),
        Move(0xC0FFEE, 1030, 1060, 2, 0, "run-1", TIMESTAMP),
    ),
    promoted=(Promotion(1000, 1020, TIMESTAMP + 86_400_000),),
    drives=(2, 7),
)
OTHER_STREAM_ID = parse_stream_id("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12")
SUPER_RECORD = SuperRecord(
    super_id=SUPER_ID,
    name=parse_stream_name("events"),
    tenant="default",
    state=SuperState.ACTIVE,
    created_at=TIMESTAMP,
    strategy=Strategy.KEY,
    seed=SEED,
    layouts=(Layout(1, 1, TIMESTAMP), Layout(2, 2, TIMESTAMP + 60_000)),
    partitions=(
        Partition(0, OTHER_STREAM_ID, parse_stream_name("events-0"), "amer"),
        Partition(1, STREAM_ID, parse_stream_name("events-1"), "é"),
    ),
    config=RECORD.config,
    generation=1,
    registry_version=2,
)
PLACED_SUPER_RECORD = replace(
    SUPER_RECORD,
    config=parse_stored_config(
        {
            "replication": {"replicas": 3, "min_in_sync": 2},
            "tiers": [{"drive": "default", "max_age": "1D"}, {"drive": "cold"}],
        }
    ),
)
"""A super stream whose partitions lie on several nodes, and on several drives."""
TAIL = Tail(
    state=TailState.OPEN,
    epoch=(1 << 40) + 1,
    next_offset=1047,
    number=17,
    last_timestamp=TIMESTAMP,
    last_chunk_offset=1045,
    log_end=9_000,
    pruned_next=1040,
    pruned_end=8_000,
    published_next=1042,
    manifest_version=12,
    created_at=TIMESTAMP - 86_400_000,
    entry_count=2,
    producer_count=1,
    key_count=3,
    max_age_ms=600_000,
    generation=1,
)
TAIL_ENTRY = TailEntry(
    next_offset=1047,
    number=17,
    timestamp=TIMESTAMP,
    log_end=9_000,
    instance=UID,
    sequence=5,
    position=320,
    size=624,
    record_count=4,
)
HELD = HeldMember(sequence=5, shard=1, committed_at=TIMESTAMP, max_age_ms=10_000, entry_count=2)
WAL_INSTANCE = WalInstance(
    url="http://ingest-0:9000",
    generation=1,
    reserved=1024,
    settled=6,
    deleted=2,
    attempt=41,
    keep_until=TIMESTAMP,
)
NOTE = Note(
    sequence=3,
    first_piece=0,
    piece_count=2,
    first_offset=1040,
    timestamp=TIMESTAMP - 5,
    epoch=(1 << 40) + 1,
    number=16,
)


def a_batch(values: Sequence[bytes] = (b"a", b"bc")) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], schema=schema_of(Columns.VALUE))


def a_full_batch() -> pa.RecordBatch:
    """Every column, with every kind of null."""
    schema = schema_of(Columns.ALL)
    rows: dict[str, list[Any]] = {
        "value": [b"\x00\xff", b"text", b'{"id":7}'],
        "key": [b"k", None, b""],
        "headers": [[("type", b"order"), ("empty", None)], None, []],
        "event_time": [1_700_000_000_123, None, -1],
        "content": [0, 1, 2],
        "filter_value": ["emea", None, "é"],
    }
    return pa.record_batch([pa.array(rows[f.name], f.type) for f in schema], schema=schema)


def a_frame(values: Sequence[bytes] = (b"a", b"bc"), codec: Codec = Codec.NONE) -> bytes:
    return encode_frame(a_batch(values), codec)


def a_chunk(
    first_offset: int = 0,
    *,
    frames: Sequence[bytes] = (),
    entries: Sequence[AppendEntry] = (ENTRY,),
    timestamp: int = TIMESTAMP,
    epoch: int = 3,
    flags: ChunkFlags = ChunkFlags.NONE,
    record_count: int = 2,
) -> bytes:
    return b"".join(
        seal_chunk(
            frames or [a_frame()],
            entries,
            record_count=record_count,
            first_offset=first_offset,
            timestamp=timestamp,
            epoch=epoch,
            flags=flags,
        )
    )


def a_piece(
    stream_id: StreamId = STREAM_ID,
    count: int = 1,
    values: Sequence[bytes] = (b"a", b"bc"),
) -> Piece:
    """A piece of `count` unplaced chunks, each with two records and one append."""
    chunks = [
        a_chunk(2 * number, frames=[a_frame(values)], timestamp=0, epoch=0)
        for number in range(count)
    ]
    return Piece(stream_id, chunks, 2 * count, count, count)


def a_wal(sequence: int = 5, pieces: Sequence[Piece] | None = None, attempt: int = 41) -> PackedWal:
    """Two pieces of one stream and one of another, and a note."""
    if pieces is None:
        pieces = (a_piece(OTHER_STREAM_ID), a_piece(count=2), a_piece(values=(b"d", b"e")))
    return pack_wal(
        UID,
        sequence,
        pieces,
        [NOTE] if sequence > NOTE.sequence else [],
        noted_below=min(sequence, 3),
        attempt=attempt,
        created_at=TIMESTAMP,
        generation=1,
        flags=WalFlags.SYNC,
    )


def a_tracking_chunk(first_offset: int = 0) -> bytes:
    parts = seal_tracking(TRACKED, first_offset=first_offset, timestamp=TIMESTAMP, epoch=3)
    return b"".join(parts)


def a_bare_chunk(
    kind: ChunkKind, first_offset: int = 0, record_count: int = 0, body: bytes = b""
) -> bytes:
    """A tracking chunk or a hole, with any body."""
    header = ChunkHeader(
        kind=kind,
        flags=ChunkFlags.NONE,
        total_size=64 + len(body),
        record_count=record_count,
        first_offset=first_offset,
        timestamp=TIMESTAMP,
        epoch=3,
        batch_count=0,
        filter_size=0,
        batches_size=0,
        trailer_size=len(body),
        body_crc=crc32c(body),
    )
    return encode_header(header) + body


def some_chunks(count: int, first_offset: int = 0) -> list[bytes]:
    """Chunks of two records, one millisecond apart."""
    return [
        a_chunk(first_offset + 2 * number, timestamp=TIMESTAMP + number) for number in range(count)
    ]


def filtered_fragment(first_offset: int = 1040) -> PackedFragment:
    """A chunk with two values and a record without one, then a chunk without the column."""
    chunks = [
        a_chunk(first_offset, frames=[encode_frame(a_full_batch())], record_count=3),
        a_chunk(first_offset + 3, timestamp=TIMESTAMP + 1),
    ]
    # Chunks as small as these have no room for filters of their own.
    config = FilterConfig(index="values-and-keys")
    tables = make_filters(chunks, data_size=64 * 1024, config=config)
    return pack_fragment(STREAM_ID, UID, chunks, tables)


def a_fragment(count: int = 2, first_offset: int = 1040) -> PackedFragment:
    return pack_fragment(STREAM_ID, UID, some_chunks(count, first_offset))


def seal(fields: bytes, size: int = 4) -> bytes:
    """`fields` with the checksum in their last bytes made right again."""
    body = fields[:-size]
    return body + crc32c(body).to_bytes(4, "little") + fields[len(body) + 4 :]


def damaged(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """`whole` with each bit flipped, and cut short at each size."""
    for position in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << bit
            yield f"bit {bit} of byte {position} flipped", bytes(flipped)
    for size in range(len(whole)):
        yield f"cut to {size} bytes", whole[:size]


def assert_refuses_damage(decode: Callable[[bytes], object], whole: bytes) -> None:
    """Assert that `decode` takes `whole`, and raises Corrupt for every damage to it."""
    decode(whole)
    for damage, data in damaged(whole):
        try:
            decode(data)
        except Corrupt:
            continue
        pytest.fail(f"not refused: {damage}")


API_KEY = ApiKey(
    key_id=KeyId("019f9c4a7b20c0ffee123456"),
    tenant="acme",
    label="nightly load",
    scopes=("append:orders-*", "read"),
    created_at=TIMESTAMP - 60_000,
    created_by="key:root",
    secrets=(
        KeySecret(hash_secret("2" * 64), None),
        KeySecret(hash_secret("1" * 64), TIMESTAMP + 3_600_000),
    ),
    rotated_at=TIMESTAMP,
    expires_at=TIMESTAMP + 86_400_000,
)
API_KEY_OBJECT = KeyObject(generation=1, version=2, key=API_KEY)
API_KEY_RECORD = KeyRecord(API_KEY, generation=1, version=2, reserved=3, durable=True)


CONSUMERS = ConsumersSnapshot(
    STREAM_ID,
    tenant="default",
    version=TIMESTAMP,
    consumers=(
        StoredOffset(parse_reference("audit"), 0, TIMESTAMP - 60_000, 1),
        StoredOffset(parse_reference("billing"), 1042, TIMESTAMP - 5, 17),
    ),
)


def a_filter_table() -> FilterTable:
    """Of three chunks: emea and apac; only records without a value; amer beside such."""
    both = Presence.SOME | Presence.NONE
    lines = np.zeros(3, LINE_DTYPE)
    lines["blocks"] = (1, 0, 2)
    lines["first_block"] = (0, 0, 1)
    lines["presence"] = (Presence.SOME, Presence.NONE, both)
    first, last = hash_values([b"emea", b"apac"]), hash_values([b"amer"])
    return FilterTable(
        Columns.FILTER_VALUE,
        both,
        build(np.concatenate((first, last)), 2),
        lines,
        np.concatenate((build(first, 1), build(last, 2))),
        distinct_count=3,
    )


QUEUE_ID = bytes(range(16))
QUEUE_MESSAGE = QueueMessage(
    content=Content.JSON,
    priority=4,
    published_at=TIMESTAMP,
    expires_at=TIMESTAMP + 60_000,
    queues=(QueuePlace(QUEUE_ID, 41), QueuePlace(QUEUE_ID[::-1], 7)),
    headers=(("trace", b"\x00\xff"), ("größe", b"")),
    value=b'{"id":7}',
    due_at=TIMESTAMP + 5_000,
)


QUEUE_OBJECT = QueueObject(
    QUEUE_ID,
    "default",
    "jobs",
    parse_queue_config({"max_deliveries": 3, "dead_letter": {"queue": "dead"}}),
    version=4,
    purged_below=17,
    reserved_below=2**20,
)


def a_msg_id(number: int) -> bytes:
    """A UUIDv7, of which those of one request count up by one."""
    return bytes.fromhex("018bcfe568007abc8000000000000000")[:-4] + number.to_bytes(4, "big")


def a_record(number: int, body: bytes, *, checksum: bool = True) -> bytes:
    return b"".join(encode_record(a_msg_id(number), [body], checksum=checksum))


def a_hole(inside: bytes) -> bytes:
    """A gap that looked like `inside` before it became a hole."""
    front = hole_front(len(inside))
    return front + inside[len(front) :]


def a_message_file() -> bytes:
    """A record of each type: a message, one that was compacted away, one without a checksum, and a
    message twice, as compaction that died leaves it."""
    body = b"".join(encode_envelope(QUEUE_MESSAGE))
    return b"".join(
        [
            encode_file_header(),
            a_record(1, body),
            a_hole(a_record(2, b"acknowledged")),
            a_hole(bytes(3)),
            a_record(3, b"", checksum=False),
            a_record(1, body),
        ]
    )


def an_rdq_file() -> bytes:
    """Two messages, with zeros between them, and one that is dead."""
    return b"".join(
        [
            encode_rdq_record(a_msg_id(1), b"\x83one"),
            encode_rdq_record(a_msg_id(2), b"\x83dead"),
            bytes(9),
            encode_rdq_record(a_msg_id(3), b"\x83"),
        ]
    )


QUEUE_NODE = NodeId("0123456789abcdef" * 2)
QUEUE_HOME_OBJECT = HomeObject("acme", 2, QUEUE_NODE)
DRIVE_MARKER = DriveMarker(2, UID)
DRIVE_REGISTRY = DriveRegistry(
    3,
    (
        RegisteredDrive("shelf", 1, OTHER_UID, retired=True),
        RegisteredDrive("cold", 2, UID, retired=False),
    ),
)
QUEUE_HOME = QueueHome("acme", 2, QUEUE_NODE, "http://node-a:8081", noted=True, generation=1)
