from dataclasses import replace
from typing import Any

import orjson
import pytest

from bottomless.errors import Corrupt, NotServed
from bottomless.formats.checks import crc32c
from bottomless.formats.sealed_json import seal
from bottomless.formats.super_record import (
    READERS,
    decode_super,
    decode_super_object,
    encode_super,
    encode_super_object,
)
from bottomless.model.config import parse_stored_config
from bottomless.model.routing import Strategy
from bottomless.model.super_stream import Layout, SuperRecord
from unit.formats.examples import (
    OTHER_STREAM_ID,
    PLACED_SUPER_RECORD,
    STREAM_ID,
    SUPER_ID,
    SUPER_RECORD,
    TIMESTAMP,
    assert_refuses_damage,
)

HASHED = replace(
    SUPER_RECORD,
    strategy=Strategy.HASH,
    partitions=tuple(replace(one, binding_key=None) for one in SUPER_RECORD.partitions),
)
REPLICATED = {"replication": {"replicas": 3, "min_in_sync": None}}
TIERED = {"tiers": [{"drive": "default", "max_bytes": 2**30}, {"drive": "cold"}]}
FILTERED = {"filter": {"index": "values", "max_bytes": 256}}
FIRST, SECOND = ([one.index, one.stream_id, one.name] for one in SUPER_RECORD.partitions)


def changed(**members: Any) -> bytes:
    """The record's JSON with other members."""
    return orjson.dumps({**orjson.loads(encode_super(SUPER_RECORD)), **members})


@pytest.mark.parametrize("record", [SUPER_RECORD, HASHED])
def test_a_super_stream_comes_back(record: SuperRecord) -> None:
    assert decode_super(encode_super(record)) == record
    assert decode_super_object(encode_super_object(record)) == record


def test_every_damage_to_a_super_object_is_refused() -> None:
    assert_refuses_damage(decode_super_object, encode_super_object(HASHED))


def test_one_of_a_later_version_is_left_to_who_can_read_it() -> None:
    with pytest.raises(NotServed):
        decode_super(changed(format=3))
    members = orjson.loads(encode_super_object(SUPER_RECORD)) | {"format": 3}
    with pytest.raises(NotServed):
        decode_super_object(orjson.dumps(members))


@pytest.mark.parametrize("name", READERS)
def test_a_member_that_is_missing_or_of_another_type_is_refused(name: str) -> None:
    members = orjson.loads(encode_super(SUPER_RECORD))
    for value in (1.5, {"a": 1}, [[1]], -(2**63), True):
        with pytest.raises(Corrupt):
            decode_super(orjson.dumps({**members, name: value}))
    del members[name]
    with pytest.raises(Corrupt, match="members are not those"):
        decode_super(orjson.dumps(members))


@pytest.mark.parametrize(
    "members",
    [
        {"seed": 104_730},
        {"strategy": "hash"},
        {"partitions": []},
        {"partitions": [[*FIRST, "amer"]]},
        {"partitions": [[*SECOND, "é"], [*FIRST, "amer"]]},
        {"partitions": [[*FIRST, "amer"], [*SECOND, "amer"]]},
        {"partitions": [[*FIRST, "amer"], [*SECOND, None]]},
        {"partitions": [[*FIRST, "amer"], [1, OTHER_STREAM_ID, "events-1", "é"]]},
        {"partitions": [[*FIRST, "amer"], [1, STREAM_ID, "events-0", "é"]]},
        {"partitions": [[*FIRST, "amer"], [1, STREAM_ID, "events", "é"]]},
        {"partitions": [[*FIRST, "amer"], [1, SUPER_ID, "events-1", "é"]]},
        {"layouts": []},
        {"layouts": [[1, 1, TIMESTAMP]]},
        {"layouts": [[2, 2, TIMESTAMP]]},
        {"layouts": [[1, 2, TIMESTAMP], [2, 2, TIMESTAMP]]},
        {"layouts": [[1, 0, TIMESTAMP], [2, 2, TIMESTAMP]]},
        {"config": {"profile": "leaderless"}},
        {"registry_version": 0},
    ],
)
def test_what_no_writer_wrote_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="do not fit"):
        decode_super(changed(**members))
    whole = {**orjson.loads(encode_super_object(SUPER_RECORD)), **members}
    del whole["crc32c"]
    sealed = orjson.dumps({**whole, "crc32c": f"{crc32c(orjson.dumps(whole)):08x}"})
    with pytest.raises(Corrupt, match="do not fit"):
        decode_super_object(sealed)


def test_no_writer_writes_what_no_reader_reads() -> None:
    leaderless = parse_stored_config({"profile": "leaderless"})
    for wrong in ({"config": leaderless}, {"layouts": (Layout(1, 3, TIMESTAMP),)}):
        with pytest.raises(AssertionError):
            encode_super(replace(SUPER_RECORD, **wrong))


@pytest.mark.parametrize(
    ("config", "features"),
    [
        (REPLICATED, ["replicas"]),
        (TIERED, ["tiers"]),
        ({**TIERED, **REPLICATED, **FILTERED}, ["replicas", "tiers"]),
    ],
)
def test_what_its_partitions_need_of_a_release_it_names_as_features(
    config: dict[str, Any], features: list[str]
) -> None:
    record = replace(SUPER_RECORD, config=parse_stored_config(config))
    for data in (encode_super(record), encode_super_object(record)):
        members = orjson.loads(data)
        assert (members["format"], members["features"]) == (2, features)
    assert decode_super(encode_super(record)) == record
    assert decode_super_object(encode_super_object(record)) == record
    assert_refuses_damage(decode_super_object, encode_super_object(record))


def test_one_without_features_is_of_the_version_that_all_releases_read() -> None:
    record = replace(SUPER_RECORD, config=parse_stored_config(FILTERED))
    for data in (encode_super(record), encode_super_object(record)):
        assert orjson.loads(data)["format"] == 1
        assert b"features" not in data


@pytest.mark.parametrize(
    ("features", "said"),
    [
        (["later"], "its feature later is not known"),
        (["filter"], "its feature filter is not known"),
        (["no word!"], r"its feature \? is not known"),
    ],
)
def test_a_feature_of_a_later_release_is_refused_by_its_name(
    features: list[str], said: str
) -> None:
    record = orjson.loads(encode_super(PLACED_SUPER_RECORD)) | {"features": features}
    with pytest.raises(NotServed, match=said):
        decode_super(orjson.dumps({**record, "more": 1}))
    members = orjson.loads(encode_super_object(PLACED_SUPER_RECORD))
    del members["crc32c"], members["format"]
    with pytest.raises(NotServed, match=said):
        decode_super_object(seal({**members, "features": features, "more": 1}, 2))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 1},
        {"features": []},
        {"features": None},
        {"features": ["tiers"]},
        {"features": ["tiers", "replicas"]},
        {"features": ["replicas", "tiers", "tiers"]},
        {"more": 1},
        {"config": {}},
        {"config": {**TIERED, "replication": {"replicas": 1, "min_in_sync": None}}},
        {"config": {**TIERED, "replication": {"replicas": 3}}},
        {"config": {**REPLICATED, "tiers": [{"drive": "cold"}]}},
        {"config": {**REPLICATED, **TIERED, "profile": "leaderless"}},
    ],
)
def test_its_features_are_said_in_one_way(changes: dict[str, Any]) -> None:
    record = orjson.loads(encode_super(PLACED_SUPER_RECORD)) | changes
    with pytest.raises(Corrupt):
        decode_super(orjson.dumps(record))
    members = orjson.loads(encode_super_object(PLACED_SUPER_RECORD)) | changes
    version = members.pop("format")
    del members["crc32c"]
    with pytest.raises(Corrupt):
        decode_super_object(seal(members, version))
