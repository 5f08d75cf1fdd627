"""Records, and the columns that a batch of them has.

Bulk data stays in Arrow (`formats/batch.py`); `Record` is for single records at
the edges: the client, the CLI, tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag


class Content(IntEnum):
    """What a value is, so that JSON readers are shown what JSON writers sent."""

    BYTES = 0
    TEXT = 1
    """Valid UTF-8."""
    JSON = 2
    """One JSON text in compact UTF-8."""


class Columns(IntFlag):
    """Columns present in a stored batch; the order is the column order of its Arrow schema."""

    VALUE = 1
    KEY = 2
    HEADERS = 4
    EVENT_TIME = 8
    CONTENT = 16
    FILTER_VALUE = 32

    ALL = 63


@dataclass(frozen=True, slots=True)
class Record:
    """One record with its place in the stream."""

    offset: int
    timestamp: int
    """Commit time in ms since 1970, never decreasing along a stream."""
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] | None = None
    event_time: int | None = None
    """The producer's own time in ms since 1970. It is data and is never used to seek."""
    content: Content = Content.BYTES
    filter_value: str | None = None
