"""Commands of Valkey streams as bytes."""

from collections.abc import Sequence
from typing import Final

from bench.pump import Request

KEY: Final = b"bench"


def command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def add(values: Sequence[bytes]) -> Request:
    """Each value as an entry of its own, all of them in one pipeline."""
    content = b"".join(command(b"XADD", KEY, b"*", b"v", value) for value in values)
    return Request(content, units=len(values), replies=len(values))


def read(after: bytes, count: int, units: int) -> Request:
    """So many entries behind an id."""
    return Request(command(b"XRANGE", KEY, b"(" + after, b"+", b"COUNT", b"%d" % count), units)
