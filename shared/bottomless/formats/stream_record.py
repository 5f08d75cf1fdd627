"""The stream record in coordination and the registry object in the bucket, both JSON.

The registry object is what a rebuild starts from when coordination is lost: it says that the stream
exists, how it is configured and which node holds its tail. Its form is that of sealed_json.py, so
that any other byte is damage. Spec: docs/formats.md, "Stream record" and "Stream registry object".

Both are written in the lowest version that can say them: 1, or 2 with the features that they need.
A record with a feature that the reader does not serve is refused by the feature's name.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import VERSION, check, check_served, corrupt
from bottomless.formats.sealed_json import parse_object, seal, unseal, version_of
from bottomless.model.config import encode_config, parse_stored_config
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


LEADERLESS: Final = "leaderless"
"""The feature of a stream that no ingest node owns: `config.profile` and `config.fenced`."""
SERVED: Final[frozenset[str]] = frozenset({LEADERLESS})
"""Features of streams that the services of this release serve. Of others they touch nothing."""
_VERSION_2: Final = 2
_KNOWN: Final = frozenset({LEADERLESS})
_NAME_SIZE_MAX: Final = 32
"""What is longer, or no word, is no feature's name and is not shown."""


def encode_record(record: StreamRecord) -> bytes:
    """Encode the value of a stream's key in coordination: JSON."""
    check_record(record)
    version, also = _version_of(record)
    return orjson.dumps({"format": version, **_as_json(record), **also})


def decode_record(data: bytes, served: AbstractSet[str] = SERVED) -> StreamRecord:
    """Read what `encode_record` wrote.

    Raises:
        NotServed: it is of a later version, or has a feature that is not among those `served`.
        Corrupt: it is not such a value.
    """
    what = "stream record"
    version = _version_in(data)
    members = parse_object(what, data, version)
    names = _names(READERS, version)
    check(what, members.keys() == set(names), "its members are not those of its version")
    return _from_json(what, version, members, served)


def encode_registry(record: StreamRecord) -> bytes:
    """Encode what of a record must outlive coordination as a registry object: sealed JSON."""
    check_record(record)
    version, also = _version_of(record)
    whole = _as_json(record)
    return seal({name: whole[name] for name in REGISTRY_MEMBERS} | also, version)


def decode_registry(data: bytes, served: AbstractSet[str] = SERVED) -> StreamRecord:
    """Read a registry object as a record; members that only coordination knows have their defaults.

    Raises:
        NotServed: it is of a later version, or has a feature that is not among those `served`.
        Corrupt: it is damaged, or is not such an object.
    """
    what = "stream registry object"
    version = _version_in(data)
    members = unseal(what, data, _names(REGISTRY_MEMBERS, version), version)
    return _from_json(what, version, members, served)


def _version_of(record: StreamRecord) -> tuple[int, dict[str, list[str]]]:
    """The lowest version that can say a record, and the members that this version has more."""
    features = _features_of(record)
    return (_VERSION_2, {"features": features}) if features else (VERSION, {})


def _features_of(record: StreamRecord) -> list[str]:
    return [LEADERLESS] if record.config.leaderless else []


def _version_in(data: bytes) -> int:
    """The version of an object as far as it is known; any other is refused where it is read."""
    return _VERSION_2 if version_of(data) == _VERSION_2 else VERSION


def _names(names: Iterable[str], version: int) -> list[str]:
    return [*names, "features"] if version == _VERSION_2 else [*names]


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


def _from_json(
    what: str, version: int, members: dict[str, Any], served: AbstractSet[str]
) -> StreamRecord:
    features = members.pop("features", [])
    check(what, isinstance(features, list), "its features are no list")
    for feature in features:
        check(what, isinstance(feature, str), "a feature is no text")
        name = feature if feature.isidentifier() and len(feature) <= _NAME_SIZE_MAX else "?"
        check_served(what, feature in _KNOWN, f"its feature {name} is not known")
        check_served(what, feature in served, f"its feature {name} is not served by this release")
    try:
        record = StreamRecord(**{name: READERS[name](value) for name, value in members.items()})
        check_record(record)
    except (AssertionError, TypeError, ValueError, InvalidRequest) as error:
        raise corrupt(what, "its members do not fit its schema") from error
    lowest, _ = _version_of(record)
    fits = version == lowest and features == _features_of(record)
    check(what, fits, "its features are not those of its members")
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
    "config": parse_stored_config,
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
