"""The stream record in coordination and the registry object in the bucket, both JSON.

The registry object is what a rebuild starts from when coordination is lost: it says that the stream
exists, how it is configured and which node holds its tail. Its form is that of sealed_json.py, so
that any other byte is damage. Spec: docs/formats.md, "Stream record" and "Stream registry object".

Both are written in the lowest version that can say them: 1, or 2 with the features that they need.
A record with a feature that the reader does not serve is refused by the feature's name.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import VERSION, check, corrupt
from bottomless.formats.features import VERSION_2, check_features, check_sections, version_in
from bottomless.formats.json_readers import each, flag, number, optional, row, text
from bottomless.formats.sealed_json import parse_object, seal, sealed_names, unseal
from bottomless.model.config import FilterConfig, encode_config, parse_stored_config
from bottomless.model.drive import DEFAULT_NUMBER, NUMBER_MAX
from bottomless.model.limits import (
    OFFSET_MAX,
    PARTITION_COUNT_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
)
from bottomless.model.names import (
    parse_stream_id,
    parse_stream_name,
    parse_super_id,
    parse_uid,
)
from bottomless.model.stream import (
    EpochStart,
    Intent,
    Lease,
    PartitionOf,
    RootPointer,
    StreamRecord,
    StreamState,
    check_record,
)
from bottomless.model.tiers import Move, Promotion, copy_text, parse_copy

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
SUPER: Final = "super"
"""The feature of a stream that is a partition of a super stream: the member `super`."""
FILTER: Final = "filter"
"""The feature of a stream whose fragments get filters: `config.filter`."""
REPLICAS: Final = "replicas"
"""The feature of a stream whose tail lies on several nodes: `config.replication`, and the members
`members` and `in_sync`, of which the registry object has the first."""
TIERS: Final = "tiers"
"""The feature of a stream of which anything lies, or is to lie, on another drive than the first:
`config.tiers`, the members `moves` and `promoted`, which a registry object lacks, and `drives`, and a
drive in each row of `intents` and `quarantine`."""
UNSEEN: Final = "unseen"
"""The feature of a stream that was rebuilt while drives of it were away: the member `unseen`. It goes
when they were looked at."""
SERVED: Final[frozenset[str]] = frozenset({FILTER, LEADERLESS, REPLICAS, SUPER, TIERS, UNSEEN})
"""Features of streams that the services of this release serve. Of others they touch nothing."""
_FEATURE_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    FILTER: (),
    LEADERLESS: (),
    REPLICAS: ("members", "in_sync"),
    SUPER: (SUPER,),
    TIERS: ("moves", "promoted", "drives"),
    UNSEEN: (UNSEEN,),
}
"""The features that are known, in the order of their names, and the members that each has."""
_IN_RECORDS_ALONE: Final = frozenset({"in_sync", "moves", "promoted", UNSEEN})
"""Members of features that a registry object lacks: only coordination knows them."""
_SECTIONS: Final[Mapping[str, str]] = {REPLICAS: "replication", TIERS: "tiers"}
"""What of a configuration says a feature, where that is written in one way alone."""


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
    version = version_in(data)
    members = parse_object(what, data, version)
    names = _names(what, READERS, version, members, served)
    check(what, members.keys() == set(names), "its members are not those of its version")
    return _from_json(what, version, members)


def encode_registry(record: StreamRecord) -> bytes:
    """Encode what of a record must outlive coordination as a registry object: sealed JSON."""
    check_record(record)
    # What is under way makes no difference to what outlives coordination.
    lasting = replace(record, moves=(), promoted=(), intents=(), quarantine=(), unseen=())
    version, also = _version_of(lasting)
    whole = _as_json(lasting)
    more = {name: value for name, value in also.items() if name not in _IN_RECORDS_ALONE}
    return seal({name: whole[name] for name in REGISTRY_MEMBERS} | more, version)


def decode_registry(data: bytes, served: AbstractSet[str] = SERVED) -> StreamRecord:
    """Read a registry object as a record; members that only coordination knows have their defaults.

    Raises:
        NotServed: it is of a later version, or has a feature that is not among those `served`.
        Corrupt: it is damaged, or is not such an object.
    """
    what = "stream registry object"
    version = version_in(data)
    if version == VERSION:
        return _from_json(what, version, unseal(what, data, REGISTRY_MEMBERS, version))
    # What a feature brings is known to who knows the feature, so the seal is looked at first.
    members = unseal(what, data, sealed_names(data), version)
    names = _names(what, REGISTRY_MEMBERS, version, members, served)
    names = [name for name in names if name not in _IN_RECORDS_ALONE]
    check(what, list(members) == names, "its members are not those of its version")
    return _from_json(what, version, members)


def _version_of(record: StreamRecord) -> tuple[int, dict[str, Any]]:
    """The lowest version that can say a record, and the members that this version has more."""
    features = _features_of(record)
    if not features:
        return VERSION, {}
    also: dict[str, Any] = {"features": features}
    if REPLICAS in features:
        also |= {"members": list(record.members), "in_sync": list(record.in_sync)}
    if record.partition_of is not None:
        also[SUPER] = [record.partition_of.super_id, record.partition_of.index]
    if TIERS in features:
        also["moves"] = [[copy_text(move.copy), *move[1:]] for move in record.moves]
        also["promoted"] = [list(one) for one in record.promoted]
        also["drives"] = list(record.drives)
    if record.unseen:
        also[UNSEEN] = list(record.unseen)
    return VERSION_2, also


def _features_of(record: StreamRecord) -> list[str]:
    config = record.config
    needed = {
        FILTER: config.filter != FilterConfig(),
        LEADERLESS: config.leaderless,
        REPLICAS: record.is_replicated,
        SUPER: record.partition_of is not None,
        TIERS: record.is_tiered,
        UNSEEN: bool(record.unseen),
    }
    return [feature for feature in _FEATURE_MEMBERS if needed[feature]]


def _names(
    what: str,
    names: Iterable[str],
    version: int,
    members: Mapping[str, Any],
    served: AbstractSet[str],
) -> list[str]:
    """The names of all members that a record of a version has, by the features that it names.

    A feature that this reader does not know, or may not touch, is refused by its name.
    """
    if version != VERSION_2:
        return [*names]
    features = check_features(what, members, _FEATURE_MEMBERS, served)
    more = [name for one, also in _FEATURE_MEMBERS.items() if one in features for name in also]
    return [*names, "features", *more]


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
        "intents": _intents_as_json(record, record.intents),
        "quarantine": _intents_as_json(record, record.quarantine),
        "condemned_next": record.condemned_next,
        "leases": [_lease_as_json(lease) for lease in record.leases],
        "registry_version": record.registry_version,
    }


def _root_as_json(root: RootPointer) -> list[Any]:
    return [root.uid, root.generation, root.epoch, root.version, root.size, root.crc]


def _intents_as_json(record: StreamRecord, intents: tuple[Intent, ...]) -> list[list[Any]]:
    rows: list[list[Any]] = [[one.uid, one.first_offset, one.session] for one in intents]
    if record.is_tiered:
        rows = [[*row_, one.drive] for row_, one in zip(rows, intents, strict=True)]
    return rows


def _lease_as_json(lease: Lease) -> list[Any]:
    return [lease.lease_id, lease.first_offset, lease.next_offset, lease.expires_at, lease.holder]


def _from_json(what: str, version: int, members: dict[str, Any]) -> StreamRecord:
    features = members.pop("features", [])
    also = {name: members.pop(name) for name in _FEATURE_READERS if name in members}
    readers = {**READERS, **_TIERED_READERS} if TIERS in features else READERS
    try:
        read = {name: readers[name](value) for name, value in members.items()}
        more = {
            _FIELDS.get(name, name): _FEATURE_READERS[name](value) for name, value in also.items()
        }
        record = StreamRecord(**read, **more)
        check_record(record)
    except (AssertionError, TypeError, ValueError, InvalidRequest) as error:
        raise corrupt(what, "its members do not fit its schema") from error
    lowest, _ = _version_of(record)
    fits = version == lowest and features == _features_of(record)
    check(what, fits, "its features are not those of its members")
    if FILTER in features:
        kept = encode_config(record.config)["filter"] == members["config"]["filter"]
        check(what, kept, "its filter is not as it is written")
    sections = [section for feature, section in _SECTIONS.items() if feature in features]
    check_sections(what, sections, record.config, members["config"])
    return record


_count = number(0, 2**63 - 1)
_crc = number(0, 2**32 - 1)
_offset = number(0, OFFSET_MAX + 1)
_timestamp = number(TIMESTAMP_MIN, TIMESTAMP_MAX)
_intent = row(Intent, parse_uid, _offset, text)
_drive = number(DEFAULT_NUMBER, NUMBER_MAX)
_placed_intent = row(Intent, parse_uid, _offset, text, _drive)
_partition_of = optional(row(PartitionOf, parse_super_id, number(0, PARTITION_COUNT_MAX - 1)))
_lease = row(Lease, text, _offset, _offset, _timestamp, text)

READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "stream_id": parse_stream_id,
    "name": parse_stream_name,
    "tenant": text,
    "state": StreamState,
    "created_at": _timestamp,
    "config": parse_stored_config,
    "config_version": _count,
    "generation": _count,
    "version": _count,
    "epoch": _count,
    "home": optional(text),
    "owner_url": optional(text),
    "dirty": flag,
    "reserved_next": _offset,
    "epochs": each(row(EpochStart, _count, _offset)),
    "root": optional(row(RootPointer, parse_uid, _count, _count, _count, _count, _crc)),
    "past_roots": each(parse_uid),
    "published_next": _offset,
    "last_timestamp": _timestamp,
    "uploader": optional(text),
    "intents": each(_intent),
    "quarantine": each(_intent),
    "condemned_next": _offset,
    "leases": each(_lease),
    "registry_version": _count,
}
"""How each member of a record is read, in the order in which it is written."""
_FEATURE_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "members": each(text),
    "in_sync": each(text),
    SUPER: _partition_of,
    "moves": each(
        row(Move, parse_copy, _offset, _offset, _drive, _drive, optional(text), _timestamp)
    ),
    "promoted": each(row(Promotion, _offset, _offset, _timestamp)),
    "drives": each(number(DEFAULT_NUMBER + 1, NUMBER_MAX)),
    UNSEEN: each(number(DEFAULT_NUMBER + 1, NUMBER_MAX)),
}
_TIERED_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "intents": each(_placed_intent),
    "quarantine": each(_placed_intent),
}
"""Members that the feature `tiers` writes in another way."""
_FIELDS: Final = {SUPER: "partition_of"}
"""Members of features that are fields of another name."""
