"""API keys as JSON: one value in coordination, and an object for each version in the bucket.

The object is what a rebuild starts from when coordination is lost. It holds hashes of secrets
and no secret. Spec: docs/formats.md, "API key object".
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import VERSION, check, corrupt
from bottomless.formats.sealed_json import parse_object, seal, unseal
from bottomless.model.api_key import (
    SCOPE_COUNT_MAX,
    SECRET_COUNT_MAX,
    ApiKey,
    KeyRecord,
    KeySecret,
    is_consistent,
    parse_key_id,
)
from bottomless.model.limits import TIMESTAMP_MAX
from bottomless.model.names import parse_tenant

_VALUE: Final = "API key record"
_OBJECT: Final = "API key object"
_KEY_MEMBERS: Final = (
    "key_id",
    "tenant",
    "label",
    "scopes",
    "created_at",
    "created_by",
    "secrets",
    "rotated_at",
    "expires_at",
    "revoked_at",
)
OBJECT_MEMBERS: Final = (*_KEY_MEMBERS, "generation", "version")
_RECORD_MEMBERS: Final = ("generation", "version", "reserved", "durable")
_NUMBER_MAX: Final = 10**10 - 1
"""What fits into the key of an object."""


class KeyObject(NamedTuple):
    """One version of an API key, as its object in the bucket holds it."""

    generation: int
    version: int
    key: ApiKey


def encode_key_record(record: KeyRecord) -> bytes:
    """Encode the value of an API key in coordination: JSON."""
    assert is_consistent(record)
    numbers = {name: getattr(record, name) for name in _RECORD_MEMBERS}
    return orjson.dumps({"format": VERSION, **_as_json(record.key), **numbers})


def decode_key_record(data: bytes) -> KeyRecord:
    """Read what `encode_key_record` wrote.

    Raises:
        Corrupt: it is not such a value.
    """
    members = parse_object(_VALUE, data)
    known = {*_KEY_MEMBERS, *_RECORD_MEMBERS}
    check(_VALUE, members.keys() == known, "its members are not those of its version")
    check(_VALUE, type(members["durable"]) is bool, "whether it is durable is not said")
    record = KeyRecord(
        key=_key(_VALUE, members),
        generation=_number(_VALUE, members["generation"]),
        version=_number(_VALUE, members["version"]),
        reserved=_number(_VALUE, members["reserved"]),
        durable=members["durable"],
    )
    check(_VALUE, is_consistent(record), "no writer can have written it")
    return record


def encode_key_object(stored: KeyObject) -> bytes:
    """Encode one version of an API key as the object that outlives coordination: sealed JSON."""
    numbers = {"generation": stored.generation, "version": stored.version}
    return seal({**_as_json(stored.key), **numbers})


def decode_key_object(data: bytes) -> KeyObject:
    """Read what `encode_key_object` wrote.

    Raises:
        Corrupt: it is damaged, or not such an object.
    """
    members = unseal(_OBJECT, data, OBJECT_MEMBERS)
    return KeyObject(
        generation=_number(_OBJECT, members["generation"]),
        version=_number(_OBJECT, members["version"]),
        key=_key(_OBJECT, members),
    )


def _as_json(key: ApiKey) -> dict[str, Any]:
    rows = {"scopes": list(key.scopes), "secrets": [list(one) for one in key.secrets]}
    return {name: rows.get(name, getattr(key, name)) for name in _KEY_MEMBERS}


def _key(what: str, members: Mapping[str, Any]) -> ApiKey:
    key_id = parse_key_id(_text(what, members["key_id"]))
    check(what, key_id is not None, "its id is none")
    assert key_id is not None
    try:
        tenant = parse_tenant(_text(what, members["tenant"]))
    except InvalidRequest as error:
        raise corrupt(what, "its tenant is none") from error
    scopes = _list(what, members["scopes"], SCOPE_COUNT_MAX)
    secrets = _list(what, members["secrets"], SECRET_COUNT_MAX)
    revoked_at = _time_or_none(what, members["revoked_at"])
    check(what, (revoked_at is None) == bool(secrets), "it has secrets where it is revoked")
    return ApiKey(
        key_id=key_id,
        tenant=tenant,
        label=_text(what, members["label"]),
        scopes=tuple(_text(what, scope) for scope in scopes),
        created_at=_number(what, members["created_at"], TIMESTAMP_MAX),
        created_by=_text(what, members["created_by"]),
        secrets=tuple(_secret(what, row) for row in secrets),
        rotated_at=_time_or_none(what, members["rotated_at"]),
        expires_at=_time_or_none(what, members["expires_at"]),
        revoked_at=revoked_at,
    )


def _secret(what: str, row: object) -> KeySecret:
    check(what, isinstance(row, list) and len(row) == 2, "a secret has other members")
    assert isinstance(row, list)
    return KeySecret(_text(what, row[0]), _time_or_none(what, row[1]))


def _list(what: str, value: object, count_max: int) -> list[Any]:
    check(what, isinstance(value, list) and len(value) <= count_max, "a list is none, or too long")
    assert isinstance(value, list)
    return value


def _text(what: str, value: object) -> str:
    check(what, isinstance(value, str), "a text is none")
    assert isinstance(value, str)
    return value


def _time_or_none(what: str, value: object) -> int | None:
    return None if value is None else _number(what, value, TIMESTAMP_MAX)


def _number(what: str, value: object, high: int = _NUMBER_MAX) -> int:
    # Not isinstance: JSON's true is not a number.
    check(what, type(value) is int and 0 <= value <= high, "a number is out of its range")
    assert isinstance(value, int)
    return value
