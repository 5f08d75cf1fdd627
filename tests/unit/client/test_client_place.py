"""A place in a stream is an offset, a spec or a time; anything else is refused before it is sent."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from bottomless.client.place import spec_of
from bottomless.errors import Code, InvalidRequest
from bottomless.model.offset_spec import Since, parse_offset_spec

MOMENT = 1_795_334_400_250


@pytest.mark.parametrize(
    "place",
    [
        datetime(2026, 11, 22, 8, 0, 0, 250_000, tzinfo=UTC),
        datetime(2026, 11, 22, 10, 0, 0, 250_999, tzinfo=timezone(timedelta(hours=2))),
        "2026-11-22T08:00:00.250Z",
        "2026-11-22T09:00:00.250+01:00",
        f"timestamp:{MOMENT}",
    ],
)
def test_a_time_is_the_first_record_at_it_or_after(place: Any) -> None:
    assert parse_offset_spec(str(spec_of(place))) == Since(MOMENT)


def test_a_date_is_its_midnight_in_utc() -> None:
    assert spec_of("2026-11-22") == "timestamp:2026-11-22T00:00:00Z"


@pytest.mark.parametrize("place", [0, 7, "first", "tail:10", "1040", "nonsense"])
def test_everything_else_is_asked_for_as_it_is(place: Any) -> None:
    assert spec_of(place) == place


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="has a time zone") as caught:
        spec_of(datetime(2026, 11, 22))  # noqa: DTZ001
    assert caught.value.code is Code.BAD_OFFSET_SPEC


@pytest.mark.parametrize("thing", [None, 7.0, True, b"first"])
def test_what_is_no_place_is_a_type_error(thing: Any) -> None:
    with pytest.raises(TypeError, match="an int, a str or a datetime"):
        spec_of(thing)
