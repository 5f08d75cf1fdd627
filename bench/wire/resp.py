"""Commands of Valkey streams as bytes."""

from collections.abc import Sequence
from typing import Final

from bench.pump import Request

KEY: Final = b"bench"


def command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def add(values: Sequence[bytes], key: bytes = KEY) -> Request:
    """Each value as an entry of its own, all of them in one pipeline."""
    content = b"".join(command(b"XADD", key, b"*", b"v", value) for value in values)
    return Request(content, units=len(values), replies=len(values))


def read(after: bytes, count: int, units: int) -> Request:
    """So many entries behind an id."""
    return Request(command(b"XRANGE", KEY, b"(" + after, b"+", b"COUNT", b"%d" % count), units)


def take(key: bytes, group: bytes, consumer: bytes, count: int) -> Request:
    """So many entries that nobody of the group has had yet."""
    words = (b"GROUP", group, consumer, b"COUNT", b"%d" % count, b"BLOCK", b"5000")
    content = command(b"XREADGROUP", *words, b"STREAMS", key, b">")
    return Request(content, units=count)


def settle(key: bytes, group: bytes) -> Request:
    """How it begins that entries are acknowledged, and deleted: their ids follow each line."""
    return Request(b"XACK %s %s\nXDEL %s\n" % (key, group, key), units=0)
