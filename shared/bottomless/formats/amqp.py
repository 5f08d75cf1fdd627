"""AMQP 1.0: messages as RabbitMQ's streams hold them, read for an import. Never written.

A message is a row of sections, each a described value: `0x00`, the section's number, the value.

    | header | annotations | properties | application properties | body ... | footer |

The body is data sections, sequence sections, or one value. This format is not ours; its types and
sections are parts 1 and 3 of the standard (OASIS AMQP 1.0, ISO/IEC 19464). What is no such message
from its first to its last byte is `Corrupt`: clients of streams may store bytes of any kind, and
who imports takes those as they are. Tables: docs/rabbitmq-segments.md.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from bottomless.formats.checks import check, corrupt
from bottomless.model.record import Content

Value: TypeAlias = (
    "bool | int | float | str | bytes | UUID | Timestamp | Described | list[Value] | Pairs | None"
)
"""A value of AMQP. Symbols and characters are text; a decimal is its bytes."""

_WHAT: Final = "AMQP message"
_DEPTH_MAX: Final = 32
"""Lists, maps and arrays within each other."""

PROPERTIES: Final = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)
"""The fields of the section `properties`, in their order."""


class Timestamp(NamedTuple):
    """A moment, in milliseconds since 1970."""

    milliseconds: int


class Pairs(NamedTuple):
    """A map, in its order; keys may be of any kind."""

    items: "list[tuple[Value, Value]]"


class Described(NamedTuple):
    """A value with a descriptor."""

    descriptor: "Value"
    value: "Value"


class Message(NamedTuple):
    """A message as far as an import takes it; sections that say how to deliver it are left out."""

    value: bytes
    """The data sections, joined; a body value of binary or text; otherwise the body's sections."""
    content: Content
    section: str | None
    """What stands as `value` where that is whole sections: `amqp-value` or `amqp-sequence`; or
    `none` where there is no body. None otherwise."""
    annotations: dict[str, Value]
    properties: dict[str, Value]
    application: dict[str, Value]
    head_size: int | None = None
    """Bytes before the body, where the body is one data section that ends the message: any message
    that begins with these bytes and is one data section after them differs in its value alone. None
    where that is not so."""


_EMPTY: Final[dict[str, Value]] = {}


def decode_message(data: bytes) -> Message:
    """Read a message.

    Raises:
        Corrupt: these bytes are no message of AMQP 1.0.
    """
    # Most messages of streams are one data section.
    value = value_after(b"", data)
    if value is not None:
        return Message(value, Content.BYTES, None, _EMPTY, _EMPTY, _EMPTY, 0)
    return _Sections(data).message()


def value_after(head: bytes, data: bytes) -> bytes | None:
    """Return the value of a message that begins with `head` and is one data section after it, as
    encoders write it; None where it is otherwise.
    """
    if not data.startswith(head):
        return None
    start = len(head)
    value = start + 5
    code = data[start : start + 4]
    if code == _SHORT_DATA and value <= len(data) and data[value - 1] == len(data) - value:
        return data[value:]
    value = start + 8
    if code == _LONG_DATA and value <= len(data):
        size = int.from_bytes(data[value - 4 : value], "big")
        if size == len(data) - value:
            return data[value:]
    return None


_SHORT_DATA: Final = b"\x00\x53\x75\xa0"
_LONG_DATA: Final = b"\x00\x53\x75\xb0"
"""How a data section begins: its number, then the type of a binary with a size of 1 or 4 bytes."""

_HEADER, _DELIVERY, _ANNOTATIONS, _PROPERTIES, _APPLICATION = range(0x70, 0x75)
_DATA, _SEQUENCE, _VALUE, _FOOTER = range(0x75, 0x79)
_SECTIONS: Final = {
    "amqp:header:list": _HEADER,
    "amqp:delivery-annotations:map": _DELIVERY,
    "amqp:message-annotations:map": _ANNOTATIONS,
    "amqp:properties:list": _PROPERTIES,
    "amqp:application-properties:map": _APPLICATION,
    "amqp:data:binary": _DATA,
    "amqp:amqp-sequence:list": _SEQUENCE,
    "amqp:amqp-value:*": _VALUE,
    "amqp:footer:map": _FOOTER,
}
_BODY_NAMES: Final = {_SEQUENCE: "amqp-sequence", _VALUE: "amqp-value"}


class _Sections:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._found: dict[int, list[tuple[Value, bytes]]] = {}

    def message(self) -> Message:
        check(_WHAT, bool(self._data), "it is empty")
        reader = _Reader(self._data)
        start = made = 0
        while reader.position < len(self._data):
            start, made = reader.position, reader.made
            described = reader.value()
            check(_WHAT, isinstance(described, Described), "it is not a row of sections")
            assert isinstance(described, Described)
            number = _number_of(described.descriptor)
            whole = self._data[start : reader.position]
            self._found.setdefault(number, []).append((described.value, whole))
        value, content, section = self._body()
        return Message(
            value,
            content,
            section,
            self._map(_ANNOTATIONS),
            self._properties(),
            self._map(_APPLICATION),
            # More values than bytes are there only where a long value made up for them.
            start if made <= start and self._ends_with_data(start) else None,
        )

    def _ends_with_data(self, start: int) -> bool:
        return len(self._found.get(_DATA, ())) == 1 and (
            value_after(self._data[:start], self._data) is not None
        )

    def _body(self) -> tuple[bytes, Content, str | None]:
        kinds = [kind for kind in (_DATA, _SEQUENCE, _VALUE) if kind in self._found]
        check(_WHAT, len(kinds) <= 1, "its body is of two kinds")
        if not kinds:
            return b"", Content.BYTES, "none"
        [kind] = kinds
        sections = self._found[kind]
        if kind == _DATA:
            parts = [value for value, _ in sections if isinstance(value, bytes)]
            check(_WHAT, len(parts) == len(sections), "a data section is not binary")
            return b"".join(parts), Content.BYTES, None
        if kind == _VALUE:
            check(_WHAT, len(sections) == 1, "it has two values")
            match sections[0][0]:
                case bytes(raw):
                    return raw, Content.BYTES, None
                case str(text):
                    return text.encode(), Content.TEXT, None
        return b"".join(whole for _, whole in sections), Content.BYTES, _BODY_NAMES[kind]

    def _one(self, section: int) -> Value:
        found = self._found.get(section, [])
        check(_WHAT, len(found) <= 1, "a section stands twice")
        return found[0][0] if found else None

    def _map(self, section: int) -> dict[str, Value]:
        value = self._one(section)
        if value is None:
            return {}
        check(_WHAT, isinstance(value, Pairs), "a section is not a map")
        assert isinstance(value, Pairs)
        # Keys of annotations may be numbers, which are reserved.
        return {key: item for key, item in value.items if isinstance(key, str)}

    def _properties(self) -> dict[str, Value]:
        value = self._one(_PROPERTIES)
        if value is None:
            return {}
        check(_WHAT, isinstance(value, list), "its properties are not a list")
        assert isinstance(value, list)
        check(_WHAT, len(value) <= len(PROPERTIES), "it has more properties than there are")
        pairs = zip(PROPERTIES, value, strict=False)
        return {name: item for name, item in pairs if item is not None}


def _number_of(descriptor: Value) -> int:
    number = _SECTIONS.get(descriptor) if isinstance(descriptor, str) else descriptor
    known = isinstance(number, int) and _HEADER <= number <= _FOOTER
    check(_WHAT, known, "a section is not one of a message")
    assert isinstance(number, int)
    return number


class _Reader:
    """Values, one after the other; what is made of them is bounded by the bytes that there are."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._left = len(data)
        """Items that may still be made: an array may have many of no byte each."""

    @property
    def made(self) -> int:
        """Items that were made."""
        return len(self._data) - self._left

    def value(self, depth: int = 0) -> Value:
        code = self._byte()
        if code == 0:
            check(_WHAT, depth < _DEPTH_MAX, "values lie too deep within each other")
            descriptor = self.value(depth + 1)
            return Described(descriptor, self.value(depth + 1))
        return self._of(code, depth)

    def _of(self, code: int, depth: int) -> Value:
        self._left -= 1
        check(_WHAT, self._left >= 0, "it has more values than bytes")
        plain = _PLAIN.get(code)
        if plain is not None:
            size, make = plain
            return make(self._take(size))
        variable = _VARIABLE.get(code)
        if variable is not None:
            width, make = variable
            return make(self._take(int.from_bytes(self._take(width), "big")))
        width = _COMPOUND.get(code, 0)
        check(_WHAT, width > 0, f"type {code:#04x} is not known")
        check(_WHAT, depth < _DEPTH_MAX, "values lie too deep within each other")
        return self._compound(code, width, depth + 1)

    def _compound(self, code: int, width: int, depth: int) -> Value:
        size = int.from_bytes(self._take(width), "big")
        end = self.position + size
        check(_WHAT, end <= len(self._data), "a list goes beyond the message")
        count = int.from_bytes(self._take(width), "big")
        check(_WHAT, count <= self._left, "it has more values than bytes")
        found: Value
        if code in _ARRAYS:
            found = self._array(count, depth)
        else:
            items = [self.value(depth) for _ in range(count)]
            found = items
            if code in _MAPS:
                check(_WHAT, count % 2 == 0, "a map has a key without a value")
                found = Pairs(list(zip(items[::2], items[1::2], strict=True)))
        check(_WHAT, self.position == end, "a list has another size than it says")
        return found

    def _array(self, count: int, depth: int) -> list[Value]:
        """One constructor for all items."""
        code = self._byte()
        if code:
            return [self._of(code, depth) for _ in range(count)]
        descriptor = self.value(depth)
        code = self._byte()
        return [Described(descriptor, self._of(code, depth)) for _ in range(count)]

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, size: int) -> bytes:
        start, end = self.position, self.position + size
        check(_WHAT, end <= len(self._data), "it is cut short")
        self.position = end
        return self._data[start:end]


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise corrupt(_WHAT, "a text is not UTF-8") from error


def _symbol(raw: bytes) -> str:
    # ASCII by the standard; UTF-8 is what RabbitMQ takes.
    return _text(raw)


def _character(raw: bytes) -> str:
    number = int.from_bytes(raw, "big")
    valid = number < 0x110000 and not 0xD800 <= number < 0xE000
    check(_WHAT, valid, "a character is none of Unicode")
    return chr(number)


def _boolean(raw: bytes) -> bool:
    check(_WHAT, raw in (b"\0", b"\1"), "a boolean is neither 0 nor 1")
    return raw == b"\1"


def _unsigned(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


def _float(raw: bytes) -> float:
    found: float = struct.unpack(">f", raw)[0]
    return found


def _double(raw: bytes) -> float:
    found: float = struct.unpack(">d", raw)[0]
    return found


_Make: TypeAlias = Callable[[bytes], Value]
_PLAIN: Final[dict[int, tuple[int, _Make]]] = {
    0x40: (0, lambda _: None),
    0x41: (0, lambda _: True),
    0x42: (0, lambda _: False),
    0x43: (0, lambda _: 0),
    0x44: (0, lambda _: 0),
    0x45: (0, lambda _: []),
    0x50: (1, _unsigned),
    0x51: (1, _signed),
    0x52: (1, _unsigned),
    0x53: (1, _unsigned),
    0x54: (1, _signed),
    0x55: (1, _signed),
    0x56: (1, _boolean),
    0x60: (2, _unsigned),
    0x61: (2, _signed),
    0x70: (4, _unsigned),
    0x71: (4, _signed),
    0x72: (4, _float),
    0x73: (4, _character),
    0x74: (4, bytes),
    0x80: (8, _unsigned),
    0x81: (8, _signed),
    0x82: (8, _double),
    0x83: (8, lambda raw: Timestamp(_signed(raw))),
    0x84: (8, bytes),
    0x94: (16, bytes),
    0x98: (16, lambda raw: UUID(bytes=raw)),
}
"""Types of a fixed size: bytes, and what is made of them."""
_VARIABLE: Final[dict[int, tuple[int, _Make]]] = {
    0xA0: (1, bytes),
    0xA1: (1, _text),
    0xA3: (1, _symbol),
    0xB0: (4, bytes),
    0xB1: (4, _text),
    0xB3: (4, _symbol),
}
"""Types with a size before them: the bytes of that size, and what is made of the rest."""
_COMPOUND: Final = {0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4, 0xE0: 1, 0xF0: 4}
"""Lists, maps and arrays: the bytes of size and count."""
_MAPS: Final = (0xC1, 0xD1)
_ARRAYS: Final = (0xE0, 0xF0)
