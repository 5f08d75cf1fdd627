"""Compaction, as an operator or a test asks an uploader for it.

Contract: openapi/internal.yaml, `compact_now`.
"""

from typing import Any, Final, NamedTuple

from bottomless_server.protocol.paths import INTERNAL
from bottomless_server.protocol.peer import number, said_by

COMPACT: Final = f"{INTERNAL}/compact"


class Compacted(NamedTuple):
    """What one round did."""

    object_count: int
    """WAL objects that it fetched."""
    stream_count: int
    """Streams that got fragments."""


def encode_compacted(done: Compacted) -> dict[str, Any]:
    return done._asdict()


@said_by("uploader")
def decode_compacted(body: Any) -> Compacted:
    return Compacted(number(body["object_count"]), number(body["stream_count"]))
