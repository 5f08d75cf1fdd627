"""Erlang's external term format: what RabbitMQ keeps its messages in, read for an import. Never written.

    | 131 | tag 1 | what the tag says ... |

Everything is big-endian but the digits of large integers. This format is not ours. Terms that live in
a process alone (pids, ports, references, functions) are refused, and so are compressed ones: a message
holds none. A term must fill its bytes exactly. Table: docs/message-files.md, "Terms".
"""

import math
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from bottomless.formats.checks import check, corrupt

VERSION: Final = 131
DEPTH_MAX: Final = 64
"""Tuples, lists and maps within each other."""
INTEGER_SIZE_MAX: Final = 64
"""Bytes of an integer."""
_WHAT: Final = "Erlang term"


class Tag(IntEnum):
    """The first byte of a term, by Erlang's numbers."""

    NEW_FLOAT = 70
    SMALL_INTEGER = 97
    INTEGER = 98
    FLOAT = 99
    ATOM = 100
    SMALL_TUPLE = 104
    LARGE_TUPLE = 105
    NIL = 106
    STRING = 107
    LIST = 108
    BINARY = 109
    SMALL_BIG = 110
    LARGE_BIG = 111
    SMALL_ATOM = 115
    MAP = 116
    ATOM_UTF8 = 118
    SMALL_ATOM_UTF8 = 119


class Atom(NamedTuple):
    """A name that stands for itself."""

    name: str


class Pairs(NamedTuple):
    """A map, in its order; keys may be of any kind."""

    items: "tuple[tuple[Term, Term], ...]"


Term: TypeAlias = "int | float | bytes | Atom | Pairs | list[Term] | tuple[Term, ...]"
"""A term. Binaries are bytes; what Erlang calls a string is a list of integers, as it is there."""


def decode_term(data: bytes | memoryview, *, padded: bool = False) -> Term:
    """Read a term that fills `data` exactly; with `padded` zeros may follow it.

    Raises:
        Corrupt: it is none, is of a kind that no message holds, or is nested too deeply.
    """
    reader = _Reader(memoryview(data))
    version = reader.u8()
    check(_WHAT, version == VERSION, f"version {version} is not known, only {VERSION}")
    term = reader.term(0)
    left = reader.left
    is_padding = padded and not any(reader.take(left))
    check(_WHAT, left == 0 or is_padding, f"{left} bytes follow it")
    return term


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def term(self, depth: int) -> Term:
        check(_WHAT, depth <= DEPTH_MAX, f"it is nested more than {DEPTH_MAX} deep")
        tag = self.u8()
        read = _READERS.get(tag)
        if read is None:
            raise corrupt(_WHAT, f"tag {tag} is none that a message holds")
        return read(self, depth)

    def take(self, size: int) -> bytes:
        check(_WHAT, size <= self.left, f"{size} bytes are said to follow, and {self.left} do")
        start = self._position
        self._position += size
        return bytes(self._data[start : self._position])

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def terms(self, count: int, depth: int) -> "list[Term]":
        # A term has a byte at least: so no count takes more memory than its bytes allow.
        check(_WHAT, count <= self.left, f"{count} terms are said to follow in {self.left} bytes")
        return [self.term(depth + 1) for _ in range(count)]

    def atom(self, size: int, encoding: str) -> Atom:
        raw = self.take(size)
        try:
            return Atom(raw.decode(encoding))
        except UnicodeDecodeError as error:
            raise corrupt(_WHAT, "the name of an atom is not UTF-8") from error

    def integer(self, size: int) -> int:
        sign = self.u8()
        check(_WHAT, sign <= 1, f"an integer has the sign {sign}")
        check(_WHAT, size <= INTEGER_SIZE_MAX, f"an integer has {size} bytes")
        number = int.from_bytes(self.take(size), "little")
        return -number if sign else number

    def floating(self) -> float:
        (number,) = struct.unpack(">d", self.take(8))
        check(_WHAT, math.isfinite(number), "a float is no number")
        return float(number)

    def old_floating(self) -> float:
        text = self.take(31).rstrip(b"\0")
        try:
            number = float(text)
        except ValueError as error:
            raise corrupt(_WHAT, "a float is no number") from error
        check(_WHAT, math.isfinite(number), "a float is no number")
        return number

    def list_(self, depth: int) -> "list[Term]":
        found = self.terms(self.u32(), depth)
        end = self.u8()
        check(_WHAT, end == Tag.NIL, "a list does not end as one")
        return found

    def map_(self, depth: int) -> Pairs:
        flat = self.terms(2 * self.u32(), depth)
        return Pairs(tuple(zip(flat[::2], flat[1::2], strict=True)))


_READERS: Final[dict[int, Callable[[_Reader, int], Term]]] = {
    Tag.NEW_FLOAT: lambda reader, _: reader.floating(),
    Tag.SMALL_INTEGER: lambda reader, _: reader.u8(),
    Tag.INTEGER: lambda reader, _: int.from_bytes(reader.take(4), "big", signed=True),
    Tag.FLOAT: lambda reader, _: reader.old_floating(),
    Tag.ATOM: lambda reader, _: reader.atom(reader.u16(), "latin-1"),
    Tag.SMALL_TUPLE: lambda reader, depth: tuple(reader.terms(reader.u8(), depth)),
    Tag.LARGE_TUPLE: lambda reader, depth: tuple(reader.terms(reader.u32(), depth)),
    Tag.NIL: lambda *_: [],
    Tag.STRING: lambda reader, _: list(reader.take(reader.u16())),
    Tag.LIST: lambda reader, depth: reader.list_(depth),
    Tag.BINARY: lambda reader, _: reader.take(reader.u32()),
    Tag.SMALL_BIG: lambda reader, _: reader.integer(reader.u8()),
    Tag.LARGE_BIG: lambda reader, _: reader.integer(reader.u32()),
    Tag.SMALL_ATOM: lambda reader, _: reader.atom(reader.u8(), "latin-1"),
    Tag.MAP: lambda reader, depth: reader.map_(depth),
    Tag.ATOM_UTF8: lambda reader, _: reader.atom(reader.u16(), "utf-8"),
    Tag.SMALL_ATOM_UTF8: lambda reader, _: reader.atom(reader.u8(), "utf-8"),
}
