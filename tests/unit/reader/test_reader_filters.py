"""GET …/records with a filter: over both tiers, with an owner and without, exact and bounded."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
from support.guards import remove
from unit.reader.harness import ARROW, ReaderHarness, Sent
from unit.reader.leaderless import LeaderlessHarness
from unit.reader.open_answers import served
from unit.reader.protocol import STREAM_ID

from bottomless.formats.chunk import split_chunks
from bottomless_server.reader import follow_answer

CHUNKS = "application/vnd.bottomless.chunks"
VALUES = ("a", "b", None, "", "a")


def sent_at(offset: int) -> Sent:
    return Sent(f"{offset}".encode(), key=b"k%d" % (offset % 3), filter_value=VALUES[offset % 5])


def fill(harness: ReaderHarness, count: int, per_chunk: int = 4) -> None:
    for first in range(harness.committed_next, harness.committed_next + count, per_chunk):
        harness.append(*(sent_at(first + number) for number in range(per_chunk)))


def offsets_of(page: dict[str, Any]) -> list[int]:
    return [record["offset"] for record in page["records"]]


def expected(*values: str | None, first: int = 0, end: int = 100) -> list[int]:
    return [offset for offset in range(first, end) if VALUES[offset % 5] in values]


@pytest.fixture(params=["owned", "leaderless"])
async def both(request: pytest.FixtureRequest) -> AsyncIterator[ReaderHarness]:
    """A hundred records: 60 in fragments of some chunks each, the rest in the tail."""
    made = ReaderHarness() if request.param == "owned" else LeaderlessHarness()
    fill(made, 100)
    for count in (3, 1, 5, 6):
        await made.upload(count, free=True)
    yield made
    await made.aclose()


async def test_records_of_a_value_come_from_both_tiers_and_no_others(both: ReaderHarness) -> None:
    for query, values in (
        ("filter=a", ("a",)),
        ("filter=b&filter=a", ("a", "b")),
        ("filter=", ("",)),
        ("filter=b&match_unfiltered=true", ("b", None)),
        ("filter=never", ()),
    ):
        answer = await both.get(f"/records?offset=first&{query}")
        page = answer.json()
        assert offsets_of(page) == expected(*values)
        assert (page["next_offset"], page["up_to_date"]) == (100, True)
        assert page["scanned_bytes"] > 0
        assert (page["skipped_bytes"], page["skipped_fragments"]) == (0, 0)
        assert answer.headers["page-scanned-bytes"] == str(page["scanned_bytes"])
        assert "etag" not in answer.headers


async def test_keys_and_values_together_mean_both(both: ReaderHarness) -> None:
    page = await both.read("first", filter="a", key="k1", key_base64="azI")

    assert offsets_of(page) == [n for n in expected("a") if n % 3 in (1, 2)]


async def test_pages_of_a_limit_go_on_where_they_ended_and_never_change(
    both: ReaderHarness,
) -> None:
    found: list[int] = []
    offset = 3
    while True:
        answer = await both.get(f"/records?offset={offset}&filter=a&limit=7")
        page = answer.json()
        found += offsets_of(page)
        whole = len(page["records"]) == 7
        assert ("etag" in answer.headers) == whole
        if page["up_to_date"]:
            break
        assert f"offset={page['next_offset']}&filter=a&limit=7" in answer.headers["link"]
        again = await both.get(
            f"/records?offset={offset}&filter=a&limit=7", if_none_match=answer.headers["etag"]
        )
        other = await both.get(
            f"/records?offset={offset}&filter=b&limit=7", if_none_match=answer.headers["etag"]
        )
        assert (again.status_code, other.status_code) == (304, 200)
        assert page["next_offset"] == found[-1] + 1
        offset = page["next_offset"]
    assert found == expected("a", first=3)


async def test_a_filter_looks_at_what_was_asked_for_and_at_nothing_else(
    both: ReaderHarness,
) -> None:
    tail = await both.read("tail:12", filter="a")
    until = await both.read(17, filter="a", until_offset=71)

    assert offsets_of(tail) == expected("a", first=88)
    assert offsets_of(until) == expected("a", first=17, end=71)
    assert until["next_offset"] == 71
    early = await both.read("timestamp:1", filter="b")
    assert (early["start_offset"], early["clamped"]) == (0, "low")


async def test_every_form_of_a_page_has_the_same_records(both: ReaderHarness) -> None:
    arrow = await both.get("/records?offset=first&filter=b&columns=offset", accept=ARROW)
    lines = await both.get("/records?offset=first&filter=b", accept="application/x-ndjson")

    table = pa.ipc.open_stream(arrow.content).read_all()
    assert table.column_names == ["offset"]
    assert table["offset"].to_pylist() == expected("b")
    *records, control = (json.loads(line) for line in lines.text.splitlines())
    assert [record["offset"] for record in records] == expected("b")
    assert control["_control"]["next_offset"] == 100
    assert arrow.headers["page-next-offset"] == "100"


async def test_chunks_come_whole_where_one_of_their_records_is_asked_for(
    both: ReaderHarness,
) -> None:
    query = "/records?offset=first&key=k0&filter=b"
    refused = await both.get(query, accept=CHUNKS)
    answer = await both.get(f"{query}&filter_mode=chunk", accept=CHUNKS)

    assert refused.status_code == 400
    wanted = {n // 4 for n in expected("b") if n % 3 == 0}
    chunks = [header for header, _ in split_chunks(memoryview(answer.content))]
    assert {header.first_offset // 4 for header in chunks} == wanted
    assert answer.headers["page-next-offset"] == "100"


async def test_a_chunk_that_is_passed_over_at_the_end_of_a_page_is_looked_at_again(
    harness: ReaderHarness,
) -> None:
    """The model found it: what was asked for lay in the chunk, after the offset at which the page was to
    end, and whoever went on from where it said never met it."""
    harness.append(*(Sent(b"v", filter_value=value) for value in ("a", "a", "b", "b")))
    query = "filter=b&filter_mode=chunk"
    ended = await harness.get(f"/records?offset=0&until_offset=2&{query}", accept=CHUNKS)
    assert (ended.content, ended.headers["page-next-offset"]) == (b"", "2")
    following = await harness.get(f"/records?offset=2&{query}", accept=CHUNKS)
    assert len(list(split_chunks(memoryview(following.content)))) == 1
    whole = await harness.get(f"/records?offset=0&until_offset=3&{query}", accept=CHUNKS)
    assert whole.headers["page-next-offset"] == "4", "what comes whole is read whole"


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("match_unfiltered=true", "match_unfiltered"),
        ("match_unfiltered=true&key=k", "match_unfiltered"),
        ("filter_mode=chunk", "filter_mode"),
        ("filter=a&filter_mode=chunk", "filter_mode"),
        ("filter=a&filter_mode=some", "filter_mode"),
        ("key_base64=%ff", "key_base64"),
        ("key_base64=!", "key_base64"),
        ("filter=" + "x" * 256, "filter"),
        ("&".join(f"filter={n}" for n in range(17)), "filter"),
        ("&".join(f"key={n}" for n in range(17)), "key"),
        ("&".join(["key_base64=AA"] * 17), "key_base64"),
        ("filter=a&match_unfiltered=maybe", "match_unfiltered"),
    ],
)
async def test_what_no_filter_can_be_is_refused_with_its_parameter(
    harness: ReaderHarness, query: str, parameter: str
) -> None:
    answer = await harness.get(f"/records?offset=first&{query}")

    assert answer.status_code == 400
    assert answer.json()["errors"][0]["parameter"] == parameter


async def test_a_page_that_finds_nothing_ends_at_its_bound_and_says_how_far_it_came() -> None:
    harness = ReaderHarness(reader_filter_scan_bytes=3_000)
    fill(harness, 100)
    await harness.upload(15, free=True)
    positions = [0]
    while positions[-1] < 100:
        page = await harness.read(positions[-1], filter="never")
        assert page["records"] == []
        assert 0 < page["scanned_bytes"] < 3_000 + 2_000
        positions.append(page["next_offset"])
        assert page["up_to_date"] == (positions[-1] == 100)
    await harness.aclose()

    assert positions == sorted(set(positions))
    assert 5 < len(positions) < 60


@pytest.mark.parametrize("bound", ["reader_filter_scan_groups", "reader_filter_scan_ms"])
async def test_a_page_comes_further_whatever_bound_it_has(bound: str) -> None:
    settings: dict[str, Any] = {bound: 1}
    harness = ReaderHarness(fanout=2, **settings)
    fill(harness, 100)
    for _ in range(20):
        await harness.upload(1, free=True)
    found: list[int] = []
    positions = [0]
    while positions[-1] < 100:
        page = await harness.read(positions[-1], filter="a")
        found += offsets_of(page)
        assert page["next_offset"] > positions[-1]
        positions.append(page["next_offset"])
    await harness.aclose()

    assert found == expected("a")
    if bound == "reader_filter_scan_groups":
        assert len(positions) > 5


async def test_a_long_poll_goes_on_over_records_that_are_not_asked_for(
    harness: ReaderHarness,
) -> None:
    fill(harness, 20)
    reading = asyncio.ensure_future(harness.read(20, filter="new", max_wait_ms=30_000))
    for value in ("a", "b", "new"):
        async with asyncio.timeout(240):
            await harness.waiting.wait()
        harness.waiting.clear()
        harness.append(Sent(b"x", filter_value=value))
    page = await reading

    assert (offsets_of(page), page["next_offset"]) == ([22], 23)


async def test_a_gap_is_named_beside_what_is_asked_for(harness: ReaderHarness) -> None:
    fill(harness, 20)
    await harness.upload(5, free=True)
    await harness.lose(10)
    fill(harness, 20)
    page = await harness.read("first", filter="a")

    assert [gap["first_offset"] for gap in page["gaps"]] == [20]
    assert offsets_of(page) == expected("a", end=20) + expected("a", first=30, end=50)


async def test_who_follows_gets_what_is_asked_for_and_no_page_without_it(
    harness: ReaderHarness,
) -> None:
    fill(harness, 20)
    async with served(harness) as client, client.events("offset=0&filter=b") as answer:
        first = await answer.event()
        harness.append(Sent(b"x", filter_value="a"))
        harness.append(Sent(b"y", filter_value="b"))
        second = await answer.event_of("records")

    assert (first.offsets, first.data["next_offset"]) == (expected("b", end=20), 20)
    assert (second.offsets, second.id) == ([21], f"{STREAM_ID}:22")


async def test_who_follows_is_told_how_far_it_came_while_nothing_is_asked_for(
    harness: ReaderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_answer, "PASS_SECONDS", 0.0)
    fill(harness, 20)
    async with served(harness) as client, client.lines("offset=0&filter=never") as answer:
        assert (await answer.control())["next_offset"] == 20
    limited = ReaderHarness(reader_filter_scan_bytes=1)
    fill(limited, 20)
    async with served(limited) as client, client.events("offset=0&filter=never") as answer:
        events = [await answer.event_of("records") for _ in range(5)]
    await limited.aclose()

    assert [event.id for event in events] == [f"{STREAM_ID}:{n}" for n in (4, 8, 12, 16, 20)]
    assert [event.offsets for event in events] == [[]] * 5


async def test_an_answer_that_stays_open_ends_at_its_offset_whatever_it_found(
    harness: ReaderHarness,
) -> None:
    fill(harness, 20)
    query = "offset=0&filter=never&until_offset=12"
    async with served(harness) as client, client.events(query) as answer:
        assert (await answer.event()).data["next_offset"] == 12
        assert (await answer.event_of("end")).data["reason"] == "until-offset"


async def test_without_the_exact_filter_others_come_as_well(
    both: ReaderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_of_them(_: Any, batch: pa.RecordBatch) -> Any:
        return pa.array([True] * batch.num_rows)

    remove(monkeypatch, "the exact filter after the blocks", all_of_them)
    page = await both.read("first", filter="a")

    assert offsets_of(page) != expected("a")


async def test_what_pages_look_at_is_counted(both: ReaderHarness) -> None:
    page = await both.read("first", filter="a")
    counted = {
        sample.name: sample.value for family in both.service.metrics() for sample in family.samples
    }

    assert counted["bottomless_reader_filter_pages_total"] == 1
    assert counted["bottomless_reader_filter_scanned_bytes_total"] == page["scanned_bytes"]
