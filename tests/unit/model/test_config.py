import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.config import (
    StreamConfig,
    config_differences,
    encode_config,
    parse_config,
    parse_stored_config,
    patch_config,
)
from bottomless.model.duration import parse_duration, parse_milliseconds, stored_duration
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.size import parse_size

SECRET = "s3cr3t"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def faults_of(value: object) -> tuple[Fault, ...]:
    with pytest.raises(InvalidRequest) as caught:
        parse_config(value)
    assert caught.value.code is Code.VALIDATION_FAILED
    assert SECRET not in repr((caught.value, caught.value.faults, caught.value.facts))
    return caught.value.faults


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("1m", 60),
        ("1h", 3_600),
        ("7D", 604_800),
        ("1M", 2_592_000),
        ("1Y", 31_536_000),
        ("1000Y", 31_536_000_000),
        ("007D", 604_800),
        ("PT1S", 1),
        ("PT1M", 60),
        ("P1M", 2_592_000),
        ("P2W", 1_209_600),
        ("1d", 86_400),
        ("7 d", 604_800),
        ("90 days", 90 * 86_400),
        ("5w", 5 * 604_800),
        ("5W", 5 * 604_800),
        ("1H", 3_600),
        ("1S", 1),
        ("6M", 6 * 2_592_000),
        ("6m", 360),
        ("6 months", 6 * 2_592_000),
        ("6 Minutes", 360),
        ("1h30m", 5_400),
        ("1 day 12 hours", 129_600),
        ("2000ms", 2),
        ("P1Y2M3DT4H5M6S", 31_536_000 + 2 * 2_592_000 + 3 * 86_400 + 4 * 3_600 + 5 * 60 + 6),
    ],
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0D",
        "-1D",
        "+1D",
        "1.5h",
        "D",
        "7",
        "7D ",
        "7D\n",
        "\u0661D",
        "9999999999999Y",
        "1001Y",
        "P",
        "PT",
        "P1DT",
        "P0D",
        "PT0S",
        "-P1D",
        "P-1D",
        "P1.5D",
        "p1d",
        "P1H",
        "PT1D",
        "P1D1Y",
        "P9999999999D",
        "P1001Y",
        "1500ms",
        "1d1d",
        "1d2days",
        "7  days",
        "7d-1h",
        "7 fortnights",
        "1d " * 30,
    ],
)
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration"):
        parse_duration(text)
    [fault] = faults_of({"retention": {"max_age": text}})
    assert (fault.code, fault.pointer) == ("value-error", "/retention/max_age")
    assert not fault.detail.startswith("Value error")


@pytest.mark.parametrize("text", ["forever", "P7D", "", "7d7d"])
def test_who_gives_another_time_is_told_forms_that_are_taken(text: str) -> None:
    with pytest.raises(ValueError, match="a time must be a number alone") as refused:
        parse_milliseconds(text)
    shown = re.findall(r"\d+[a-zA-Z]\w*", str(refused.value))
    assert [parse_milliseconds(form) > 0 for form in shown] == [True] * 5


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("7D", "7D"),
        ("007D", "007D"),
        ("PT36H", "PT36H"),
        ("7d", "7D"),
        ("90 days", "90D"),
        ("2 weeks", "14D"),
        ("1h30m", "90m"),
        ("1d12h", "36h"),
        ("61 seconds", "61s"),
        ("99999999m 1s", "P69444DT38341S"),
    ],
)
def test_a_duration_is_stored_as_every_release_reads_it(text: str, stored: str) -> None:
    """The release before this one knows the two grammars of `before`, and nothing else."""
    before = re.compile(
        r"[0-9]{1,9}[YMDhms]|P(?:[0-9]{1,9}Y)?(?:[0-9]{1,9}M)?(?:[0-9]{1,9}W)?(?:[0-9]{1,9}D)?"
        r"(?:T(?=[0-9])(?:[0-9]{1,9}H)?(?:[0-9]{1,9}M)?(?:[0-9]{1,9}S)?)?",
        re.ASCII,
    )
    assert stored_duration(text) == stored
    assert before.fullmatch(stored)
    assert parse_duration(stored) == parse_duration(text)
    config = parse_config({"retention": {"max_age": text}})
    assert encode_config(config)["retention"]["max_age"] == stored


@given(st.from_regex(r"([0-9]{1,9} ?(ms|[sSmMhHdDwWyY]|days|weeks|min) ?){1,3}", fullmatch=True))
def test_whatever_is_a_duration_is_stored_as_the_same(text: str) -> None:
    with suppress(ValueError):
        assert parse_duration(stored_duration(text)) == parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GB", 10 * 1000**3),
        ("10 GB", 10 * 1000**3),
        ("64MiB", 64 * 1024**2),
        ("64mib", 64 * 1024**2),
        ("1.5kB", 1500),
        ("0.5 GiB", 512 * 1024**2),
        ("7 bytes", 7),
        ("7B", 7),
        ("1PiB", 1024**5),
    ],
)
def test_sizes_are_read_and_kept_as_a_number(text: str, size: int) -> None:
    assert parse_size(text) == size
    config = parse_config({"retention": {"max_bytes": text}})
    assert encode_config(config)["retention"]["max_bytes"] == size


@pytest.mark.parametrize(
    "text",
    ["10G", "64M", "64K", "ten", "", "-1GB", "1.0001kB", "1,5GB", "0GB", "9999999PB", "1 G B"],
)
def test_other_sizes_are_refused(text: str) -> None:
    [fault] = faults_of({"retention": {"max_bytes": text}})
    assert (fault.code, fault.pointer) == ("value-error", "/retention/max_bytes")
    assert "a size" in fault.detail


@given(st.text())
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert parse_duration(text) > 0


def test_everything_has_a_default() -> None:
    assert encode_config(parse_config({})) == {
        "retention": {"max_age": None, "max_bytes": None},
        "fragment": {"target_bytes": 67_108_864, "max_age_ms": 60_000},
        "labels": {},
    }


def test_a_configuration_is_kept_as_it_was_written() -> None:
    value = {
        "retention": {"max_age": "1M", "max_bytes": OFFSET_MAX},
        "fragment": {"target_bytes": 65_536, "max_age_ms": 100},
        "labels": {"team": "é", "": ""},
    }
    config = parse_config(value)
    assert encode_config(config) == value
    assert parse_config(encode_config(config)) == config


@pytest.mark.parametrize(
    ("value", "code", "pointer"),
    [
        (None, "model-type", ""),
        ([], "model-type", ""),
        ("{}", "model-type", ""),
        ({"fragment": []}, "model-type", "/fragment"),
        ({"fragment": None}, "model-type", "/fragment"),
        ({"fragment": {"target_bytes": 0}}, "greater-than-equal", "/fragment/target_bytes"),
        ({"fragment": {"target_bytes": 2**30 + 1}}, "less-than-equal", "/fragment/target_bytes"),
        ({"fragment": {"target_bytes": None}}, "int-type", "/fragment/target_bytes"),
        ({"fragment": {"max_age_ms": 99}}, "greater-than-equal", "/fragment/max_age_ms"),
        ({"fragment": {"max_age_ms": True}}, "int-type", "/fragment/max_age_ms"),
        ({"fragment": {"max_age_ms": 100.0}}, "int-type", "/fragment/max_age_ms"),
        ({"fragment": {"max_age_ms": "100"}}, "int-type", "/fragment/max_age_ms"),
        ({"retention": {"max_bytes": 0}}, "greater-than-equal", "/retention/max_bytes"),
        ({"retention": {"max_bytes": -1}}, "greater-than-equal", "/retention/max_bytes"),
        ({"retention": {"max_bytes": 2**53}}, "less-than-equal", "/retention/max_bytes"),
        ({"retention": {"max_bytes": 10**400}}, "less-than-equal", "/retention/max_bytes"),
        ({"retention": {"max_bytes": float("nan")}}, "int-type", "/retention/max_bytes"),
        ({"retention": {"max_bytes": float("inf")}}, "int-type", "/retention/max_bytes"),
        ({"retention": {"max_bytes": False}}, "int-type", "/retention/max_bytes"),
        ({"retention": {"max_age": 7}}, "string-type", "/retention/max_age"),
        ({"labels": []}, "dict-type", "/labels"),
        ({"labels": {"a": 1}}, "string-type", "/labels"),
        ({"labels": {str(n): "" for n in range(65)}}, "too-long", "/labels"),
        ({"ttl": 1}, "unknown-member", ""),
        ({"priority": SECRET}, "unknown-member", ""),
        ({"stream_id": SECRET}, "unknown-member", ""),
        ({"tenant": SECRET}, "unknown-member", ""),
        ({SECRET: 1}, "unknown-member", ""),
        ({"fragment": {SECRET: 1}}, "unknown-member", "/fragment"),
        ({1: SECRET}, "unknown-member", ""),
    ],
)
def test_a_fault_has_a_code_and_a_place(value: object, code: str, pointer: str) -> None:
    [fault] = faults_of(value)
    assert (fault.code, fault.pointer) == (code, pointer)


@pytest.mark.parametrize(
    "labels",
    [
        {SECRET: 1},
        {SECRET: SECRET * 50},
        {SECRET * 50: ""},
        {SECRET: "\ud800"},
        {"\ud800" + SECRET: SECRET},
        {SECRET: {SECRET: SECRET}},
    ],
)
def test_labels_are_never_echoed(labels: Any) -> None:
    assert {fault.pointer for fault in faults_of({"labels": labels})} == {"/labels"}


def test_values_are_never_echoed() -> None:
    for section in ("retention", "fragment"):
        for member in ("max_age", "max_bytes", "target_bytes", "max_age_ms"):
            faults_of({section: {member: SECRET}})


def test_a_misspelt_member_is_named_with_the_one_that_was_meant() -> None:
    """D18: once it was "there is a member that the schema does not know"."""
    [fault] = faults_of({"retension": {}})
    assert fault.detail == (
        "there is no member retension; retention is known; known here: retention, fragment, filter, labels"
    )
    [fault] = faults_of({"fragment": {"max_age": 1}})
    assert "there is no member max_age; max_age_ms is known" in fault.detail


def test_all_faults_are_named_at_once() -> None:
    faults = faults_of({"fragment": {"target_bytes": 0, "max_age_ms": "1"}, "x": 1})
    assert {fault.pointer for fault in faults} == {
        "/fragment/target_bytes",
        "/fragment/max_age_ms",
        "",
    }


@given(json_values)
def test_any_value_is_a_configuration_or_refused(value: object) -> None:
    for whole in (value, {"retention": value}, {"labels": value}, {"fragment": value}):
        with suppress(InvalidRequest):
            config = parse_config(whole)
            assert parse_config(encode_config(config)) == config


def test_differences_are_pointers() -> None:
    mine = StreamConfig()
    theirs = parse_config(
        {"retention": {"max_age": "7D"}, "fragment": {"max_age_ms": 100}, "labels": {"a": "b"}}
    )
    assert config_differences(mine, mine) == []
    assert config_differences(mine, theirs) == [
        "/retention/max_age",
        "/fragment/max_age_ms",
        "/labels",
    ]


@pytest.mark.parametrize(
    ("age_ms", "also"),
    [(None, []), (600_000, []), (60_000, []), (30_000, ["/fragment/max_age_ms"])],
)
def test_of_another_profile_the_usual_age_of_fragments_is_no_difference(
    age_ms: int | None, also: list[str]
) -> None:
    fragment = {} if age_ms is None else {"max_age_ms": age_ms}
    wanted = parse_config({"profile": "leaderless", "fragment": fragment}, leaderless=True)
    assert config_differences(wanted, StreamConfig()) == ["/profile", *also]


def test_labels_in_another_order_are_the_same() -> None:
    left, right = ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    assert config_differences(parse_config({"labels": left}), parse_config({"labels": right})) == []


@pytest.mark.parametrize("member", ["profile", "fenced"])
def test_no_request_says_what_only_a_stored_configuration_has(member: str) -> None:
    stored = parse_stored_config({"profile": "leaderless", "fenced": True})
    value = encode_config(stored)[member]
    [asked] = faults_of({member: value})
    with pytest.raises(InvalidRequest) as raised:
        patch_config(stored, {member: value})
    assert [asked.code, *(fault.code for fault in raised.value.faults)] == ["unknown-member"] * 2


def test_a_patch_leaves_the_profile_and_the_fence_as_they_are() -> None:
    stored = parse_stored_config({"profile": "leaderless", "fenced": True})
    patched = patch_config(stored, {"labels": {"a": "b"}})
    assert (patched.leaderless, patched.fenced, patched.labels) == (True, True, {"a": "b"})
    assert config_differences(StreamConfig(), patched) == ["/profile", "/labels"]
    assert encode_config(StreamConfig()).keys() == {"retention", "fragment", "labels"}
    with pytest.raises(InvalidRequest):
        parse_stored_config({"fenced": True})


def test_who_asks_for_no_index_says_nothing_of_filters() -> None:
    """So that what is kept of the stream has the bytes that it always had."""
    values: tuple[dict[str, Any], ...] = ({}, {"filter": {}}, {"filter": {"index": None}})
    for value in values:
        assert "filter" not in encode_config(parse_config(value))
    assert "filter" not in encode_config(
        patch_config(StreamConfig(), {"filter": {"index": "none"}})
    )


def test_an_index_is_turned_on_and_off_by_a_patch() -> None:
    on = patch_config(StreamConfig(), {"filter": {"index": "values-and-keys", "max_bytes": 64}})
    assert encode_config(on)["filter"] == {"index": "values-and-keys", "max_bytes": 64}
    assert parse_stored_config(encode_config(on)) == on
    assert patch_config(on, {"filter": None}) == StreamConfig()
    assert encode_config(patch_config(on, {"filter": {"index": None}}))["filter"] == {
        "index": "none",
        "max_bytes": 64,
    }


def test_an_index_that_nobody_asks_for_is_the_servers_and_makes_no_difference() -> None:
    asked = parse_config({})
    made = asked.model_copy(update={"filter": asked.filter.settled("values")})
    assert encode_config(made)["filter"] == {"index": "values", "max_bytes": 256}
    assert config_differences(parse_config({}), made) == []
    assert config_differences(parse_config({"filter": {"index": "values"}}), made) == []
    other = parse_config({"filter": {"index": "none", "max_bytes": 512}})
    assert config_differences(other, made) == ["/filter/index", "/filter/max_bytes"]


@pytest.mark.parametrize("size", [16, 48, 2_048, 0])
def test_a_filter_has_a_power_of_two_of_bytes(size: int) -> None:
    [fault] = faults_of({"filter": {"max_bytes": size}})
    assert fault.pointer == "/filter/max_bytes"
