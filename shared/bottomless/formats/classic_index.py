"""Indexes of classic queues, version 1: `{s}.idx` and `journal.jif`, as RabbitMQ 3.10 to 3.13 wrote them. Only read.

    segment:  | 1 persistent 1 bit, rel 14 bits | msg_id 16 | expiry 8 | body size 4 | size 4 | term ... |
              | 01 2 bits, rel 14 bits |           the first one of a message: delivered; the second: acknowledged
    journal:  | kind 2 bits, sequence 62 bits | for kind 0 and 1 the fields from msg_id on |

The number of a message in its queue is `s * segment_entry_count + rel`. A term of size 0 means that the
message is in the message store (rdq.py), under its id. The journal comes after the segments: what it
says is not in them yet, or only in part. Byte tables: docs/rabbitmq-queues.md, "Classic index".
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_REL: Final = struct.Struct(">H")
_SEQUENCE: Final = struct.Struct(">Q")
_FIELDS: Final = struct.Struct(">16sQII")
FIELDS_SIZE: Final = _FIELDS.size
assert FIELDS_SIZE == 32  # docs/rabbitmq-queues.md, "Classic index"

_PUBLISHED: Final = 0x8000
_PERSISTENT: Final = 0x4000
_SETTLED: Final = 0x4000
_REL_MASK: Final = 0x3FFF
REL_COUNT: Final = _REL_MASK + 1
"""Messages that a segment can have at most, and has where nothing says how many."""
_SEQUENCE_BITS: Final = 62
_SEQUENCE_MASK: Final = (1 << _SEQUENCE_BITS) - 1
_NO_MESSAGE: Final = bytes(FIELDS_SIZE)


class Stored(NamedTuple):
    """The message is in the message store of its virtual host, under its id."""

    msg_id: bytes


class Embedded(NamedTuple):
    """The message is a term in a file of its queue."""

    position: int
    size: int
    framed: bool = False
    """Whether eight bytes precede the term, as in a queue's own store (classic_index_2.py)."""


class Published(NamedTuple):
    """A message as an index has it."""

    sequence: int
    persistent: bool
    where: Stored | Embedded
    body_size: int
    expires_at: int | None
    """When it ends, in ms since 1970; None where it does not."""


class Delivered(NamedTuple):
    """Somebody was given the message."""

    sequence: int


class Acknowledged(NamedTuple):
    """The message is not needed any more."""

    sequence: int


class Rest(NamedTuple):
    """Bytes at the end that are no whole entry; nothing after them is known."""

    position: int
    size: int


Entry = Published | Delivered | Acknowledged | Rest


def milliseconds(expiry: int) -> int | None:
    """When a message ends, of what an index says: µs since 1970, and 0 for never."""
    return None if expiry == 0 else expiry // 1000


def read_segment(data: bytes | memoryview, number: int, entry_count: int) -> Iterator[Entry]:
    """Read `{number}.idx` of a queue whose segments have `entry_count` messages.

    What cannot be an entry ends it with a `Rest`: after a loss of power that may be any bytes.
    """
    view = memoryview(data)
    delivered: set[int] = set()
    position = 0
    while position < len(view):
        if len(view) - position < _REL.size:
            break
        (head,) = _REL.unpack_from(view, position)
        rel = head & _REL_MASK
        if rel >= entry_count:
            break
        sequence = number * entry_count + rel
        if head & _PUBLISHED:
            found = _published(view, position + _REL.size, sequence, bool(head & _PERSISTENT))
            if found is None:
                break
            published, position = found
            yield published
        elif head & _SETTLED:
            yield Acknowledged(sequence) if rel in delivered else Delivered(sequence)
            delivered.add(rel)
            position += _REL.size
        else:
            break
    if position < len(view):
        yield Rest(position, len(view) - position)


def read_journal(data: bytes | memoryview) -> Iterator[Entry]:
    """Read `journal.jif`. A publish of nothing but zeros ends it, as it does for its broker."""
    view = memoryview(data)
    position = 0
    while len(view) - position >= _SEQUENCE.size:
        (head,) = _SEQUENCE.unpack_from(view, position)
        kind, sequence = head >> _SEQUENCE_BITS, head & _SEQUENCE_MASK
        fields = position + _SEQUENCE.size
        if kind < 2:
            if head == 0 and view[fields : fields + FIELDS_SIZE] == _NO_MESSAGE:
                break
            found = _published(view, fields, sequence, kind == 0)
            if found is None:
                break
            published, position = found
            yield published
        else:
            yield Delivered(sequence) if kind == 2 else Acknowledged(sequence)
            position = fields
    if position < len(view):
        yield Rest(position, len(view) - position)


def _published(
    view: memoryview, fields: int, sequence: int, persistent: bool
) -> tuple[Published, int] | None:
    """The message whose fields are at a position, and where the next entry begins; None if it is cut."""
    term = fields + FIELDS_SIZE
    if term > len(view):
        return None
    msg_id, expiry, body_size, size = _FIELDS.unpack_from(view, fields)
    end = term + size
    if end > len(view):
        return None
    where = Embedded(term, size) if size else Stored(msg_id)
    return Published(sequence, persistent, where, body_size, milliseconds(expiry)), end
