"""Pages over HTTP, from every place that they are read from: scenarios R1 to R10, R26, M1, M3 to M5, M30.

All of them run on what is in the tail, on what object storage alone holds, on both again after a
restart, with a reader that keeps nothing, and then on what WAL objects alone hold.
"""

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx
import pyarrow as pa
import pytest
from support.contract import ARROW, JSON, Stream, problem_of
from support.places import FREEING, Here
from support.waiting import until

SETTINGS = FREEING
BATCHES, EACH = 10, 10
COUNT = BATCHES * EACH
MIB = 1024 * 1024
MOMENT = "%Y-%m-%dT%H:%M:%S.%f"
TRIMMED = 50


def clock_moved(stream: Stream) -> bool:
    """Whether another append would have another commit time, as far as the clock shows."""
    last = stream.bounds()["last_timestamp"]
    return last is None or datetime.now(UTC) > datetime.fromisoformat(last) + timedelta(
        milliseconds=2
    )


def fill_hundred(stream: Stream, freed: bool) -> None:
    """Batches of ten records, told apart by their times; each a fragment, where there are any."""
    for batch in range(BATCHES):
        until(lambda: clock_moved(stream), what="the clock")
        stream.append(*(str(batch * EACH + number) for number in range(EACH)))
        if freed:
            stream.wait_uploaded()


def fill_thousand(stream: Stream, _: bool) -> None:
    for start in range(0, 1000, 50):
        stream.append(*(str(number) for number in range(start, start + 50)))


def fill_trimmed(stream: Stream, freed: bool) -> None:
    """R4: fragments of ten records, cut in the middle; what is local alone cannot be cut."""
    fill_hundred(stream, freed)
    trimmed = stream.client.post(f"{stream.path}/trim", json={"before_offset": TRIMMED})
    assert trimmed.status_code == (202 if freed else 422), trimmed.text
    until(lambda: stream.bounds()["first_offset"] == freed * TRIMMED, what="the trim")


FILLS = {
    "hundred": fill_hundred,
    "thousand": fill_thousand,
    "trimmed": fill_trimmed,
    "empty": lambda *_: None,
}


@pytest.fixture(scope="module")
def hundred(here: Here) -> Stream:
    return here.streams["hundred"]


@pytest.fixture(scope="module")
def empty(here: Here) -> Stream:
    return here.streams["empty"]


def test_each_place_is_what_it_says(here: Here) -> None:
    """With the objects out of the way only the tail is read; and nothing wrong, ever."""
    stream = here.streams["trimmed"]
    own = f"{stream.bounds()['stream_id']}/**/*.fragment"
    of_all = "_system/wal/**/*.wal"
    objects = list(here.server.objects.rglob(of_all if here.place.leaderless else own))
    assert bool(objects) == (here.place.freed or here.place.leaderless)
    for path in objects:
        path.rename(path.with_suffix(".hidden"))
    try:
        answer = stream.get()
    finally:
        for path in objects:
            path.with_suffix(".hidden").rename(path)
    if objects:
        problem_of(answer, 502, "data-missing")
    else:
        assert answer.status_code == 200
    assert values(stream.page())[-1] == str(COUNT - 1)


def values(page: dict[str, Any]) -> list[str]:
    return [record["value"] for record in page["records"]]


def milliseconds(timestamp: str) -> int:
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


def written(instant: int, zone: timezone = UTC) -> str:
    moment = datetime.fromtimestamp(instant / 1000, zone)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Empty streams


@pytest.mark.parametrize(
    "spec", ["first", "last", "next", "0", "tail:5", "interval:1h", "timestamp:now", "10"]
)
def test_an_empty_stream_has_an_empty_page_for_everyone(
    here: Here, empty: Stream, spec: str
) -> None:
    """R1, M1."""
    page = empty.page(f"timestamp:{written(round(time.time() * 1000))}" if "now" in spec else spec)
    assert (page["records"], page["next_offset"], page["up_to_date"]) == ([], 0, True)
    assert (page["first_offset"], page["committed_offset"]) == (0, None)
    assert (page["start_offset"], page["lag_records"]) == (0, 0)
    stream_id = page["stream_id"]
    assert not [path for path in here.server.objects.rglob("*.fragment") if stream_id in str(path)]


def test_beyond_an_empty_stream_is_out_of_range_for_the_strict(empty: Stream) -> None:
    """M1."""
    problem = problem_of(empty.get(10, on_out_of_range="error"), 416, "offset-out-of-range")
    assert (problem["first_offset"], problem["next_offset"]) == (0, 0)
    assert empty.page(0, on_out_of_range="error")["records"] == []


def test_the_bounds_of_an_empty_stream(empty: Stream) -> None:
    """M1."""
    bounds = empty.bounds()
    assert (bounds["first_offset"], bounds["next_offset"]) == (0, 0)
    assert (bounds["committed_offset"], bounds["object_store_next_offset"]) == (None, 0)
    assert (bounds["first_timestamp"], bounds["last_timestamp"]) == (None, None)
    assert bounds["size_bytes"] == 0


# Where a page starts


@pytest.mark.parametrize(
    ("spec", "start"),
    [
        ("first", 0),
        ("last", 90),
        ("tail:3", 97),
        ("tail:100", 0),
        ("tail:1", 99),
        ("55", 55),
        ("next", COUNT),
        *((str(edge), edge) for edge in (0, 1, 9, 10, 39, 40, 41, 49, 50, 51, 89, 90, 99, COUNT)),
    ],
)
def test_a_page_starts_exactly_where_it_was_asked_to(
    hundred: Stream, spec: str, start: int
) -> None:
    """R2, M3, M4: not at the chunk, the fragment or the group around it."""
    answer = hundred.answer(spec)
    page = answer.json()
    assert (page["requested"], page["start_offset"], page["clamped"]) == (spec, start, None)
    assert values(page) == [str(number) for number in range(start, COUNT)]
    assert [record["offset"] for record in page["records"]] == list(range(start, COUNT))
    assert (page["next_offset"], page["up_to_date"], page["lag_records"]) == (COUNT, True, 0)
    assert (page["first_offset"], page["committed_offset"]) == (0, COUNT - 1)
    assert answer.headers["stream-first-offset"] == "0"
    assert answer.headers["stream-next-offset"] == answer.headers["page-next-offset"] == str(COUNT)
    assert answer.headers["stream-committed-offset"] == str(COUNT - 1)
    assert answer.headers["stream-up-to-date"] == "true"
    assert answer.headers["cache-control"] == "private, no-cache"


def test_a_tail_longer_than_the_stream_is_all_of_it(hundred: Stream) -> None:
    """R2."""
    page = hundred.page("tail:1000")
    assert (page["start_offset"], len(page["records"])) == (0, COUNT)


@pytest.mark.parametrize("beyond", [COUNT + 1, 1_000_000, 2**53 - 1])
def test_beyond_the_end_is_clamped_and_says_so_or_is_an_error(hundred: Stream, beyond: int) -> None:
    """R3, M5."""
    page = hundred.page(beyond)
    assert (page["records"], page["start_offset"], page["clamped"]) == ([], COUNT, "high")
    assert page["next_offset"] == COUNT
    problem = problem_of(hundred.get(beyond, on_out_of_range="error"), 416, "offset-out-of-range")
    assert (problem["first_offset"], problem["next_offset"]) == (0, COUNT)


def test_the_end_itself_is_in_range(hundred: Stream) -> None:
    """R3: who has read everything waits there."""
    page = hundred.page(COUNT, on_out_of_range="error")
    assert (page["records"], page["clamped"], page["next_offset"]) == ([], None, COUNT)


def test_r4_below_a_trim_is_clamped_and_says_so_or_is_gone(here: Here) -> None:
    """R4: wherever it is read; what is local alone was not cut."""
    stream, floor = here.streams["trimmed"], TRIMMED * here.place.freed
    page = stream.page(10)
    assert (page["start_offset"], page["first_offset"]) == (max(10, floor), floor)
    assert page["clamped"] == ("low" if floor else None)
    assert values(page) == [str(number) for number in range(max(10, floor), COUNT)]
    assert values(stream.page("first")) == [str(number) for number in range(floor, COUNT)]
    for offset, status in ((10, 410 if floor else 200), (floor, 200), (max(floor - 1, 0), 410)):
        answer = stream.get(offset, on_out_of_range="error")
        if status == 200 or not floor:
            assert (answer.status_code, answer.json()["start_offset"]) == (200, offset)
        else:
            problem = problem_of(answer, 410, "offset-trimmed")
            assert (problem["first_offset"], problem["next_offset"]) == (floor, COUNT)


@pytest.mark.parametrize("accept", [JSON, ARROW])
def test_a_page_without_an_offset_is_refused(hundred: Stream, accept: str) -> None:
    """R6."""
    answer = hundred.client.get(hundred.records, headers={"accept": accept})
    assert problem_of(answer, 400, "bad-parameter")["errors"][0]["parameter"] == "offset"


# Times


def test_a_time_starts_at_the_first_record_that_is_not_older(hundred: Stream) -> None:
    """R7, M30: exactly a record's, between two batches, before all, after all."""
    records = hundred.page()["records"]
    times = [milliseconds(record["timestamp"]) for record in records]
    assert len(set(times)) == BATCHES, "batches must be told apart"
    instants = {instant + step for instant in times for step in (-1, 0, 1)}
    for instant in sorted(instants | {0, times[0] - 3_600_000, times[-1] + 3_600_000}):
        expected = sum(moment < instant for moment in times)
        for text in (
            str(instant),
            written(instant),
            written(instant, timezone(timedelta(hours=2))),
        ):
            page = hundred.page(f"timestamp:{text}", limit=1)
            assert page["start_offset"] == expected, (text, times)
            assert values(page) == [str(number) for number in range(expected, COUNT)][:1]
    assert hundred.page(f"timestamp:{times[0] - 1}")["clamped"] == "low"
    assert hundred.page(f"timestamp:{times[0]}")["clamped"] is None


def test_bounds_have_the_times_of_the_outer_records(hundred: Stream) -> None:
    records, bounds = hundred.page()["records"], hundred.bounds()
    assert bounds["first_timestamp"] == records[0]["timestamp"]
    # And not of a producer's epoch that was raised behind the last record.
    assert bounds["last_timestamp"] == records[-1]["timestamp"]
    datetime.strptime(bounds["last_timestamp"], f"{MOMENT}Z").replace(tzinfo=UTC)
    assert len(bounds["last_timestamp"]) == len("2026-08-22T09:20:01.004Z")


@pytest.mark.parametrize(
    ("interval", "status"),
    [("1h", 200), ("PT1H", 200), ("99999Y", 200), ("0h", 400), ("-1h", 400), ("1x", 400)],
)
def test_r9_an_interval_reaches_back_from_now(hundred: Stream, interval: str, status: int) -> None:
    """R9: all of these streams is younger than an hour."""
    answer = hundred.get(f"interval:{interval}")
    if status == 400:
        problem_of(answer, 400, "bad-offset-spec")
    else:
        page = answer.json()
        assert (page["start_offset"], page["clamped"], len(page["records"])) == (0, "low", COUNT)


def test_what_a_spec_means_can_be_asked(hundred: Stream) -> None:
    for spec in ("first", "last", "next", "55", "tail:3", "1000000", "interval:1h"):
        answer = hundred.client.get(f"{hundred.path}/offsets/resolve", params={"spec": spec})
        page = hundred.page(spec, limit=1)
        resolved = answer.json()
        assert (resolved["offset"], resolved["clamped"]) == (page["start_offset"], page["clamped"])
        first = page["records"][0]["timestamp"] if page["records"] else None
        assert (resolved["spec"], resolved["timestamp"]) == (spec, first)


# How far a page goes


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"limit": 1}, 1),
        ({"limit": 37}, 37),
        ({"until_offset": 38}, 8),
        ({"until_offset": 38, "limit": 3}, 3),
        ({"until_offset": 1000}, 70),
        ({"until_offset": 31}, 1),
        ({"max_bytes": 1}, 1),
        ({"max_bytes": 16 * MIB, "limit": 10_000}, 70),
    ],
)
def test_a_page_ends_where_it_was_asked_to(
    hundred: Stream, parameters: dict[str, int], expected: int
) -> None:
    answer = hundred.get(30, **parameters)
    page = answer.json()
    assert values(page) == [str(number) for number in range(30, 30 + expected)]
    assert page["next_offset"] == 30 + expected
    assert answer.headers["page-next-offset"] == str(30 + expected)
    assert answer.headers["stream-next-offset"] == str(COUNT)
    assert page["up_to_date"] == (30 + expected == COUNT)
    assert answer.headers["stream-up-to-date"] == str(page["up_to_date"]).lower()
    assert page["lag_records"] == COUNT - 30 - expected


@pytest.mark.parametrize("until_offset", [30, 10, 0])
def test_a_page_that_ends_where_it_starts_is_empty_or_refused(
    hundred: Stream, until_offset: int
) -> None:
    answer = hundred.get(30, until_offset=until_offset)
    if answer.status_code == 200:
        assert (answer.json()["records"], answer.json()["next_offset"]) == ([], 30)
    else:
        problem_of(answer, 400, "bad-parameter")


@pytest.mark.parametrize("limit", [7, 10, 33, 100])
def test_a_walk_sees_every_record_once_and_in_order(hundred: Stream, limit: int) -> None:
    """R10."""
    seen: list[int] = []
    offset: str | int = "first"
    for _ in range(COUNT):
        page = hundred.page(offset, limit=limit)
        seen += [record["offset"] for record in page["records"]]
        offset = page["next_offset"]
        if page["up_to_date"]:
            break
    assert seen == list(range(COUNT))


@pytest.mark.parametrize("accept", [JSON, ARROW])
def test_following_the_link_leads_to_the_end_and_stays_there(hundred: Stream, accept: str) -> None:
    """R10, by header alone."""
    url = f"{hundred.records}?offset=first&limit=9&value_encoding=base64"
    seen = 0
    for _ in range(COUNT):
        answer = hundred.client.get(url, headers={"accept": accept})
        if accept == ARROW:
            seen += pa.ipc.open_stream(answer.content).read_all().num_rows
        else:
            assert all("value_base64" in record for record in answer.json()["records"])
            seen += len(answer.json()["records"])
        following = httpx.URL(answer.links["next"]["url"])
        assert following.params["limit"] == "9"
        assert following.params["value_encoding"] == "base64"
        assert following.params["offset"] == answer.headers["page-next-offset"] == str(seen)
        url = str(following)
        if answer.headers["stream-up-to-date"] == "true":
            break
    assert seen == COUNT
    assert hundred.client.get(url).json()["records"] == []


def test_a_walk_over_a_thousand_records_by_seven(here: Here) -> None:
    """R10, as it stands."""
    stream = here.streams["thousand"]
    seen: list[str] = []
    while len(seen) < 1000:
        page = stream.page(len(seen), limit=7)
        assert page["records"]
        seen += values(page)
    assert seen == [str(number) for number in range(1000)]


# What is refused


@pytest.mark.parametrize(
    ("query", "code", "parameter"),
    [
        ("offset=1&offset=2", "duplicate-parameter", "offset"),
        ("offset=1&limit=1&limit=1", "duplicate-parameter", "limit"),
        ("offset=first&until_offset=-1", "bad-parameter", "until_offset"),
        ("offset=first&until_offset=x", "bad-parameter", "until_offset"),
        ("offset=first&limit=x", "bad-parameter", "limit"),
        ("offset=first&limit=", "bad-parameter", "limit"),
        ("offset=first&limit=1_0", "bad-parameter", "limit"),
        ("offset=first&limit=%D9%A1", "bad-parameter", "limit"),
        ("offset=first&max_bytes=0", "bad-parameter", "max_bytes"),
        ("offset=first&max_bytes=16777217", "bad-parameter", "max_bytes"),
        ("offset=first&on_out_of_range=maybe", "bad-parameter", "on_out_of_range"),
        ("offset=first&value_encoding=hex", "bad-parameter", "value_encoding"),
        ("offset=first&columns=value", "bad-parameter", "columns"),
        ("offset=first&columns=valeu", "bad-parameter", "columns"),
        ("offset=first&columns=", "bad-parameter", "columns"),
        ("offset=", "bad-offset-spec", "offset"),
        ("offset=First", "bad-offset-spec", "offset"),
        ("offset=%2B1", "bad-offset-spec", "offset"),
        ("offset=%D9%A1", "bad-offset-spec", "offset"),
        ("offset=interval:0h", "bad-offset-spec", "offset"),
        ("offset=stored", "bad-parameter", "consumer"),
        ("offset=first&consumer=a", "bad-parameter", "consumer"),
        ("offset=first&min_records=1", "bad-parameter", "min_records"),
        ("offset=first&max_wait_ms=1&follow=true", "bad-parameter", "max_wait_ms"),
        ("offset=tail:", "bad-offset-spec", "offset"),
        ("offset=tail:-1", "bad-offset-spec", "offset"),
        ("offset=timestamp:", "bad-offset-spec", "offset"),
        ("offset=timestamp:2026-13-01T00:00:00Z", "bad-offset-spec", "offset"),
        ("offset=timestamp:2026-08-22T09:00:00", "bad-offset-spec", "offset"),
        ("offset=timestamp:-1", "bad-offset-spec", "offset"),
        ("offset=timestamp:99999999999999999999", "bad-offset-spec", "offset"),
    ],
)
def test_a_parameter_outside_its_form_is_refused_by_name(
    hundred: Stream, query: str, code: str, parameter: str
) -> None:
    """R26, and the other integers."""
    problem = problem_of(hundred.client.get(f"{hundred.records}?{query}"), 400, code)
    assert problem["errors"][0]["parameter"] == parameter


def test_a_parameter_that_does_not_exist_is_refused(hundred: Stream) -> None:
    """R26: a typing error must not mean the default."""
    answer = hundred.client.get(f"{hundred.records}?offset=first&ofset=1")
    problem_of(answer, 400, "unknown-parameter")


def test_who_expects_another_stream_under_the_name_is_told(hundred: Stream) -> None:
    stream_id = hundred.bounds()["stream_id"]
    assert len(hundred.page("first", expect_stream_id=stream_id)["records"]) == COUNT
    other = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"
    problem_of(hundred.get("first", expect_stream_id=other), 409, "stream-replaced")
