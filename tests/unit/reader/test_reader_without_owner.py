"""Reads while nobody answers who owns the stream: what is published is there, and nothing is made up."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.reader import protocol
from unit.reader.harness import ARROW, ReaderHarness, shown
from unit.reader.open_answers import served

from bottomless import AsyncClient
from bottomless_server.protocol.registry import RootState
from bottomless_server.protocol.tail import Bounds, moved
from bottomless_server.reader import published_tail
from bottomless_server.reader.core.without_owner import bounds_without_owner

OFFSETS = st.integers(0, 40)
EPOCHS = st.integers(1, 4)


@pytest.fixture
async def alone(harness: ReaderHarness) -> ReaderHarness:
    """Sixty records in object storage, forty in the tail of an owner that is gone."""
    harness.fill(100)
    await harness.upload(3, free=True)
    await harness.upload(3, free=True)
    harness.alive.clear()
    return harness


def comes_back(harness: ReaderHarness) -> None:
    harness.alive |= {protocol.OWNER, "http://ingest"}


async def refused(harness: ReaderHarness, path: str) -> None:
    answer = await harness.get(path)
    assert (answer.status_code, answer.json()["code"]) == (503, "peer-unavailable"), path
    assert (answer.json()["retryable"], answer.headers["retry-after"]) == (True, "1")


@given(
    st.builds(RootState, OFFSETS, EPOCHS, OFFSETS, OFFSETS, st.none(), OFFSETS), OFFSETS, st.data()
)
def test_nothing_beyond_what_is_published_is_shown_and_an_end_never_goes_back(
    state: RootState, first_offset: int, data: st.DataObject
) -> None:
    heard = data.draw(
        st.none()
        | st.builds(Bounds, EPOCHS, OFFSETS, OFFSETS, OFFSETS, OFFSETS, st.none(), st.none())
    )

    bounds = bounds_without_owner(first_offset, state, heard)

    assert (bounds is None) == (first_offset >= state.published_next)
    if bounds is None:
        return
    assert bounds.local_first_offset == bounds.published_next == state.published_next
    assert bounds.version == state.version
    assert (bounds.last_chunk_offset, bounds.last_timestamp) == (None, None)
    known = 0 if heard is None or heard.epoch < state.epoch else heard.committed_next
    assert bounds.committed_next == max(state.published_next, known)
    assert bounds.epoch >= max(state.epoch, 0 if heard is None else heard.epoch)


async def test_pages_of_what_is_published_are_read_and_never_say_that_they_reach_the_end(
    alone: ReaderHarness,
) -> None:
    inside = await alone.read(5, limit=20)
    last = await alone.read(25)
    whole = await alone.read("first")

    assert shown(inside) == alone.texts(5, 25)
    assert shown(last) == alone.texts(25, 60)
    assert shown(whole) == alone.texts(0, 60)
    for page in (inside, last, whole):
        assert not page["up_to_date"]
        assert page["committed_offset"] == 59
    assert last["next_offset"] == whole["next_offset"] == 60
    # That is a place to go on from, as soon as somebody answers.
    await refused(alone, "/records?offset=60")
    comes_back(alone)
    rest = await alone.read(60)
    assert (shown(rest), rest["up_to_date"]) == (alone.texts(60, 100), True)


async def test_the_end_that_an_owner_said_does_not_go_back_when_it_is_gone(
    harness: ReaderHarness,
) -> None:
    harness.fill(100)
    await harness.upload(6, free=True)
    assert (await harness.read(0))["committed_offset"] == 99
    harness.alive.clear()

    page = await harness.read(0)

    assert (shown(page), page["next_offset"]) == (harness.texts(0, 60), 60)
    assert (page["committed_offset"], page["lag_records"], page["up_to_date"]) == (99, 40, False)


async def test_all_forms_of_a_page_are_read_without_an_owner(alone: ReaderHarness) -> None:
    arrow = await alone.get("/records?offset=55", accept=ARROW)
    assert pa.ipc.open_stream(arrow.content).read_all()["offset"].to_pylist() == list(range(55, 60))
    chunks = await alone.get("/records?offset=55", accept="application/vnd.bottomless.chunks")
    lines = await alone.get("/records?offset=55", accept="application/x-ndjson")
    assert lines.content.count(b"\n") == 6
    for answer in (arrow, chunks, lines):
        assert answer.status_code == 200
        assert answer.headers["page-next-offset"] == "60"
        assert answer.headers["stream-up-to-date"] == "false"
        assert "offset=60" in answer.headers["link"]
    one = await alone.get("/records/59")
    assert (one.status_code, one.json()["value"]) == (200, "value 59")
    await refused(alone, "/records/60")


async def test_a_page_that_waits_for_more_does_not_wait_for_nobody(alone: ReaderHarness) -> None:
    page = await alone.read(50, max_wait_ms=20_000, min_records=30)

    assert (shown(page), page["up_to_date"]) == (alone.texts(50, 60), False)


async def test_a_page_ends_where_its_owner_dies_on_the_way(
    harness: ReaderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.fill(100)
    await harness.upload(6, free=True)

    def dies(bounds: Bounds) -> Exception:
        harness.alive.clear()
        return moved(bounds)

    monkeypatch.setattr("unit.reader.protocol.moved", dies)

    page = await harness.read(50)

    assert (shown(page), page["next_offset"]) == (harness.texts(50, 60), 60)
    assert (page["committed_offset"], page["up_to_date"]) == (99, False)


async def test_a_gap_at_the_end_of_what_is_published_is_named(harness: ReaderHarness) -> None:
    harness.fill(20)
    await harness.upload(2)
    await harness.lose(5)
    harness.fill(10)
    harness.alive.clear()

    inside = await harness.read(20, max_wait_ms=20_000)

    assert [gap["first_offset"] for gap in inside["gaps"]] == [20]
    assert (inside["records"], inside["next_offset"], inside["up_to_date"]) == ([], 25, False)
    await refused(harness, "/records?offset=25")


async def test_what_was_removed_is_said_without_an_owner(harness: ReaderHarness) -> None:
    harness.fill(40)
    await harness.upload(1, free=True)
    await harness.upload(2, free=True)
    await harness.trim(10)
    harness.alive.clear()

    answer = await harness.get("/records?offset=3&on_out_of_range=error")
    moved = await harness.read(3)

    assert (answer.status_code, answer.json()["code"]) == (410, "offset-trimmed")
    assert (answer.json()["first_offset"], answer.json()["next_offset"]) == (10, 30)
    assert (moved["start_offset"], moved["clamped"]) == (10, "low")


async def test_times_are_found_as_far_as_object_storage_knows_them(alone: ReaderHarness) -> None:
    # Each chunk of ten has the time of its first offset.
    for timestamp in (1_000, 1_001, 1_030, 1_050):
        first = -(-(timestamp - 1_000) // 10) * 10
        page = await alone.read(f"timestamp:{timestamp}")
        resolved = await alone.get(f"/offsets/resolve?spec=timestamp:{timestamp}")
        assert (page["start_offset"], shown(page)) == (first, alone.texts(first, 60))
        assert (resolved.status_code, resolved.json()["offset"]) == (200, first)
    await refused(alone, "/records?offset=timestamp:1051")
    await refused(alone, "/offsets/resolve?spec=timestamp:1051")


@pytest.mark.parametrize("spec", ["last", "next", "tail:10", "100", "60"])
async def test_what_only_an_owner_knows_is_refused(alone: ReaderHarness, spec: str) -> None:
    await refused(alone, f"/records?offset={spec}")
    await refused(alone, f"/records?offset={spec}&on_out_of_range=clamp")
    await refused(alone, f"/offsets/resolve?spec={spec}")
    await refused(alone, "/offsets")


async def test_the_first_record_is_found_without_an_owner(alone: ReaderHarness) -> None:
    answer = await alone.get("/offsets/resolve?spec=first")

    assert (answer.status_code, answer.json()["offset"]) == (200, 0)


async def test_fragments_are_listed_without_an_owner(alone: ReaderHarness) -> None:
    listed = (await alone.get("/fragments?locations=true")).json()

    assert [item["first_offset"] for item in listed["fragments"]] == [0, 30]
    assert (listed["object_store_next_offset"], listed["next_offset"]) == (60, 60)


async def test_an_owner_of_the_past_shows_nothing_and_what_is_published_is_read(
    harness: ReaderHarness,
) -> None:
    harness.fill(20)
    await harness.upload(1, free=True)
    harness.epoch = 2
    await harness.read(0)
    harness.epoch = 1

    page = await harness.read(0)

    assert (shown(page), page["up_to_date"]) == (harness.texts(0, 10), False)
    answer = await harness.get("/records?offset=10")
    assert (answer.status_code, answer.json()["code"]) == (503, "not-owner")


async def test_who_follows_gets_what_is_published_and_goes_on_when_an_owner_is_back(
    alone: ReaderHarness,
) -> None:
    async with served(alone) as client, client.events("offset=50") as answer:
        first = await answer.event_of("records")
        assert (first.offsets, first.data["up_to_date"]) == (list(range(50, 60)), False)
        comes_back(alone)
        second = await answer.event_of("records")
        alone.append("new")
        third = await answer.event_of("records")

    assert (second.offsets, third.offsets) == (list(range(60, 100)), [100])
    assert second.data["up_to_date"]


async def test_a_client_reads_on_from_what_is_published_when_an_owner_is_back(
    alone: ReaderHarness,
) -> None:
    """Pages of Arrow until the stream ends, as Spark's executors ask for them."""
    offsets: list[Any] = []
    async with (
        served(alone) as client,
        AsyncClient(f"http://127.0.0.1:{client.port}") as library,
    ):
        async for page in library.arrow_pages("orders", 0, until_offset=100):
            comes_back(alone)
            offsets += page.table["offset"].to_pylist()
    assert offsets == list(range(100))


async def test_nodes_that_let_one_wait_are_not_asked_with_every_page(
    alone: ReaderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_tail, "SLOW_SECONDS", 0)
    await alone.read(0)
    alone.asked.clear()
    comes_back(alone)

    page = await alone.read(0)
    assert (shown(page), page["up_to_date"]) == (alone.texts(0, 60), False)
    assert not [one for one in alone.asked if one.startswith("chunks")]
    # At the end of it they are, and from then on with every page.
    assert shown(await alone.read(60)) == alone.texts(60, 100)
    whole = await alone.read(0)
    assert (shown(whole), whole["up_to_date"]) == (alone.texts(0, 100), True)
