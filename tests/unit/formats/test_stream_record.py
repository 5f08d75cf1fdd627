from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt, NotServed
from bottomless.formats.checks import crc32c
from bottomless.formats.stream_record import (
    SERVED,
    SUPER,
    decode_record,
    decode_registry,
    encode_record,
    encode_registry,
)
from bottomless.model.config import StreamConfig, parse_stored_config
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import parse_stream_name
from bottomless.model.stream import EpochStart, Intent, StreamRecord, StreamState
from unit.formats.examples import (
    LEADERLESS_RECORD,
    OTHER_UID,
    PARTITION_RECORD,
    RECORD,
    STREAM_ID,
    SUPER_ID,
    UID,
    assert_refuses_damage,
)

FRESH = StreamRecord(
    STREAM_ID, parse_stream_name("a"), "default", StreamState.DELETING, 0, StreamConfig()
)
DELETED: Any = object()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def changed(name: str, value: Any) -> bytes:
    """The record's JSON with one member changed."""
    members = orjson.loads(encode_record(RECORD))
    if value is DELETED:
        del members[name]
    else:
        members[name] = value
    return orjson.dumps(members)


def sealed(members: dict[str, Any]) -> bytes:
    """A registry object whose checksum is right."""
    members.pop("crc32c", None)
    crc = crc32c(orjson.dumps(members))
    return orjson.dumps({**members, "crc32c": f"{crc:08x}"})


@pytest.mark.parametrize("record", [RECORD, FRESH])
def test_records_come_back(record: StreamRecord) -> None:
    assert decode_record(encode_record(record)) == record


def test_a_registry_object_keeps_what_must_outlive_coordination() -> None:
    assert decode_registry(encode_registry(RECORD)) == StreamRecord(
        stream_id=RECORD.stream_id,
        name=RECORD.name,
        tenant=RECORD.tenant,
        state=RECORD.state,
        created_at=RECORD.created_at,
        config=RECORD.config,
        config_version=RECORD.config_version,
        generation=RECORD.generation,
        home=RECORD.home,
        registry_version=RECORD.registry_version,
    )


def test_every_damage_to_a_registry_object_is_refused() -> None:
    assert_refuses_damage(decode_registry, encode_registry(FRESH))


def test_another_form_of_a_registry_object_is_refused() -> None:
    good = encode_registry(FRESH)
    members = orjson.loads(good)
    turned = dict(reversed(members.items()))
    for form in (good + b"\n", orjson.dumps(members, option=orjson.OPT_INDENT_2), sealed(turned)):
        with pytest.raises(Corrupt, match="canonical"):
            decode_registry(form)


@pytest.mark.parametrize("name", list(orjson.loads(encode_registry(FRESH))))
def test_a_registry_object_has_all_its_members_and_no_other(name: str) -> None:
    members = orjson.loads(encode_registry(FRESH))
    del members[name]
    with pytest.raises(Corrupt):
        decode_registry(orjson.dumps(members) if name == "crc32c" else sealed(members))
    with pytest.raises(Corrupt, match="members are not those"):
        decode_registry(sealed({**orjson.loads(encode_registry(FRESH)), "epoch": 1}))


def test_a_registry_object_nested_without_end_is_refused() -> None:
    deep = b'{"format":1,"config":' + b"[" * 500 + b"]" * 500 + b"}"
    with pytest.raises(Corrupt):
        decode_registry(deep)
    members = dict.fromkeys(orjson.loads(encode_registry(FRESH)), 1)
    whole = orjson.dumps(members).replace(b'"config":1', b'"config":' + b"[" * 500 + b"]" * 500)
    with pytest.raises(Corrupt, match="nested too deeply"):
        decode_registry(whole)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b'{"a":1} x', b"NaN"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    for decode in (decode_record, decode_registry):
        with pytest.raises(Corrupt, match=r"not JSON|not an object"):
            decode(data)


@pytest.mark.parametrize("version", [3, -1, 2**63])
def test_an_unknown_version_is_named(version: int) -> None:
    with pytest.raises(Corrupt, match=f"version {version} is not known, only 1"):
        decode_record(changed("format", version))


NONE: frozenset[str] = frozenset()
"""What a release served before it served leaderless streams."""


def later(**members: Any) -> bytes:
    """The record of a leaderless stream with other members."""
    return orjson.dumps({**orjson.loads(encode_record(LEADERLESS_RECORD)), **members})


def test_a_record_is_written_in_the_lowest_version_that_can_say_it() -> None:
    local, leaderless = encode_record(RECORD), encode_record(LEADERLESS_RECORD)
    assert orjson.loads(local)["format"] == 1
    assert b"profile" not in local + encode_registry(RECORD)
    assert orjson.loads(leaderless)["format"] == 2
    assert orjson.loads(leaderless)["features"] == ["leaderless"]
    unfenced = replace(LEADERLESS_RECORD, config=parse_stored_config({"profile": "leaderless"}))
    assert "fenced" not in orjson.loads(encode_record(unfenced))["config"]
    for record in (LEADERLESS_RECORD, unfenced):
        assert decode_record(encode_record(record)) == record
        assert decode_registry(encode_registry(record)).config == record.config


@pytest.mark.parametrize(
    ("features", "why"),
    [
        (["later"], "its feature later is not known"),
        (["leaderless", "x" * 33], r"its feature \? is not known"),
        (["leaderless", "leaderless"], "not those of its members"),
        ([], "not those of its members"),
        ("leaderless", "no list"),
        ([["leaderless"]], "no text"),
    ],
)
def test_features_that_no_writer_wrote_are_refused(features: Any, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode_record(later(features=features))


def test_a_feature_that_is_not_served_is_refused_by_its_name() -> None:
    for decode, data in (
        (decode_record, encode_record(LEADERLESS_RECORD)),
        (decode_registry, encode_registry(LEADERLESS_RECORD)),
    ):
        with pytest.raises(Corrupt, match="feature leaderless is not served"):
            decode(data, NONE)


def test_a_version_says_no_more_than_it_has() -> None:
    """Members of version 2 under version 1, and the other way round."""
    with pytest.raises(Corrupt, match="members are not those"):
        decode_record(later(format=1))
    without = orjson.loads(later())
    del without["features"]
    with pytest.raises(Corrupt, match="members are not those"):
        decode_record(orjson.dumps(without))
    with pytest.raises(Corrupt, match="not those of its members"):
        decode_record(orjson.dumps({**without, "format": 1}))


@pytest.mark.parametrize(
    "changes",
    [
        {"home": "0" * 32},
        {"owner_url": "http://ingest-0:9000"},
        {"dirty": True},
        {"reserved_next": 2_000},
        {"config": {"profile": "local", "fenced": True}},
        {"config": {"profile": "both"}},
    ],
)
def test_a_leaderless_stream_has_no_owner(changes: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        decode_record(later(**changes))


SUPER_SERVED = frozenset({SUPER})


def test_a_partition_says_of_what_it_is_one() -> None:
    for encode, decode in ((encode_record, decode_record), (encode_registry, decode_registry)):
        data = encode(PARTITION_RECORD)
        assert orjson.loads(data)["features"] == ["super"]
        assert decode(data, SUPER_SERVED).partition_of == PARTITION_RECORD.partition_of
        with pytest.raises(NotServed, match="feature super is not served"):
            decode(data, SERVED - SUPER_SERVED)


@pytest.mark.parametrize(
    "changes",
    [
        {"super": None},
        {"super": ["no id", 1]},
        {"super": [SUPER_ID, 1_000]},
        {"super": [SUPER_ID, -1]},
        {"super": [SUPER_ID]},
        {"features": ["leaderless"]},
        {"features": ["leaderless", "super"]},
        {"features": ["super", "super"]},
        {"super": DELETED},
    ],
)
def test_a_partition_says_it_in_one_way(changes: dict[str, Any]) -> None:
    members = {**orjson.loads(encode_record(PARTITION_RECORD)), **changes}
    members = {name: value for name, value in members.items() if value is not DELETED}
    with pytest.raises(Corrupt):
        decode_record(orjson.dumps(members), SERVED)
    registry = {**orjson.loads(encode_registry(PARTITION_RECORD)), **changes}
    registry = {name: value for name, value in registry.items() if value is not DELETED}
    with pytest.raises(Corrupt):
        decode_registry(sealed(registry), SERVED)


def test_a_leaderless_stream_is_no_partition() -> None:
    both = replace(LEADERLESS_RECORD, partition_of=PARTITION_RECORD.partition_of)
    with pytest.raises(AssertionError):
        encode_record(both)


def test_a_feature_of_a_later_release_is_named_whatever_members_it_has() -> None:
    """A rebuild that took such an object for damaged would give the stream's name away."""
    members = orjson.loads(encode_registry(PARTITION_RECORD))
    members["features"] = ["later", "super"]
    members["more"] = [1]
    with pytest.raises(NotServed, match="feature later is not known"):
        decode_registry(sealed(members))


def test_a_damaged_feature_is_damage() -> None:
    data = encode_registry(PARTITION_RECORD).replace(b'["super"]', b'["supes"]')
    with pytest.raises(Corrupt, match="checksum") as refused:
        decode_registry(data)
    assert not isinstance(refused.value, NotServed)


@pytest.mark.parametrize("version", [False, 0.0, "0", None, [], DELETED])
def test_a_version_is_a_number(version: Any) -> None:
    with pytest.raises(Corrupt, match="it names no version"):
        decode_record(changed("format", version))


@pytest.mark.parametrize("name", [n for n in orjson.loads(encode_record(RECORD)) if n != "format"])
def test_a_member_that_is_missing_or_of_another_type_is_refused(name: str) -> None:
    with pytest.raises(Corrupt, match="members are not those"):
        decode_record(changed(name, DELETED))
    for value in (1.5, [[1]], {"a": 1}, 2**64 - 1, -(2**63)):
        with pytest.raises(Corrupt, match="do not fit"):
            decode_record(changed(name, value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unknown", 1),
        ("stream_id", STREAM_ID.upper()),
        ("name", "../x"),
        ("name", ""),
        ("state", "gone"),
        ("state", ["active"]),
        ("config", {"retention": {"max_age": "5 fortnights"}}),
        ("config", None),
        ("version", True),
        ("dirty", 1),
        ("dirty", None),
        ("epoch", -1),
        ("created_at", 2**62),
        ("published_next", OFFSET_MAX + 2),
        ("reserved_next", 1059),
        ("epochs", [[3, 1040], [2, 1050]]),
        ("epochs", [[2, 1040], [3, 1000]]),
        ("epochs", [[2, "1040"]]),
        ("epochs", [[2]]),
        ("epochs", [[2, 1, 1]]),
        ("epochs", "[]"),
        ("epochs", [{}]),
        ("root", [UID, 1, 3, 18, 384, 1]),
        ("root", [UID, 1, 3, 17, 384, 2**32]),
        ("root", ["x" * 32, 1, 3, 17, 384, 1]),
        ("root", []),
        ("past_roots", ["x"]),
        ("past_roots", None),
        ("intents", [[OTHER_UID, 1060, 5]]),
        ("intents", [[UID, 1060, "run-1"]]),
        ("quarantine", [[UID, 1], [UID, 1]]),
        ("uploader", 7),
        ("home", False),
    ],
)
def test_a_record_that_no_writer_made_is_refused(name: str, value: Any) -> None:
    with pytest.raises(Corrupt):
        decode_record(changed(name, value))


@given(st.sampled_from(list(orjson.loads(encode_record(RECORD)))), json_values)
def test_any_value_anywhere_is_read_or_refused(name: str, value: Any) -> None:
    try:
        record = decode_record(changed(name, value))
    except Corrupt:
        return
    assert decode_record(encode_record(record)) == record


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_any_object_is_refused(members: dict[str, Any]) -> None:
    for decode in (decode_record, decode_registry):
        with pytest.raises(Corrupt):
            decode(orjson.dumps({"format": 1, **members}))


@given(st.binary(max_size=100))
def test_random_bytes_are_refused(data: bytes) -> None:
    for decode in (decode_record, decode_registry):
        with pytest.raises(Corrupt):
            decode(data)


def test_an_impossible_record_is_the_callers_mistake() -> None:
    for record in (
        replace(RECORD, reserved_next=1),
        replace(RECORD, version=16),
        replace(RECORD, quarantine=RECORD.intents),
        replace(RECORD, epochs=(EpochStart(3, 0), EpochStart(3, 1))),
        replace(RECORD, intents=(Intent(UID, 0, "a"), Intent(UID, 0, "b"))),
    ):
        for encode in (encode_record, encode_registry):
            with pytest.raises(AssertionError):
                encode(record)
