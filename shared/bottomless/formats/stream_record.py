"""The stream record in coordination and the registry object in the bucket, both JSON.

The registry object is what a rebuild starts from when coordination is lost: it says that the stream
exists, how it is configured and which node holds its tail. Its form is that of sealed_json.py, so
that any other byte is damage. Spec: docs/formats.md, "Stream record" and "Stream registry object".
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import VERSION, check, corrupt
from bottomless.formats.sealed_json import parse_object, seal, unseal
from bottomless.model.config import encode_config, parse_config
from bottomless.model.limits import OFFSET_MAX, TIMESTAMP_MAX, TIMESTAMP_MIN
from bottomless.model.names import parse_stream_id, parse_stream_name, parse_uid
from bottomless.model.stream import (
    EpochStart,
    Intent,
    Lease,
    RootPointer,
    StreamRecord,
    StreamState,
    check_record,
)

REGISTRY_MEMBERS: Final = (
    "stream_id",
    "name",
    "tenant",
    "state",
    "created_at",
    "config",
    "config_version",
    "generation",
    "home",
    "registry_version",
)


def encode_record(record: StreamRecord) -> bytes:
    """Encode the value of a stream's key in coordination: JSON."""
    check_record(record)
    return orjson.dumps({"format": VERSION, **_as_json(record)})


def decode_record(data: bytes) -> StreamRecord:
    """Read what `encode_record` wrote.

    Raises:
        Corrupt: it is not such a value.
    """
    what = "stream record"
    members = parse_object(what, data)
    check(what, members.keys() == READERS.keys(), "its members are not those of its version")
    return _from_json(what, members)


def encode_registry(record: StreamRecord) -> bytes:
    """Encode what of a record must outlive coordination as a registry object: sealed JSON."""
    check_record(record)
    whole = _as_json(record)
    return seal({name: whole[name] for name in REGISTRY_MEMBERS})


def decode_registry(data: bytes) -> StreamRecord:
    """Read a registry object as a record; members that only coordination knows have their defaults.

    Raises:
        Corrupt: it is damaged, or not such an object.
    """
    what = "stream registry object"
    return _from_json(what, unseal(what, data, REGISTRY_MEMBERS))


def _as_json(record: StreamRecord) -> dict[str, Any]:
    return {
        "stream_id": record.stream_id,
        "name": record.name,
        "tenant": record.tenant,
        "state": record.state.value,
        "created_at": record.created_at,
        "config": encode_config(record.config),
        "config_version": record.config_version,
        "generation": record.generation,
        "version": record.version,
        "epoch": record.epoch,
        "home": record.home,
        "owner_url": record.owner_url,
        "dirty": record.dirty,
        "reserved_next": record.reserved_next,
        "epochs": [[start.epoch, start.first_offset] for start in record.epochs],
        "root": None if record.root is None else _root_as_json(record.root),
        "past_roots": list(record.past_roots),
        "published_next": record.published_next,
        "last_timestamp": record.last_timestamp,
        "uploader": record.uploader,
        "intents": [_intent_as_json(intent) for intent in record.intents],
        "quarantine": [_intent_as_json(intent) for intent in record.quarantine],
        "condemned_next": record.condemned_next,
        "leases": [_lease_as_json(lease) for lease in record.leases],
        "registry_version": record.registry_version,
    }


def _root_as_json(root: RootPointer) -> list[Any]:
    return [root.uid, root.generation, root.epoch, root.version, root.size, root.crc]


def _intent_as_json(intent: Intent) -> list[Any]:
    return [intent.uid, intent.first_offset, intent.session]


def _lease_as_json(lease: Lease) -> list[Any]:
    return [lease.lease_id, lease.first_offset, lease.next_offset, lease.expires_at, lease.holder]


def _from_json(what: str, members: Mapping[str, Any]) -> StreamRecord:
    try:
        record = StreamRecord(**{name: READERS[name](value) for name, value in members.items()})
        check_record(record)
    except (AssertionError, TypeError, ValueError, InvalidRequest) as error:
        raise corrupt(what, "its members do not fit its schema") from error
    return record


def _number(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        # Not isinstance: JSON's true is not a number.
        if type(value) is not int or not low <= value <= high:
            raise ValueError("not a number, or out of its range")
        return value

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not a flag")
    return value


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _list(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list):
            raise TypeError("not a list")
        return tuple(read(value) for value in values)

    return read_all


def _row(kind: Callable[..., Any], *columns: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(values: Any) -> Any:
        if not isinstance(values, list):
            raise TypeError("not a list")
        return kind(*(column(value) for column, value in zip(columns, values, strict=True)))

    return read


_count = _number(0, 2**63 - 1)
_crc = _number(0, 2**32 - 1)
_offset = _number(0, OFFSET_MAX + 1)
_timestamp = _number(TIMESTAMP_MIN, TIMESTAMP_MAX)
_intent = _row(Intent, parse_uid, _offset, _text)
_lease = _row(Lease, _text, _offset, _offset, _timestamp, _text)

READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "stream_id": parse_stream_id,
    "name": parse_stream_name,
    "tenant": _text,
    "state": StreamState,
    "created_at": _timestamp,
    "config": parse_config,
    "config_version": _count,
    "generation": _count,
    "version": _count,
    "epoch": _count,
    "home": _optional(_text),
    "owner_url": _optional(_text),
    "dirty": _flag,
    "reserved_next": _offset,
    "epochs": _list(_row(EpochStart, _count, _offset)),
    "root": _optional(_row(RootPointer, parse_uid, _count, _count, _count, _count, _crc)),
    "past_roots": _list(parse_uid),
    "published_next": _offset,
    "last_timestamp": _timestamp,
    "uploader": _optional(_text),
    "intents": _list(_intent),
    "quarantine": _list(_intent),
    "condemned_next": _offset,
    "leases": _list(_lease),
    "registry_version": _count,
}
"""How each member of a record is read, in the order in which it is written."""
