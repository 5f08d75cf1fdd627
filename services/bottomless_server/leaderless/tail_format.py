"""The bytes of a tail in coordination: its record, its entries, what holds objects, what is known.

    tail record     128, a value
    tail entry       64, a member of an index: its bytes sort as its offsets
    held member      32, a member of an index: its bytes sort as its sequences
    known value      8 and tracking entries: what is known of one producer or one key

Members of an index carry no checksum, as no value of coordination but the tail record does: it is
the one thing that appends believe without another look. Byte tables: docs/formats.md, "Tail record".
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from bottomless.formats.checks import VERSION, check, check_magic, corrupt, crc32c, magic
from bottomless.formats.tracking import decode_tracking, encode_tracking
from bottomless.model.chunk import TrackedEntry
from bottomless.model.limits import (
    OFFSET_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    WAL_SEQUENCE_MAX,
    WAL_SIZE_MAX,
)
from bottomless.model.names import uid_bytes, uid_from_bytes
from bottomless_server.leaderless.tail import (
    SHARD_COUNT,
    HeldMember,
    Tail,
    TailEntry,
    TailState,
    check_tail,
)

MAGIC: Final = magic("BLtl")

_RECORD = struct.Struct(
    "<"
    "I"  # magic
    "B"  # version
    "B"  # state
    "2x"  # reserved
    "Q"  # epoch
    "Q"  # next_offset
    "Q"  # number
    "q"  # last_timestamp
    "Q"  # last_chunk_offset
    "Q"  # log_end
    "Q"  # pruned_next
    "Q"  # pruned_end
    "Q"  # published_next
    "Q"  # manifest_version
    "q"  # created_at
    "I"  # entry_count
    "I"  # producer_count
    "I"  # key_count
    "I"  # max_age_ms
    "I"  # generation
    "8x"  # reserved
    "I"  # crc, of the 124 bytes before
)
RECORD_SIZE: Final = _RECORD.size
assert RECORD_SIZE == 128  # docs/formats.md, "Tail record"

_ENTRY = struct.Struct(
    "<"
    "8s"  # next_offset, big-endian
    "8s"  # number, big-endian
    "q"  # timestamp
    "Q"  # log_end
    "16s"  # instance
    "I"  # sequence
    "I"  # position
    "I"  # size
    "I"  # record_count
)
ENTRY_SIZE: Final = _ENTRY.size
assert ENTRY_SIZE == 64  # docs/formats.md, "Tail entry"

_HELD = struct.Struct(
    "<"
    "8s"  # sequence, big-endian
    "B"  # shard
    "7x"  # reserved
    "q"  # committed_at
    "I"  # max_age_ms
    "I"  # entry_count
)
HELD_SIZE: Final = _HELD.size
assert HELD_SIZE == 32  # docs/formats.md, "Held member"

_CHANGED_AT_SIZE: Final = 8


def encode_tail(tail: Tail) -> bytes:
    """Encode a tail record: RECORD_SIZE bytes.

    Raises:
        Corrupt: no reader would accept the record.
    """
    check_tail(tail)
    raw = _RECORD.pack(MAGIC, VERSION, *tail, 0)[:-4]
    return raw + crc32c(raw).to_bytes(4, "little")


def decode_tail(data: bytes | memoryview) -> Tail:
    """Read a tail record.

    Raises:
        Corrupt: it is damaged, or no writer can have written it.
    """
    what = "tail record"
    check(what, len(data) == RECORD_SIZE, f"{len(data)} bytes, not {RECORD_SIZE}")
    found, version, state, *numbers, crc = _RECORD.unpack(data)
    check_magic(what, found, MAGIC, version)
    check(what, crc == crc32c(memoryview(data)[:-4]), "its checksum does not match")
    check(what, state in TailState.__members__.values(), f"state {state} is not known")
    tail = Tail(TailState(state), *numbers)
    for timestamp in (tail.last_timestamp, tail.created_at):
        check(what, TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX, f"timestamp={timestamp}")
    try:
        check_tail(tail)
    except AssertionError as error:
        raise corrupt(what, "its numbers do not go together") from error
    return tail


def encode_entry(entry: TailEntry) -> bytes:
    """Encode a tail entry as a member of its index: ENTRY_SIZE bytes that sort as offsets.

    Raises:
        Corrupt: no reader would accept the entry.
    """
    _check_entry(entry)
    next_offset, number, timestamp, log_end, instance, *numbers = entry
    return _ENTRY.pack(
        next_offset.to_bytes(8, "big"),
        number.to_bytes(8, "big"),
        timestamp,
        log_end,
        uid_bytes(instance),
        *numbers,
    )


def decode_entry(data: bytes | memoryview) -> TailEntry:
    """Read a tail entry.

    Raises:
        Corrupt: no writer can have written it.
    """
    check("tail entry", len(data) == ENTRY_SIZE, f"{len(data)} bytes, not {ENTRY_SIZE}")
    next_offset, number, timestamp, log_end, instance, *numbers = _ENTRY.unpack(data)
    entry = TailEntry(
        int.from_bytes(next_offset, "big"),
        int.from_bytes(number, "big"),
        timestamp,
        log_end,
        uid_from_bytes(instance),
        *numbers,
    )
    _check_entry(entry)
    return entry


def _check_entry(entry: TailEntry) -> None:
    what = "tail entry"
    check(what, entry.next_offset <= OFFSET_MAX + 1, f"next_offset={entry.next_offset}")
    check(what, 0 < entry.record_count <= entry.next_offset, f"records={entry.record_count}")
    check(what, TIMESTAMP_MIN <= entry.timestamp <= TIMESTAMP_MAX, f"timestamp={entry.timestamp}")
    check(what, 0 < entry.size <= entry.log_end, f"size={entry.size}")
    check(what, entry.size % 8 == 0 and entry.position % 8 == 0, "a piece is not padded")
    check(what, entry.position + entry.size <= WAL_SIZE_MAX, f"position={entry.position}")
    check(what, entry.number > 0, "no commit has the number 0")


def after_offset(offset: int) -> bytes:
    """Make the bytes after which the entry that holds `offset` is the first member of the index."""
    return offset.to_bytes(8, "big") + b"\xff" * 8


def encode_held(held: HeldMember) -> bytes:
    """Encode a held member: HELD_SIZE bytes that sort as sequences.

    Raises:
        Corrupt: no reader would accept the member.
    """
    _check_held(held)
    sequence, *numbers = held
    return _HELD.pack(sequence.to_bytes(8, "big"), *numbers)


def decode_held(data: bytes | memoryview) -> HeldMember:
    """Read a held member.

    Raises:
        Corrupt: no writer can have written it.
    """
    check("held member", len(data) == HELD_SIZE, f"{len(data)} bytes, not {HELD_SIZE}")
    sequence, *numbers = _HELD.unpack(data)
    held = HeldMember(int.from_bytes(sequence, "big"), *numbers)
    _check_held(held)
    return held


def _check_held(held: HeldMember) -> None:
    what = "held member"
    check(what, held.sequence <= WAL_SEQUENCE_MAX, f"sequence={held.sequence}")
    check(what, held.shard < SHARD_COUNT, f"shard={held.shard}")
    known = TIMESTAMP_MIN <= held.committed_at <= TIMESTAMP_MAX
    check(what, known, f"committed_at={held.committed_at}")
    check(what, held.entry_count > 0, "it holds nothing")


def after_sequence(sequence: int) -> bytes:
    """Make the bytes after which the members of `sequence` and later ones follow in their index."""
    # Nothing but the sequence stands in the first eight bytes, and a prefix sorts first.
    return sequence.to_bytes(8, "big")


class Known(NamedTuple):
    """What coordination knows of one producer, or of one key, of a leaderless stream."""

    changed_at: int
    """The tail's next offset when it was written."""
    entries: list[TrackedEntry]
    """The entries by which a tracking chunk would say it."""


def encode_known(changed_at: int, entries: Sequence[TrackedEntry]) -> bytes:
    """Encode what is known of one producer or key.

    Raises:
        Corrupt: no reader would accept it.
    """
    _check_known(changed_at, entries)
    return changed_at.to_bytes(_CHANGED_AT_SIZE, "little") + encode_tracking(entries)


def decode_known(data: bytes | memoryview) -> Known:
    """Read what is known of one producer or key.

    Raises:
        Corrupt: no writer can have written it.
    """
    view = memoryview(data)
    check("known value", len(view) >= _CHANGED_AT_SIZE, "it is cut short")
    changed_at = int.from_bytes(view[:_CHANGED_AT_SIZE], "little")
    entries = decode_tracking(view[_CHANGED_AT_SIZE:])
    _check_known(changed_at, entries)
    return Known(changed_at, entries)


def _check_known(changed_at: int, entries: Sequence[TrackedEntry]) -> None:
    check("known value", changed_at <= OFFSET_MAX + 1, f"changed_at={changed_at}")
    check("known value", len(entries) > 0, "it says nothing")
