"""Rows: records as a program hands them over, checked as the server would. Pure.

So no batch is refused for one of its records.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from bottomless.client.accumulator import RECORD_SIZE_MIN, Extra
from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import (
    FILTER_VALUE_SIZE_MAX,
    HEADER_COUNT_MAX,
    HEADER_SIZE_MAX,
    RECORD_KEY_SIZE_MAX,
    RECORD_VALUE_SIZE_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
)
from bottomless.model.record import Content

Text: TypeAlias = bytes | str

TOGETHER_COUNT_MAX: Final = 1_000
"""Values that are examined together; one decision is made for all of them."""
PLAIN: Final = int(Content.BYTES)
"""The content type of a value that is bytes."""
_TEXT: Final = int(Content.TEXT)
_JSON: Final = int(Content.JSON)


class Values(NamedTuple):
    """Values of records that have nothing else, as a column and not one by one."""

    values: list[bytes]
    content: int
    """What all of the values are: a `Content`."""
    ends: list[int]
    """Bytes of all values up to the end of each of them."""

    def without_first(self, count: int) -> "Values":
        """Copy these values without the first `count`."""
        rest = self.values[count:]
        return Values(rest, self.content, list(accumulate(map(len, rest))))


class Row(NamedTuple):
    """One record, in the form of the columns that it goes into."""

    value: bytes
    content: int
    """What the value is: a `Content`."""
    size: int
    extra: Extra | None


def row_of(
    value: Text | bytearray | memoryview,
    key: Text | None = None,
    headers: Mapping[str, Text] | None = None,
    event_time: int | datetime | None = None,
    filter_value: str | None = None,
) -> Row:
    """Make a row of a record whose value is bytes or text.

    `event_time` is a datetime, or ms since 1970.

    Raises:
        InvalidRequest: a part of it is of another type, too large, or not Unicode.
        TypeError: the value is neither bytes nor text.
    """
    content = PLAIN
    if isinstance(value, str):
        value, content = _encoded("value", value), _TEXT
    elif isinstance(value, (bytearray, memoryview)):
        # A copy: what was handed over does not change any more.
        value = bytes(value)
    elif not isinstance(value, bytes):
        raise TypeError(f"a value must be bytes or str, not {type(value).__name__}; see send_json")
    return _row(value, content, key, headers, event_time, filter_value)


def rows_of(values: Iterable[Text]) -> Iterator[Row | Values]:
    """Make rows of many values in their order: together where they are bytes in a list.

    Values from any other iterable are given on one by one: nobody knows how long the next one
    takes.

    Raises:
        InvalidRequest: a value is too large, or not Unicode; those before it were given on.
        TypeError: a value is neither bytes nor text; those before it were given on.
    """
    if not isinstance(values, (list, tuple)):
        for value in values:
            yield row_of(value)
        return
    for start in range(0, len(values), TOGETHER_COUNT_MAX):
        some = list(values[start : start + TOGETHER_COUNT_MAX])
        if set(map(type, some)) == {bytes} and max(map(len, some)) <= RECORD_VALUE_SIZE_MAX:
            yield Values(some, PLAIN, list(accumulate(map(len, some))))
        else:
            for value in some:
                yield row_of(value)


def json_row_of(
    value: Any,
    key: Text | None = None,
    headers: Mapping[str, Text] | None = None,
    event_time: int | datetime | None = None,
    filter_value: str | None = None,
) -> Row:
    """Make a row of a record whose value is the JSON text of `value`.

    `event_time` is a datetime, or ms since 1970.

    Raises:
        InvalidRequest: it has no JSON form, or a part of it is too large.
    """
    try:
        text = orjson.dumps(value)
        if b"null" in text:
            # orjson says null for NaN and infinity: another value than was given.
            json.dumps(value, allow_nan=False, default=_plain)
    except (orjson.JSONEncodeError, ValueError) as error:
        raise _fault("value", "must be a value that JSON can express") from error
    return _row(text, _JSON, key, headers, event_time, filter_value)


def _plain(value: Any) -> Any:
    """What orjson can say and the standard library cannot, as far as it may hold a number."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return value.value if isinstance(value, Enum) else None


def _row(
    value: bytes,
    content: int,
    key: Text | None,
    headers: Mapping[str, Text] | None,
    event_time: int | datetime | None,
    filter_value: str | None,
) -> Row:
    if len(value) > RECORD_VALUE_SIZE_MAX:
        raise _fault(
            "value", f"must have at most {RECORD_VALUE_SIZE_MAX} bytes", Code.RECORD_TOO_LARGE
        )
    size = len(value) + RECORD_SIZE_MIN
    if key is None and headers is None and event_time is None and filter_value is None:
        return Row(value, content, size, None)
    extra = Extra(
        None if key is None else _bounded("key", key, RECORD_KEY_SIZE_MAX),
        None if headers is None else _headers(headers),
        None if event_time is None else _milliseconds(event_time),
        None if filter_value is None else _filter_value(filter_value),
    )
    size += len(extra.key or b"") + len(extra.filter_value or "")
    size += sum(len(name) + len(item) + RECORD_SIZE_MIN for name, item in extra.headers or ())
    return Row(value, content, size, extra)


def _headers(headers: Mapping[str, Text]) -> list[tuple[str, bytes]]:
    if not isinstance(headers, Mapping):
        raise _fault("headers", "must be a mapping of names to text or bytes")
    if len(headers) > HEADER_COUNT_MAX:
        raise _fault("headers", f"a record must have at most {HEADER_COUNT_MAX} headers")
    pairs = []
    for name, item in headers.items():
        if not isinstance(name, str):
            raise _fault("headers", "a name must be text")
        data = _bytes("headers", item)
        if len(_encoded("headers", name)) + len(data) > HEADER_SIZE_MAX:
            raise _fault("headers", f"each must have at most {HEADER_SIZE_MAX} bytes with its name")
        pairs.append((name, data))
    return pairs


def _milliseconds(event_time: int | datetime) -> int:
    if isinstance(event_time, datetime):
        if event_time.tzinfo is None:
            raise _fault("event_time", "must have a time zone: datetime.now(UTC), for example")
        event_time = round(event_time.timestamp() * 1000)
    if not isinstance(event_time, int):
        raise _fault("event_time", "must be a datetime, or milliseconds as an integer")
    if not TIMESTAMP_MIN <= event_time <= TIMESTAMP_MAX:
        raise _fault("event_time", "must lie in the years 1 to 9999")
    return event_time


def _filter_value(text: str) -> str:
    if not isinstance(text, str):
        raise _fault("filter_value", "must be text")
    if len(_encoded("filter_value", text)) > FILTER_VALUE_SIZE_MAX:
        raise _fault("filter_value", f"must have at most {FILTER_VALUE_SIZE_MAX} bytes")
    return text


def _bounded(name: str, item: Text, size_max: int) -> bytes:
    data = _bytes(name, item)
    if len(data) > size_max:
        raise _fault(name, f"must have at most {size_max} bytes")
    return data


def _bytes(name: str, item: Text) -> bytes:
    if isinstance(item, str):
        return _encoded(name, item)
    # Of a number `bytes` would make so many zeros.
    if not isinstance(item, (bytes, bytearray, memoryview)):
        raise _fault(name, "must be bytes or text")
    return bytes(item)


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _fault(name, "holds a lone surrogate, which is not Unicode") from error


def _fault(name: str, sentence: str, code: Code = Code.VALIDATION_FAILED) -> InvalidRequest:
    return InvalidRequest(
        f"{name}: {sentence}", code=code, faults=[Fault(code, sentence, pointer=f"/{name}")]
    )
