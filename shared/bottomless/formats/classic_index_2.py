"""Indexes of classic queues, version 2: `{s}.qi`, with a queue's own store `{s}.qs`. Only read.

    {s}.qi:  | "RCQI" 4 | 2 | from 8 | to 8 | zeros 43 | entry 32 | entry 32 | ...
    entry:   | status 1 | flags 1 | 0 | location 17 | body size 4 | expiry 8 |
    {s}.qs:  | "RCQS" 4 | 2 | from 8 | to 8 | zeros 43 | ... | size 4 | flags 1 | crc 2 | 0 | term ... |

The entry of the message with the number `from + n` is the n-th one. A small message is in the `.qs`
file beside its index, where the location says; any other in the message store, under its id (rdq.py).
Numbers are big-endian. Byte tables: docs/rabbitmq-queues.md, "Classic index 2".
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from bottomless.formats.checks import check
from bottomless.formats.classic_index import Embedded, Published, Stored, milliseconds

_HEADER: Final = struct.Struct(">4sBQQ43x")
HEADER_SIZE: Final = _HEADER.size
_ENTRY: Final = struct.Struct(">BBB17sIQ")
ENTRY_SIZE: Final = _ENTRY.size
_LOCATION: Final = struct.Struct(">QII")
_FRAME: Final = struct.Struct(">IBHB")
FRAME_SIZE: Final = _FRAME.size
assert (HEADER_SIZE, ENTRY_SIZE, FRAME_SIZE) == (64, 32, 8)  # docs/rabbitmq-queues.md

VERSION: Final = 2
_INDEX_MAGIC: Final = b"RCQI"
_STORE_MAGIC: Final = b"RCQS"
_INDEX: Final = "index of a classic queue"
_STORE: Final = "store of a classic queue"
_IN_MESSAGE_STORE: Final = 1
_IN_QUEUE_STORE: Final = 2
_SEQUENCE_MAX: Final = 2**62


class Unknown(NamedTuple):
    """An entry that says something that no broker of these releases says."""

    sequence: int
    what: str


class Segment(NamedTuple):
    """The messages that a file of an index may have, by their numbers in the queue."""

    first: int
    """The number of the first one."""
    end: int
    """The number after the last one."""


def _header(what: str, magic: bytes, data: memoryview) -> Segment:
    check(what, len(data) >= HEADER_SIZE, f"its header has {len(data)} bytes, not {HEADER_SIZE}")
    found, version, first, end = _HEADER.unpack_from(data)
    check(what, found == magic, f"it does not begin with {magic.decode()}")
    check(what, version == VERSION, f"version {version} is not known, only {VERSION}")
    check(what, first < end <= _SEQUENCE_MAX, f"it has the messages from {first} to {end}")
    return Segment(first, end)


def read_index(data: bytes | memoryview) -> Iterator[Published | Unknown]:
    """Read a `.qi` file: its messages that are needed still, in their order.

    Raises:
        Corrupt: its header is none, or it has more entries than it says.
    """
    view = memoryview(data)
    first, end = _header(_INDEX, _INDEX_MAGIC, view)
    count = (len(view) - HEADER_SIZE) // ENTRY_SIZE
    check(_INDEX, count <= end - first, f"it has {count} entries, and says {end - first}")
    for number in range(count):
        entry = _ENTRY.unpack_from(view, HEADER_SIZE + number * ENTRY_SIZE)
        if entry[0] != 0:
            yield _entry(first + number, *entry)


def _entry(
    sequence: int,
    status: int,
    flags: int,
    zero: int,
    location: bytes,
    body_size: int,
    expiry: int,
) -> Published | Unknown:
    if status != 1 or flags > 1 or zero:
        return Unknown(sequence, f"an entry with status {status} and flags {flags}")
    persistent = bool(flags)
    where: Stored | Embedded
    if location[0] == _IN_MESSAGE_STORE:
        where = Stored(location[1:])
    elif location[0] == _IN_QUEUE_STORE:
        position, size, zero = _LOCATION.unpack(location[1:])
        if zero:
            return Unknown(sequence, "a location with something after its size")
        where = Embedded(position, size, framed=True)
    elif persistent:
        return Unknown(sequence, f"a location of kind {location[0]}")
    else:
        # It is in the memory of its broker alone, and ends with it.
        where = Stored(bytes(16))
    return Published(sequence, persistent, where, body_size, milliseconds(expiry))


def check_store_header(data: bytes | memoryview) -> Segment:
    """Check the first HEADER_SIZE bytes of a `.qs` file.

    Raises:
        Corrupt: it is no such file.
    """
    return _header(_STORE, _STORE_MAGIC, memoryview(data))


def read_stored_term(data: bytes | memoryview, size: int) -> memoryview:
    """The term in what lies at the place that an index says: FRAME_SIZE + `size` bytes.

    Raises:
        Corrupt: it is another one, or damaged.
    """
    view = memoryview(data)
    wanted = FRAME_SIZE + size
    check(_STORE, len(view) == wanted, f"{len(view)} bytes lie there, not {wanted}")
    said, flags, crc, zero = _FRAME.unpack_from(view)
    check(_STORE, said == size, f"a message says that it has {said} bytes, not {size}")
    check(_STORE, flags <= 1 and zero == 0, f"a message has flags {flags}")
    term = view[FRAME_SIZE:]
    if flags:
        check(_STORE, crc == zlib.crc32(term) & 0xFFFF, "the checksum of a message is wrong")
    return term
