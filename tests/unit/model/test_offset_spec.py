from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import OFFSET_MAX, TIMESTAMP_MAX, TIMESTAMP_MIN
from bottomless.model.offset_spec import (
    Ago,
    At,
    First,
    Last,
    Next,
    OffsetSpec,
    Since,
    Stored,
    Tail,
    format_timestamp,
    parse_offset,
    parse_offset_spec,
    parse_timestamp,
)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("first", First()),
        ("last", Last()),
        ("next", Next()),
        ("0", At(0)),
        (str(OFFSET_MAX), At(OFFSET_MAX)),
        ("tail:0", Tail(0)),
        ("tail:5", Tail(5)),
        ("timestamp:1700000000000", Since(1_700_000_000_000)),
        ("timestamp:1970-01-01T00:00:00Z", Since(0)),
        ("interval:1h", Ago(3_600)),
        ("interval:PT1H", Ago(3_600)),
        ("interval:7D", Ago(7 * 86_400)),
        ("interval:1000Y", Ago(1_000 * 31_536_000)),
        ("interval:99999Y", Ago(1_000 * 31_536_000)),
        ("stored", Stored()),
    ],
)
def test_offset_specs_are_read(text: str, spec: OffsetSpec) -> None:
    assert parse_offset_spec(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "First",
        "first ",
        "earliest",
        "-1",
        "+1",
        "01",
        "1.0",
        "1e3",
        "0x1",
        " 1",
        "1\n",
        "\u0661",
        str(2**53),
        "9" * 5000,
        "tail",
        "tail:",
        "tail:-1",
        "tail:05",
        "timestamp",
        "timestamp:",
        "timestamp:-1",
        "interval",
        "interval:",
        "interval:0h",
        "interval:-1h",
        "interval:1x",
        "interval:0000Y",
        "interval:" + "9" * 10 + "Y",
        "stored:a",
        "first:1",
        ":1",
    ],
)
def test_other_specs_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_offset_spec(text)
    assert caught.value.code is Code.BAD_OFFSET_SPEC
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("text", ["First", "tail", "first,last", "", "-1", "yesterday", "TAIL:1"])
def test_who_names_no_offset_is_told_what_may_be_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match="a start must be first, last, next, stored"):
        parse_offset_spec(text)


@given(st.text())
def test_any_text_is_a_spec_or_refused(text: str) -> None:
    for whole in (text, f"timestamp:{text}", f"tail:{text}", f"interval:{text}"):
        with suppress(InvalidRequest):
            assert parse_offset_spec(whole) is not None


@given(st.integers(0, OFFSET_MAX))
def test_offsets_are_read(offset: int) -> None:
    assert parse_offset(str(offset)) == offset


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01T00:00:00+00:00", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T01:30:00+01:30", 0),
        ("1969-12-31T16:00:00-08:00", 0),
        ("1970-01-01T00:00:00.1Z", 100),
        ("1970-01-01T00:00:00.12Z", 120),
        ("1970-01-01T00:00:00.123Z", 123),
        ("1970-01-01T00:00:00.1239Z", 123),
        ("1970-01-01T00:00:00.123999Z", 123),
        ("1970-01-01T00:00:00.123999999Z", 123),
        ("1970-01-01T00:00:00.1239999999999999999999Z", 123),
        ("1969-12-31T23:59:59.9999Z", -1),
        ("1969-12-31T23:59:59.999000001Z", -1),
        ("2000-02-29T00:00:00Z", 951_782_400_000),
        ("0001-01-01T00:00:00Z", TIMESTAMP_MIN),
        ("9999-12-31T23:59:59.999999Z", TIMESTAMP_MAX),
        ("0", 0),
        (str(TIMESTAMP_MAX), TIMESTAMP_MAX),
    ],
)
def test_timestamps_are_read(text: str, timestamp: int) -> None:
    assert parse_timestamp(text) == timestamp


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01T00:00:00",
        "1970-01-01 00:00:00Z",
        "1970-01-01T00:00Z",
        "1970-01-01",
        "1970-01-01T00:00:00.Z",
        "1970-01-01T00:00:00,5Z",
        "1970-01-01T00:00:00+0100",
        "1970-01-01T00:00:00+01",
        "1970-01-01T00:00:00+24:00",
        "1970-01-01T00:00:00+12:60",
        "1970-01-01T24:00:00Z",
        "1970-01-01T00:60:00Z",
        "1970-13-01T00:00:00Z",
        "1970-00-01T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "2016-12-31T23:59:60Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "10000-01-01T00:00:00Z",
        "-0001-01-01T00:00:00Z",
        "1970-W01-1T00:00:00Z",
        "\u0661970-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z\n",
        str(TIMESTAMP_MAX + 1),
        "1" * 20,
    ],
)
def test_other_timestamps_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_timestamp(text)
    assert caught.value.code is Code.BAD_OFFSET_SPEC


@given(st.integers(TIMESTAMP_MIN, TIMESTAMP_MAX))
def test_a_timestamp_written_is_read_back(timestamp: int) -> None:
    text = format_timestamp(timestamp)
    assert len(text) == len("2026-08-22T09:20:01.004Z")
    assert parse_timestamp(text) == timestamp


@given(st.datetimes(timezones=st.just(UTC)))
def test_timestamps_agree_with_the_calendar(moment: datetime) -> None:
    elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    wanted = (elapsed.days * 86_400 + elapsed.seconds) * 1000 + elapsed.microseconds // 1000
    assert parse_timestamp(moment.isoformat()) == wanted


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_787_390_401_004, "2026-08-22T09:20:01.004Z"),
        (TIMESTAMP_MIN, "0001-01-01T00:00:00.000Z"),
        (TIMESTAMP_MAX, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_timestamps_are_written_with_milliseconds(timestamp: int, text: str) -> None:
    assert format_timestamp(timestamp) == text
