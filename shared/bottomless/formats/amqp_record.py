"""Records of AMQP messages: what an import of a RabbitMQ stream makes of each message.

The table of docs/how-to/from-rabbitmq.md says the same to people.
"""

import base64
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson

from bottomless.errors import Code, Corrupt, InvalidRequest
from bottomless.formats.amqp import (
    Described,
    Message,
    Pairs,
    Timestamp,
    Value,
    decode_message,
    value_after,
)
from bottomless.model.limits import (
    FILTER_VALUE_SIZE_MAX,
    HEADER_COUNT_MAX,
    HEADER_SIZE_MAX,
    RECORD_KEY_SIZE_MAX,
    RECORD_VALUE_SIZE_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
)
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.record import Content
from bottomless.model.rows import Headers, Rows

FILTER_VALUE: Final = "x-stream-filter-value"
"""The annotation by which streams of RabbitMQ are filtered; older releases keep it among the
application properties."""
SECTION_HEADER: Final = "amqp.section"
OFFSET_HEADER: Final = "rabbitmq.offset"
_ITEM_SIZE: Final = 8
"""Bytes that a record takes besides what it holds, roughly; as model/rows.py counts them."""


class Section(StrEnum):
    """Where in a message something stands, as options name it."""

    PROPERTY = "property"
    APPLICATION = "application"
    ANNOTATION = "annotation"


class Source(NamedTuple):
    """One property of messages: its section and its name."""

    section: Section
    name: str

    def of(self, message: Message) -> Value:
        """What a message has there; None if it has nothing."""
        match self.section:
            case Section.PROPERTY:
                return message.properties.get(self.name)
            case Section.APPLICATION:
                return message.application.get(self.name)
        return message.annotations.get(self.name)


def parse_source(text: str) -> Source:
    """Read a source such as `property:group-id`, `application:NAME` or `annotation:NAME`.

    Raises:
        ValueError: it is none.
    """
    section, colon, name = text.partition(":")
    if not colon or not name or section not in list(Section):
        raise ValueError("a source is property:NAME, application:NAME or annotation:NAME")
    return Source(Section(section), name)


class Taking(NamedTuple):
    """What an import takes from messages besides what every import takes."""

    key_from: Source | None = None
    filter_from: Source | None = None
    keep_offsets: bool = False
    """Whether RabbitMQ's offset becomes a header."""


class _Alike(NamedTuple):
    """What a message has in common with all that begin with the same bytes and end with a value."""

    head: bytes
    content: Content
    headers: Headers | None
    key: bytes | None
    filter_value: str | None
    created: int | None
    """When it was made, in ms since 1970, if it says so and records may be of that time."""
    size: int
    """Bytes of its record besides the value."""


class Collected:
    """Records of messages, one after the other, until they are taken away as columns."""

    def __init__(self, taking: Taking) -> None:
        self._taking = taking
        self.other_count = 0
        """Messages that are none of AMQP 1.0; their bytes are their values."""
        self._alike: _Alike | None = None
        """The last message that others may be like: a publisher's mostly are."""
        self._begin()

    def _begin(self) -> None:
        self._values: list[bytes] = []
        self._contents: list[int] = []
        self._keys: list[bytes | None] = []
        self._headers: list[Headers | None] = []
        self._event_times: list[int | None] = []
        self._filter_values: list[str | None] = []
        self.size = 0
        """Bytes of the records that wait, roughly as they will be stored."""

    def __len__(self) -> int:
        return len(self._values)

    def add(self, data: bytes, offset: int, timestamp: int) -> None:
        """Add the record of a message with its offset there, in a chunk of this timestamp.

        Raises:
            InvalidRequest: it makes no record that a server takes; then nothing is added.
        """
        alike, value = self._decoded(data, offset)
        if len(value) > RECORD_VALUE_SIZE_MAX:
            sentence = f"its value has more than {RECORD_VALUE_SIZE_MAX} bytes"
            raise _unfit(sentence, Code.RECORD_TOO_LARGE)
        self._append(alike, [value], timestamp)

    def add_alike(
        self, messages: list[bytes], start: int, timestamp: int, *, size_max: int, count_max: int
    ) -> int:
        """Add the records of messages from number `start` on, until one differs from the last message
        in more than its value, or there are records enough.

        Returns how many were added. Most messages of a publisher differ in their values alone.
        """
        alike = self._alike
        if alike is None:
            return 0
        values: list[bytes] = []
        room = size_max - self.size
        # Whatever their size, so many at most; what is larger than a record may be, `add` refuses.
        for message in islice(messages, start, start + count_max - len(self)):
            value = value_after(alike.head, message)
            if value is None or room <= 0 or len(value) > RECORD_VALUE_SIZE_MAX:
                break
            room -= len(value) + alike.size
            values.append(value)
        self._append(alike, values, timestamp)
        return len(values)

    def _append(self, alike: _Alike, values: list[bytes], timestamp: int) -> None:
        count = len(values)
        moment = _moment(timestamp) if alike.created is None else alike.created
        self._values += values
        self._contents += [alike.content] * count
        self._keys += [alike.key] * count
        self._headers += [alike.headers] * count
        self._event_times += [moment] * count
        self._filter_values += [alike.filter_value] * count
        self.size += sum(map(len, values)) + alike.size * count

    def _decoded(self, data: bytes, offset: int) -> tuple[_Alike, bytes]:
        try:
            message = decode_message(data)
        except Corrupt:
            # Clients of streams may store what they like.
            message = Message(data, Content.BYTES, None, {}, {}, {})
            self.other_count += 1
        headers = _headers(message, offset if self._taking.keep_offsets else None)
        key = _key(message, self._taking.key_from)
        filter_value = _filter_value(message, self._taking.filter_from)
        _check(headers)
        size = _ITEM_SIZE + len(key or b"") + len(filter_value or "")
        size += sum(len(name) + len(item) + 16 for name, item in headers)
        head = data[: message.head_size or 0]
        content = message.content
        created = _created(message)
        alike = _Alike(head, content, headers or None, key, filter_value, created, size)
        if message.head_size is not None and not self._taking.keep_offsets:
            self._alike = alike
        return alike, message.value

    def take(self) -> Rows:
        """Take the records that wait away, as columns."""
        rows = Rows(
            self._values,
            self._contents,
            self._keys,
            self._headers,
            self._event_times,
            self._filter_values,
        )
        self._begin()
        return rows


def _headers(message: Message, offset: int | None) -> Headers:
    found: dict[str, bytes] = {}
    # A property of AMQP counts where an application's own has its name.
    for name, value in message.application.items():
        _put(found, name, value)
    for name, value in message.properties.items():
        _put(found, f"amqp.{name}", value)
    if message.section is not None:
        found[SECTION_HEADER] = message.section.encode()
    if offset is not None:
        found[OFFSET_HEADER] = str(offset).encode()
    return list(found.items())


def _put(headers: dict[str, bytes], name: str, value: Value) -> None:
    raw = raw_of(value)
    if raw is not None:
        headers[name] = raw


def raw_of(value: Value) -> bytes | None:
    """Write a value of AMQP as the bytes of a header or a key.

    Binary and decimals are their bytes, everything else is text: numbers in decimals, moments by
    RFC 3339, lists and maps as JSON. None where there is no value.
    """
    match value:
        case None:
            return None
        case bytes():
            return value
        case Described():
            return raw_of(value.value)
        case Pairs() | list():
            return orjson.dumps(_plain(value))
    return _scalar(value).encode()


def _scalar(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Timestamp(milliseconds):
            within = TIMESTAMP_MIN <= milliseconds <= TIMESTAMP_MAX
            return format_timestamp(milliseconds) if within else str(milliseconds)
    return str(value)


def _plain(value: Value) -> Any:
    """Turn a value into one that JSON has; binary is base64."""
    match value:
        case Pairs():
            return {_name(key): _plain(item) for key, item in value.items}
        case Described():
            return _plain(value.value)
        case list():
            return [_plain(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case UUID() | Timestamp():
            return _scalar(value)
    return value


def _name(key: Value) -> str:
    raw = raw_of(key)
    return "null" if raw is None else raw.decode(errors="replace")


def _key(message: Message, source: Source | None) -> bytes | None:
    key = None if source is None else raw_of(source.of(message))
    if key is not None and len(key) > RECORD_KEY_SIZE_MAX:
        raise _unfit(f"its key has more than {RECORD_KEY_SIZE_MAX} bytes")
    return key


def _filter_value(message: Message, source: Source | None) -> str | None:
    if source is not None:
        value = source.of(message)
    else:
        value = message.annotations.get(FILTER_VALUE)
        if value is None:
            value = message.application.get(FILTER_VALUE)
    raw = raw_of(value)
    if raw is None:
        return None
    if len(raw) > FILTER_VALUE_SIZE_MAX:
        raise _unfit(f"its filter value has more than {FILTER_VALUE_SIZE_MAX} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _unfit("its filter value is not UTF-8") from error


def _created(message: Message) -> int | None:
    created = message.properties.get("creation-time")
    return _moment(created.milliseconds) if isinstance(created, Timestamp) else None


def _moment(milliseconds: int) -> int | None:
    return milliseconds if TIMESTAMP_MIN <= milliseconds <= TIMESTAMP_MAX else None


def _check(headers: Headers) -> None:
    if len(headers) > HEADER_COUNT_MAX:
        raise _unfit(f"it has more than {HEADER_COUNT_MAX} properties")
    for name, item in headers:
        if len(name.encode()) + len(item) > HEADER_SIZE_MAX:
            raise _unfit(f"one of its properties has more than {HEADER_SIZE_MAX} bytes")


def _unfit(sentence: str, code: Code = Code.VALIDATION_FAILED) -> InvalidRequest:
    return InvalidRequest(f"a message makes no record: {sentence}", code=code)
