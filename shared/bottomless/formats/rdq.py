"""Message files of version 1: the `.rdq` files that RabbitMQ 3.10 to 3.13 wrote. Only read.

    | size 8 | msg_id 16 | term ... | FF |   | zeros, or what nobody needs ... |   | size 8 | ...

`size` is that of msg_id and term together, big-endian. Nothing marks a message that is not needed any
more, and no header or checksum tells where one begins: so a scan believes only what names an id that
it was told to look for, and ends with `FF` where its size says. Such files are read where they lie
until they are empty, or written anew as message_file.py has them. Byte table:
docs/message-files.md, "Version 1".
"""

import struct
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

import numpy as np

from bottomless.formats.checks import check

SIZE_SIZE: Final = 8
MSG_ID_SIZE: Final = 16
END: Final = 0xFF
_TERM: Final = 131
"""The first byte of every term."""
FRAME_SIZE: Final = SIZE_SIZE + MSG_ID_SIZE + 1
"""Bytes of a record beside its term."""
_HEAD: Final = struct.Struct(">Q16s")
_WHAT: Final = "message file of version 1"
_WINDOW_SIZE: Final = 256 * 1024

ReadAt = Callable[[int, int], bytes | memoryview]
"""Reads up to so many bytes at a position; fewer only at the end of the file."""


class FoundTerm(NamedTuple):
    """A message of version 1: where its record lies, and how large that is, in bytes."""

    msg_id: bytes
    position: int
    size: int


def encode_rdq_record(msg_id: bytes, term: bytes) -> bytes:
    """Make a record as RabbitMQ did. Nothing of the product writes one: this is for tests."""
    assert len(msg_id) == MSG_ID_SIZE
    return _HEAD.pack(MSG_ID_SIZE + len(term), msg_id) + term + bytes([END])


def decode_rdq_record(data: bytes | memoryview) -> tuple[bytes, memoryview]:
    """Read a record that fills `data` exactly: its id, and its term where it lies.

    Raises:
        Corrupt: it is no such record.
    """
    view = memoryview(data)
    check(_WHAT, len(view) >= FRAME_SIZE, f"{len(view)} bytes are too few for a record")
    size, msg_id = _HEAD.unpack_from(view)
    fits = size + SIZE_SIZE + 1 == len(view)
    check(_WHAT, fits, f"a record of {len(view)} bytes says that it has {size}")
    check(_WHAT, view[-1] == END, "a record does not end with FF")
    return msg_id, view[_HEAD.size : -1]


def scan_rdq(read: ReadAt, end: int, wanted: Collection[bytes]) -> Iterator[FoundTerm]:
    """Find the messages with a wanted id, up to the exclusive position `end`.

    Of an id that is there twice the lower position counts. What does not begin a wanted record is
    stepped over by one byte.
    """
    left = set(wanted)
    position = following = 0
    while left and position + FRAME_SIZE <= end:
        data = memoryview(read(position, min(_WINDOW_SIZE, end - position)))
        if len(data) < FRAME_SIZE:
            return
        for at in _candidates(data, end - position):
            place = position + at
            if place < following:
                continue
            size, msg_id = _HEAD.unpack_from(data, at)
            last = place + SIZE_SIZE + size
            if msg_id in left and last < end and bytes(read(last, 1)) == bytes([END]):
                left.discard(msg_id)
                following = last + 1
                yield FoundTerm(msg_id, place, following - place)
        # What begins in the last bytes of a window is seen whole in the next one.
        position = max(position + len(data) - _HEAD.size + 1, following)


def scan_strays(
    read: ReadAt, end: int, is_message: Callable[[memoryview], bool]
) -> Iterator[FoundTerm]:
    """Find messages of which nobody knows the ids, up to the exclusive position `end`.

    What has the size and the end of a record is one if `is_message` says so of its term. Dead messages
    are found as well: nothing tells them from others.
    """
    position = following = 0
    while position + FRAME_SIZE <= end:
        data = memoryview(read(position, min(_WINDOW_SIZE, end - position)))
        if len(data) < FRAME_SIZE:
            return
        for at in _candidates(data, end - position):
            place = position + at
            if place < following:
                continue
            size, msg_id = _HEAD.unpack_from(data, at)
            last = place + SIZE_SIZE + size
            if size == MSG_ID_SIZE or last >= end or bytes(read(last, 1)) != bytes([END]):
                continue
            if bytes(read(place + _HEAD.size, 1)) != bytes([_TERM]):
                continue
            if is_message(memoryview(read(place + _HEAD.size, size - MSG_ID_SIZE))):
                following = last + 1
                yield FoundTerm(msg_id, place, following - place)
        position = max(position + len(data) - _HEAD.size + 1, following)


def _candidates(data: memoryview, left: int) -> list[int]:
    """Where a size stands that a record can have: of most bytes this says that they begin none."""
    bytes_ = np.frombuffer(data, dtype=np.uint8)
    count = len(bytes_) - _HEAD.size + 1
    if count <= 0:
        return []
    size = np.zeros(count, dtype=np.uint64)
    for place in range(SIZE_SIZE):
        size = size << np.uint64(8) | bytes_[place : place + count]
    fits = (size >= MSG_ID_SIZE) & (size <= np.uint64(max(left, 0)))
    return [int(at) for at in np.flatnonzero(fits)]
