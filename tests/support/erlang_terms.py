"""Erlang terms, written: tests alone need that."""

import struct
from typing import Any

from bottomless.formats.erlang_term import Atom, Pairs, Term


def as_term(value: Term) -> bytes:
    """A term with its version, as Erlang 24 to 26 write it."""
    return b"\x83" + _written(value)


def _written(value: Term) -> bytes:
    match value:
        case Atom(name):
            raw = name.encode()
            return b"w" + bytes([len(raw)]) + raw
        case Pairs(items):
            flat = b"".join(_written(key) + _written(one) for key, one in items)
            return b"t" + struct.pack(">I", len(items)) + flat
        case bytes():
            return b"m" + struct.pack(">I", len(value)) + value
        case float():
            return b"F" + struct.pack(">d", value)
        case int():
            return _integer(value)
        case tuple():
            inner: tuple[Any, ...] = value
            count = len(inner)
            head = bytes([104, count]) if count < 256 else b"i" + struct.pack(">I", count)
            return head + b"".join(_written(one) for one in inner)
    return _list(value)


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"a" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"b" + struct.pack(">i", value)
    raw = abs(value).to_bytes((abs(value).bit_length() + 7) // 8, "little")
    return b"n" + bytes([len(raw), value < 0]) + raw


def _list(value: list[Term]) -> bytes:
    if not value:
        return b"j"
    small = [one for one in value if type(one) is int and 0 <= one < 256]
    if len(small) == len(value) < 65_536:
        return b"k" + struct.pack(">H", len(small)) + bytes(small)
    return b"l" + struct.pack(">I", len(value)) + b"".join(_written(one) for one in value) + b"j"
