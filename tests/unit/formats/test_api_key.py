"""API keys as JSON: the value in coordination, and the object in the bucket."""

from dataclasses import replace

import orjson
import pytest

from bottomless.errors import Corrupt
from bottomless.formats.api_key import (
    decode_key_object,
    decode_key_record,
    encode_key_object,
    encode_key_record,
)
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import api_key_key, api_key_prefix, parse_api_key_key
from bottomless.model.api_key import KeyRecord, revoked
from unit.formats.examples import API_KEY, API_KEY_OBJECT, API_KEY_RECORD, assert_refuses_damage

WRONG = [
    {"key_id": "x"},
    {"key_id": 7},
    {"tenant": "_system"},
    {"tenant": None},
    {"label": 7},
    {"scopes": "read"},
    {"scopes": [7]},
    {"scopes": ["read"] * 33},
    {"created_at": True},
    {"created_at": -1},
    {"created_by": None},
    {"secrets": [["a"]]},
    {"secrets": [[7, None]]},
    {"secrets": [["a", 1.0]]},
    {"secrets": [["a", None]] * 5},
    {"secrets": []},
    {"revoked_at": 1},
    {"generation": -1},
    {"version": 10**10},
]


def sealed(**changes: object) -> bytes:
    """The object with other members, under a checksum that is right."""
    members = {**orjson.loads(encode_key_object(API_KEY_OBJECT)), **changes}
    del members["crc32c"]
    return orjson.dumps({**members, "crc32c": f"{crc32c(orjson.dumps(members)):08x}"})


def test_keys_come_back() -> None:
    dead = revoked(API_KEY, API_KEY.created_at + 7)
    for key in (API_KEY, replace(API_KEY, expires_at=None, rotated_at=None), dead):
        stored = API_KEY_OBJECT._replace(key=key)
        assert decode_key_object(encode_key_object(stored)) == stored
        record = replace(API_KEY_RECORD, key=key)
        assert decode_key_record(encode_key_record(record)) == record


def test_every_damage_to_an_object_is_refused() -> None:
    assert_refuses_damage(decode_key_object, encode_key_object(API_KEY_OBJECT))


@pytest.mark.parametrize("changes", WRONG, ids=str)
def test_a_key_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        decode_key_object(sealed(**changes))
    value = {**orjson.loads(encode_key_record(API_KEY_RECORD)), **changes}
    with pytest.raises(Corrupt):
        decode_key_record(orjson.dumps(value))


@pytest.mark.parametrize("changes", [{"version": 4}, {"durable": False}])
def test_a_record_that_must_not_be_is_not_read(changes: dict[str, object]) -> None:
    """Found by fuzzing: it was read, and whoever then changed it could not write it."""
    value = {**orjson.loads(encode_key_record(API_KEY_RECORD)), **changes}
    with pytest.raises(Corrupt):
        decode_key_record(orjson.dumps(value))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format":1}', b'{"format":2}'])
def test_what_is_no_key_is_refused(data: bytes) -> None:
    for decode in (decode_key_object, decode_key_record):
        with pytest.raises(Corrupt):
            decode(data)


@pytest.mark.parametrize(
    "record",
    [
        replace(API_KEY_RECORD, version=4),
        replace(API_KEY_RECORD, durable=False),
        replace(API_KEY_RECORD, key=replace(API_KEY, secrets=())),
    ],
)
def test_a_record_that_must_not_be_is_never_written(record: KeyRecord) -> None:
    with pytest.raises(AssertionError):
        encode_key_record(record)


def test_the_names_of_objects_sort_by_generation_and_number() -> None:
    places = [(0, 9), (0, 10), (1, 1), (1, 100)]
    names = [api_key_key(API_KEY.key_id, *place) for place in places]
    assert names == sorted(names)
    assert [parse_api_key_key(name) for name in names] == [
        (API_KEY.key_id, *place) for place in places
    ]
    assert all(name.startswith(api_key_prefix(API_KEY.key_id)) for name in names)


@pytest.mark.parametrize(
    "name", ["", "_system/generation.json", "_system/keys/x.0000000000.0000000001.json"]
)
def test_other_names_are_not_taken_for_those_of_keys(name: str) -> None:
    assert parse_api_key_key(name) is None
