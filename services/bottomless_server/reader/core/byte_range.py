"""Byte ranges of a GET (RFC 9110, section 14): one range is served, more than one is not."""

import re
from typing import NamedTuple

_RANGE = re.compile(r"bytes\s*=\s*([0-9]{0,19})\s*-\s*([0-9]{0,19})", re.ASCII | re.IGNORECASE)


class ByteRange(NamedTuple):
    start: int
    size: int

    @property
    def last(self) -> int:
        return self.start + self.size - 1


class NotSatisfiable(NamedTuple):
    """No byte of the object lies in the range."""


def choose_range(header: str | None, size: int) -> ByteRange | NotSatisfiable | None:
    """The range to serve of an object of `size` bytes, None for the whole.

    What is not one well-formed byte range is ignored, as the RFC allows: the whole is
    always a right answer.
    """
    match = None if header is None else _RANGE.fullmatch(header.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        wanted = min(int(match[2]), size)
        return ByteRange(size - wanted, wanted) if wanted else NotSatisfiable()
    start = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < start:
        return None
    return ByteRange(start, last - start + 1) if start < size else NotSatisfiable()


def etag_matches(header: str | None, etag: str, *, weak: bool) -> bool:
    """Whether an If-None-Match (`weak`) or If-Range header names this ETag."""
    if header is None:
        return False
    if not weak:
        return header.strip() == etag
    named = [part.strip().removeprefix("W/") for part in header.split(",")]
    return "*" in named or etag.removeprefix("W/") in named
