"""Consumer offsets as JSON: a value in coordination for each, and all of a stream in one object.

The object is what a rebuild starts from when coordination is lost; the highest version of a stream
counts. Spec: docs/formats.md, "Consumers snapshot".
"""

from typing import Any, Final, NamedTuple

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import check, corrupt
from bottomless.formats.sealed_json import seal, unseal
from bottomless.model.consumer import StoredOffset
from bottomless.model.limits import OFFSET_MAX, TIMESTAMP_MAX
from bottomless.model.names import StreamId, parse_reference, parse_stream_id

_VALUE: Final = "consumer offset"
_SNAPSHOT: Final = "consumers snapshot"
MEMBERS: Final = ("stream_id", "tenant", "version", "consumers")
_REVISION_MAX: Final = 2**63 - 1


class ConsumersSnapshot(NamedTuple):
    """What all consumers of a stream had committed at one time, in the order of their names."""

    stream_id: StreamId
    tenant: str
    version: int
    consumers: tuple[StoredOffset, ...]


def encode_offset(stored: StoredOffset) -> bytes:
    """Encode the value of a consumer's key in coordination: JSON."""
    return orjson.dumps(_row(stored))


def decode_offset(data: bytes) -> StoredOffset:
    """Read what `encode_offset` wrote.

    Raises:
        Corrupt: it is not such a value.
    """
    try:
        row = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise corrupt(_VALUE, "it is not JSON") from error
    return _stored(_VALUE, row)


def encode_snapshot(snapshot: ConsumersSnapshot) -> bytes:
    """Encode a snapshot as the object that outlives coordination: sealed JSON."""
    return seal(
        {
            "stream_id": snapshot.stream_id,
            "tenant": snapshot.tenant,
            "version": snapshot.version,
            "consumers": [_row(stored) for stored in snapshot.consumers],
        }
    )


def decode_snapshot(data: bytes) -> ConsumersSnapshot:
    """Read what `encode_snapshot` wrote.

    Raises:
        Corrupt: it is damaged, or not such an object.
    """
    members = unseal(_SNAPSHOT, data, MEMBERS)
    rows, tenant = members["consumers"], members["tenant"]
    check(_SNAPSHOT, isinstance(rows, list), "its consumers are not a list")
    check(_SNAPSHOT, isinstance(tenant, str), "its tenant is not a text")
    check(_SNAPSHOT, _is_count(members["version"], _REVISION_MAX), "its version is not a number")
    try:
        stream_id = parse_stream_id(members["stream_id"])
    except (InvalidRequest, TypeError) as error:
        raise corrupt(_SNAPSHOT, "its stream id is none") from error
    consumers = tuple(_stored(_SNAPSHOT, row) for row in rows)
    names = [stored.consumer for stored in consumers]
    check(_SNAPSHOT, names == sorted(set(names)), "its consumers are not in their order")
    return ConsumersSnapshot(stream_id, tenant, members["version"], consumers)


def _row(stored: StoredOffset) -> list[Any]:
    return [stored.consumer, stored.next_offset, stored.committed_at, stored.revision]


def _stored(what: str, row: object) -> StoredOffset:
    check(what, isinstance(row, list) and len(row) == 4, "a consumer has other members")
    assert isinstance(row, list)
    consumer, *numbers = row
    bounds = (OFFSET_MAX + 1, TIMESTAMP_MAX, _REVISION_MAX)
    fits = all(_is_count(number, high) for number, high in zip(numbers, bounds, strict=True))
    check(what, fits, "a number is out of its range")
    try:
        return StoredOffset(parse_reference(consumer), *numbers)
    except (InvalidRequest, TypeError) as error:
        raise corrupt(what, "a name is none") from error


def _is_count(number: object, high: int) -> bool:
    # Not isinstance: JSON's true is not a number.
    return type(number) is int and 0 <= number <= high
