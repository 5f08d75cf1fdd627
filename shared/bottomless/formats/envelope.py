"""The envelope: what is kept of a message of work queues beside its value, in the body of its record.

    | fixed 36 | queue 24 | queue 24 | ... | header | header | ... | value ... |

    queue:  | queue_id 16 | sequence 8 |          where it was published, for a rebuild of the ledger
    header: | size 2 | name | size 4 | value |

Everything is big-endian, as in the message file around it, whose checksum covers the envelope. The
value is the rest of the body. Byte tables: docs/message-files.md, "Envelope".
"""

import struct
from typing import Final

from bottomless.formats.checks import check, corrupt
from bottomless.model.limits import PRIORITY_MAX, QUEUE_SEQUENCE_MAX, TIMESTAMP_MAX, TIMESTAMP_MIN
from bottomless.model.queue import QueueMessage, QueuePlace
from bottomless.model.record import Content

_FIXED = struct.Struct(
    ">"
    "B"  # version
    "B"  # content
    "B"  # priority
    "1x"  # reserved
    "q"  # published_at
    "q"  # expires_at
    "q"  # due_at
    "H"  # queue_count
    "H"  # header_count
    "I"  # headers_size
)
FIXED_SIZE: Final = _FIXED.size
assert FIXED_SIZE == 36  # docs/message-files.md, "Envelope"
_QUEUE: Final = struct.Struct(">16sQ")
QUEUE_SIZE: Final = _QUEUE.size
assert QUEUE_SIZE == 24  # docs/message-files.md, "Envelope"
_NAME_SIZE: Final = struct.Struct(">H")
_VALUE_SIZE: Final = struct.Struct(">I")

VERSION: Final = 1
_WHAT: Final = "envelope of a message"
_COUNT_MAX: Final = 2**16 - 1
_SIZE_MAX: Final = 2**32 - 1
_CONTENTS: Final = {int(content): content for content in Content}


def encode_envelope(message: QueueMessage) -> list[bytes | memoryview]:
    """Make the body of a record, in two parts; the value is not copied.

    Raises:
        Corrupt: no reader would accept it.
    """
    _check(message)
    headers = b""
    if message.headers:
        headers = b"".join(_header(name, value) for name, value in message.headers)
        check(_WHAT, len(headers) <= _SIZE_MAX, f"its headers have {len(headers)} bytes")
    fixed = _FIXED.pack(
        VERSION,
        message.content,
        message.priority,
        message.published_at,
        message.expires_at or 0,
        message.due_at or 0,
        len(message.queues),
        len(message.headers),
        len(headers),
    )
    queues = [_QUEUE.pack(*place) for place in message.queues]
    return [b"".join((fixed, *queues, headers)), message.value]


def _header(name: str, value: bytes) -> bytes:
    raw = name.encode()
    check(_WHAT, 0 < len(raw) <= _COUNT_MAX, f"the name of a header has {len(raw)} bytes")
    return _NAME_SIZE.pack(len(raw)) + raw + _VALUE_SIZE.pack(len(value)) + value


def decode_envelope(data: bytes | memoryview) -> QueueMessage:
    """Read the body of a record; the value of the answer is a view of `data`.

    Raises:
        Corrupt: it is not such an envelope.
    """
    view = memoryview(data)
    size = len(view)
    if size < FIXED_SIZE:
        raise corrupt(_WHAT, f"{size} bytes are too few")
    (
        version,
        content,
        priority,
        at,
        expires_at,
        due_at,
        queue_count,
        header_count,
        headers_size,
    ) = _FIXED.unpack_from(view)
    if version != VERSION:
        raise corrupt(_WHAT, f"version {version} is not known, only {VERSION}")
    known = _CONTENTS.get(content)
    if known is None:
        raise corrupt(_WHAT, f"content {content} is not known")
    start = FIXED_SIZE + QUEUE_SIZE * queue_count
    end = start + headers_size
    check(_WHAT, end <= size, "it is shorter than its parts")
    message = QueueMessage(
        content=known,
        priority=priority,
        published_at=at,
        expires_at=expires_at or None,
        due_at=due_at or None,
        queues=tuple(map(QueuePlace._make, _QUEUE.iter_unpack(view[FIXED_SIZE:start]))),
        headers=_headers(view[start:end], header_count),
        value=view[end:],
    )
    _check(message)
    return message


def _headers(data: memoryview, count: int) -> tuple[tuple[str, bytes], ...]:
    found: list[tuple[str, bytes]] = []
    position = 0
    for _ in range(count):
        name, position = _sized(data, position, _NAME_SIZE)
        value, position = _sized(data, position, _VALUE_SIZE)
        check(_WHAT, len(name) > 0, "a header has no name")
        try:
            found.append((str(name, "utf-8"), bytes(value)))
        except UnicodeDecodeError as error:
            raise corrupt(_WHAT, "the name of a header is not UTF-8") from error
    check(_WHAT, position == len(data), "its headers do not fill their size")
    return tuple(found)


def _sized(data: memoryview, position: int, size: struct.Struct) -> tuple[memoryview, int]:
    start = position + size.size
    check(_WHAT, start <= len(data), "a header is cut off")
    end = start + size.unpack_from(data, position)[0]
    check(_WHAT, end <= len(data), "a header is longer than all headers")
    return data[start:end], end


def _check(message: QueueMessage) -> None:
    # Each message of every publish and receive comes by here: a sentence is made only where it is told.
    if message.priority > PRIORITY_MAX:
        raise corrupt(_WHAT, f"priority {message.priority} is above {PRIORITY_MAX}")
    _check_time("published_at", message.published_at)
    if message.expires_at:
        _check_time("expires_at", message.expires_at)
    if message.due_at:
        _check_time("due_at", message.due_at)
    if not 1 <= len(message.queues) <= _COUNT_MAX:
        raise corrupt(_WHAT, f"it names {len(message.queues)} queues")
    if len(message.headers) > _COUNT_MAX:
        raise corrupt(_WHAT, f"it has {len(message.headers)} headers")
    for place in message.queues:
        if place.sequence > QUEUE_SEQUENCE_MAX:
            raise corrupt(_WHAT, f"sequence {place.sequence} is above {QUEUE_SEQUENCE_MAX}")


def _check_time(name: str, at: int) -> None:
    if not TIMESTAMP_MIN <= at <= TIMESTAMP_MAX:
        raise corrupt(_WHAT, f"{name}={at} is no timestamp")
