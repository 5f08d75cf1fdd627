"""Records as lines: newline-delimited JSON, and server-sent events.

A line is JSON without any byte sequence that some reader takes for the end of a line, so
that no stored value can break the frame that it is in. Browsers split events at CR and LF
only; many client libraries split at all line ends of Unicode.

On the record's path: after rendering.py made records, before ../follow.py sends them.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.names import StreamId, parse_stream_id
from bottomless.model.offset_spec import parse_offset
from bottomless_server.core.shown_values import ValueEncoding
from bottomless_server.reader.core.rendering import as_json_records

NDJSON: Final = "application/x-ndjson"
SSE: Final = "text/event-stream"

_LINE_ENDS: Final = (
    # Raw ones stand between the tokens of a stored JSON value only, where a space is as good.
    (b"\n", b" "),
    (b"\r", b" "),
    # These stand inside of strings only: next line, line separator, paragraph separator.
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def one_line(json: bytes) -> bytes:
    """A JSON text without line ends, of the same value."""
    for found, instead in _LINE_ENDS:
        if found in json:
            json = json.replace(found, instead)
    return json


class Framing(Protocol):
    """How an answer that stays open looks. `members` are what is said beside the records."""

    media_type: str
    opening: bytes

    def batch(self, table: pa.Table, encoding: ValueEncoding, members: Mapping[str, Any]) -> bytes:
        """Records; `members` has `next_offset`."""
        ...

    def heartbeat(self, members: Mapping[str, Any]) -> bytes: ...

    def end(self, reason: str, members: Mapping[str, Any]) -> bytes: ...


class Lines:
    """A record a line; what is not a record stands in lines with the one member `_control`."""

    media_type = NDJSON
    opening = b""

    def batch(self, table: pa.Table, encoding: ValueEncoding, members: Mapping[str, Any]) -> bytes:
        lines = [one_line(orjson.dumps(each)) for each in as_json_records(table, encoding)]
        return b"".join(line + b"\n" for line in lines) + self._control(members)

    def heartbeat(self, members: Mapping[str, Any]) -> bytes:
        return self._control(members)

    def end(self, reason: str, members: Mapping[str, Any]) -> bytes:
        return self._control({"end": reason, **members})

    def _control(self, members: Mapping[str, Any]) -> bytes:
        return one_line(orjson.dumps({"_control": dict(members)})) + b"\n"


class Events:
    """Server-sent events of one stream; the id of a batch is where a reader resumes."""

    media_type = SSE
    # A comment at once, so that proxies pass the headers on.
    opening = b": open\n\n"

    def __init__(self, stream_id: StreamId) -> None:
        self._stream_id = stream_id

    def batch(self, table: pa.Table, encoding: ValueEncoding, members: Mapping[str, Any]) -> bytes:
        records = as_json_records(table, encoding)
        event_id = f"{self._stream_id}:{members['next_offset']}"
        return _event("records", {"records": records, **members}, event_id)

    def heartbeat(self, members: Mapping[str, Any]) -> bytes:
        return _event("heartbeat", members)

    def end(self, reason: str, members: Mapping[str, Any]) -> bytes:
        return _event("end", {"reason": reason, **members})


def parse_event_id(text: str) -> tuple[StreamId, int]:
    """The stream and the next offset that an id of `Events` names.

    Raises:
        InvalidRequest: `bad-header`: no event of ours had this id.
    """
    stream_id, _, offset = text.partition(":")
    try:
        return parse_stream_id(stream_id), parse_offset(offset)
    except InvalidRequest:
        sentence = "must be the id of an event that this service has sent"
        fault = Fault(Code.BAD_HEADER, sentence, header="last-event-id")
        raise InvalidRequest(sentence, code=Code.BAD_HEADER, faults=[fault]) from None


def _event(name: str, data: Mapping[str, Any], event_id: str | None = None) -> bytes:
    head = f"event: {name}\n" if event_id is None else f"event: {name}\nid: {event_id}\n"
    return head.encode("ascii") + b"data: " + one_line(orjson.dumps(dict(data))) + b"\n\n"
