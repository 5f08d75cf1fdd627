"""Message files: where work queues keep the bodies of their messages, version 2 of RabbitMQ's store.

    | "RSQS" 4 | version 1 | zeros 59 | record | record | ...
                                      ^ HEADER_SIZE: records tile the file from here to its end

    01                                                   a hole of one byte
    02 | size 4 | anything ...                           a hole; what is in it is never read
    03 | size 4 | msg_id 16 | body ...                   a message
    04 | size 4 | msg_id 16 | crc 4 | body ...           a message with its checksum

Everything is big-endian: this format is not ours. `size` is that of the whole record, and `crc` is
CRC-32C of every byte of the record but itself. A message that is not needed any more stays where it
is, until its file is deleted or compacted; compaction makes holes of such messages.

There is no index and no end mark in the file: where it ends, and which messages of it are wanted,
the ledger of the queues says. The file alone shows every message all the same, by a scan from record
to record. Byte tables: docs/message-files.md, "Message file".
"""

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from bottomless.formats.checks import check, corrupt, crc32c

HEADER_SIZE: Final = 64
"""Bytes before the first record."""
VERSION: Final = 2
"""The version of these files. Those of version 1 have no header: see rdq.py."""
MSG_ID_SIZE: Final = 16
HOLE_SIZE_MIN: Final = 5
"""Bytes of the smallest hole that has a size."""
SMALL_HOLES_MAX: Final = 4
"""Holes of one byte in a row: a gap of more bytes is one hole with a size."""
RECORD_SIZE_MAX: Final = 2**31 - 1

_HEADER: Final = struct.Struct(">4sB59s")
_HOLE: Final = struct.Struct(">BI")
_MESSAGE: Final = struct.Struct(">BI16s")
_CRC: Final = struct.Struct(">I")
PLAIN_SIZE_MIN: Final = _MESSAGE.size
CHECKED_SIZE_MIN: Final = _MESSAGE.size + _CRC.size
assert (_HEADER.size, PLAIN_SIZE_MIN, CHECKED_SIZE_MIN) == (64, 21, 25)

_MAGIC: Final = b"RSQS"
_FILE: Final = "message file"
_RECORD: Final = "record of a message file"
_REPAIR_COUNT_MAX: Final = 16
"""Damaged records of one file for which other sizes are tried: each costs a read of what is left."""
_BITS_OF_SIZE: Final = 31

ReadAt = Callable[[int, int], bytes | memoryview]
"""Reads up to so many bytes at a position; fewer only at the end of the file."""


class RecordType(IntEnum):
    """The first byte of a record."""

    SMALL_HOLE = 1
    HOLE = 2
    MESSAGE = 3
    MESSAGE_WITH_CHECKSUM = 4


_SIZE_MIN: Final = {
    RecordType.SMALL_HOLE: 1,
    RecordType.HOLE: HOLE_SIZE_MIN,
    RecordType.MESSAGE: PLAIN_SIZE_MIN,
    RecordType.MESSAGE_WITH_CHECKSUM: CHECKED_SIZE_MIN,
}
_TYPES: Final = frozenset(_SIZE_MIN)
_MESSAGES: Final = frozenset({RecordType.MESSAGE, RecordType.MESSAGE_WITH_CHECKSUM})


class StoredMessage(NamedTuple):
    """A message as it was read: its id, and its body where it lies in what was given."""

    msg_id: bytes
    body: memoryview
    checked: bool
    """Whether the record has a checksum, which was right."""


class Finding(IntEnum):
    """What a scan says of a range of a file."""

    HOLE = 1
    """Holes of one byte in a row, or one hole."""
    MESSAGE = 2
    REPEATED = 3
    """A message whose id is of another one, at a lower position of this file, which counts. One with a
    checksum counts before one without: then both are called messages."""
    DAMAGED = 4
    """A message whose checksum is wrong. Where the next record begins is known."""
    LOST = 5
    """Bytes of which nobody knows where records begin in them."""


class Found(NamedTuple):
    """A range of a message file, as a scan found it. Ranges tile what was scanned."""

    what: Finding
    position: int
    size: int
    msg_id: bytes = b""
    """Empty of what is no message; that of a damaged one may be wrong."""
    checked: bool = False
    """Whether the message has a checksum. Without one nobody can tell a hole of which one bit was
    flipped from a message."""


def encode_file_header() -> bytes:
    """Make the header with which each message file begins."""
    return _HEADER.pack(_MAGIC, VERSION, bytes(59))


def check_file_header(data: bytes | memoryview) -> None:
    """Check the first HEADER_SIZE bytes of a file.

    Raises:
        Corrupt: it is no message file of version 2.
    """
    check(_FILE, len(data) >= HEADER_SIZE, f"its header has {len(data)} bytes, not {HEADER_SIZE}")
    magic, version, zeros = _HEADER.unpack_from(data)
    check(_FILE, magic == _MAGIC, "it does not begin with RSQS")
    check(_FILE, version == VERSION, f"version {version} is not known, only {VERSION}")
    check(_FILE, not any(zeros), "its header does not end with zeros")


def record_size(body_size: int, *, checksum: bool) -> int:
    """Compute the bytes of a record from those of its body."""
    return body_size + (CHECKED_SIZE_MIN if checksum else PLAIN_SIZE_MIN)


def size_of_parts(parts: Sequence[bytes | memoryview]) -> int:
    """Compute the bytes of something in parts."""
    size = 0
    for part in parts:
        # Looked at first, since it is what all but a few are: a view is of other items than bytes perhaps.
        size += len(part) if type(part) is bytes else memoryview(part).nbytes
    return size


def encode_record(
    msg_id: bytes, body: Sequence[bytes | memoryview], *, checksum: bool
) -> list[bytes | memoryview]:
    """Make the record of a message, in parts; those of the body are not copied.

    Raises:
        Corrupt: it would be larger than a record can be.
    """
    assert len(msg_id) == MSG_ID_SIZE
    size = record_size(size_of_parts(body), checksum=checksum)
    if size > RECORD_SIZE_MAX:
        raise corrupt(_RECORD, f"it has {size} bytes")
    if not checksum:
        return [_MESSAGE.pack(RecordType.MESSAGE, size, msg_id), *body]
    front = _MESSAGE.pack(RecordType.MESSAGE_WITH_CHECKSUM, size, msg_id)
    crc = crc32c(front)
    for part in body:
        crc = crc32c(part, crc)
    return [front + _CRC.pack(crc), *body]


def decode_record(data: bytes | memoryview) -> StoredMessage:
    """Read one record, which must be a message and fill `data` exactly.

    Raises:
        Corrupt: it is a hole or no record, its size is another one, or its checksum is wrong.
    """
    view = memoryview(data)
    if len(view) < PLAIN_SIZE_MIN:
        raise corrupt(_RECORD, f"{len(view)} bytes are too few for a message")
    kind, size, msg_id = _MESSAGE.unpack_from(view)
    if kind not in _MESSAGES:
        raise corrupt(_RECORD, f"it begins with {kind}, which is no message")
    if size != len(view):
        raise corrupt(_RECORD, f"it says that it has {size} bytes, not {len(view)}")
    if kind == RecordType.MESSAGE:
        return StoredMessage(msg_id, view[PLAIN_SIZE_MIN:], checked=False)
    if size < CHECKED_SIZE_MIN:
        raise corrupt(_RECORD, f"{size} bytes are too few for a checksum")
    check(_RECORD, _has_its_checksum(view), "its checksum is wrong")
    return StoredMessage(msg_id, view[CHECKED_SIZE_MIN:], checked=True)


def _has_its_checksum(record: memoryview) -> bool:
    (crc,) = _CRC.unpack_from(record, PLAIN_SIZE_MIN)
    return bool(crc == _crc_of(record))


def _crc_of(record: memoryview) -> int:
    return crc32c(record[CHECKED_SIZE_MIN:], crc32c(record[:PLAIN_SIZE_MIN]))


def hole_front(size: int) -> bytes:
    """Make what is written at the beginning of a gap of `size` bytes, so that it means nothing.

    The rest of the gap stays as it is: nobody reads it.
    """
    if size < HOLE_SIZE_MIN:
        return bytes([RecordType.SMALL_HOLE]) * size
    check(_RECORD, size <= RECORD_SIZE_MAX, f"a hole of {size} bytes is too large")
    return _HOLE.pack(RecordType.HOLE, size)


def scan(
    read: ReadAt, end: int, known: Collection[int] = (), *, start: int = HEADER_SIZE
) -> Iterator[Found]:
    """Go from record to record, up to the exclusive position `end`; the ranges found tile it.

    `known` are the positions at which somebody else says that records begin. After damage the scan goes
    on at the next one of these; where there is none, what follows a message with a wrong checksum is
    believed as far as its size proves right, and what follows lost framing is given up. The header is
    not looked at. Messages are checked one at a time, and what is in holes is not read.
    """
    yield from _Scan(read, end, known).run(start)


class _Scan:
    def __init__(self, read: ReadAt, end: int, known: Collection[int]) -> None:
        self._read = read
        self._end = end
        # From the highest on, so that the next one is taken off the end.
        self._known = sorted((one for one in known if one < end), reverse=True)
        self._seen: dict[bytes, bool] = {}
        """Whether the message with an id was a checked one."""
        self._repairs = 0

    def run(self, position: int) -> Iterator[Found]:
        while position < self._end:
            found = self._at(position)
            yield found
            position += found.size

    def _at(self, position: int) -> Found:
        front = bytes(self._read(position, min(PLAIN_SIZE_MIN, self._end - position)))
        kind = front[0] if front else 0
        if kind == RecordType.SMALL_HOLE:
            return self._small_holes(position, front)
        if kind not in _TYPES or len(front) < HOLE_SIZE_MIN:
            return self._lost(position)
        size = _HOLE.unpack_from(front)[1]
        sound = _SIZE_MIN[RecordType(kind)] <= size <= self._end - position
        if kind in (RecordType.HOLE, RecordType.MESSAGE):
            # Nothing proves its size: if that leads past a record that somebody knows, it is damaged.
            following = self._next_known(position)
            if not sound or (following is not None and following < position + size):
                return self._lost(position)
            if kind == RecordType.HOLE:
                return Found(Finding.HOLE, position, size)
            return self._message(position, size, front[5:])
        if sound and _has_its_checksum(memoryview(self._read(position, size))):
            return self._message(position, size, front[5:], checked=True)
        return self._damaged(position, size if sound else None, front[5:])

    def _message(self, position: int, size: int, msg_id: bytes, *, checked: bool = False) -> Found:
        # A hole of which a bit was flipped looks like a message without a checksum: it must not hide one.
        if self._seen.get(msg_id, False) or (msg_id in self._seen and not checked):
            return Found(Finding.REPEATED, position, size, msg_id, checked)
        self._seen[msg_id] = checked
        return Found(Finding.MESSAGE, position, size, msg_id, checked)

    def _small_holes(self, position: int, front: bytes) -> Found:
        count = len(front) - len(front.lstrip(bytes([RecordType.SMALL_HOLE])))
        if count > SMALL_HOLES_MAX:
            return self._lost(position)
        return Found(Finding.HOLE, position, count)

    def _damaged(self, position: int, size: int | None, msg_id: bytes) -> Found:
        # If it is the size that is damaged, it leads into the body or past other messages: and what
        # looks like a record in a body was chosen by whoever sent it.
        following = self._next_known(position)
        if following is not None:
            return Found(Finding.DAMAGED, position, following - position, msg_id)
        size = self._size_by_checksum(position) or size
        if size is None:
            return self._lost(position)
        return Found(Finding.DAMAGED, position, size, msg_id)

    def _size_by_checksum(self, position: int) -> int | None:
        """The size with which the checksum is right, among those that differ from it in one bit."""
        left = self._end - position
        if left < CHECKED_SIZE_MIN or self._repairs == _REPAIR_COUNT_MAX:
            return None
        self._repairs += 1
        record = bytearray(self._read(position, left))
        said: int = _HOLE.unpack_from(record)[1]
        for bit in range(_BITS_OF_SIZE + 1):
            size = said ^ (1 << bit)
            if CHECKED_SIZE_MIN <= size <= left:
                _HOLE.pack_into(record, 0, RecordType.MESSAGE_WITH_CHECKSUM, size)
                if _has_its_checksum(memoryview(record)[:size]):
                    return size
        return None

    def _lost(self, position: int) -> Found:
        following = self._next_known(position)
        end = self._end if following is None else following
        return Found(Finding.LOST, position, end - position)

    def _next_known(self, position: int) -> int | None:
        while self._known and self._known[-1] <= position:
            self._known.pop()
        return self._known[-1] if self._known else None


def reads_of(data: bytes | memoryview) -> ReadAt:
    """Let a scan read what is in memory."""
    view = memoryview(data)
    return lambda position, size: view[position : position + size]
