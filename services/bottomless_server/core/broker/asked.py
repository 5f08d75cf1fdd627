"""Read the bodies of `POST /produce` and `POST /consume`: all of it, or one refusal of all of it.

What is wrong here is wrong with the request as a whole, so nothing of it is done for any partition.
What only the stream can say (whether there is one, whether a record is too large for it) is said of
each partition by itself. Pure.
"""

import binascii
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import JSON_RECORD_COUNT_MAX, LONG_POLL_MS_MAX, OFFSET_MAX
from bottomless.model.names import parse_reference
from bottomless.model.unknown_member import unknown_member
from bottomless_server.core.broker.names import (
    FETCH_SIZE_DEFAULT,
    FETCH_SIZE_MAX,
    PARTITION_COUNT_MAX,
    PARTITION_MAX,
    PARTITION_SIZE_DEFAULT,
    Place,
)

LIST: Final = "topic_partitions"
_BASE64: Final = "base64"


class Sender(NamedTuple):
    """The producer of the records, who numbers them."""

    producer_id: str
    epoch: int
    sequence: int
    """The number of the first record."""


@dataclass(frozen=True, slots=True)
class Produced:
    """The records for one partition."""

    place: Place
    body: bytes
    """The body of the ordinary append that these records are: the same bytes for the same records."""
    sender: Sender | None = None
    expected_offset: int | None = None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the ordinary append."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self.body)),
        ]
        if self.sender is not None:
            headers += [
                (b"producer-id", self.sender.producer_id.encode("ascii")),
                (b"producer-epoch", b"%d" % self.sender.epoch),
                (b"producer-seq", b"%d" % self.sender.sequence),
            ]
        if self.expected_offset is not None:
            headers.append((b"stream-expected-offset", b"%d" % self.expected_offset))
        return headers


class Fetched(NamedTuple):
    """Where to read one partition, and how much of it at most."""

    place: Place
    offset: int
    size_max: int = PARTITION_SIZE_DEFAULT


@dataclass(frozen=True, slots=True)
class Fetch:
    """What is asked of all partitions together."""

    partitions: Sequence[Fetched]
    wait_ms: int = 0
    size_min: int = 1
    """Bytes of users' data that are waited for."""
    size_max: int = FETCH_SIZE_DEFAULT


def read_produce(value: Any) -> list[Produced]:
    """What is to be appended, by partition; `value` is what strict parsing made of the body.

    Raises:
        InvalidRequest: 400; nothing is to be appended.
    """
    members = _object(value, "", {LIST}, {LIST})
    return _each(members[LIST], _produced)


def read_consume(value: Any) -> Fetch:
    """What is to be read; `value` is what strict parsing made of the body.

    Raises:
        InvalidRequest: 400.
    """
    bounds = {"max_wait_ms", "min_bytes", "max_bytes"}
    members = _object(value, "", {LIST}, {LIST, *bounds})
    return Fetch(
        _each(members[LIST], _fetched),
        wait_ms=_integer(members, "max_wait_ms", "", 0, LONG_POLL_MS_MAX, default=0),
        size_min=_integer(members, "min_bytes", "", 0, FETCH_SIZE_MAX, default=1),
        size_max=_integer(members, "max_bytes", "", 1, FETCH_SIZE_MAX, default=FETCH_SIZE_DEFAULT),
    )


def _each(items: Any, read: Any) -> list[Any]:
    """The partitions of a list that is not empty and names none twice."""
    where = f"/{LIST}"
    if not isinstance(items, list) or not items:
        raise _wrong(where, "must be a list of at least one partition")
    if len(items) > PARTITION_COUNT_MAX:
        raise _wrong(where, f"must have at most {PARTITION_COUNT_MAX} partitions")
    found, places = [], set()
    for number, item in enumerate(items):
        one = read(item, f"{where}/{number}")
        if one.place in places:
            raise _wrong(f"{where}/{number}", "the same partition stands in the list before")
        places.add(one.place)
        found.append(one)
    return found


def _produced(item: Any, where: str) -> Produced:
    needed = {"topic", "partition", "records"}
    members = _object(item, where, needed, {*needed, "producer", "expected_offset"})
    records = members["records"]
    if not isinstance(records, list) or not records:
        raise _wrong(f"{where}/records", "must be a list of at least one record")
    if len(records) > JSON_RECORD_COUNT_MAX:
        # Written as an append, many empty records are far more than what was sent.
        raise _wrong(f"{where}/records", f"must have at most {JSON_RECORD_COUNT_MAX} records")
    envelopes = [_record(one, f"{where}/records/{n}") for n, one in enumerate(records)]
    expected = None
    if "expected_offset" in members:
        expected = _integer(members, "expected_offset", where, 0, OFFSET_MAX + 1)
    return Produced(
        _place(members, where),
        orjson.dumps({"records": envelopes}),
        _sender(members["producer"], f"{where}/producer") if "producer" in members else None,
        expected,
    )


def _fetched(item: Any, where: str) -> Fetched:
    needed = {"topic", "partition", "fetch_offset"}
    members = _object(item, where, needed, {*needed, "partition_max_bytes"})
    offset = _integer(members, "fetch_offset", where, 0, OFFSET_MAX + 1)
    default = PARTITION_SIZE_DEFAULT
    size = _integer(members, "partition_max_bytes", where, 1, FETCH_SIZE_MAX, default=default)
    return Fetched(_place(members, where), offset, size)


def _place(members: Mapping[str, Any], where: str) -> Place:
    topic = _text(members["topic"], f"{where}/topic")
    if not topic:
        raise _wrong(f"{where}/topic", "must not be empty")
    return Place(topic, _integer(members, "partition", where, 0, PARTITION_MAX))


def _record(value: Any, where: str) -> dict[str, str]:
    """A record as an ordinary append has it."""
    if isinstance(value, str):
        return {"value": _text(value, where)}
    if not isinstance(value, dict):
        raise _wrong(where, 'must be a text, or {"base64": "..."}')
    encoded = _text(_object(value, where, {_BASE64}, {_BASE64})[_BASE64], f"{where}/{_BASE64}")
    try:
        data = binascii.a2b_base64(encoded.encode("ascii"), strict_mode=True)
    except ValueError:
        raise _wrong(f"{where}/{_BASE64}", "must be base64 of RFC 4648, with padding") from None
    return {"value_base64": b64encode(data).decode("ascii")}


def _sender(value: Any, where: str) -> Sender:
    needed = {"id", "epoch", "seq"}
    members = _object(value, where, needed, needed)
    try:
        producer_id = parse_reference(_text(members["id"], f"{where}/id"))
    except InvalidRequest as error:
        raise _wrong(f"{where}/id", error.message) from None
    return Sender(
        producer_id,
        _integer(members, "epoch", where, 0, OFFSET_MAX),
        _integer(members, "seq", where, 0, OFFSET_MAX),
    )


def _object(value: Any, where: str, needed: set[str], known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "must be an object")
    unknown = [name for name in value if name not in known]
    if unknown:
        # The member's name is the sender's, so the pointer stops at its parent.
        raise _wrong(where, unknown_member(unknown, sorted(known)), "unknown-member")
    missing = sorted(needed - value.keys())
    if missing:
        raise _wrong(f"{where}/{missing[0]}", "is missing", "missing")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _wrong(where, "holds a lone surrogate, which is not Unicode") from None
    return value


def _integer(
    members: Mapping[str, Any],
    name: str,
    where: str,
    least: int,
    most: int,
    *,
    default: int | None = None,
) -> int:
    if default is not None and name not in members:
        return default
    value = members[name]
    # To Python true is 1.
    if type(value) is not int or not least <= value <= most:
        raise _wrong(f"{where}/{name}", f"must be an integer from {least} to {most}")
    return value


def _wrong(pointer: str, sentence: str, code: str = Code.BAD_PARAMETER) -> InvalidRequest:
    place = pointer or "the body"
    fault = Fault(code, sentence, pointer=pointer)
    return InvalidRequest(f"{place}: {sentence}", code=Code.BAD_PARAMETER, faults=[fault])
