"""Offset specs: where a reader asks to start, as text and as values."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from bottomless.errors import Code, InvalidRequest
from bottomless.model.duration import parse_duration
from bottomless.model.limits import OFFSET_MAX, TIMESTAMP_MAX, TIMESTAMP_MIN

_INTEGER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:[0-5][0-9])",
    re.ASCII,
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_LONG_YEARS = re.compile(r"[1-9][0-9]{3,8}Y", re.ASCII)
_INTERVAL_SECONDS_MAX: Final = 1_000 * 31_536_000
_TIMESTAMP_COUNT: Final = 256
"""Times whose text is kept: what was stored together has one, and is shown together."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class First:
    """The first record that is still there."""


@dataclass(frozen=True, slots=True)
class Last:
    """The first record of the last chunk."""


@dataclass(frozen=True, slots=True)
class Next:
    """The record that will be appended next."""


@dataclass(frozen=True, slots=True)
class At:
    """The record with this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The last `count` records."""

    count: int


@dataclass(frozen=True, slots=True)
class Since:
    """The first record whose chunk has this timestamp (ms since 1970) or a later one."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Ago:
    """The first record that was committed within the last `seconds` seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The offset at which a consumer continues; the request says elsewhere which consumer."""


PlainSpec = First | Last | Next | At | Tail | Since
"""The specs that a stream alone can resolve, whatever the time and whoever asks."""
OffsetSpec = PlainSpec | Ago | Stored


def parse_offset_spec(text: str) -> OffsetSpec:
    """Read an offset spec: where a reader asks to start.

    It is `first`, `last`, `next`, an integer, `tail:N`, `timestamp:T` (RFC 3339, or ms since 1970),
    `interval:D` (a duration) or `stored`.

    Raises:
        InvalidRequest: `bad-offset-spec`.
    """
    match text:
        case "first":
            return First()
        case "last":
            return Last()
        case "next":
            return Next()
        case "stored":
            return Stored()
    kind, separator, argument = text.partition(":")
    match kind + separator:
        case "tail:":
            return Tail(parse_offset(argument))
        case "timestamp:":
            return Since(parse_timestamp(argument))
        case "interval:":
            return Ago(_parse_interval(argument))
    if not separator and text[:1].isdigit():
        return At(parse_offset(text))
    raise _bad_spec(
        "a start must be first, last, next, stored, an offset, tail:N, timestamp:T or interval:D"
    )


def spec_of_place(text: str) -> str:
    """Turn a place as people write it into an offset spec: a date or time of RFC 3339 is a time.

    A date alone means its midnight in UTC. Everything else is left as it is.
    """
    if _DATE.fullmatch(text):
        return f"timestamp:{text}T00:00:00Z"
    return f"timestamp:{text}" if _RFC3339.fullmatch(text) else text


def parse_offset(text: str) -> int:
    """Read a decimal integer from 0 to 2^53-1 without sign or leading zeros.

    Raises:
        InvalidRequest: `bad-offset-spec`.
    """
    if not _INTEGER.fullmatch(text) or int(text) > OFFSET_MAX:
        raise _bad_spec("an offset must be an integer from 0 to 2^53-1")
    return int(text)


def parse_timestamp(text: str) -> int:
    """Read RFC 3339, or integer milliseconds since 1970; fractions of a ms are rounded down.

    A leap second is refused: time in ms since 1970 has no number for it.

    Raises:
        InvalidRequest: `bad-offset-spec`: it is something else, a moment that does not exist, or
            outside the years 1 to 9999 of UTC.
    """
    if _INTEGER.fullmatch(text):
        if int(text) > TIMESTAMP_MAX:
            raise _bad_spec("a timestamp must lie before the year 10000")
        return int(text)
    if not _RFC3339.fullmatch(text):
        raise _bad_spec(
            "a timestamp must be a time of RFC 3339 with its offset from UTC, or integer milliseconds since 1970"
        )
    # fromisoformat knows at most six digits of a second's fraction.
    cut = re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", text.upper())
    try:
        timestamp = (datetime.fromisoformat(cut) - _EPOCH) // timedelta(milliseconds=1)
    except ValueError as error:
        raise _bad_spec("a timestamp must name a moment that exists") from error
    if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
        raise _bad_spec("a timestamp must lie in the years 1 to 9999 of UTC")
    return timestamp


def _parse_interval(text: str) -> int:
    # More years than any stream has are a way to say "all of it".
    if _LONG_YEARS.fullmatch(text):
        return _INTERVAL_SECONDS_MAX
    try:
        return parse_duration(text)
    except ValueError as error:
        raise _bad_spec(str(error)) from None


@lru_cache(_TIMESTAMP_COUNT)
def format_timestamp(timestamp: int) -> str:
    """Write a time from TIMESTAMP_MIN to TIMESTAMP_MAX as RFC 3339 in UTC with milliseconds."""
    # Not strftime: its %Y does not pad years before 1000.
    moment = _EPOCH + timedelta(milliseconds=timestamp)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _bad_spec(message: str) -> InvalidRequest:
    return InvalidRequest(message, code=Code.BAD_OFFSET_SPEC)
