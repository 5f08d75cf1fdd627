"""The stream record of a stream with tiers, and its registry object."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt, InvalidRequest, NotServed
from bottomless.formats.stream_record import (
    SERVED,
    TIERS,
    decode_record,
    decode_registry,
    encode_record,
    encode_registry,
)
from bottomless.model.config import (
    StreamConfig,
    config_differences,
    encode_config,
    parse_config,
    parse_stored_config,
    patch_config,
)
from bottomless.model.stream import StreamRecord, with_its_drives
from bottomless.model.tiers import copy_text, parse_copy
from unit.formats.examples import OTHER_UID, RECORD, TIERED_RECORD, UID
from unit.formats.test_stream_record import DELETED, json_values, sealed

WITHOUT_TIERS = SERVED - {TIERS}
FIRST, SECOND = orjson.loads(encode_record(TIERED_RECORD))["moves"]
TIER, LAST = orjson.loads(encode_record(TIERED_RECORD))["config"]["tiers"]


def changed(data: bytes, changes: dict[str, Any]) -> dict[str, Any]:
    """The members of a record or a registry object, with others."""
    members = {**orjson.loads(data), **changes}
    return {name: value for name, value in members.items() if value is not DELETED}


@pytest.mark.parametrize(
    "record",
    [
        TIERED_RECORD,
        replace(RECORD, config=TIERED_RECORD.config),
        replace(RECORD, moves=TIERED_RECORD.moves, drives=(2,)),
        replace(RECORD, promoted=TIERED_RECORD.promoted),
        replace(RECORD, intents=TIERED_RECORD.intents, drives=(2,)),
        replace(RECORD, intents=(), quarantine=TIERED_RECORD.intents, drives=(2,)),
        replace(RECORD, drives=(7,)),
    ],
    ids=["all", "a policy", "moves", "promotions", "an intent", "one that was given up", "drives"],
)
def test_a_record_with_tiers_comes_back(record: StreamRecord) -> None:
    data = encode_record(record)
    assert orjson.loads(data)["format"] == 2
    assert orjson.loads(data)["features"] == ["tiers"]
    assert decode_record(data) == record


def test_a_registry_object_has_policy_and_drives_and_nothing_of_what_is_under_way() -> None:
    """After a loss of coordination what is on its way is found by listing these drives."""
    data = encode_registry(TIERED_RECORD)
    read = decode_registry(data)
    assert not {"moves", "promoted"} & orjson.loads(data).keys()
    assert (read.moves, read.promoted, read.config) == ((), (), TIERED_RECORD.config)
    assert read.drives == (2, 7)
    under_way = replace(TIERED_RECORD, config=RECORD.config)
    assert encode_registry(under_way) == encode_registry(replace(RECORD, drives=(2, 7)))


def test_a_release_that_serves_no_tiers_touches_no_stream_that_has_them() -> None:
    assert TIERS in SERVED
    for decode, data in (
        (decode_record, encode_record(TIERED_RECORD)),
        (decode_registry, encode_registry(TIERED_RECORD)),
    ):
        with pytest.raises(NotServed, match="feature tiers is not served"):
            decode(data, WITHOUT_TIERS)


def test_without_tiers_nothing_is_written_of_them() -> None:
    for data in (encode_record(RECORD), encode_registry(RECORD)):
        assert orjson.loads(data)["format"] == 1
        assert not {b"tiers", b"moves", b"promoted"} & set(data.split(b'"'))
    assert orjson.loads(encode_record(RECORD))["intents"] == [[OTHER_UID, 1060, "run-1"]]
    assert "tiers" not in encode_config(StreamConfig())


def test_a_record_remembers_each_drive_that_it_ever_named_in_a_version_of_its_own() -> None:
    asked = replace(RECORD, intents=TIERED_RECORD.intents, moves=TIERED_RECORD.moves, drives=(9,))
    known = with_its_drives(asked)
    assert known == replace(asked, drives=(2, 9), registry_version=RECORD.registry_version + 1)
    later = replace(known, intents=(), moves=())
    assert with_its_drives(later) is later
    assert with_its_drives(RECORD) is RECORD


def tiers(*all_: dict[str, Any]) -> dict[str, Any]:
    return {"config": {**encode_config(TIERED_RECORD.config), "tiers": list(all_)}}


@pytest.mark.parametrize(
    "changes",
    [
        {"features": []},
        {"features": ["tiers", "tiers"]},
        {"features": ["filter", "tiers"]},
        tiers({"drive": "default"}),
        tiers(TIER),
        tiers(LAST, TIER),
        tiers(TIER, {**LAST, "drive": "default"}),
        tiers(TIER, {**LAST, "drive": "Cold"}),
        tiers(TIER, {**LAST, "drive": 2}),
        tiers(TIER, {**LAST, "more": None}),
        tiers(TIER, {**LAST, "max_bytes": 5}),
        tiers({**TIER, "max_age": "0s"}, LAST),
        tiers({**TIER, "max_age": "unlimited"}, LAST),
        tiers({**TIER, "max_bytes": 0}, LAST),
        tiers({**TIER, "max_bytes": "1 GiB"}, LAST),
        tiers({**TIER, "promote_after_reads": 1}, LAST),
        tiers(*({**TIER, "drive": f"d{number}"} for number in range(8)), LAST),
        {"config": {**encode_config(RECORD.config), "tiers": None}},
    ],
)
def test_a_stream_says_its_tiers_in_one_way(changes: dict[str, Any]) -> None:
    record = changed(encode_record(TIERED_RECORD), changes)
    with pytest.raises(Corrupt):
        decode_record(orjson.dumps(record))
    registry = changed(encode_registry(TIERED_RECORD), changes)
    with pytest.raises(Corrupt):
        decode_registry(sealed(registry))


def with_move(**members: Any) -> dict[str, Any]:
    names = ("copy", "first", "next", "from", "to", "session", "at")
    row = dict(zip(names, SECOND, strict=True))
    return {"moves": [FIRST, [*{**row, **members}.values()]]}


@pytest.mark.parametrize(
    "changes",
    [
        {"moves": DELETED},
        {"moves": None},
        {"moves": [FIRST, FIRST]},
        {"moves": [FIRST[:-1]]},
        with_move(copy="0" * 16),
        with_move(copy="C0FFEE".zfill(16)),
        with_move(copy="c0ffee"),
        with_move(copy=5),
        with_move(copy=FIRST[0]),
        with_move(first=1029),
        with_move(first=1060),
        with_move(next=1061),
        with_move(to=2),
        with_move(to=255),
        with_move(session=5),
        with_move(at=None),
        {"moves": [[copy_text(n), 1000 + n, 1001 + n, 0, 2, None, 0] for n in range(1, 6)]},
        {"drives": DELETED},
        {"drives": None},
        {"drives": []},
        {"drives": [7]},
        {"drives": [7, 2]},
        {"drives": [2, 2]},
        {"drives": [0, 2]},
        {"drives": [2, 255]},
        {"promoted": DELETED},
        {"promoted": [[5, 5, 0]]},
        {"promoted": [[n, n + 1, 0] for n in range(17)]},
        {"intents": [[OTHER_UID, 1060, "run-1"]]},
        {"intents": [[OTHER_UID, 1060, "run-1", 255]]},
        {"intents": [[OTHER_UID, 1060, "run-1", None]]},
        {"quarantine": [[UID, 1050, "run-0"]]},
    ],
)
def test_what_is_under_way_is_said_in_one_way(changes: dict[str, Any]) -> None:
    record = changed(encode_record(TIERED_RECORD), changes)
    with pytest.raises(Corrupt):
        decode_record(orjson.dumps(record))


def test_an_intent_of_a_stream_without_tiers_names_no_drive() -> None:
    record = changed(encode_record(RECORD), {"intents": [[OTHER_UID, 1060, "run-1", 0]]})
    with pytest.raises(Corrupt):
        decode_record(orjson.dumps(record))


MEMBERS = list(orjson.loads(encode_record(TIERED_RECORD)))


@given(st.sampled_from(MEMBERS), json_values)
def test_any_value_anywhere_is_read_or_refused(name: str, value: Any) -> None:
    data = orjson.dumps({**orjson.loads(encode_record(TIERED_RECORD)), name: value})
    try:
        record = decode_record(data)
    except Corrupt:
        return
    assert decode_record(encode_record(record)) == record


ASKED = {"tiers": [{"drive": "default", "max_age": "36h", "max_bytes": "1 GiB"}, LAST]}
SETTLED = [{**TIER, "max_age": "36h", "max_bytes": 2**30}, LAST]


@pytest.mark.parametrize("leaderless", [False, True])
def test_a_request_says_what_tiers_there_are(leaderless: bool) -> None:
    config = parse_config(ASKED, leaderless=leaderless, tiered=True)
    assert encode_config(config)["tiers"] == SETTLED
    patched = patch_config(StreamConfig(), ASKED, leaderless=leaderless, tiered=True)
    assert patched == config


def test_of_a_stream_that_is_to_have_none_no_request_says_tiers() -> None:
    for leaderless in (False, True):
        with pytest.raises(InvalidRequest):
            parse_config(ASKED, leaderless=leaderless)
        with pytest.raises(InvalidRequest):
            patch_config(TIERED_RECORD.config, ASKED, leaderless=leaderless)


@pytest.mark.parametrize("none", [None, []])
def test_a_patch_replaces_all_tiers_or_takes_them_away(none: Any) -> None:
    config = TIERED_RECORD.config
    assert patch_config(config, {"tiers": none}, tiered=True) == StreamConfig()
    one = patch_config(config, {"tiers": [{"drive": "cold"}]}, tiered=True)
    assert [tier.drive for tier in one.tiers] == ["cold"]


def test_a_fault_of_tiers_has_its_place() -> None:
    for said, pointer, sentence in (
        ([TIER, TIER], "/tiers", "each drive may be in one tier"),
        ([TIER, {**LAST, "more": 1}], "/tiers/1", ""),
        ([{**TIER, "max_bytes": 0}, LAST], "/tiers/0/max_bytes", ""),
        ([{"max_age": "1D"}, LAST], "/tiers/0/drive", "must be given"),
        ({"drive": "cold"}, "/tiers", ""),
    ):
        with pytest.raises(InvalidRequest) as raised:
            parse_config({"tiers": said}, tiered=True)
        (fault,) = raised.value.faults
        assert fault.pointer == pointer
        assert sentence in fault.detail


def test_a_change_of_a_configuration_keeps_the_tiers() -> None:
    patched = patch_config(TIERED_RECORD.config, {"labels": {"a": "b"}})
    assert patched.tiers == TIERED_RECORD.config.tiers
    assert config_differences(patched, TIERED_RECORD.config) == ["/labels"]
    assert config_differences(StreamConfig(), TIERED_RECORD.config) == ["/tiers"]


def test_limits_are_read_as_those_of_retention_are() -> None:
    said = {"tiers": [{"drive": "default", "max_age": "36h", "max_bytes": "1 GiB"}, LAST]}
    first, last = parse_stored_config(said).tiers
    assert (first.age_limit_ms, first.max_bytes) == (129_600_000, 2**30)
    assert (last.age_limit_ms, last.is_limited) == (None, False)


@pytest.mark.parametrize("copy", [1, 0xC0FFEE, 2**64 - 1])
def test_the_number_of_a_move_comes_back(copy: int) -> None:
    assert parse_copy(copy_text(copy)) == copy
