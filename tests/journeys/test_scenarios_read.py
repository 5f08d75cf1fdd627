"""Reads over HTTP, from the tail, from object storage, and after a restart: scenarios R1 to R26, M1 to M5."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx
import pyarrow as pa
import pytest
from support.contract import ARROW, JSON, QUICK, Stream, new_stream, problem_of
from support.server import AllInOne
from support.waiting import until

from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of, split_chunks

SETTINGS = {"BOTTOMLESS_MANIFEST_FANOUT": "4", "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "100"}
BATCHES, EACH = 10, 10
COUNT = BATCHES * EACH
MIB = 1024 * 1024
NDJSON = "application/x-ndjson"
CHUNKS = "application/vnd.bottomless.chunks"
MOMENT = "%Y-%m-%dT%H:%M:%S.%f"
PLACES = ["tail", "object storage", "after a restart"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("read") / "data", SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def client(running: AllInOne) -> Iterator[httpx.Client]:
    with running.client() as connected:
        yield connected


@pytest.fixture
def stream(client: httpx.Client) -> Stream:
    return new_stream(client)


def clock_moved(stream: Stream) -> bool:
    """Whether another append would have another commit time, as far as the clock shows."""
    last = stream.bounds()["last_timestamp"]
    return last is None or datetime.now(UTC) > datetime.fromisoformat(last) + timedelta(
        milliseconds=2
    )


def fill(stream: Stream, *, uploading: bool) -> None:
    for batch in range(BATCHES):
        until(lambda: clock_moved(stream), what="the clock")
        stream.append(*(str(batch * EACH + number) for number in range(EACH)))
        if uploading:
            stream.wait_uploaded()


@pytest.fixture(scope="module", params=PLACES)
def hundred(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stream]:
    """100 records in batches of 10: in the tail, in ten fragments, and read cold."""
    place = PLACES.index(request.param)
    with AllInOne(tmp_path_factory.mktemp("hundred") / "data", SETTINGS) as server:
        with server.client() as connected:
            stream = new_stream(connected, QUICK if place else None)
            fill(stream, uploading=place > 0)
        if request.param == "after a restart":
            server.kill()
            server.start()
        with server.client() as connected:
            stream = Stream(connected, stream.name)
            assert stream.uploaded() == (place > 0)
            yield stream


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
    running: AllInOne, stream: Stream, spec: str
) -> None:
    """R1, M1."""
    page = stream.page(f"timestamp:{written(round(time.time() * 1000))}" if "now" in spec else spec)
    assert (page["records"], page["next_offset"], page["up_to_date"]) == ([], 0, True)
    assert (page["first_offset"], page["committed_offset"]) == (0, None)
    assert (page["start_offset"], page["lag_records"]) == (0, 0)
    stream_id = page["stream_id"]
    assert not [path for path in running.objects.rglob("*.fragment") if stream_id in str(path)]


def test_beyond_an_empty_stream_is_out_of_range_for_the_strict(stream: Stream) -> None:
    """M1."""
    problem = problem_of(stream.get(10, on_out_of_range="error"), 416, "offset-out-of-range")
    assert (problem["first_offset"], problem["next_offset"]) == (0, 0)
    assert stream.page(0, on_out_of_range="error")["records"] == []


def test_the_bounds_of_an_empty_stream(stream: Stream) -> None:
    """M1."""
    bounds = stream.bounds()
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
    answer = hundred.get(spec)
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


@pytest.mark.parametrize("accept", [JSON, ARROW])
def test_a_page_without_an_offset_is_refused(stream: Stream, accept: str) -> None:
    """R6."""
    answer = stream.client.get(stream.records, headers={"accept": accept})
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


def test_a_walk_over_a_thousand_records_by_seven(stream: Stream) -> None:
    """R10, as it stands."""
    for start in range(0, 1000, 50):
        stream.append(*(str(number) for number in range(start, start + 50)))
    seen: list[str] = []
    while len(seen) < 1000:
        page = stream.page(len(seen), limit=7)
        assert page["records"]
        seen += values(page)
    assert seen == [str(number) for number in range(1000)]


@pytest.mark.parametrize("uploading", [False, True])
def test_a_record_larger_than_the_page_is_a_page(client: httpx.Client, uploading: bool) -> None:
    """R11: there is always progress."""
    stream = new_stream(client, QUICK)
    stream.append("small", "x" * MIB, "small too")
    if uploading:
        stream.wait_uploaded()
    for accept in (JSON, ARROW):
        answer = stream.client.get(
            stream.records, params={"offset": 1, "max_bytes": 1}, headers={"accept": accept}
        )
        assert answer.headers["page-next-offset"] == "2"
    assert values(stream.page(1, max_bytes=1)) == ["x" * MIB]
    assert values(stream.page(0, max_bytes=100)) == ["small"]


# Waiting


def test_who_waits_at_the_end_is_answered_by_the_next_append(
    running: AllInOne, stream: Stream
) -> None:
    """R12."""
    stream.append("before")

    def wait() -> tuple[float, dict[str, Any]]:
        with running.client() as mine:
            page = Stream(mine, stream.name).page(1, max_wait_ms=20_000)
            return time.monotonic(), page

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        with pytest.raises(TimeoutError):
            waiting.result(1)
        stream.append("after")
        appended = time.monotonic()
        answered, page = waiting.result(20)
    assert values(page) == ["after"]
    assert (page["next_offset"], page["up_to_date"]) == (2, True)
    assert answered - appended < 0.5


def test_many_wait_at_once_and_all_are_answered(running: AllInOne, stream: Stream) -> None:
    """R12."""

    def wait(_: int) -> list[str]:
        with running.client() as mine:
            return values(Stream(mine, stream.name).page("next", max_wait_ms=20_000))

    with ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(wait, number) for number in range(30)]
        with pytest.raises(TimeoutError):
            waiting[0].result(1)
        stream.append("for all")
        assert [each.result(10) for each in waiting] == [["for all"]] * 30


def test_who_waits_in_vain_gets_an_empty_page_in_time(stream: Stream) -> None:
    """R13."""
    stream.append("before")
    started = time.monotonic()
    page = stream.page(1, max_wait_ms=1500)
    assert 1.4 < time.monotonic() - started < 3
    assert (page["records"], page["next_offset"], page["up_to_date"]) == ([], 1, True)


def test_nobody_waits_for_what_is_there(hundred: Stream) -> None:
    """R13, from the other side."""
    started = time.monotonic()
    assert len(hundred.page(50, max_wait_ms=20_000)["records"]) == 50
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("wait", ["30001", "-1", "1.5", "+1", "01", "1e3", "", "ten"])
def test_a_wait_outside_its_range_is_refused(stream: Stream, wait: str) -> None:
    """R13."""
    problem = problem_of(stream.get("next", max_wait_ms=wait), 400, "bad-parameter")
    assert problem["errors"][0]["parameter"] == "max_wait_ms"


# Shapes


def test_json_and_arrow_say_the_same(hundred: Stream) -> None:
    """R22."""
    page = hundred.page(15, limit=40)
    answer = hundred.client.get(
        hundred.records, params={"offset": 15, "limit": 40}, headers={"accept": ARROW}
    )
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table["offset"].to_pylist() == [record["offset"] for record in page["records"]]
    assert table["value"].to_pylist() == [value.encode() for value in values(page)]
    assert [
        written(int(milliseconds))
        for milliseconds in table["timestamp"].cast(pa.int64()).to_numpy()
    ] == [record["timestamp"] for record in page["records"]]
    assert answer.headers["page-next-offset"] == "55"
    assert answer.headers["stream-up-to-date"] == "false"


@pytest.mark.parametrize("spec", ["next", "1000000"])
def test_an_empty_page_is_an_arrow_stream_too(hundred: Stream, spec: str) -> None:
    """R22: with its columns, so that nobody needs a special case."""
    answer = hundred.client.get(hundred.records, params={"offset": spec}, headers={"accept": ARROW})
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.num_rows == 0
    assert {"offset", "timestamp", "value"} <= set(table.column_names)


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        (None, JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        (JSON, JSON),
        (ARROW, ARROW),
        (f"{JSON};q=0.5, {ARROW};q=0.9", ARROW),
        (f"{ARROW};q=0.5, {JSON};q=0.9", JSON),
        (f"{ARROW};q=0.5, */*;q=0.1", ARROW),
        (f"{ARROW};q=0, */*", JSON),
        (f"text/html, application/xml;q=0.9, {ARROW};q=0.1", ARROW),
    ],
)
def test_the_type_that_is_wanted_most_is_given(
    hundred: Stream, accept: str | None, given: str
) -> None:
    """R23."""
    request = hundred.client.build_request("GET", f"{hundred.records}?offset=first&limit=1")
    del request.headers["accept"]
    if accept:
        request.headers["accept"] = accept
    answer = hundred.client.send(request)
    assert (answer.status_code, answer.headers["content-type"]) == (200, given)


@pytest.mark.parametrize("accept", ["application/xml", "image/*", f"{JSON};q=0, text/html"])
def test_a_type_that_is_not_there_is_refused_with_those_that_are(
    hundred: Stream, accept: str
) -> None:
    """R23."""
    answer = hundred.client.get(f"{hundred.records}?offset=first", headers={"accept": accept})
    problem = problem_of(answer, 406, "not-acceptable")
    assert JSON in str(problem)
    assert ARROW in str(problem)


@pytest.mark.parametrize("uploading", [False, True])
def test_a_record_that_is_no_text_does_not_block_its_page(
    client: httpx.Client, uploading: bool
) -> None:
    """R25."""
    stream = new_stream(client, QUICK)
    headers = {"content-type": "application/octet-stream"}
    stream.append("before")
    client.post(stream.records, content=b"\xff\xfe", headers=headers).raise_for_status()
    stream.post({"json": {"a": [1, None, "é"]}})
    if uploading:
        stream.wait_uploaded()
    shown = {
        "auto": [{"value": "before"}, {"value_base64": "//4="}, {"json": {"a": [1, None, "é"]}}],
        "base64": [
            {"value_base64": "YmVmb3Jl"},
            {"value_base64": "//4="},
            {"value_base64": "eyJhIjpbMSxudWxsLCLDqSJdfQ=="},
        ],
    }
    for encoding, expected in shown.items():
        found = stream.page(value_encoding=encoding)["records"]
        for record in found:
            del record["offset"], record["timestamp"]
        assert found == expected


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


def test_r22_every_form_of_a_range_says_the_same(hundred: Stream) -> None:
    """R22: lines, chunks and single records beside JSON."""
    page = hundred.page(15, limit=40)
    parameters = {"offset": 15, "limit": 40}

    def form(accept: str) -> httpx.Response:
        headers = {"accept": accept}
        return hundred.client.get(hundred.records, params=parameters, headers=headers)

    *lines, control = [json.loads(line) for line in form(NDJSON).text.splitlines()]
    assert lines == page["records"]
    del page["records"]
    assert control["_control"] == page

    answer = form(CHUNKS)
    rows = []
    for chunk_header, chunk in split_chunks(memoryview(answer.content)):
        offset = chunk_header.first_offset
        for batch in decode_frames(batches_of(chunk_header, chunk)):
            for value in batch.column("value"):
                rows.append((offset, written(chunk_header.timestamp), value.as_py().decode()))
                offset += 1
    wanted = [row for row in rows if 15 <= row[0] < 55]
    assert wanted == [(each["offset"], each["timestamp"], each["value"]) for each in lines]
    assert answer.headers["page-start-offset"] == "15"
    assert int(answer.headers["page-next-offset"]) == rows[-1][0] + 1

    for record in lines[::13]:
        url = f"{hundred.records}/{record['offset']}"
        assert hundred.client.get(url).json() == record
        raw = hundred.client.get(url, headers={"accept": "application/octet-stream"})
        assert raw.text == record["value"]


def test_h13_a_raw_value_is_never_run_by_a_browser(stream: Stream) -> None:
    """H13."""
    stream.append("<script>alert(1)</script>")
    headers = {"accept": "application/octet-stream"}
    answer = stream.client.get(f"{stream.records}/0", headers=headers)
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert stream.get(0).headers["x-content-type-options"] == "nosniff"


def test_one_record_is_there_or_not_yet(stream: Stream) -> None:
    stream.append("a")
    problem = problem_of(stream.client.get(f"{stream.records}/1"), 404, "offset-not-found")
    assert (problem["first_offset"], problem["next_offset"]) == (0, 1)
    problem_of(stream.client.get(f"{stream.records}/01"), 400, "bad-parameter")


# What changes and what does not


def test_a_full_page_of_the_past_is_not_sent_twice(hundred: Stream) -> None:
    answer = hundred.get(10, limit=20)
    etag = answer.headers["etag"]
    assert etag.startswith(f'W/"{answer.json()["stream_id"]}:10:30:')
    assert "public" not in answer.headers["cache-control"]
    again = hundred.client.get(
        hundred.records,
        params={"offset": 10, "limit": 20},
        headers={"if-none-match": f'"other", {etag}'},
    )
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == etag
    for parameters in ("limit=19", "limit=20&value_encoding=base64"):
        other = hundred.client.get(
            f"{hundred.records}?offset=10&{parameters}", headers={"if-none-match": etag}
        )
        assert other.status_code == 200, parameters
    arrow = hundred.client.get(
        hundred.records,
        params={"offset": 10, "limit": 20},
        headers={"if-none-match": etag, "accept": ARROW},
    )
    assert arrow.status_code == 200, "another representation has another tag"


def test_a_page_that_may_still_grow_has_no_tag(stream: Stream) -> None:
    stream.append("a", "b")
    assert "etag" not in stream.get("first", limit=10).headers
    assert "etag" not in stream.get("next").headers


def test_a_page_read_again_is_the_same_page(hundred: Stream) -> None:
    first, second = (hundred.get(33, limit=33).content for _ in range(2))
    assert first == second


def test_who_expects_another_stream_under_the_name_is_told(hundred: Stream) -> None:
    stream_id = hundred.bounds()["stream_id"]
    assert len(hundred.page("first", expect_stream_id=stream_id)["records"]) == COUNT
    other = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"
    problem_of(hundred.get("first", expect_stream_id=other), 409, "stream-replaced")


def test_times_never_go_back(stream: Stream) -> None:
    for number in range(30):
        stream.append(str(number))
    times = [record["timestamp"] for record in stream.page()["records"]]
    assert times == sorted(times)


# A deep manifest


def test_every_neighbour_of_every_edge_is_found(client: httpx.Client) -> None:
    """M3: fragments in groups in kilo-groups, from both sides of each edge, by offset and by time."""
    stream = new_stream(client, QUICK)
    fragments = 40
    for number in range(fragments):
        stream.append(f"{2 * number}:" + "x" * 40_000, f"{2 * number + 1}:" + "y" * 40_000)
        if number % 4 == 3:
            stream.wait_uploaded()
    stream.wait_uploaded()
    listed = client.get(f"{stream.path}/fragments").json()["fragments"]
    assert len(listed) > 4 * 4, "no deep manifest"
    for offset in range(2 * fragments):
        page = stream.page(offset, limit=1)
        record = page["records"][0]
        assert record["offset"] == page["start_offset"] == offset
        assert record["value"].split(":")[0] == str(offset)
        timed = stream.page(f"timestamp:{record['timestamp']}", limit=1)["records"][0]
        assert timed["timestamp"] == record["timestamp"]
        assert timed["offset"] <= offset


def test_a_page_goes_on_from_object_storage_into_the_tail(client: httpx.Client) -> None:
    """M5: nobody sees where one ends and the other begins."""
    stream = new_stream(client, {"fragment": {"target_bytes": 65_536, "max_age_ms": 86_400_000}})
    stream.append(*("x" * 10_000 for _ in range(8)))
    until(lambda: stream.bounds()["object_store_next_offset"] > 0, what="a fragment")
    stream.append("local")
    assert not stream.uploaded()
    page = stream.page(6)
    assert [record["offset"] for record in page["records"]] == [6, 7, 8]
    assert values(page)[-1] == "local"
    assert page["up_to_date"] is True
