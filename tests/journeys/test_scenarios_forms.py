"""The forms in which records are read, all of which say the same: scenarios R11, R22, R23, R25, H13.

From the tail and from object storage, at once and after a restart.
"""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pytest
from support.contract import ARROW, JSON, Stream, problem_of
from support.places import FREEING, Here

from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of, split_chunks

SETTINGS = FREEING
COUNT = 100
MIB = 1024 * 1024
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
CHUNKS = "application/vnd.bottomless.chunks"
OCTETS = "application/octet-stream"
RICH: list[dict[str, Any]] = [
    {"value": "text\r\n\u2028", "filter_value": "emea"},
    {"json": {"a": [1, None, "é"], "b": 1.5}, "key": "cust-9", "headers": {"type": "order"}},
    {"value_base64": "//4=", "event_time": "2026-08-22T09:19:59.120Z", "key_base64": "/w=="},
    {"value": "", "headers": {"raw": {"base64": "/w=="}, "text": "é"}, "filter_value": ""},
    {"json": None, "event_time": "1970-01-01T00:00:00.000Z"},
    {"value": "{}", "key": ""},
]


def fill_hundred(stream: Stream, _: bool) -> None:
    for first in range(0, COUNT, 50):
        stream.append(*(str(number) for number in range(first, first + 50)))


def fill_rich(stream: Stream, freed: bool) -> None:
    """Two appends, and so two times; as two fragments, where there are any."""
    for records in (RICH[:2], RICH[2:]):
        stream.post(*records).raise_for_status()
        if freed:
            stream.wait_uploaded()


def fill_large(stream: Stream, _: bool) -> None:
    stream.append("small", "x" * MIB, "small too")


def fill_script(stream: Stream, _: bool) -> None:
    stream.append("<script>alert(1)</script>")


FILLS = {
    "hundred": fill_hundred,
    "rich": fill_rich,
    "large": fill_large,
    "script": fill_script,
}


@pytest.fixture(scope="module")
def hundred(here: Here) -> Stream:
    return here.streams["hundred"]


@pytest.fixture(scope="module")
def rich(here: Here) -> Stream:
    return here.streams["rich"]


def values(page: dict[str, Any]) -> list[str]:
    return [record["value"] for record in page["records"]]


def form(stream: Stream, accept: str, **parameters: Any) -> httpx.Response:
    answer = stream.client.get(stream.records, params=parameters, headers={"accept": accept})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == accept
    return answer


class Row(NamedTuple):
    """A record, whatever form it came in."""

    offset: int
    timestamp: str
    value: bytes
    key: bytes | None
    headers: dict[str, bytes]
    event_time: str | None
    filter_value: str | None


def written(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def row_of_json(record: dict[str, Any]) -> Row:
    if "json" in record:
        value = json.dumps(record["json"], separators=(",", ":"), ensure_ascii=False).encode()
    elif "value" in record:
        value = record["value"].encode()
    else:
        value = base64.b64decode(record["value_base64"], validate=True)
    key = record["key"].encode() if "key" in record else None
    if "key_base64" in record:
        key = base64.b64decode(record["key_base64"], validate=True)
    headers = {
        name: text.encode() if isinstance(text, str) else base64.b64decode(text["base64"])
        for name, text in record.get("headers", {}).items()
    }
    return Row(
        record["offset"],
        record["timestamp"],
        value,
        key,
        headers,
        record.get("event_time"),
        record.get("filter_value"),
    )


def row_of_columns(offset: int, timestamp: str, columns: dict[str, Any]) -> Row:
    return Row(
        offset,
        timestamp,
        columns["value"],
        columns.get("key"),
        dict(columns.get("headers") or ()),
        written(columns.get("event_time")),
        columns.get("filter_value"),
    )


def rows_of_arrow(body: bytes) -> Iterator[Row]:
    for record in pa.ipc.open_stream(body).read_all().to_pylist():
        yield row_of_columns(record["offset"], str(written(record["timestamp"])), record)


def rows_of_chunks(body: bytes) -> Iterator[Row]:
    for header, chunk in split_chunks(memoryview(body)):
        offset = header.first_offset
        time = written(datetime.fromtimestamp(header.timestamp / 1000, UTC))
        for batch in decode_frames(batches_of(header, chunk)):
            for record in batch.to_pylist():
                yield row_of_columns(offset, str(time), record)
                offset += 1


def records_of_events(stream: Stream, first: int, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for block in form(stream, SSE, offset=first, limit=count).text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields.get("event") == "records":
            found += json.loads(fields["data"])["records"]
    return found


def test_r22_every_form_says_the_same_of_every_kind_of_record(rich: Stream) -> None:
    """R22: JSON, bytes as base64, lines, events, Arrow, chunks, and each record by itself."""
    records = rich.page()["records"]
    assert [
        {k: v for k, v in each.items() if k not in {"offset", "timestamp"}} for each in records
    ] == RICH
    rows = [row_of_json(record) for record in records]
    assert [row.offset for row in rows] == list(range(len(RICH)))
    assert len({row.timestamp for row in rows[:2]}) == len({row.timestamp for row in rows[2:]}) == 1

    in_base64 = rich.page(value_encoding="base64")["records"]
    assert all("value_base64" in record for record in in_base64)
    assert [row_of_json(record).value for record in in_base64] == [row.value for row in rows]
    *lines, control = form(rich, NDJSON, offset=0).text.rstrip("\n").split("\n")
    assert [json.loads(line) for line in lines] == records
    assert json.loads(control)["_control"]["next_offset"] == len(RICH)
    assert records_of_events(rich, 0, len(RICH)) == records
    assert list(rows_of_arrow(form(rich, ARROW, offset=0).content)) == rows
    assert list(rows_of_chunks(form(rich, CHUNKS, offset=0).content)) == rows
    for record, row in zip(records, rows, strict=True):
        url = f"{rich.records}/{row.offset}"
        assert rich.client.get(url, headers={"accept": JSON}).json() == record
        raw = rich.client.get(url, headers={"accept": OCTETS})
        assert (raw.content, raw.headers["content-type"]) == (row.value, OCTETS)


def test_r22_every_form_of_a_range_is_that_range(hundred: Stream) -> None:
    """R22: from and to the middle of an append; chunks alone may stick out."""
    page = hundred.page(15, limit=40)
    rows = [row_of_json(record) for record in page["records"]]
    assert [row.offset for row in rows] == list(range(15, 55))
    control = json.loads(form(hundred, NDJSON, offset=15, limit=40).text.splitlines()[-1])
    assert control["_control"] == {k: v for k, v in page.items() if k != "records"}
    arrow = form(hundred, ARROW, offset=15, limit=40)
    assert list(rows_of_arrow(arrow.content)) == rows
    assert (arrow.headers["page-next-offset"], arrow.headers["stream-up-to-date"]) == (
        "55",
        "false",
    )
    assert records_of_events(hundred, 15, 40) == page["records"]
    chunks = form(hundred, CHUNKS, offset=15, limit=40)
    found = list(rows_of_chunks(chunks.content))
    assert [row for row in found if 15 <= row.offset < 55] == rows
    assert chunks.headers["page-start-offset"] == "15"
    assert int(chunks.headers["page-next-offset"]) == found[-1].offset + 1


@pytest.mark.parametrize("spec", ["next", "1000000"])
def test_an_empty_page_is_an_arrow_stream_too(hundred: Stream, spec: str) -> None:
    """R22: with its columns, so that nobody needs a special case."""
    answer = hundred.client.get(hundred.records, params={"offset": spec}, headers={"accept": ARROW})
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.num_rows == 0
    assert {"offset", "timestamp", "value"} <= set(table.column_names)


def test_an_empty_page_has_its_form_in_every_type(hundred: Stream) -> None:
    """R22."""
    assert form(hundred, CHUNKS, offset="next").content == b""
    (control,) = form(hundred, NDJSON, offset="next").text.splitlines()
    assert json.loads(control)["_control"]["next_offset"] == COUNT


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
        (NDJSON, NDJSON),
        (CHUNKS, CHUNKS),
        (f"{JSON};q=0.2, {NDJSON};q=0.3, {CHUNKS};q=0.1", NDJSON),
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


def test_a_record_that_is_no_text_does_not_block_its_page(rich: Stream) -> None:
    """R25."""
    records = rich.page(1, limit=3)["records"]
    assert [record.get("value_base64") for record in records] == [None, "//4=", None]
    assert (records[0]["json"], records[2]["value"]) == (RICH[1]["json"], "")
    as_text = rich.page(1, limit=3, value_encoding="text")["records"]
    assert as_text[0]["value"] == '{"a":[1,null,"é"],"b":1.5}'
    assert as_text[1]["value_base64"] == "//4="


def test_a_record_larger_than_the_page_is_a_page(here: Here) -> None:
    """R11: there is always progress."""
    stream = here.streams["large"]
    for accept in (JSON, ARROW, NDJSON, CHUNKS):
        answer = form(stream, accept, offset=1, max_bytes=1)
        # Chunks come whole.
        assert answer.headers["page-next-offset"] == ("3" if accept == CHUNKS else "2")
    assert values(stream.page(1, max_bytes=1)) == ["x" * MIB]
    assert values(stream.page(0, max_bytes=100)) == ["small"]


def test_h13_a_raw_value_is_never_run_by_a_browser(here: Here) -> None:
    """H13."""
    stream = here.streams["script"]
    answer = stream.client.get(f"{stream.records}/0", headers={"accept": OCTETS})
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-type"] == OCTETS
    assert answer.headers["content-disposition"] == "attachment"
    for accept in (OCTETS, JSON, "text/html, */*"):
        shown = stream.client.get(f"{stream.records}/0", headers={"accept": accept})
        assert shown.headers["x-content-type-options"] == "nosniff"
        assert shown.headers["content-type"] in {OCTETS, JSON}
    for accept in (JSON, ARROW, NDJSON, CHUNKS):
        assert form(stream, accept, offset=0).headers["x-content-type-options"] == "nosniff"


def test_one_record_is_there_or_not_yet(hundred: Stream) -> None:
    problem = problem_of(hundred.client.get(f"{hundred.records}/{COUNT}"), 404, "offset-not-found")
    assert (problem["first_offset"], problem["next_offset"]) == (0, COUNT)
    problem_of(hundred.client.get(f"{hundred.records}/01"), 400, "bad-parameter")


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


def test_a_page_read_again_is_the_same_page(hundred: Stream) -> None:
    first, second = (hundred.get(33, limit=33).content for _ in range(2))
    assert first == second
