"""Where a read begins and ends, as an option says it: to values. Pure.

earliest, latest     the bounds of the stream
1000                 an offset
-1000                so many records before the end
-10m                 what was committed within the last ten minutes
{"orders": 1000}     an offset of the stream that is named, or one of the above as text
{"v":1,"s":{…}}      a position as a streaming checkpoint has it, with the stream's id
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bottomless.errors import InvalidRequest
from bottomless.model.names import StreamId, StreamName, parse_stream_id
from bottomless.model.offset_spec import (
    Ago,
    At,
    First,
    Next,
    Since,
    Tail,
    parse_offset,
    parse_offset_spec,
    parse_timestamp,
)

OFFSET_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Pinned:
    """An offset of one very stream, whoever has its name now."""

    offset: int
    stream_id: StreamId


Position = First | Next | At | Tail | Ago | Since | Pinned


def parse_position(name: str, text: str, stream: StreamName) -> Position:
    """Read the option `name`, `startingOffsets` or `endingOffsets`, of a stream.

    Raises:
        InvalidRequest: it has none of the forms, or names another stream.
    """
    text = text.strip()
    if text.startswith("{"):
        return _of_json(name, text, stream)
    if text.lower() in {"earliest", "latest"}:
        return First() if text.lower() == "earliest" else Next()
    if not text.startswith("-"):
        return At(parse_offset(text))
    if text[1:].isdigit():
        return Tail(parse_offset(text[1:]))
    back = parse_offset_spec(f"interval:{text[1:]}")
    assert isinstance(back, Ago)
    return back


def parse_time(text: str) -> Since:
    """Read the option `startingTimestamp` or `endingTimestamp`: RFC 3339, or ms since 1970."""
    return Since(parse_timestamp(text.strip()))


def position_of(offset: int, name: StreamName, stream_id: StreamId) -> dict[str, Any]:
    """A position as a checkpoint keeps it.

    Always with its members in this order: Spark compares positions as text.
    """
    return {"v": OFFSET_VERSION, "s": {name: {"o": offset, "u": stream_id}}}


def read_position(value: Mapping[str, Any], name: StreamName) -> Pinned:
    """What `position_of` made.

    Raises:
        InvalidRequest: it is not that, or of another stream.
    """
    try:
        if value["v"] != OFFSET_VERSION:
            raise InvalidRequest("the position was written by a newer version")
        streams = value["s"]
        if set(streams) != {name}:
            raise InvalidRequest(
                "the position is that of another stream", facts={"stream": ", ".join(streams)}
            )
        one = streams[name]
        return Pinned(parse_offset(str(one["o"])), parse_stream_id(one["u"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest("a position of a stream is not as it was written") from error


def _of_json(name: str, text: str, stream: StreamName) -> Position:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the option {name} is not JSON") from error
    if "v" in value and isinstance(value.get("s"), dict):
        return read_position(value, stream)
    if set(value) != {stream}:
        raise InvalidRequest(f"the option {name} names the stream of the option stream alone")
    given = value[stream]
    if isinstance(given, bool) or not isinstance(given, int | str) or str(given).startswith("{"):
        raise InvalidRequest(f"the option {name} gives the stream an offset")
    return parse_position(name, str(given), stream)
