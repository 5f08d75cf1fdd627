"""The stream record of a stream with replicas, and its registry object."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt, InvalidRequest, NotServed
from bottomless.formats.stream_record import (
    REPLICAS,
    SERVED,
    decode_record,
    decode_registry,
    encode_record,
    encode_registry,
)
from bottomless.model.config import (
    ReplicationConfig,
    StreamConfig,
    config_differences,
    encode_config,
    parse_config,
    parse_stored_config,
    patch_config,
)
from bottomless.model.stream import NOBODY, StreamRecord
from unit.formats.examples import OTHER_NODES, RECORD, REPLICATED_RECORD
from unit.formats.test_stream_record import DELETED, json_values, sealed

HOME = REPLICATED_RECORD.members[0]
WITHOUT_REPLICAS = SERVED - {REPLICAS}


def changed(data: bytes, changes: dict[str, Any]) -> dict[str, Any]:
    """The members of a record or a registry object, with others."""
    members = {**orjson.loads(data), **changes}
    return {name: value for name, value in members.items() if value is not DELETED}


@pytest.mark.parametrize(
    "record",
    [
        REPLICATED_RECORD,
        replace(RECORD, config=REPLICATED_RECORD.config),
        replace(REPLICATED_RECORD, config=RECORD.config),
        replace(REPLICATED_RECORD, home=NOBODY, in_sync=()),
        replace(REPLICATED_RECORD, home=OTHER_NODES[0], in_sync=(), dirty=False),
    ],
    ids=["three", "wanted alone", "members alone", "fenced by a takeover", "clean"],
)
def test_a_record_with_replicas_comes_back(record: StreamRecord) -> None:
    data = encode_record(record)
    assert orjson.loads(data)["format"] == 2
    assert orjson.loads(data)["features"] == ["replicas"]
    assert decode_record(data) == record


def test_a_registry_object_names_the_members_and_not_who_is_in_sync() -> None:
    """After a loss of coordination nobody knows that but the nodes themselves."""
    data = encode_registry(REPLICATED_RECORD)
    read = decode_registry(data)
    assert "in_sync" not in orjson.loads(data)
    assert (read.members, read.in_sync) == (REPLICATED_RECORD.members, ())
    assert (read.home, read.config) == (HOME, REPLICATED_RECORD.config)


def test_a_release_that_serves_no_replicas_touches_no_stream_that_has_them() -> None:
    assert REPLICAS in SERVED
    for decode, data in (
        (decode_record, encode_record(REPLICATED_RECORD)),
        (decode_registry, encode_registry(REPLICATED_RECORD)),
    ):
        with pytest.raises(NotServed, match="feature replicas is not served"):
            decode(data, WITHOUT_REPLICAS)


def test_without_replicas_nothing_is_written_of_them() -> None:
    for data in (encode_record(RECORD), encode_registry(RECORD)):
        assert orjson.loads(data)["format"] == 1
        assert not {b"members", b"in_sync", b"replication"} & set(data.split(b'"'))
    assert "replication" not in encode_config(StreamConfig())


@pytest.mark.parametrize(
    "changes",
    [
        {"members": None},
        {"members": DELETED},
        {"members": [HOME, HOME, OTHER_NODES[1]]},
        {"members": [HOME, OTHER_NODES[1], 7]},
        {"members": [HOME, OTHER_NODES[1], *map(str, range(8))]},
        {"features": []},
        {"features": ["replicas", "replicas"]},
        {"features": ["filter", "replicas"]},
        {"config": {"replication": {"replicas": 0}}},
        {"config": {"replication": {"replicas": 10}}},
        {"config": {"replication": {"replicas": 3}}},
        {"config": {"replication": {"replicas": 1, "min_in_sync": None}}},
        {"config": {"replication": {"replicas": 2, "min_in_sync": 3}}},
        {"config": {"replication": {"replicas": 2, "more": 1}}},
        {"config": {"profile": "leaderless", "replication": {"replicas": 3, "min_in_sync": 2}}},
    ],
)
def test_a_stream_says_its_replicas_in_one_way(changes: dict[str, Any]) -> None:
    record = changed(encode_record(REPLICATED_RECORD), changes)
    with pytest.raises(Corrupt):
        decode_record(orjson.dumps(record))
    registry = changed(encode_registry(REPLICATED_RECORD), changes)
    with pytest.raises(Corrupt):
        decode_registry(sealed(registry))


@pytest.mark.parametrize(
    "changes",
    [
        {"members": [HOME]},
        {"in_sync": DELETED},
        {"in_sync": None},
        {"in_sync": [OTHER_NODES[1]]},
        {"in_sync": []},
        {"in_sync": [HOME, HOME]},
        {"in_sync": [HOME, "no member"]},
    ],
)
def test_who_is_in_sync_is_a_member_and_the_home_of_a_dirty_stream_is(
    changes: dict[str, Any],
) -> None:
    record = changed(encode_record(REPLICATED_RECORD), changes)
    with pytest.raises(Corrupt):
        decode_record(orjson.dumps(record))


MEMBERS = list(orjson.loads(encode_record(REPLICATED_RECORD)))


@given(st.sampled_from(MEMBERS), json_values)
def test_any_value_anywhere_is_read_or_refused(name: str, value: Any) -> None:
    data = orjson.dumps({**orjson.loads(encode_record(REPLICATED_RECORD)), name: value})
    try:
        record = decode_record(data)
    except Corrupt:
        return
    assert decode_record(encode_record(record)) == record


ASKED = {"replication": {"replicas": 3}}


def test_a_request_says_how_many_replicas_there_are() -> None:
    for leaderless in (False, True):
        config = parse_config(ASKED, leaderless=leaderless, tiered=True)
        assert config.replication == ReplicationConfig(replicas=3)
        patched = patch_config(StreamConfig(), ASKED, leaderless=leaderless, tiered=True)
        assert patched == config
    back = patch_config(REPLICATED_RECORD.config, {"replication": None}, tiered=True)
    assert back.replication == ReplicationConfig()


def test_where_they_are_not_served_no_request_says_replicas() -> None:
    for leaderless in (False, True):
        with pytest.raises(InvalidRequest):
            parse_config(ASKED, leaderless=leaderless)
        with pytest.raises(InvalidRequest):
            patch_config(REPLICATED_RECORD.config, ASKED, leaderless=leaderless)


@pytest.mark.parametrize(
    ("said", "pointer"),
    [
        ({"replicas": 0}, "/replication/replicas"),
        ({"replicas": 10}, "/replication/replicas"),
        ({"replicas": 2, "min_in_sync": 3}, "/replication"),
        ({"replicas": 2, "more": 1}, "/replication"),
        (3, "/replication"),
    ],
)
def test_a_fault_of_replicas_has_its_place(said: Any, pointer: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_config({"replication": said}, tiered=True)
    assert [fault.pointer for fault in raised.value.faults] == [pointer]


def test_a_leaderless_stream_has_no_replicas() -> None:
    leaderless = {"profile": "leaderless"}
    with pytest.raises(InvalidRequest) as raised:
        parse_config({**leaderless, **ASKED}, leaderless=True, tiered=True)
    config = parse_config(leaderless, leaderless=True, tiered=True)
    with pytest.raises(InvalidRequest) as patched:
        patch_config(config, ASKED, leaderless=True, tiered=True)
    for refused in (raised, patched):
        assert [fault.pointer for fault in refused.value.faults] == ["/replication"]


def test_what_a_request_leaves_open_of_replicas_is_no_difference() -> None:
    mine, theirs = parse_config({}), parse_config(ASKED, tiered=True)
    assert config_differences(mine, theirs) == []
    assert config_differences(theirs, mine) == ["/replication/replicas"]


def test_a_change_of_a_configuration_keeps_the_replicas() -> None:
    patched = patch_config(REPLICATED_RECORD.config, {"labels": {"a": "b"}})
    assert patched.replication == ReplicationConfig(replicas=3)


@pytest.mark.parametrize(
    ("replicas", "said", "needed"),
    [(1, None, 1), (2, None, 2), (3, None, 2), (9, None, 5), (3, 1, 1)],
)
def test_more_than_half_must_have_a_record_unless_it_is_said(
    replicas: int, said: int | None, needed: int
) -> None:
    stored = {"replication": {"replicas": replicas, "min_in_sync": said}}
    assert parse_stored_config(stored).replication.least_in_sync == needed
