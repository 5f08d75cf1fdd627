"""The answer to an append, as a body or in headers alone."""

from typing import Final

import orjson
from starlette.types import Scope

from bottomless.model.offset_spec import format_timestamp
from bottomless_server.ingest.front.append_requests import AppendedTo
from bottomless_server.runtime.http.whole_answer import WholeAnswer

_REPLAYED: Final = (b"idempotent-replayed", b"true")


def wants_minimal(scope: Scope) -> bool:
    """Whether `Prefer: return=minimal` is there; preferences that are not known are no faults."""
    preferences = b",".join(value for name, value in scope["headers"] if name == b"prefer")
    words = (word.partition(b";")[0].strip().lower() for word in preferences.split(b","))
    return b"return=minimal" in words


def answer_to(done: AppendedTo, *, minimal: bool) -> WholeAnswer:
    """The answer to an append, without a body if it is to be `minimal`."""
    stream_id, end, durability, replica_count, appended = done
    headers = [
        (b"stream-id", stream_id.encode("ascii")),
        (b"stream-next-offset", b"%d" % end),
    ]
    if appended.replayed:
        headers.append(_REPLAYED)
    first_offset = appended.first_offset
    if minimal:
        if first_offset is not None:
            headers.append((b"stream-first-offset-appended", b"%d" % first_offset))
        headers.append((b"preference-applied", b"return=minimal"))
        return WholeAnswer(204, headers)
    timestamp = appended.timestamp
    members = {
        "stream_id": stream_id,
        "first_offset": first_offset,
        "last_offset": None if first_offset is None else appended.next_offset - 1,
        "next_offset": appended.next_offset,
        "count": appended.record_count,
        "duplicates": appended.duplicates,
        "timestamp": None if timestamp is None else format_timestamp(timestamp),
        "durability": durability,
    }
    if replica_count is not None:
        members["replicas"] = replica_count
    body = orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE)
    headers.append((b"content-type", b"application/json"))
    headers.append((b"content-length", b"%d" % len(body)))
    return WholeAnswer(200, headers, body)
