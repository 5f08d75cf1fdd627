"""Golden files: the bytes of every format, as hex that a person can read.

    PYTHONPATH=tests python tests/golden/regenerate.py

writes those that are not there yet, and their checksums into `frozen.sha256`. Version 1 is
frozen: a file that is there is never written anew, whatever the code makes of its example. Those of
UNFROZEN are, since nothing serves what they are of.
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
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
    OTHER_UID,
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
    a_bare_chunk,
    a_batch,
    a_chunk,
    a_fragment,
    a_frame,
    a_full_batch,
    a_message_file,
    a_tracking_chunk,
    a_wal,
    an_rdq_file,
    filtered_fragment,
)

from bottomless.formats.api_key import encode_key_object, encode_key_record
from bottomless.formats.batch import Codec, encode_frame
from bottomless.formats.checks import crc32c
from bottomless.formats.consumers import encode_offset, encode_snapshot
from bottomless.formats.drive_objects import encode_drives, encode_marker
from bottomless.formats.envelope import encode_envelope
from bottomless.formats.manifest import encode_node
from bottomless.formats.queue_home import encode_home, encode_home_object
from bottomless.formats.queue_object import encode_queue_object
from bottomless.formats.segment import (
    encode_checkpoint,
    encode_index_header,
    encode_index_record,
    encode_segment_header,
)
from bottomless.formats.stream_record import encode_record, encode_registry
from bottomless.formats.super_record import encode_super, encode_super_object
from bottomless.model.chunk import AppendEntry, AppendMode, ChunkFlags, ChunkKind, ChunkPlace
from bottomless.model.fragment import FragmentInfo, Presence
from bottomless.model.manifest import (
    ENTRY_DTYPE,
    EntryKind,
    GapReason,
    Node,
    filters_of,
    fragment_entry,
    joined,
)
from bottomless.model.stream import StreamState
from bottomless_server.ingest.producers.commit_plan import CommitPlan, encode_plan
from bottomless_server.leaderless.instance import encode_instance
from bottomless_server.leaderless.tail_format import (
    encode_entry,
    encode_held,
    encode_known,
    encode_tail,
)
from bottomless_server.stores import generation
from bottomless_server.stores.operations import Operation, encode_operation, new_operation
from bottomless_server.tree.append import append_entries, append_fragments
from bottomless_server.tree.filters import group_filter
from bottomless_server.tree.rebalance import group_entry

FOLDER = Path(__file__).parent
FROZEN = "frozen.sha256"
PLAN = CommitPlan(
    "loader-7",
    70,
    TIMESTAMP,
    (("st_" + "0f" * 16, "st_" + "1" * 32), ("st_" + "2" * 32,)),
    epoch=None,
)
PLAN_2 = PLAN._replace(epoch=3)
OPERATION: Operation = new_operation(
    "0f" * 16,
    "verify",
    TIMESTAMP,
    tenant="acme",
    stream_id=STREAM_ID,
    arguments={"checksums": True},
)


def a_root() -> Node:
    """A fragment, then a gap."""
    entries = np.zeros(2, ENTRY_DTYPE)
    entries[0] = fragment_entry(a_fragment().info)[0]
    entries[1]["first_offset"], entries[1]["next_offset"] = 1044, 1050
    entries[1]["first_timestamp"] = entries[1]["last_timestamp"] = TIMESTAMP + 1
    entries[1]["first_epoch"] = entries[1]["last_epoch"] = 4
    entries[1]["kind"], entries[1]["reason"] = EntryKind.GAP, GapReason.TAKEOVER
    return Node(
        stream_id=STREAM_ID,
        uid=OTHER_UID,
        height=0,
        first_offset=1041,
        next_offset=1050,
        epoch=4,
        version=17,
        generation=1,
        last_timestamp=TIMESTAMP + 1,
        entries=entries,
    )


def a_root_on_drives() -> Node:
    """A root whose fragment was moved to drive 7."""
    root = a_root()
    entries = root.entries.copy()
    entries["drive"][0], entries["copy"][0] = 7, 0xFEED
    return replace(root, entries=entries)


def a_group() -> Node:
    """One fragment under a node of height 1."""
    info = a_fragment().info
    return Node(
        stream_id=STREAM_ID,
        uid=UID,
        height=1,
        first_offset=info.first_offset,
        next_offset=info.next_offset,
        epoch=3,
        version=0,
        generation=0,
        last_timestamp=info.last_timestamp,
        entries=fragment_entry(info),
    )


def a_segment() -> bytes:
    """A header, and two chunks of which the second has two frames and two appends."""
    frames = [a_frame(), encode_frame(a_full_batch())]
    later = a_chunk(
        1042, frames=frames, entries=(ENTRY, FULL_ENTRY), record_count=5, timestamp=TIMESTAMP + 1
    )
    return encode_segment_header(SEGMENT_HEADER) + a_chunk(1040) + later


def an_empty_root() -> Node:
    """Of a stream that was trimmed to its end."""
    return replace(a_root(), first_offset=1050, entries=np.zeros(0, ENTRY_DTYPE))


def a_high_group() -> Node:
    """A group of groups."""
    below = a_group()
    data = encode_node(below)
    entry = group_entry(below, len(data), crc32c(data))
    return replace(below, uid=OTHER_UID, height=2, entries=entry)


def a_group_of_chunks() -> bytes:
    """One append of four records in two chunks, of which the first says that it goes on."""
    entries = [
        AppendEntry(
            AppendMode.STRICT,
            first_record=0,
            record_count=2,
            body_crc=0xFACADE,
            base_sequence=70 + 2 * number,
            producer_epoch=4,
            producer_id="loader-7",
            body_hash=bytes(range(32, 48)),
        )
        for number in range(2)
    ]
    first = a_chunk(1040, entries=entries[:1], flags=ChunkFlags.MORE_FOLLOWS)
    return first + a_chunk(1042, entries=entries[1:])


def a_filtered_root(*, sized: bool = False) -> Node:
    """A group of two values, a fragment with them, one of which nothing is known, and a gap."""
    below = a_filtered_group(sized=sized)
    data, filter_ = encode_node(below), group_filter(below)
    entries, filters = joined(
        (group_entry(below, len(data), crc32c(data), filter_), filter_.blocks)
    )
    root = replace(a_root(), first_offset=1041, next_offset=1045, entries=entries, filters=filters)
    root = append_fragments(root, [_filtered_info(1045, sized=sized)])
    later = a_fragment(first_offset=1050).info
    root = append_fragments(root, [later._replace(first_timestamp=TIMESTAMP + 1)])
    gap = a_root().entries[1:].copy()
    gap["first_offset"], gap["next_offset"] = 1054, 1060
    gap["filter_presence"] = Presence.KNOWN
    return append_entries(root, gap)


def a_filtered_group(*, sized: bool = False) -> Node:
    """The fragment with filters under a node of height 1; `sized` says that its entry tells how large
    they are.
    """
    info = _filtered_info(1040, sized=sized)
    return replace(
        a_group(),
        next_offset=info.next_offset,
        last_timestamp=info.last_timestamp,
        entries=fragment_entry(info),
        filters=filters_of(info),
    )


def _filtered_info(first_offset: int, *, sized: bool) -> FragmentInfo:
    info = filtered_fragment(first_offset).info
    return info if sized else info._replace(filters_size=0)


EXAMPLES: dict[str, Callable[[], bytes]] = {
    "chunk": lambda: a_chunk(1040),
    "chunk_hole": lambda: a_bare_chunk(ChunkKind.HOLE, 1040, 2, bytes(8)),
    "chunk_tracking": lambda: a_tracking_chunk(1040),
    "frame_plain": lambda: encode_frame(a_batch()),
    "frame_all_columns": lambda: encode_frame(a_full_batch()),
    "frame_zstd": lambda: encode_frame(a_batch([b"abcd" * 50] * 2), Codec.ZSTD),
    "frame_lz4": lambda: encode_frame(a_batch([b"abcd" * 50] * 2), Codec.LZ4),
    "chunk_group": a_group_of_chunks,
    "segment": a_segment,
    "segment_index": lambda: (
        encode_index_header(SEGMENT_HEADER)
        + encode_index_record(ChunkPlace(1040, TIMESTAMP, 64, 3, 312, 2))
    ),
    "checkpoint": lambda: encode_checkpoint(CHECKPOINT),
    "fragment": lambda: b"".join(a_fragment().parts),
    "manifest_root": lambda: encode_node(a_root()),
    "manifest_group": lambda: encode_node(a_group()),
    "manifest_root_empty": lambda: encode_node(an_empty_root()),
    "manifest_group_high": lambda: encode_node(a_high_group()),
    "stream_tombstone": lambda: encode_registry(replace(RECORD, state=StreamState.DELETING)),
    "generation": lambda: generation.encode_generation(2),
    "consumer_offset": lambda: encode_offset(CONSUMERS.consumers[1]),
    "operation": lambda: encode_operation(OPERATION),
    "staged_plan": lambda: encode_plan(PLAN),
    "staged_plan_2": lambda: encode_plan(PLAN_2),
    "stream_record": lambda: encode_record(RECORD),
    "stream_registry": lambda: encode_registry(RECORD),
    "consumers": lambda: encode_snapshot(CONSUMERS),
    "api_key": lambda: encode_key_object(API_KEY_OBJECT),
    "api_key_record": lambda: encode_key_record(API_KEY_RECORD),
    "stream_record_2": lambda: encode_record(LEADERLESS_RECORD),
    "stream_registry_2": lambda: encode_registry(LEADERLESS_RECORD),
    "stream_record_super": lambda: encode_record(PARTITION_RECORD),
    "stream_registry_super": lambda: encode_registry(PARTITION_RECORD),
    "super_record": lambda: encode_super(SUPER_RECORD),
    "super_object": lambda: encode_super_object(SUPER_RECORD),
    "super_record_2": lambda: encode_super(PLACED_SUPER_RECORD),
    "super_object_2": lambda: encode_super_object(PLACED_SUPER_RECORD),
    "stream_record_2_filter": lambda: encode_record(FILTERED_RECORD),
    "stream_registry_2_filter": lambda: encode_registry(FILTERED_RECORD),
    "fragment_2": lambda: b"".join(filtered_fragment().parts),
    "manifest_root_2": lambda: encode_node(a_filtered_root()),
    "manifest_group_2": lambda: encode_node(a_filtered_group()),
    "manifest_root_2_sizes": lambda: encode_node(a_filtered_root(sized=True)),
    "manifest_group_2_sizes": lambda: encode_node(a_filtered_group(sized=True)),
    "stream_record_2_replicas": lambda: encode_record(REPLICATED_RECORD),
    "stream_registry_2_replicas": lambda: encode_registry(REPLICATED_RECORD),
    "stream_record_2_tiers": lambda: encode_record(TIERED_RECORD),
    "stream_registry_2_tiers": lambda: encode_registry(TIERED_RECORD),
    "manifest_root_2_drives": lambda: encode_node(a_root_on_drives()),
    "wal": lambda: b"".join(a_wal().parts),
    "wal_instance": lambda: encode_instance(WAL_INSTANCE),
    "tail_record": lambda: encode_tail(TAIL),
    "tail_entry": lambda: encode_entry(TAIL_ENTRY),
    "tail_producer": lambda: encode_known(1040, TRACKED[:2]),
    "held_member": lambda: encode_held(HELD),
    "message_file": a_message_file,
    "envelope": lambda: b"".join(encode_envelope(QUEUE_MESSAGE)),
    "rdq": an_rdq_file,
    "queue_object": lambda: encode_queue_object(QUEUE_OBJECT),
    "queue_home": lambda: encode_home_object(QUEUE_HOME_OBJECT),
    "queue_home_record": lambda: encode_home(QUEUE_HOME),
    "drive_registry": lambda: encode_drives(DRIVE_REGISTRY),
    "drive_marker": lambda: encode_marker(DRIVE_MARKER),
}
"""What each golden file holds: `{name}.hex`."""

UNFROZEN: frozenset[str] = frozenset({"drive_registry", "drive_marker"})
"""Of what is being built: they are frozen as soon as it is served."""


def as_text(data: bytes) -> str:
    """Sixteen bytes a line, with their position and their ASCII."""
    lines = []
    for position in range(0, len(data), 16):
        row = data[position : position + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{row.hex(' '):<47}  # {position:04x} |{shown}|\n")
    return "".join(lines)


def golden(name: str) -> bytes:
    """The bytes of a golden file."""
    lines = (FOLDER / f"{name}.hex").read_text("ascii").splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def frozen_faults(folder: Path) -> list[str]:
    """What is not as it was frozen: files that were changed, are gone, or were never frozen."""
    lines = [line.split("  ", 1) for line in (folder / FROZEN).read_text().splitlines()]
    frozen = {name: wanted for wanted, name in lines}
    found = {path.name: digest(path) for path in folder.glob("*.hex") if path.stem not in UNFROZEN}
    return sorted(name for name in frozen.keys() | found if frozen.get(name) != found.get(name))


def main() -> int:
    new = [name for name in EXAMPLES if name in UNFROZEN or not (FOLDER / f"{name}.hex").exists()]
    for name in new:
        path = FOLDER / f"{name}.hex"
        path.write_text(as_text(EXAMPLES[name]()), "ascii")
        if name in UNFROZEN:
            continue
        with (FOLDER / FROZEN).open("a") as frozen:
            frozen.write(f"{digest(path)}  {path.name}\n")
    print(
        f"{len(new)} examples are new or not frozen yet; the others are frozen and were left as they are"
    )
    return 1 if frozen_faults(FOLDER) else 0


if __name__ == "__main__":
    sys.exit(main())
