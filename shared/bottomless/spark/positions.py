"""Where a read begins and ends, as an option says it: to values. Pure.

first, next          the bounds of the stream; Spark's own words are earliest and latest
1000                 an offset
tail:1000, -1000     so many records before the end
interval:10m, -10m   what was committed within the last ten minutes
timestamp:T          what was committed at a time or after it: RFC 3339, or ms since 1970
2026-11-22           the same, of the midnight in UTC at which that day begins
{"orders": 1000}     an offset of the stream that is named, or one of the above as text
{"v":1,"s":{…}}      a position as a streaming checkpoint has it, with the stream's id
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bottomless.errors import InvalidRequest
from bottomless.model.names import StreamId, StreamName, parse_stream_id
from bottomless.model.offset_spec import (
    Ago,
    At,
    First,
    Last,
    Next,
    Since,
    Stored,
    Tail,
    parse_offset,
    parse_offset_spec,
    parse_timestamp,
    spec_of_place,
)

OFFSET_VERSION: Final = 1
_BEGAN: Final = "began"

_WORDS: Final = {"earliest": "first", "latest": "next", "first": "first", "next": "next"}
_CHOICES: Final = (
    "first (or earliest), next (or latest), an offset, tail:1000 (or -1000), "
    "interval:10m (or -10m), timestamp:T or a date"
)


@dataclass(frozen=True, slots=True)
class Pinned:
    """An offset of one particular stream, whichever stream has its name by now."""

    offset: int
    stream_id: StreamId


Position = First | Next | At | Tail | Ago | Since | Pinned


def parse_position(name: str, text: str, stream: StreamName) -> Position:
    """Read the option `name`, which is `startingOffsets` or `endingOffsets`, of a stream.

    Raises:
        InvalidRequest: it has none of the forms, or names another stream.
    """
    text = text.strip()
    if text.startswith("{"):
        return _of_json(name, text, stream)
    try:
        spec = parse_offset_spec(_in_words_of_http(text))
    except InvalidRequest as error:
        raise InvalidRequest(f"the option {name} is {_CHOICES}: {error.message}") from error
    if isinstance(spec, Last | Stored):
        raise InvalidRequest(f"the option {name} is {_CHOICES}")
    return spec


def _in_words_of_http(text: str) -> str:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text.startswith("-"):
        return f"tail:{text[1:]}" if text[1:].isdigit() else f"interval:{text[1:]}"
    return spec_of_place(text)


def parse_time(text: str) -> Since:
    """Read the option `startingTimestamp` or `endingTimestamp`: RFC 3339, or ms since 1970.

    Raises:
        InvalidRequest: it is neither.
    """
    return Since(parse_timestamp(text.strip()))


def position_of(offset: int, name: StreamName, stream_id: StreamId) -> dict[str, Any]:
    """Make a position in the form that a checkpoint keeps.

    Its members are always in this order: Spark compares positions as text.
    """
    return {"v": OFFSET_VERSION, "s": {name: {"o": offset, "u": stream_id}}}


def joined(positions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Make one position of those of several streams, in their order: one entry a stream."""
    entries: dict[str, Any] = {}
    for each in positions:
        entries |= each["s"]
    return {"v": OFFSET_VERSION, "s": entries}


def entry_of(position: Mapping[str, Any], stream: str) -> dict[str, Any] | None:
    """Take the position of one stream out of one of several; None if it does not name the stream.

    Raises:
        InvalidRequest: it is no position.
    """
    streams = position.get("s")
    if not isinstance(streams, dict):
        raise InvalidRequest("a position of a super stream is not as it was written")
    if stream not in streams:
        return None
    return {"v": position.get("v"), "s": {stream: streams[stream]}}


def began_at(latest: Mapping[str, Any], offset: int) -> dict[str, Any]:
    """Make a position for reports alone, which also says where the query began.

    It is never in a checkpoint.
    """
    return {**latest, _BEGAN: offset}


def beginning_of(latest: Mapping[str, Any]) -> int | None:
    """Read what `began_at` added; None if the query began before the process that reports."""
    offset = latest.get(_BEGAN)
    return offset if isinstance(offset, int) else None


def read_position(value: Mapping[str, Any], name: StreamName) -> Pinned:
    """Read what `position_of` made.

    Raises:
        InvalidRequest: it is something else, or of another stream.
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
