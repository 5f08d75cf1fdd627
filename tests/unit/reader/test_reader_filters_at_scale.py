"""A value that is in 20 of 2,000 fragments: the other 1,980 stay unread, in every form of an answer."""

import json
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest
from unit.reader.harness import ARROW, ReaderHarness, Sent
from unit.reader.open_answers import served

from bottomless.formats.chunk import split_chunks
from bottomless.model.config import FilterConfig

CHUNKS = "application/vnd.bottomless.chunks"
FRAGMENTS, EVERY = 2_000, 100
QUERY = "offset=first&filter=emea&limit=1000"
WANTED = list(range(2 * 37, 2 * FRAGMENTS, 2 * EVERY))
"""Each fragment is a chunk of two records, and of those with the value the first one has it."""


@pytest.fixture
async def many() -> AsyncIterator[ReaderHarness]:
    made = ReaderHarness(fanout=64)
    index = FilterConfig(index="values")
    for number in range(FRAGMENTS):
        first = "emea" if number % EVERY == 37 else f"v{number % 7}"
        made.append(Sent(b"x", filter_value=first), Sent(b"y", filter_value="apac"))
        if number % 50 == 49:
            await made.upload_each(index)
    yield made
    await made.aclose()


async def test_fragments_that_have_none_are_skipped_in_every_form(many: ReaderHarness) -> None:
    # One test for all forms, since the stream takes longer to make than to read.
    await check_pages(many)
    await check_followers(many)
    await check_list(many)


async def check_pages(many: ReaderHarness) -> None:
    page = (await many.get(f"/records?{QUERY}")).json()
    assert [record["offset"] for record in page["records"]] == WANTED
    assert {record["filter_value"] for record in page["records"]} == {"emea"}
    assert (page["skipped_fragments"], page["next_offset"]) == (1_980, 2 * FRAGMENTS)

    answer = await many.get(f"/records?{QUERY}", accept="application/x-ndjson")
    *records, control = (json.loads(line) for line in answer.text.splitlines())
    assert [record["offset"] for record in records] == WANTED
    assert control["_control"]["next_offset"] == 2 * FRAGMENTS
    assert answer.headers["page-skipped-fragments"] == "1980"

    answer = await many.get(f"/records?{QUERY}", accept=ARROW)
    assert pa.ipc.open_stream(answer.content).read_all()["offset"].to_pylist() == WANTED
    assert answer.headers["page-skipped-fragments"] == "1980"

    answer = await many.get(f"/records?{QUERY}&filter_mode=chunk", accept=CHUNKS)
    chunks = [header.first_offset for header, _ in split_chunks(memoryview(answer.content))]
    assert chunks == WANTED, "each of these chunks begins with a record that is asked for"
    assert answer.headers["page-skipped-fragments"] == "1980"
    refused = await many.get(f"/records?{QUERY}&filter_mode=exact", accept=CHUNKS)
    assert refused.status_code == 400, "chunks are stored whole, so they cannot be exact"


async def check_followers(many: ReaderHarness) -> None:
    query = f"offset=first&filter=emea&until_offset={2 * FRAGMENTS}"
    async with served(many) as client:
        async with client.events(query) as answer:
            found: list[int] = []
            while (event := await answer.event()).name != "end":
                if event.name == "records":
                    found += event.offsets
        async with client.lines(query) as answer:
            lines: list[int] = []
            while len(lines) < len(WANTED):
                value = json.loads(await answer.line())
                lines += [] if "_control" in value else [value["offset"]]
    assert found == WANTED
    assert lines == WANTED


async def check_list(many: ReaderHarness) -> None:
    skipped, kept = 0, 0
    token: str | None = ""
    while token is not None:
        page = (await many.get(f"/fragments?filter=emea&limit=1000{token}")).json()
        for item in page["fragments"]:
            skipped += item["fragments"] if item.get("skipped") else 0
            kept += "id" in item
        following = page["next_page_token"]
        token = None if following is None else f"&page_token={following}"
    assert (skipped, kept) == (1_980, 20)
