"""The record of a super stream in coordination, and the same as an object in the bucket: both JSON.

The object says what a rebuild has to know: which streams are partitions of which super stream, and
how records were divided among them. Its form is that of sealed_json.py. Spec: docs/formats.md,
"Super record" and "Super object".
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import VERSION, check, corrupt
from bottomless.formats.json_readers import each, number, optional, row, text
from bottomless.formats.sealed_json import parse_object, seal, unseal
from bottomless.model.config import encode_config, parse_stored_config
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


def encode_super(record: SuperRecord) -> bytes:
    """Encode the value of a super stream in coordination: JSON."""
    check_super(record)
    return orjson.dumps({"format": VERSION, **_as_json(record)})


def decode_super(data: bytes) -> SuperRecord:
    """Read what `encode_super` wrote.

    Raises:
        NotServed: it is of a later version.
        Corrupt: it is not such a value.
    """
    members = parse_object(_RECORD, data)
    check(_RECORD, members.keys() == READERS.keys(), "its members are not those of its version")
    return _from_json(_RECORD, members)


def encode_super_object(record: SuperRecord) -> bytes:
    """Encode a record as the object that outlives coordination: sealed JSON."""
    check_super(record)
    return seal(_as_json(record))


def decode_super_object(data: bytes) -> SuperRecord:
    """Read what `encode_super_object` wrote.

    Raises:
        NotServed: it is of a later version.
        Corrupt: it is damaged, or is not such an object.
    """
    return _from_json(_OBJECT, unseal(_OBJECT, data, list(READERS)))


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


def _from_json(what: str, members: Mapping[str, Any]) -> SuperRecord:
    try:
        record = SuperRecord(**{name: read(members[name]) for name, read in READERS.items()})
        check_super(record)
    except (AssertionError, TypeError, ValueError, InvalidRequest) as error:
        raise corrupt(what, "its members do not fit its schema") from error
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
