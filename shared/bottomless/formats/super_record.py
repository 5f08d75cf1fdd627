"""The record of a super stream in coordination, and the same as an object in the bucket: both JSON.

The object says what a rebuild has to know: which streams are partitions of which super stream, and
how records were divided among them. Its form is that of sealed_json.py. Spec: docs/formats.md,
"Super record" and "Super object".

Both are written in the lowest version that can say them, as a stream's record is: 1, or 2 with the
features that its configuration needs. One with a feature that the reader does not serve is refused by
the feature's name.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import VERSION, check, corrupt
from bottomless.formats.features import VERSION_2, check_features, check_sections, version_in
from bottomless.formats.json_readers import each, number, optional, row, text
from bottomless.formats.sealed_json import parse_object, seal, sealed_names, unseal
from bottomless.formats.stream_record import REPLICAS, SERVED, TIERS
from bottomless.model.config import StreamConfig, encode_config, parse_stored_config
from bottomless.model.limits import PARTITION_COUNT_MAX, TIMESTAMP_MAX, TIMESTAMP_MIN
from bottomless.model.names import (
    parse_stream_id,
    parse_stream_name,
    parse_super_id,
    parse_tenant,
)
from bottomless.model.routing import SEED, Strategy
from bottomless.model.super_stream import Layout, Partition, SuperRecord, SuperState, check_super

_RECORD: Final = "super record"
_OBJECT: Final = "super object"
_SECTIONS: Final[Mapping[str, str]] = {REPLICAS: "replication", TIERS: "tiers"}
"""The features that a super stream can have, in the order of their names, and what of its configuration
says each. Filters are none: version 1 has them."""


def encode_super(record: SuperRecord) -> bytes:
    """Encode the value of a super stream in coordination: JSON."""
    check_super(record)
    version, also = _version_of(record.config)
    return orjson.dumps({"format": version, **_as_json(record), **also})


def decode_super(data: bytes, served: AbstractSet[str] = SERVED) -> SuperRecord:
    """Read what `encode_super` wrote.

    Raises:
        NotServed: it is of a later version, or has a feature that is not among those `served`.
        Corrupt: it is not such a value.
    """
    version = version_in(data)
    members = parse_object(_RECORD, data, version)
    names = _names(_RECORD, version, members, served)
    check(_RECORD, members.keys() == set(names), "its members are not those of its version")
    return _from_json(_RECORD, version, members)


def encode_super_object(record: SuperRecord) -> bytes:
    """Encode a record as the object that outlives coordination: sealed JSON."""
    check_super(record)
    version, also = _version_of(record.config)
    return seal({**_as_json(record), **also}, version)


def decode_super_object(data: bytes, served: AbstractSet[str] = SERVED) -> SuperRecord:
    """Read what `encode_super_object` wrote.

    Raises:
        NotServed: it is of a later version, or has a feature that is not among those `served`.
        Corrupt: it is damaged, or is not such an object.
    """
    version = version_in(data)
    if version == VERSION:
        return _from_json(_OBJECT, version, unseal(_OBJECT, data, list(READERS)))
    # What a feature brings is known to who knows the feature, so the seal is looked at first.
    members = unseal(_OBJECT, data, sealed_names(data), version)
    names = _names(_OBJECT, version, members, served)
    check(_OBJECT, list(members) == names, "its members are not those of its version")
    return _from_json(_OBJECT, version, members)


def _version_of(config: StreamConfig) -> tuple[int, dict[str, Any]]:
    """The lowest version that can say a configuration, and the members that this version has more."""
    features = _features_of(config)
    return (VERSION_2, {"features": features}) if features else (VERSION, {})


def _features_of(config: StreamConfig) -> list[str]:
    said = encode_config(config)
    return [feature for feature, section in _SECTIONS.items() if section in said]


def _names(
    what: str, version: int, members: Mapping[str, Any], served: AbstractSet[str]
) -> list[str]:
    """The names of all members that a record of a version has.

    A feature that this reader does not know, or may not touch, is refused by its name.
    """
    if version != VERSION_2:
        return list(READERS)
    check_features(what, members, _SECTIONS, served)
    return [*READERS, "features"]


def _as_json(record: SuperRecord) -> dict[str, Any]:
    return {
        "super_id": record.super_id,
        "name": record.name,
        "tenant": record.tenant,
        "state": record.state.value,
        "created_at": record.created_at,
        "strategy": record.strategy.value,
        "seed": record.seed,
        "layouts": [[one.version, one.count, one.created_at] for one in record.layouts],
        "partitions": [
            [one.index, one.stream_id, one.name, one.binding_key] for one in record.partitions
        ],
        "config": encode_config(record.config),
        "config_version": record.config_version,
        "generation": record.generation,
        "registry_version": record.registry_version,
    }


def _from_json(what: str, version: int, members: Mapping[str, Any]) -> SuperRecord:
    try:
        record = SuperRecord(**{name: read(members[name]) for name, read in READERS.items()})
        check_super(record)
    except (AssertionError, TypeError, ValueError, InvalidRequest) as error:
        raise corrupt(what, "its members do not fit its schema") from error
    features = _features_of(record.config)
    lowest = VERSION_2 if features else VERSION
    fits = version == lowest and members.get("features", []) == features
    check(what, fits, "its features are not those of its configuration")
    check_sections(what, [_SECTIONS[one] for one in features], record.config, members["config"])
    return record


_count = number(0, 2**63 - 1)
_timestamp = number(TIMESTAMP_MIN, TIMESTAMP_MAX)
_partition_count = number(1, PARTITION_COUNT_MAX)
_index = number(0, PARTITION_COUNT_MAX - 1)

READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "super_id": lambda value: parse_super_id(text(value)),
    "name": lambda value: parse_stream_name(text(value)),
    "tenant": lambda value: parse_tenant(text(value)),
    "state": SuperState,
    "created_at": _timestamp,
    "strategy": Strategy,
    "seed": number(SEED, SEED),
    "layouts": each(row(Layout, number(1, PARTITION_COUNT_MAX), _partition_count, _timestamp)),
    "partitions": each(row(Partition, _index, parse_stream_id, parse_stream_name, optional(text))),
    "config": parse_stored_config,
    "config_version": _count,
    "generation": _count,
    "registry_version": number(1, 10**10 - 1),
}
"""How each member of a super stream is read, in the order in which it is written."""
