"""Fragments over HTTP: scenarios T9, T11, M2, M6, and the list that Spark plans with."""

import base64
import itertools
from typing import Any

import httpx
import pytest
from support.contract import QUICK, Stream, new_stream, problem_of
from support.server import AllInOne
from support.waiting import until

from bottomless.formats import fragment as fragment_format
from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import batches_of, split_chunks

SETTINGS = {"BOTTOMLESS_MANIFEST_FANOUT": "4", "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "100"}
FRAGMENTS, EACH = 6, 3
COUNT = FRAGMENTS * EACH
MIB = 1024 * 1024
UNKNOWN = f"{0:020d}-{'0' * 32}"


@pytest.fixture(scope="module")
def stream(client: httpx.Client) -> Stream:
    """18 records in six fragments of three, of all kinds of values; and nothing after them."""
    made = new_stream(client, QUICK)
    for number in range(FRAGMENTS):
        records = [
            {"value": f"text {number}", "key": f"k{number}"},
            {"json": {"n": number}, "headers": {"type": "order"}},
            {"value_base64": "AAEC/w==", "event_time": 1_787_390_399_120, "filter_value": "emea"},
        ]
        made.post(*records).raise_for_status()
        made.wait_uploaded()
    return made


@pytest.fixture
def fresh(client: httpx.Client) -> Stream:
    return new_stream(client, QUICK)


def listing(stream: Stream, **parameters: Any) -> dict[str, Any]:
    answer = stream.client.get(f"{stream.path}/fragments", params=parameters)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def get(stream: Stream, item: dict[str, Any], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return stream.client.get(item["href"], headers=named)


def rows_of(blob: bytes) -> list[dict[str, Any]]:
    """The records of a fragment, read from its bytes alone."""
    header = fragment_format.decode_fragment_header(blob[: fragment_format.HEADER_SIZE])
    rows: list[dict[str, Any]] = []
    body = blob[fragment_format.HEADER_SIZE :][: header.data_size]
    for chunk_header, chunk in split_chunks(body):
        frames = decode_frames(batches_of(chunk_header, chunk))
        found = itertools.chain.from_iterable(frame.to_pylist() for frame in frames)
        for offset, row in enumerate(found, chunk_header.first_offset):
            rows.append({"offset": offset, "timestamp": chunk_header.timestamp, "row": row})
    return rows


def test_a_stream_without_fragments_has_an_empty_list(fresh: Stream) -> None:
    """M1."""
    found = listing(fresh)
    assert (found["fragments"], found["next_page_token"]) == ([], None)
    assert (found["first_offset"], found["next_offset"]) == (0, 0)
    assert found["object_store_next_offset"] == 0


def test_the_list_covers_the_stream_without_gap_or_overlap(stream: Stream) -> None:
    """T9."""
    found = listing(stream)
    fragments = found["fragments"]
    assert len(fragments) == FRAGMENTS
    assert found["stream_id"] == stream.bounds()["stream_id"]
    assert (found["first_offset"], found["next_offset"]) == (0, COUNT)
    assert found["object_store_next_offset"] == COUNT
    assert found["manifest_version"] >= 1
    assert found["next_page_token"] is None
    position = 0
    for item in fragments:
        assert item["first_offset"] == position
        assert item["record_count"] == item["last_offset"] - item["first_offset"] + 1 == EACH
        assert item["id"].startswith(f"{position:020d}-")
        assert len(item["id"]) == 20 + 1 + 32
        assert item["href"] == f"{stream.path}/fragments/{item['id']}"
        position = item["last_offset"] + 1
    assert position == COUNT


def test_no_key_or_path_leaves_unless_locations_are_asked_for(
    running: AllInOne, stream: Stream
) -> None:
    plain = stream.client.get(f"{stream.path}/fragments").text
    assert "object_key" not in plain
    assert str(running.objects) not in plain
    assert ".fragment" not in plain
    for item in listing(stream, locations="true")["fragments"]:
        assert item["store"]["kind"]
        keys = [str(path) for path in running.objects.rglob("*.fragment")]
        assert any(key.endswith(item["object_key"]) for key in keys)


def test_every_fragment_decoded_says_what_the_records_say(stream: Stream) -> None:
    """T9: byte for byte, with its sums."""
    records = stream.page(value_encoding="base64")["records"]
    pages = stream.page()["records"]
    seen: list[dict[str, Any]] = []
    for item in listing(stream)["fragments"]:
        answer = get(stream, item)
        blob = answer.content
        assert (answer.status_code, len(blob)) == (200, item["size_bytes"])
        assert f"{crc32c(blob):08x}" == item["crc32c"]
        assert answer.headers["etag"] == item["etag"]
        rows = rows_of(blob)
        assert [row["offset"] for row in rows] == list(
            range(item["first_offset"], item["last_offset"] + 1)
        )
        assert item["first_timestamp"] == pages[item["first_offset"]]["timestamp"]
        assert item["last_timestamp"] == pages[item["last_offset"]]["timestamp"]
        assert 0 < item["data_bytes"] < item["size_bytes"]
        assert item["data_bytes"] <= item["index_position"] < item["size_bytes"]
        seen += rows
    assert len(seen) == COUNT
    for row, record, page in zip(seen, records, pages, strict=True):
        assert row["row"]["value"] == base64.b64decode(record["value_base64"])
        assert (row["row"]["key"] or b"").decode() == page.get("key", "")
        assert row["row"]["filter_value"] == page.get("filter_value")
        assert row["offset"] == page["offset"]


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (0, COUNT, range(FRAGMENTS)),
        (0, 1, range(1)),
        (0, EACH, range(1)),
        (0, EACH + 1, range(2)),
        (EACH - 1, EACH, range(1)),
        (EACH, EACH + 1, range(1, 2)),
        (EACH + 1, 3 * EACH - 1, range(1, 3)),
        (COUNT - 1, COUNT, range(FRAGMENTS - 1, FRAGMENTS)),
        (COUNT - 1, COUNT + 1000, range(FRAGMENTS - 1, FRAGMENTS)),
        (COUNT, COUNT + 1, range(0)),
    ],
)
def test_a_range_names_the_fragments_that_it_touches(
    stream: Stream, start: int, end: int, wanted: range
) -> None:
    """Half-open; the outer ones may stick out."""
    every = [item["id"] for item in listing(stream)["fragments"]]
    found = listing(stream, from_offset=start, to_offset=end)["fragments"]
    assert [item["id"] for item in found] == [every[number] for number in wanted]


@pytest.mark.parametrize("limit", [1, 2, 4, 6, 1000])
def test_pages_of_the_list_make_up_the_list(stream: Stream, limit: int) -> None:
    every = listing(stream)["fragments"]
    found: list[dict[str, Any]] = []
    page = listing(stream, from_offset=0, to_offset=COUNT, limit=limit)
    for _ in range(FRAGMENTS + 1):
        assert len(page["fragments"]) <= limit
        found += page["fragments"]
        if page["next_page_token"] is None:
            break
        page = listing(stream, limit=limit, page_token=page["next_page_token"])
    assert found == every


def test_pages_are_pinned_to_the_end_that_the_first_one_saw(fresh: Stream) -> None:
    for _ in range(2):
        fresh.append("before")
        fresh.wait_uploaded()
    first = listing(fresh, limit=1)
    fresh.append("after")
    fresh.wait_uploaded()
    found = list(first["fragments"])
    token = first["next_page_token"]
    while token:
        page = listing(fresh, limit=1, page_token=token)
        found += page["fragments"]
        token = page["next_page_token"]
    assert [item["first_offset"] for item in found] == [0, 1]
    assert [item["first_offset"] for item in listing(fresh)["fragments"]] == [0, 1, 2]


def test_a_token_is_good_for_its_own_stream_alone(stream: Stream, fresh: Stream) -> None:
    """S10, for the one list that there is."""
    token = listing(stream, limit=1)["next_page_token"]
    tampered = token[:-2] + ("AA" if not token.endswith("AA") else "BB")
    for where, text, status in (
        (fresh, token, 409),
        (stream, tampered, 400),
        (stream, "x", 400),
        (stream, "", 400),
    ):
        answer = where.client.get(f"{where.path}/fragments", params={"page_token": text})
        assert answer.status_code == status, (text, answer.text)
        assert problem_of(answer, status, answer.json()["code"])["retryable"] is False


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("from_offset=-1", "bad-parameter"),
        ("from_offset=01", "bad-parameter"),
        ("from_offset=first", "bad-parameter"),
        ("from_offset=9007199254740993", "bad-parameter"),
        ("to_offset=x", "bad-parameter"),
        ("limit=0", "bad-parameter"),
        ("limit=1001", "bad-parameter"),
        ("limit=1&limit=2", "duplicate-parameter"),
        ("form_offset=1", "unknown-parameter"),
        ("locations=maybe", "bad-parameter"),
    ],
)
def test_a_list_outside_the_contract_is_refused(stream: Stream, query: str, code: str) -> None:
    """R26, for the list."""
    problem_of(stream.client.get(f"{stream.path}/fragments?{query}"), 400, code)


# The bytes of one


@pytest.fixture(scope="module")
def item(stream: Stream) -> dict[str, Any]:
    found: dict[str, Any] = listing(stream)["fragments"][1]
    return found


@pytest.fixture(scope="module")
def blob(stream: Stream, item: dict[str, Any]) -> bytes:
    return get(stream, item).content


def test_a_fragment_says_how_it_may_be_read(stream: Stream, item: dict[str, Any]) -> None:
    answer = get(stream, item)
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-length"] == str(item["size_bytes"])
    assert answer.headers["stream-id"] == stream.bounds()["stream_id"]
    cached = {part.strip() for part in answer.headers["cache-control"].split(",")}
    assert cached >= {"private", "immutable"}
    assert not answer.headers["etag"].startswith("W/")
    assert answer.headers["x-content-type-options"] == "nosniff"
    told = stream.client.head(item["href"])
    assert (told.status_code, told.content) == (200, b"")
    for name in ("content-length", "etag", "accept-ranges", "content-type", "cache-control"):
        assert told.headers[name] == answer.headers[name]


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-63", 0, 64),
        ("bytes=10-", 10, None),
        ("bytes=100-199", 100, 200),
        ("bytes=-64", -64, None),
        ("bytes=-1", -1, None),
        ("bytes=5-99999999999", 5, None),
        ("bytes=-99999999999", 0, None),
    ],
)
def test_a_range_is_exactly_those_bytes(
    stream: Stream, item: dict[str, Any], blob: bytes, asked: str, start: int, end: int | None
) -> None:
    answer = get(stream, item, range=asked)
    wanted = blob[start:end]
    first = start % len(blob)
    assert answer.status_code == 206
    assert answer.content == wanted
    assert answer.headers["content-length"] == str(len(wanted))
    assert answer.headers["content-range"] == (
        f"bytes {first}-{first + len(wanted) - 1}/{len(blob)}"
    )
    assert answer.headers["etag"] == item["etag"]


def test_the_trailer_by_its_suffix_is_the_footer(stream: Stream, item: dict[str, Any]) -> None:
    size = item["size_bytes"] - item["index_position"]
    answer = get(stream, item, range=f"bytes=-{size}")
    index = fragment_format.decode_index(answer.content)
    assert len(index) >= 1


@pytest.mark.parametrize("asked", ["bytes={size}-", "bytes=99999999999-", "bytes=-0"])
def test_a_range_behind_the_end_cannot_be_satisfied(
    stream: Stream, item: dict[str, Any], asked: str
) -> None:
    answer = get(stream, item, range=asked.format(size=item["size_bytes"]))
    problem_of(answer, 416, "range-not-satisfiable")
    assert answer.headers["content-range"] == f"bytes */{item['size_bytes']}"


@pytest.mark.parametrize(
    "asked", ["bytes=0-1,4-5", "lines=0-1", "bytes=5-1", "bytes=a-b", "bytes", "0-5"]
)
def test_a_range_of_another_form_is_the_whole_or_cannot_be_satisfied(
    stream: Stream, item: dict[str, Any], blob: bytes, asked: str
) -> None:
    answer = get(stream, item, range=asked)
    if answer.status_code == 200:
        assert answer.content == blob
    else:
        problem_of(answer, 416, "range-not-satisfiable")


def test_a_range_of_what_was_is_all_of_what_is(
    stream: Stream, item: dict[str, Any], blob: bytes
) -> None:
    """T11."""
    for old in ('"old"', f"W/{item['etag']}", "Sat, 21 Nov 2020 03:30:47 GMT"):
        answer = get(stream, item, range="bytes=0-63", if_range=old)
        assert (answer.status_code, answer.content) == (200, blob), old
    answer = get(stream, item, range="bytes=0-63", if_range=item["etag"])
    assert (answer.status_code, answer.content) == (206, blob[:64])


def test_who_has_a_fragment_is_not_sent_it_again(stream: Stream, item: dict[str, Any]) -> None:
    for condition in (item["etag"], "*", f'"other", {item["etag"]}', f"W/{item['etag']}"):
        answer = get(stream, item, if_none_match=condition)
        assert (answer.status_code, answer.content) == (304, b""), condition
        assert answer.headers["etag"] == item["etag"]
    answer = get(stream, item, if_none_match=item["etag"], range="bytes=0-63")
    assert answer.status_code == 304, "the condition comes before the range"
    assert get(stream, item, if_none_match='"other"').status_code == 200


@pytest.mark.parametrize("name", [UNKNOWN, "x", "0", "%2e%2e%2froot", "a" * 300])
def test_a_fragment_that_is_not_this_streams_is_not_found(stream: Stream, name: str) -> None:
    answer = stream.client.get(f"{stream.path}/fragments/{name}")
    assert answer.status_code in {400, 404}
    problem = problem_of(answer, answer.status_code, answer.json()["code"])
    assert problem["retryable"] is False


def test_a_fragment_is_reached_through_its_own_stream_alone(
    fresh: Stream, item: dict[str, Any]
) -> None:
    answer = fresh.client.get(f"{fresh.path}/fragments/{item['id']}")
    problem_of(answer, 404, "fragment-not-found")


# When fragments are cut


def test_one_small_record_becomes_a_fragment_when_it_is_old_enough(fresh: Stream) -> None:
    """M2."""
    fresh.append("alone")
    assert [record["value"] for record in fresh.page()["records"]] == ["alone"]
    until(fresh.uploaded, what="the time cut")
    only = listing(fresh)["fragments"]
    assert [(item["first_offset"], item["record_count"]) for item in only] == [(0, 1)]
    assert [record["value"] for record in fresh.page()["records"]] == ["alone"]


def test_a_record_that_is_not_old_enough_stays_local_and_is_visible(client: httpx.Client) -> None:
    """M2."""
    stream = new_stream(client, {"fragment": {"max_age_ms": 86_400_000}})
    stream.append("local only")
    found = listing(stream)
    assert (found["fragments"], found["object_store_next_offset"]) == ([], 0)
    assert found["next_offset"] == 1
    assert [record["value"] for record in stream.page()["records"]] == ["local only"]


def test_a_record_much_larger_than_the_target_is_one_fragment(fresh: Stream) -> None:
    """M6: and the next one is cut as always."""
    fresh.append("x" * MIB)
    fresh.wait_uploaded()
    fresh.append("small")
    fresh.wait_uploaded()
    large, small = listing(fresh)["fragments"]
    assert (large["record_count"], small["record_count"]) == (1, 1)
    assert large["size_bytes"] > small["size_bytes"]
    assert rows_of(get(fresh, small).content)[0]["row"]["value"] == b"small"
    assert fresh.page(0, limit=1)["records"][0]["value"] == "x" * MIB


def test_a_description_counts_what_lies_in_object_storage(stream: Stream) -> None:
    described = stream.client.get(stream.path).json()
    fragments = listing(stream)["fragments"]
    assert described["fragment_count"] == FRAGMENTS
    assert described["size_bytes"] == sum(item["size_bytes"] for item in fragments)
    assert stream.bounds()["size_bytes"] == described["size_bytes"]
