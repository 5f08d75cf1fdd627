"""Properties of messages by AMQP 0-9-1, as RabbitMQ keeps them beside a message. Only read.

    | flags 2 | ... the fields whose bit is set, from the highest bit on ... |

A table of headers is a size, then pairs: a name after its size as one byte, a letter for the kind of
value, the value. Everything is big-endian. This format is not ours: it is part 4.2 of the
specification of AMQP 0-9-1, with the kinds that RabbitMQ knows. Table: docs/rabbitmq-queues.md.
"""

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Final, TypeAlias

from bottomless.formats.amqp import Timestamp
from bottomless.formats.checks import check, corrupt

Field: TypeAlias = (
    "bool | int | float | str | bytes | Timestamp | Decimal | list[Field] | Table | None"
)
Table: TypeAlias = "dict[str, Field]"

PROPERTIES: Final = (
    "content-type",
    "content-encoding",
    "headers",
    "delivery-mode",
    "priority",
    "correlation-id",
    "reply-to",
    "expiration",
    "message-id",
    "timestamp",
    "type",
    "user-id",
    "app-id",
    "cluster-id",
)
"""The properties of a message, from the highest bit of the flags on, and in Erlang's record of them."""
DEPTH_MAX: Final = 32
"""Tables and arrays within each other."""
_WHAT: Final = "AMQP properties"
_FIRST_BIT: Final = 15
_MORE: Final = 0b11
"""Bits of flags that no property has; the lowest one says that more flags follow."""
_SECONDS: Final = 1000
_SECONDS_MAX: Final = 2**63 // _SECONDS


def decode_properties(data: bytes | memoryview) -> dict[str, Field]:
    """Read the properties that a message has, by their names; `headers` is a table.

    Raises:
        Corrupt: these bytes are no such properties, or are nested too deeply.
    """
    reader = _Reader(memoryview(data))
    flags = reader.unsigned(2)
    check(_WHAT, flags & _MORE == 0, "it has more flags than there are properties")
    found: dict[str, Field] = {}
    for number, name in enumerate(PROPERTIES):
        if flags & 1 << (_FIRST_BIT - number):
            found[name] = _KINDS[name](reader)
    check(_WHAT, reader.left == 0, f"{reader.left} bytes follow it")
    return found


class _Reader:
    """Fields, one after the other; each takes a byte at least, so there are no more than bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        check(_WHAT, size <= self.left, f"{size} bytes are said to follow, and {self.left} do")
        start = self._position
        self._position += size
        return bytes(self._data[start : self._position])

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def short_text(self) -> str:
        return _text(self.take(self.unsigned(1)))

    def timestamp(self) -> Timestamp | int:
        seconds = self.unsigned(8)
        # Some clients write milliseconds where seconds should be: what that is nobody can tell.
        return Timestamp(seconds * _SECONDS) if seconds < _SECONDS_MAX else seconds

    def table(self, depth: int = 0) -> Table:
        inner = self._inner(depth)
        found: Table = {}
        while inner.left:
            name = inner.short_text()
            found[name] = inner.field(depth + 1)
        return found

    def array(self, depth: int) -> list[Field]:
        inner = self._inner(depth)
        found = []
        while inner.left:
            found.append(inner.field(depth + 1))
        return found

    def _inner(self, depth: int) -> "_Reader":
        check(_WHAT, depth < DEPTH_MAX, f"it is nested more than {DEPTH_MAX} deep")
        return _Reader(memoryview(self.take(self.unsigned(4))))

    def field(self, depth: int) -> Field:
        kind = self.take(1)
        read = _FIELDS.get(kind)
        if read is None:
            raise corrupt(_WHAT, f"a field is of kind {kind.hex()}, which is not known")
        return read(self, depth)

    def long_text(self) -> str | bytes:
        raw = self.take(self.unsigned(4))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            # What is called a string is any bytes.
            return raw

    def floating(self, kind: str, size: int) -> float:
        (number,) = struct.unpack(kind, self.take(size))
        check(_WHAT, math.isfinite(number), "a field is no number")
        return float(number)

    def decimal(self) -> Decimal:
        scale = self.unsigned(1)
        return Decimal(self.signed(4)).scaleb(-scale)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise corrupt(_WHAT, "a name is not UTF-8") from error


_KINDS: Final[dict[str, Callable[[_Reader], Field]]] = {
    **dict.fromkeys(PROPERTIES, _Reader.short_text),
    "headers": _Reader.table,
    "delivery-mode": lambda reader: reader.unsigned(1),
    "priority": lambda reader: reader.unsigned(1),
    "timestamp": _Reader.timestamp,
}
_FIELDS: Final[dict[bytes, Callable[[_Reader, int], Field]]] = {
    b"t": lambda reader, _: reader.unsigned(1) != 0,
    b"b": lambda reader, _: reader.signed(1),
    b"B": lambda reader, _: reader.unsigned(1),
    b"s": lambda reader, _: reader.signed(2),
    b"u": lambda reader, _: reader.unsigned(2),
    b"I": lambda reader, _: reader.signed(4),
    b"i": lambda reader, _: reader.unsigned(4),
    b"l": lambda reader, _: reader.signed(8),
    b"f": lambda reader, _: reader.floating(">f", 4),
    b"d": lambda reader, _: reader.floating(">d", 8),
    b"D": lambda reader, _: reader.decimal(),
    b"S": lambda reader, _: reader.long_text(),
    b"x": lambda reader, _: reader.take(reader.unsigned(4)),
    b"A": lambda reader, depth: reader.array(depth),
    b"T": lambda reader, _: reader.timestamp(),
    b"F": lambda reader, depth: reader.table(depth),
    b"V": lambda *_: None,
}
