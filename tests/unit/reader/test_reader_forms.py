"""The other forms of records: lines, chunks, one record, resolved offsets, and their tags."""

import json

import pyarrow as pa
import pytest
from unit.reader.harness import ARROW, ReaderHarness, Sent, shown
from unit.reader.open_answers import NDJSON
from unit.reader.protocol import STREAM_ID

from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of, split_chunks
from bottomless.model.record import Content

CHUNKS = "application/vnd.bottomless.chunks"
OCTETS = "application/octet-stream"
OTHER = STREAM_ID.replace("0", "1")


# Lines


async def test_lines_hold_the_records_of_the_page_and_all_that_it_says(
    hundred: ReaderHarness,
) -> None:
    query = "/records?offset=33&limit=9"
    page = (await hundred.get(query)).json()
    answer = await hundred.get(query, accept=NDJSON)

    *records, control = [json.loads(line) for line in answer.text.split("\n")[:-1]]
    assert records == page.pop("records")
    assert control == {"_control": page}
    assert answer.headers["content-type"] == NDJSON
    assert answer.headers["page-next-offset"] == "42"


async def test_an_empty_page_of_lines_is_its_control(harness: ReaderHarness) -> None:
    answer = await harness.get("/records?offset=next", accept=NDJSON)

    assert answer.text.count("\n") == 1
    assert answer.json()["_control"]["next_offset"] == 0


# Columns


async def test_an_arrow_page_has_the_columns_that_it_is_asked_for(hundred: ReaderHarness) -> None:
    query = "/records?offset=33&limit=9"
    whole = await hundred.get(query, accept=ARROW)
    some = await hundred.get(f"{query}&columns=value,offset", accept=ARROW)
    table = pa.ipc.open_stream(whole.content).read_all()
    part = pa.ipc.open_stream(some.content).read_all()

    assert part.equals(table.select(["offset", "value"])), "in the order of the schema"
    assert some.headers["page-next-offset"] == whole.headers["page-next-offset"] == "42"
    assert "columns=value%2Coffset" in some.headers["link"]
    assert some.headers["etag"] != whole.headers["etag"]
    empty = await hundred.get("/records?offset=next&columns=key", accept=ARROW)
    assert pa.ipc.open_stream(empty.content).read_all().schema.names == ["key"]


@pytest.mark.parametrize(
    ("columns", "accept"),
    [
        ("value", "application/json"),
        ("value", NDJSON),
        ("value", "text/event-stream"),
        ("value", CHUNKS),
        ("valeu", ARROW),
        ("value,", ARROW),
        ("", ARROW),
        ("value, key", ARROW),
        ("value,value", ARROW),
    ],
)
async def test_columns_that_are_none_or_would_be_ignored_are_refused(
    hundred: ReaderHarness, columns: str, accept: str
) -> None:
    answer = await hundred.get(f"/records?offset=0&columns={columns}", accept=accept)

    assert (answer.status_code, answer.json()["code"]) == (400, "bad-parameter")
    assert answer.json()["errors"][0]["parameter"] == "columns"


# Chunks


async def test_chunks_are_those_that_are_stored(hundred: ReaderHarness) -> None:
    stored = {chunk.first_offset: chunk.data for chunk in hundred.chunks}
    answer = await hundred.get("/records?offset=33&until_offset=51", accept=CHUNKS)

    chunks = list(split_chunks(memoryview(answer.content)))
    assert [header.first_offset for header, _ in chunks] == [30, 40, 50]
    for header, chunk in chunks:
        assert bytes(chunk) == stored.get(header.first_offset, bytes(chunk))
    values = [
        value.as_py()
        for header, chunk in chunks
        for batch in decode_frames(batches_of(header, chunk))
        for value in batch.column("value")
    ]
    assert values == [value.encode() for _, value in hundred.texts(30, 60)]
    assert answer.headers["content-type"] == CHUNKS
    assert answer.headers["page-start-offset"] == "33"
    assert answer.headers["page-next-offset"] == "60"
    assert answer.headers["stream-up-to-date"] == "false"


async def test_a_page_of_chunks_is_bounded_by_their_bytes(hundred: ReaderHarness) -> None:
    whole = await hundred.get("/records?offset=0", accept=CHUNKS)
    sizes = [len(chunk) for _, chunk in split_chunks(memoryview(whole.content))]
    two = await hundred.get(f"/records?offset=0&max_bytes={sum(sizes[:2])}", accept=CHUNKS)
    one = await hundred.get("/records?offset=9&max_bytes=1", accept=CHUNKS)
    counted = await hundred.get("/records?offset=0&limit=15", accept=CHUNKS)

    assert len(sizes) == 10
    assert two.headers["page-next-offset"] == counted.headers["page-next-offset"] == "20"
    assert (len(one.content), one.headers["page-next-offset"]) == (sizes[0], "10")
    assert one.headers["page-start-offset"] == "9"


async def test_a_walk_by_chunks_gives_every_byte_once(hundred: ReaderHarness) -> None:
    whole = await hundred.get("/records?offset=0", accept=CHUNKS)
    parts, offset = [], "0"
    while True:
        answer = await hundred.get(f"/records?offset={offset}&max_bytes=2000", accept=CHUNKS)
        if not answer.content:
            break
        parts.append(answer.content)
        offset = answer.headers["page-next-offset"]

    assert b"".join(parts) == whole.content
    assert offset == "100"


# One record


async def test_one_record_is_that_of_its_page(hundred: ReaderHarness) -> None:
    (expected,) = (await hundred.read(57, limit=1))["records"]
    answer = await hundred.get("/records/57")

    assert answer.json() == expected
    assert answer.headers["record-offset"] == "57"
    assert answer.headers["record-timestamp"] == expected["timestamp"]
    assert answer.headers["stream-id"] == STREAM_ID
    assert (answer.headers["stream-first-offset"], answer.headers["stream-next-offset"]) == (
        "0",
        "100",
    )


async def test_a_raw_value_is_bytes_and_never_a_page_that_runs(harness: ReaderHarness) -> None:
    value = b"<script>alert(1)</script>\xff"
    harness.append(Sent(value), Sent(b""), Sent(b'{"a": 1}', content=Content.JSON))
    raw = [await harness.get(f"/records/{offset}", accept=OCTETS) for offset in range(3)]

    assert [answer.content for answer in raw] == [value, b"", b'{"a": 1}']
    for answer in raw:
        assert answer.headers["content-type"] == OCTETS
        assert answer.headers["content-disposition"] == "attachment"
        assert answer.headers["x-content-type-options"] == "nosniff"
    shaped = await harness.get("/records/2?value_encoding=base64")
    assert shaped.json()["value_base64"] == "eyJhIjogMX0="


async def test_a_record_that_is_not_there_is_not_yet_or_not_any_more(
    harness: ReaderHarness,
) -> None:
    harness.fill(20)
    await harness.upload(1, free=True)
    await harness.trim(10)
    early, late, far = [await harness.get(f"/records/{n}") for n in (9, 20, 2**53 - 1)]
    await harness.upload(1)
    await harness.lose(5)
    lost = await harness.get("/records/22")

    bounds = {"first_offset": 10, "next_offset": 20}
    assert (early.status_code, early.json()["code"]) == (410, "offset-trimmed")
    assert early.json() | bounds == early.json()
    for answer in (late, far):
        assert (answer.status_code, answer.json()["code"]) == (404, "offset-not-found")
        assert answer.json() | bounds == answer.json()
    assert (lost.status_code, lost.json()["next_offset"]) == (410, 25)


@pytest.mark.parametrize("offset", ["-1", "01", "1.0", "x", str(2**53), "first", "%D9%A1"])
async def test_the_offset_in_a_path_is_a_number(harness: ReaderHarness, offset: str) -> None:
    problem = (await harness.get(f"/records/{offset}")).json()

    assert (problem["status"], problem["code"]) == (400, "bad-parameter")
    assert problem["errors"][0]["parameter"] == "offset"


async def test_a_record_has_a_strong_tag_for_each_of_its_forms(harness: ReaderHarness) -> None:
    harness.append("a")
    answers = [
        await harness.get("/records/0"),
        await harness.get("/records/0?value_encoding=base64"),
        await harness.get("/records/0", accept=OCTETS),
    ]
    tags = [answer.headers["etag"] for answer in answers]
    again = await harness.get("/records/0", if_none_match=tags[0])

    assert len(set(tags)) == 3
    assert all(tag.startswith(f'"{STREAM_ID}:0:') for tag in tags)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tags[0])
    assert (await harness.get("/records/0", if_none_match=tags[2])).status_code == 200


# Tags of pages


@pytest.mark.parametrize(
    ("query", "immutable"),
    [
        ("offset=10&limit=20", True),
        ("offset=10&until_offset=30", True),
        ("offset=10&max_bytes=50", True),
        ("offset=first&limit=20", True),
        ("offset=90&limit=10", False),
        ("offset=90&limit=20", False),
        ("offset=90&until_offset=100", False),
        ("offset=next", False),
    ],
)
async def test_only_a_full_page_of_the_past_is_tagged(
    hundred: ReaderHarness, query: str, immutable: bool
) -> None:
    answer = await hundred.get(f"/records?{query}")
    assert ("etag" in answer.headers) == immutable
    if immutable:
        tag = answer.headers["etag"]
        hundred.append("new")
        again = await hundred.get(f"/records?{query}", if_none_match=tag)
        assert (again.status_code, again.content) == (304, b"")
        lines = await hundred.get(f"/records?{query}", if_none_match=tag, accept=NDJSON)
        assert lines.status_code == 200, "another form has another tag"


async def test_a_tag_does_not_outlive_its_records(harness: ReaderHarness) -> None:
    harness.fill(30)
    for _ in range(2):
        await harness.upload(1, free=True)
    query = "/records?offset=0&limit=10"
    tag = (await harness.get(query)).headers["etag"]
    await harness.trim(10)
    moved = await harness.get(query, if_none_match=tag)
    strict = await harness.get(f"{query}&on_out_of_range=error", if_none_match=tag)

    assert (moved.status_code, moved.json()["clamped"]) == (200, "low")
    assert strict.status_code == 410


@pytest.mark.parametrize("path", ["%2Frecords", "/records%2f0", "%2Foffsets%2Fresolve?spec=0"])
async def test_an_encoded_slash_is_none_between_two_parts_of_a_path(
    hundred: ReaderHarness, path: str
) -> None:
    answer = await hundred.client.get(f"/v1/streams/orders{path}")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-name")


# Specs


@pytest.mark.parametrize(
    ("spec", "offset", "clamped"),
    [
        ("first", 0, None),
        ("last", 90, None),
        ("next", 100, None),
        ("55", 55, None),
        ("1000", 100, "high"),
        ("tail:3", 97, None),
        ("tail:1000", 0, "low"),
        ("timestamp:1050", 50, None),
        ("timestamp:1", 0, "low"),
        ("interval:99999Y", 0, "low"),
        ("interval:1s", 100, None),
    ],
)
async def test_a_spec_resolves_to_where_its_page_starts(
    hundred: ReaderHarness, spec: str, offset: int, clamped: str | None
) -> None:
    page = await hundred.read(spec)
    resolved = await hundred.get(f"/offsets/resolve?spec={spec}")

    timestamp = page["records"][0]["timestamp"] if page["records"] else None
    assert resolved.json() == {
        "stream_id": STREAM_ID,
        "spec": spec,
        "offset": offset,
        "clamped": clamped,
        "timestamp": timestamp,
    }
    assert (page["start_offset"], page["clamped"]) == (offset, clamped)
    assert resolved.headers["stream-next-offset"] == "100"


async def test_an_interval_reaches_back_from_now(harness: ReaderHarness) -> None:
    harness.service.followers.reader._resolver._now = lambda: 10_000.0
    for seconds in (1_000, 6_400, 9_000):
        harness.append("x", timestamp=seconds * 1_000)
    for text, offset in (("1h", 1), ("PT1H", 1), ("2000s", 2), ("100s", 3), ("3D", 0)):
        assert (await harness.read(f"interval:{text}"))["start_offset"] == offset, text


@pytest.mark.parametrize("text", ["", "0h", "-1h", "1x", "1.5h", "h", "PT", "1h ", "0000Y"])
async def test_what_is_no_duration_is_refused(harness: ReaderHarness, text: str) -> None:
    answer = await harness.get(f"/records?offset=interval:{text}")

    assert (answer.status_code, answer.json()["code"]) == (400, "bad-offset-spec")


async def test_a_stored_offset_is_where_a_consumer_continues(hundred: ReaderHarness) -> None:
    hundred.stored = {"billing": 57, "ahead": 200}
    page = await hundred.read("stored", consumer="billing", limit=2)
    resolved = (await hundred.get("/offsets/resolve?spec=stored&consumer=billing")).json()
    ahead = await hundred.get("/records?offset=stored&consumer=ahead&on_out_of_range=error")

    assert (page["requested"], shown(page)) == ("stored", hundred.texts(57, 59))
    assert resolved["offset"] == 57
    assert (ahead.status_code, ahead.json()["next_offset"]) == (416, 100)


async def test_the_link_of_a_stored_page_leads_on(hundred: ReaderHarness) -> None:
    hundred.stored = {"billing": 57}
    answer = await hundred.get("/records?offset=stored&consumer=billing&default=first&limit=2")

    assert answer.links["next"]["url"] == "/v1/streams/orders/records?offset=59&limit=2"
    following = await hundred.client.get(answer.links["next"]["url"])
    assert shown(following.json()) == hundred.texts(59, 61)


async def test_nothing_stored_is_the_default_or_not_found(hundred: ReaderHarness) -> None:
    missing = await hundred.get("/records?offset=stored&consumer=audit")
    page = await hundred.read("stored", consumer="audit", default="tail:3")

    assert (missing.status_code, missing.json()["code"]) == (404, "offset-not-found")
    assert page["start_offset"] == 97


async def test_a_stored_offset_that_trim_passed_is_moved_or_gone(harness: ReaderHarness) -> None:
    harness.stored = {"billing": 3}
    harness.fill(20)
    await harness.upload(1)
    await harness.trim(10)
    page = await harness.read("stored", consumer="billing")
    strict = await harness.get("/records?offset=stored&consumer=billing&on_out_of_range=error")

    assert (page["start_offset"], page["clamped"]) == (10, "low")
    assert (strict.status_code, strict.json()["first_offset"]) == (410, 10)


@pytest.mark.parametrize(
    ("query", "code", "parameter"),
    [
        ("offset=stored", "bad-parameter", "consumer"),
        ("offset=first&consumer=a", "bad-parameter", "consumer"),
        ("offset=first&default=first", "bad-parameter", "default"),
        ("offset=stored&consumer=a&default=stored", "bad-parameter", "default"),
        ("offset=stored&consumer=a&default=x", "bad-offset-spec", "default"),
        ("offset=stored&consumer=a%2Fb", "bad-name", "consumer"),
        ("offset=stored&consumer=" + "a" * 256, "bad-name", "consumer"),
    ],
)
async def test_stored_and_its_consumer_go_together(
    harness: ReaderHarness, query: str, code: str, parameter: str
) -> None:
    for path in (f"/records?{query}", f"/offsets/resolve?{query.replace('offset', 'spec', 1)}"):
        problem = (await harness.get(path)).json()
        assert (problem["status"], problem["code"]) == (400, code)
        assert problem["errors"][0]["parameter"] == parameter


@pytest.mark.parametrize(
    "path",
    [
        "/records?offset=0&",
        "/records/0?",
        "/offsets?",
        "/offsets/resolve?spec=0&",
        "/fragments?",
        f"/fragments/{0:020d}-{'a' * 32}?",
    ],
)
async def test_every_read_can_insist_on_its_stream(harness: ReaderHarness, path: str) -> None:
    harness.fill(10)
    answer = await harness.get(f"{path}expect_stream_id={OTHER}")
    same = await harness.get(f"{path}expect_stream_id={STREAM_ID}")

    assert (answer.status_code, answer.json()["code"]) == (409, "stream-replaced")
    assert same.status_code in (200, 404)


async def test_what_is_offered_is_listed_where_nothing_fits(harness: ReaderHarness) -> None:
    page = await harness.get("/records?offset=0", accept="image/png")
    follow = await harness.get("/records?offset=0&follow=true", accept="application/json")
    record = await harness.get("/records/0", accept="text/plain")

    assert page.json()["offered"] == [
        "application/json",
        "application/vnd.apache.arrow.stream",
        "application/x-ndjson",
        "text/event-stream",
        "application/vnd.bottomless.chunks",
    ]
    assert follow.json()["offered"] == ["application/x-ndjson", "text/event-stream"]
    assert record.json()["offered"] == ["application/json", "application/octet-stream"]
    assert {answer.status_code for answer in (page, follow, record)} == {406}


async def test_the_last_page_of_a_bounded_walk_links_to_nothing(hundred: ReaderHarness) -> None:
    more = await hundred.get("/records?offset=0&limit=10&until_offset=15")
    last = await hundred.get("/records?offset=10&limit=10&until_offset=15")

    assert "next" in more.links
    assert "next" not in last.links
