"""What a page with a filter does not read, where fragments and nodes have filters: and no record that
is asked for is among it.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove
from unit.formats.examples import a_fragment
from unit.reader import harness as harness_module
from unit.reader.harness import ReaderHarness, Sent, a_batch

from bottomless.formats.batch import encode_frame
from bottomless.formats.chunk import seal_chunk
from bottomless.formats.fragment import decode_index
from bottomless.formats.fragment_filters import FilterTable
from bottomless.model.chunk import AppendEntry, AppendMode, ChunkFlags
from bottomless.model.config import FilterConfig
from bottomless.model.limits import KIB
from bottomless_server.core.filter_making import make_filters
from bottomless_server.reader.core.chunk_runs import chunk_runs

BOTH = FilterConfig(index="values-and-keys")


def append(harness: ReaderHarness, values: Sequence[str | None], size: int = 1) -> None:
    """One chunk; each record has its offset as its key."""
    first = harness.committed_next
    harness.append(
        *(
            Sent(b"-" * size, key=b"k%d" % (first + number), filter_value=value)
            for number, value in enumerate(values)
        )
    )


@pytest.fixture
async def harness() -> AsyncIterator[ReaderHarness]:
    """Twenty fragments of two chunks: v0 and none, v1 and none, … The third is of version 1, a gap
    follows the tenth, and the last chunk is in the tail.
    """
    made = ReaderHarness(fanout=4)
    for number in range(20):
        append(made, [f"v{number}"] * 2)
        append(made, [None, None])
        await made.upload(2, free=True, filter_=None if number == 2 else BOTH)
        if number == 9:
            await made.lose(5)
    append(made, ["v7", "tail"])
    yield made
    await made.aclose()


def offsets_of(page: dict[str, list[dict[str, int]]]) -> list[int]:
    return [record["offset"] for record in page["records"]]


async def test_fragments_without_the_value_are_left_unread(harness: ReaderHarness) -> None:
    """Version 1 says nothing, so the third is read; of the eighth one chunk is."""
    page = await harness.read("first", filter="v7")
    assert offsets_of(page) == [28, 29, 85]
    assert (page["next_offset"], page["up_to_date"]) == (87, True)
    assert page["skipped_fragments"] == 18
    sizes = sum(f.size for n, f in enumerate(harness.fragments) if n not in (2, 7))
    assert sizes < page["skipped_bytes"] < sizes + harness.fragments[7].size


async def test_a_value_that_is_nowhere_costs_what_is_not_known(harness: ReaderHarness) -> None:
    page = await harness.read("first", filter="nowhere")
    assert (offsets_of(page), page["next_offset"]) == ([], 87)
    assert page["skipped_fragments"] == 19


@pytest.fixture
async def large() -> AsyncIterator[ReaderHarness]:
    """Ten fragments of four chunks of 100 KiB, each with one record."""
    made = ReaderHarness(fanout=64, reader_block_bytes=64 * KIB)
    for _ in range(10):
        for _ in range(4):
            append(made, ["v"], size=100 * KIB)
        await made.upload(4, free=True, filter_=BOTH)
    made.drive.reads.clear()
    made.drive.read_size = 0
    yield made
    await made.aclose()


def requests(harness: ReaderHarness) -> list[int]:
    """GETs of each fragment, in their order."""
    keys = [key for key in harness.drive.reads if key.endswith(".fragment")]
    return [keys.count(key) for key in sorted(set(keys))]


async def test_a_key_costs_one_request_a_fragment_and_one_more_where_it_is(
    large: ReaderHarness,
) -> None:
    page = await large.read("first", key="k13")
    assert (offsets_of(page), page["next_offset"]) == ([13], 40)
    assert requests(large) == [1, 1, 1, 2, *[1] * 6]
    assert large.drive.read_size < 110 * KIB, "of 4 MiB"
    again = await large.read("first", key="k13", filter="v")
    assert offsets_of(again) == [13]
    assert sum(requests(large)) == 11 + 1, "what fragments say is kept, and the chunk is not"


async def test_a_key_in_fragments_of_before_costs_three_requests(large: ReaderHarness) -> None:
    """Entries that do not say how large filters are, as releases before this one wrote them."""
    large.node.entries["filters_size"] = 0
    await large.publish(large.node)
    page = await large.read("first", key="k13")
    assert offsets_of(page) == [13]
    assert requests(large) == [2, 2, 2, 3, *[2] * 6]


async def test_who_reads_everything_has_no_request_more_after_a_look_up(
    large: ReaderHarness,
) -> None:
    await large.read("first", key="k13")
    before = sum(requests(large))
    page = await large.read(12, limit=1)
    assert offsets_of(page) == [12]
    assert sum(requests(large)) > before
    tail_reads = sum(requests(large))
    assert tail_reads - before <= 3, "blocks of one chunk, and no index"


async def test_an_entry_that_lies_about_the_size_of_filters_is_found(large: ReaderHarness) -> None:
    large.node.entries["filters_size"][3] += 32
    await large.publish(large.node)
    answer = await large.get("/records?offset=12&key=k13&until_offset=16")
    assert (answer.status_code, answer.json()["code"]) == (502, "data-corrupt")


async def test_records_without_a_value_are_found_too(harness: ReaderHarness) -> None:
    page = await harness.read("first", filter="v3", match_unfiltered="true")
    wanted = [n for n, (_, sent) in harness.records.items() if sent.filter_value in (None, "v3")]
    assert offsets_of(page) == wanted
    assert page["skipped_fragments"] == 0
    assert page["skipped_bytes"] > 0, "chunks of other values"


async def test_a_key_is_looked_up_in_the_filters_of_fragments(harness: ReaderHarness) -> None:
    page = await harness.read("first", key="k50")
    assert offsets_of(page) == [50]
    assert page["skipped_fragments"] == 18, "one has it, and of one nothing is known"
    both = await harness.read("first", key="k50", filter="v0")
    assert offsets_of(both) == []


@pytest.mark.parametrize("offset", [0, 1, 3, 27, 29, 30, 45, 84])
async def test_a_page_may_begin_in_what_is_passed_over(harness: ReaderHarness, offset: int) -> None:
    page = await harness.read(offset, filter="v7")
    assert offsets_of(page) == [n for n in (28, 29, 85) if n >= offset]
    assert page["next_offset"] == 87


async def test_a_page_ends_where_it_was_to_end(harness: ReaderHarness) -> None:
    page = await harness.read("first", filter="v19", until_offset=31)
    assert (offsets_of(page), page["next_offset"]) == ([], 31)
    page = await harness.read("first", filter="v7", limit=1)
    assert (offsets_of(page), page["next_offset"]) == ([28], 29)
    await harness.trim(20)
    page = await harness.read("first", filter="v7")
    assert offsets_of(page) == [28, 29, 85]


@pytest.mark.parametrize("count", [1, 2, 3, 40, 43, 60, 87])
async def test_a_filter_beside_a_count_from_the_end(harness: ReaderHarness, count: int) -> None:
    plain = await harness.read(f"tail:{count}", limit=1)
    page = await harness.read(f"tail:{count}", filter="v13", match_unfiltered="true")
    assert page["start_offset"] == plain["start_offset"]
    assert offsets_of(page) == wanted_of(harness, page["start_offset"], 87, None, "v13")


@pytest.mark.parametrize("until", [2, 8, 29, 39, 40, 42, 45, 46, 85, 86])
async def test_a_filter_beside_an_end_in_what_is_passed_over_or_in_a_gap(
    harness: ReaderHarness, until: int
) -> None:
    for value in ("v2", "v7", "v10", "tail", "nowhere"):
        page = await harness.read("first", filter=value, until_offset=until)
        assert offsets_of(page) == wanted_of(harness, 0, until, value)
        # Who ends within a gap goes on after it.
        assert page["next_offset"] in ({until, 45} if until in range(41, 45) else {until})


@pytest.mark.parametrize("floor", [4, 9, 20, 30, 40, 45, 47])
async def test_nothing_that_was_trimmed_is_found_and_all_else_is(
    harness: ReaderHarness, floor: int
) -> None:
    """In the middle of a fragment, at the gap, and within a group whose filter says too much then."""
    await harness.trim(floor)
    for value in ("v1", "v2", "v7", "v10", "v11", "v19"):
        page = await harness.read("first", filter=value)
        assert offsets_of(page) == wanted_of(harness, floor, 87, value)
        assert page["next_offset"] == 87


def wanted_of(harness: ReaderHarness, first: int, end: int, *values: str | None) -> list[int]:
    return [
        offset
        for offset, (_, sent) in sorted(harness.records.items())
        if first <= offset < end and sent.filter_value in values
    ]


async def test_without_known_of_an_entry_a_fragment_of_version_1_is_left_out(
    harness: ReaderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offsets_of(await harness.read("first", filter="v2")) == [8, 9]
    remove(monkeypatch, "known of an entry", lambda presence: presence > 255)
    assert offsets_of(await harness.read("first", filter="v2")) == []


async def test_the_list_says_what_it_leaves_out(harness: ReaderHarness) -> None:
    listed = (await harness.get("/fragments?filter=v7")).json()["fragments"]
    spans = [(item["first_offset"], item["last_offset"]) for item in listed]
    assert spans[0][0] == 0
    assert all(a[1] + 1 == b[0] for a, b in pairwise(spans)), "there is no hole"
    skipped = [item for item in listed if item.get("skipped")]
    assert sum(item["fragments"] for item in skipped) == 18
    assert sum(item["bytes"] for item in skipped) == sum(
        info.size for number, info in enumerate(harness.fragments) if number not in (2, 7)
    )
    formats = [item["format"] for item in listed if "format" in item]
    assert formats == ["bottomless-fragment-1", "bottomless-fragment-2"]


async def test_pages_of_such_a_list_go_on_where_they_ended(harness: ReaderHarness) -> None:
    whole = (await harness.get("/fragments?filter=v7&filter=v13")).json()["fragments"]
    found, token = [], ""
    while True:
        answer = await harness.get(f"/fragments?filter=v7&filter=v13&limit=2{token}")
        page = answer.json()
        found += page["fragments"]
        following = page["next_page_token"]
        if following is None:
            break
        token = f"&page_token={following}"
    assert found == whole


async def test_a_time_before_all_is_said_to_be_clamped_though_the_start_is_passed_over(
    harness: ReaderHarness,
) -> None:
    for value in ("v7", "v0"):
        answer = await harness.get(f"/records?offset=timestamp:1970-01-01T00:00:00Z&filter={value}")
        assert answer.json()["clamped"] == "low"


async def test_a_record_in_a_group_of_chunks_is_found_alone() -> None:
    """Every chunk of a group but the last says that more follows; each is looked at by itself."""
    made = ReaderHarness()
    for number in range(6):
        append(made, [f"v{number}"] * 2)
        whole = made.chunks[-1]
        if number in (1, 2, 3):
            sent = [made.records[n][1] for n in (whole.first_offset, whole.first_offset + 1)]
            parts = seal_chunk(
                [encode_frame(a_batch(sent))],
                [AppendEntry(AppendMode.PLAIN, 0, 2, 0)],
                record_count=2,
                first_offset=whole.first_offset,
                timestamp=whole.timestamp,
                epoch=1,
                flags=ChunkFlags.MORE_FOLLOWS,
            )
            made.chunks[-1] = replace(whole, data=b"".join(parts))
    await made.upload(6, free=True, filter_=BOTH)
    for number in range(6):
        page = await made.read("first", filter=f"v{number}")
        assert offsets_of(page) == [2 * number, 2 * number + 1]
        assert page["skipped_bytes"] > 0
        assert page["next_offset"] == 12
    await made.aclose()


async def test_what_filters_let_pass_for_nothing_is_counted() -> None:
    """Twenty-five values fill a block: of some hundred others it says of one or two, perhaps."""
    made = ReaderHarness()
    append(made, [f"v{number}" for number in range(25)])
    await made.upload(1, free=True, filter_=BOTH)
    assert (await made.read("first", filter="v3"))["skipped_fragments"] == 0
    assert counted_false(made) == (0, 0), "it was read for something"
    for number in range(1_000):
        page = await made.read("first", filter=f"absent{number}")
        assert page["records"] == []
        if not page["skipped_fragments"]:
            break
        assert counted_false(made) == (0, 0)
    assert counted_false(made) == (1, 1)
    await made.read(1, filter=f"absent{number}")
    assert counted_false(made) == (1, 1), "a part of a chunk says nothing"
    await made.aclose()


async def test_a_fragment_that_is_read_in_steps_for_nothing_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Filters that say of every value that it may be there, over chunks that do not have it."""

    def overfull(*given: Any) -> list[FilterTable]:
        ones = np.uint32(0xFFFFFFFF)
        return [
            replace(one, blocks=one.blocks | ones, chunk_blocks=one.chunk_blocks | ones)
            for one in make_filters(*given)
        ]

    monkeypatch.setattr(harness_module, "make_filters", overfull)
    made = ReaderHarness()
    for _ in range(2):
        for number in range(8):
            append(made, [f"v{number}"], size=2_000)
        await made.upload(8, free=True, filter_=BOTH)
    page = await made.read("first", filter="absent", max_bytes=1_000)
    assert (page["records"], page["next_offset"]) == ([], 16)
    assert counted_false(made) == (16, 2)
    await made.read(3, filter="absent", max_bytes=1_000)
    assert counted_false(made) == (16 + 13, 2 + 1), "of the first it has looked at a part"
    await made.read("first", filter="v5", max_bytes=1_000, until_offset=8)
    assert counted_false(made)[1] == 3, "one of its chunks has it"
    await made.aclose()


def counted_false(harness: ReaderHarness) -> tuple[float, float]:
    name = "bottomless_reader_filter_false"
    samples = {s.name: s.value for family in harness.service.metrics() for s in family.samples}
    return samples[f"{name}_chunks_total"], samples[f"{name}_fragments_total"]


async def test_only_the_bytes_of_chunks_that_are_wanted_are_fetched() -> None:
    """A fragment of some MiB of which one chunk is asked for: filters, index and that chunk."""
    made = ReaderHarness(reader_block_bytes=64 * KIB)
    for number in range(12):
        append(made, [f"v{number}"], size=300 * KIB)
    await made.upload(12, free=True, filter_=BOTH)
    made.drive.reads.clear()
    made.drive.read_size = 0
    page = await made.read("first", filter="v5")
    assert offsets_of(page) == [5]
    assert page["skipped_fragments"] == 0
    assert len(made.drive.reads) <= 4, "the root, index, filters and a chunk"
    assert made.drive.read_size < 400 * KIB
    await made.aclose()


INDEX = decode_index(b"".join(a_fragment(40).parts)[a_fragment(40).info.index_position :])
"""Forty chunks of two records, from offset 1040 on."""


@given(
    st.lists(st.booleans(), min_size=40, max_size=40),
    st.integers(1040, 1119),
    st.integers(0, 20_000),
    st.integers(1041, 1200),
)
def test_runs_leave_out_no_chunk_that_may_hold_something(
    flags: list[bool], offset: int, size: int, end: int
) -> None:
    may_hold = np.array(flags, dtype=np.bool_)
    runs = chunk_runs(INDEX, may_hold, offset, size, end)
    numbers = [number for run in runs for number in range(run.first, run.stop)]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert numbers[0] == INDEX.at_offset(offset)
    passed = {n for run in runs if not run.is_read for n in range(run.first, run.stop)}
    assert not any(flags[number] for number in passed)
    for run in runs:
        assert run.size == sum(INDEX.place(n).size for n in range(run.first, run.stop))
    starts_late = [n for n in numbers[1:] if INDEX.place(n).first_offset >= end]
    assert starts_late == []


def test_what_lies_between_is_read_where_it_is_little() -> None:
    may_hold = np.zeros(40, dtype=np.bool_)
    may_hold[[0, 5]] = True
    runs = chunk_runs(INDEX, may_hold, 1040, 10**6, 10**6)
    assert [(run.first, run.stop, run.is_read) for run in runs] == [(0, 6, True), (6, 40, False)]
