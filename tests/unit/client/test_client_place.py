"""A place in a stream is an offset, a spec or a time; anything else is refused before it is sent."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from bottomless.client import AsyncClient, Client
from bottomless.client.place import check_start, spec_of
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
    with pytest.raises(InvalidRequest, match="must have a time zone") as caught:
        spec_of(datetime(2026, 11, 22))  # noqa: DTZ001
    assert caught.value.code is Code.BAD_OFFSET_SPEC


@pytest.mark.parametrize("thing", [None, 7.0, True, b"first"])
def test_what_is_no_place_is_a_type_error(thing: Any) -> None:
    with pytest.raises(TypeError, match="an int, a str or a datetime"):
        spec_of(thing)


@pytest.mark.parametrize(
    "start", ["first", "last", "next", 0, 2**53 - 1, "17", "tail:3", "interval:1h", "2026-11-22"]
)
def test_a_consumer_takes_every_place_as_its_start(start: Any) -> None:
    check_start(start)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("frist", "there is no such place"),
        ("", "there is no such place"),
        ("tail:x", "an offset must be an integer"),
        ("interval:soon", "a duration must look like"),
        ("stored", "by itself"),
        (-1, "an offset must be an integer"),
        (2**53, "an offset must be an integer"),
    ],
)
@pytest.mark.parametrize("name", [None, "billing"])
def test_a_start_that_is_no_place_is_refused_before_anybody_is_asked(
    start: Any, reason: str, name: str | None
) -> None:
    # Nothing listens there: what is asked would be another error.
    for client in (Client("http://127.0.0.1:1"), AsyncClient("http://127.0.0.1:1")):
        with pytest.raises(InvalidRequest, match=r"^start: .*first, last, next") as caught:
            client.consumer("orders", name, start=start)
        assert reason in str(caught.value)
        assert caught.value.code is Code.BAD_OFFSET_SPEC
        assert [fault.parameter for fault in caught.value.faults] == ["start"]
        if isinstance(client, Client):
            client.close()
