"""GET …/records over both tiers: start, page, bounds, hand-over."""

import asyncio

import pyarrow as pa
import pytest
from unit.reader.harness import ARROW, ReaderHarness, Sent, shown
from unit.reader.protocol import STREAM_ID

from bottomless_server.reader import manifest_calls

SPECS = ["first", "last", "next", "0", "tail:5", "timestamp:2026-01-01T00:00:00Z"]


@pytest.mark.parametrize("spec", SPECS)
async def test_an_empty_stream_is_an_empty_page(harness: ReaderHarness, spec: str) -> None:
    page = await harness.read(spec)

    assert page["records"] == []
    assert (page["next_offset"], page["committed_offset"], page["up_to_date"]) == (0, None, True)


@pytest.mark.parametrize(
    ("spec", "start"),
    [
        ("first", 0),
        ("0", 0),
        ("55", 55),
        ("59", 59),
        ("60", 60),
        ("99", 99),
        ("tail:3", 97),
        ("last", 90),
        ("timestamp:1000", 0),
        ("timestamp:1050", 50),
        ("timestamp:1051", 60),
    ],
)
async def test_a_page_starts_exactly_where_it_was_asked_to(
    hundred: ReaderHarness, spec: str, start: int
) -> None:
    page = await hundred.read(spec)

    assert shown(page) == hundred.texts(start, 100)
    assert (page["start_offset"], page["clamped"], page["requested"]) == (start, None, spec)
    assert (page["next_offset"], page["lag_records"], page["up_to_date"]) == (100, 0, True)
    assert (page["first_offset"], page["committed_offset"]) == (0, 99)


async def test_starts_out_of_range_are_moved_and_say_so(hundred: ReaderHarness) -> None:
    high = await hundred.read(1_000_000)
    early = await hundred.read("timestamp:1")
    late = await hundred.read("timestamp:2030-01-01T00:00:00Z")
    tail = await hundred.read("tail:1000")

    assert (high["start_offset"], high["clamped"], high["records"]) == (100, "high", [])
    assert (early["start_offset"], early["clamped"], len(early["records"])) == (0, "low", 100)
    assert (late["start_offset"], late["clamped"], late["records"]) == (100, None, [])
    assert (tail["start_offset"], tail["clamped"]) == (0, "low")


async def test_a_walk_sees_every_record_once(hundred: ReaderHarness) -> None:
    seen, offset = [], 0
    while offset < 100:
        page = await hundred.read(offset, limit=7)
        seen += shown(page)
        offset = page["next_offset"]

    assert seen == hundred.texts(0, 100)


async def test_limit_until_and_max_bytes_cut_exactly(hundred: ReaderHarness) -> None:
    assert shown(await hundred.read(33, limit=9)) == hundred.texts(33, 42)
    assert shown(await hundred.read(33, until_offset=37)) == hundred.texts(33, 37)
    assert shown(await hundred.read(33, max_bytes=1)) == hundred.texts(33, 34)
    assert shown(await hundred.read(33, max_bytes=8 * 3)) == hundred.texts(33, 36)
    assert shown(await hundred.read(33, until_offset=33)) == []


async def test_errors_instead_of_clamps_carry_the_bounds(hundred: ReaderHarness) -> None:
    high = await hundred.get("/records?offset=1000000&on_out_of_range=error")
    await hundred.upload(20) if hundred.node.next_offset < 100 else None
    await hundred.trim(int(hundred.node.entries["next_offset"][0]))
    floor = hundred.node.first_offset
    low = await hundred.get("/records?offset=0&on_out_of_range=error")

    assert (high.status_code, high.json()["code"]) == (416, "offset-out-of-range")
    assert (low.status_code, low.json()["code"]) == (410, "offset-trimmed")
    assert (high.json()["first_offset"], high.json()["next_offset"]) == (0, 100)
    assert (low.json()["first_offset"], low.json()["next_offset"]) == (floor, 100)


async def test_below_the_floor_a_read_is_moved_to_it_though_the_owner_still_has_the_data(
    harness: ReaderHarness,
) -> None:
    harness.fill(100)
    for _ in range(10):
        await harness.upload(1)
    await harness.trim(50)

    page = await harness.read(10)

    assert (page["start_offset"], page["clamped"], page["first_offset"]) == (50, "low", 50)
    assert shown(page) == harness.texts(50, 100)
    assert shown(await harness.read("first", limit=1)) == harness.texts(50, 51)


async def test_one_record_larger_than_the_page_is_still_given(harness: ReaderHarness) -> None:
    harness.append(Sent(b"x" * 1_000_000), "next")
    await harness.upload(1, free=True)

    page = await harness.read(0, max_bytes=1)

    assert len(page["records"][0]["value"]) == 1_000_000
    assert page["next_offset"] == 1


async def test_a_long_poll_answers_when_a_record_comes(harness: ReaderHarness) -> None:
    harness.fill(10)
    waiting = asyncio.create_task(harness.read("next", max_wait_ms=20_000))
    await asyncio.wait_for(harness.waiting.wait(), 240)
    harness.append("fresh")

    page = await asyncio.wait_for(waiting, 240)

    assert shown(page) == [(10, "fresh")]


async def test_a_long_poll_without_an_append_ends_empty(harness: ReaderHarness) -> None:
    harness.fill(10)
    page = await harness.read(10, max_wait_ms=50)

    assert (page["records"], page["next_offset"], page["up_to_date"]) == ([], 10, True)


async def test_a_long_poll_on_a_deleted_stream_ends_at_once(harness: ReaderHarness) -> None:
    waiting = asyncio.create_task(harness.get("/records?offset=next&max_wait_ms=20000"))
    await asyncio.wait_for(harness.waiting.wait(), 240)
    harness.exists = False
    harness.appended.set()

    answer = await asyncio.wait_for(waiting, 240)

    assert (answer.status_code, answer.json()["code"]) == (404, "stream-not-found")


async def test_data_that_moves_during_the_read_is_found_where_it_moved_to() -> None:
    harness = ReaderHarness(reader_root_ttl_ms=60_000)
    harness.fill(100)
    await harness.upload(3, free=True)
    await harness.read(0)
    # The reader's root is of a minute ago; the owner frees what a newer root holds.
    await harness.upload(5, free=True)

    assert shown(await harness.read(35, limit=50)) == harness.texts(35, 85)
    await harness.aclose()


async def test_a_manifest_that_lags_behind_the_owner_is_no_end_of_the_stream(
    harness: ReaderHarness,
) -> None:
    harness.fill(100)
    await harness.upload(10, free=True)
    harness.announced_version = 0

    answer = await harness.get("/records?offset=5")

    assert (answer.status_code, answer.json()["code"]) == (503, "peer-unavailable")


async def test_a_gap_is_stepped_over_and_named(harness: ReaderHarness) -> None:
    harness.fill(20)
    await harness.upload(2)
    await harness.lose(5)
    harness.fill(10, per_chunk=5)

    page = await harness.read(15)
    inside = await harness.read(22)

    assert shown(page) == harness.texts(15, 20) + harness.texts(25, 35)
    gap = {"first_offset": 20, "next_offset": 25, "reason": "local-log-lost"}
    assert page["gaps"] == inside["gaps"] == [gap]
    assert (shown(inside), inside["start_offset"]) == (harness.texts(25, 35), 22)


async def test_a_strict_start_within_a_gap_is_refused_and_at_its_begin_it_is_told(
    harness: ReaderHarness,
) -> None:
    harness.fill(20)
    await harness.upload(2)
    await harness.lose(5)
    harness.fill(10, per_chunk=5)

    refused = await harness.get("/records?offset=22&on_out_of_range=error")
    assert (refused.status_code, refused.json()["code"]) == (410, "offset-trimmed")
    facts = {name: refused.json()[name] for name in ("first_offset", "next_offset")}
    assert facts == {"first_offset": 0, "next_offset": 35}
    assert refused.json()["readable_offset"] == 25

    arriving = await harness.read(20, on_out_of_range="error")
    assert shown(arriving) == harness.texts(25, 35)
    assert [gap["first_offset"] for gap in arriving["gaps"]] == [20]
    for media_type in ("application/vnd.apache.arrow.stream", "application/vnd.bottomless.chunks"):
        raw = await harness.get("/records?offset=15", accept=media_type)
        assert raw.headers["page-gaps"] == "20-24"
    lines = await harness.get("/records?offset=15", accept="application/x-ndjson")
    assert b'"reason":"local-log-lost"' in lines.content.splitlines()[-1]
    alone = await harness.get("/records/22")
    assert (alone.status_code, alone.json()["code"]) == (410, "offset-trimmed")


@pytest.mark.parametrize("after", ["lost", "accepted", "accepted and stored", "lost twice"])
@pytest.mark.parametrize("log", [0, 3])
@pytest.mark.parametrize("stored", [0, 1, 3, 4, 9])
async def test_a_time_never_leads_past_what_is_lost_without_a_word(
    harness: ReaderHarness, stored: int, log: int, after: str
) -> None:
    """Pages over lost records were asked for by offset alone: a time within them was answered
    with what comes after them, as if nothing were missing."""
    for number in range(stored + 3 + log):
        # Two chunks each have one time, so that one may be lost and the other not.
        harness.append("a", "b", "c", timestamp=1_000 + number // 2)
        if number < stored:
            await harness.upload(1, free=True)
    holes = [harness.lose_log(3)]
    if after != "lost":
        await harness.accept_loss()
    if after == "lost twice":
        harness.append("d", timestamp=2_000)
        holes.append(harness.lose_log(log + 1))
    if after == "accepted and stored":
        for _ in range(log):
            await harness.upload(1, free=True)
    open_hole = holes[-1] if after in {"lost", "lost twice"} else None
    lost = {offset for hole in holes for offset in range(*hole)}

    for timestamp in range(999, 1_000 + (stored + 3 + log) // 2 + 1):
        late_enough = [n for n, (time, _) in harness.records.items() if time >= timestamp]
        answer = await harness.get(f"/records?offset=timestamp:{timestamp}")
        start = min(late_enough, default=harness.committed_next)
        if answer.status_code == 502:
            assert answer.json()["code"] == "local-log-lost"
            assert open_hole is not None
            assert answer.json()["readable_offset"] == open_hole[1]
            assert start in lost or start - 1 in lost
            continue
        page = answer.json()
        named = {
            n
            for gap in page.get("gaps", ())
            for n in range(gap["first_offset"], gap["next_offset"])
        }
        told = named | {record["offset"] for record in page["records"]}
        # A page may end before an open hole: whoever goes on from there is told.
        assert told >= {n for n in late_enough if n < page["next_offset"]}
        assert page["next_offset"] in {harness.committed_next, *(hole[0] for hole in holes)}
        # Nothing that is there and too early comes along.
        assert min((r["offset"] for r in page["records"]), default=start) >= start
        if start not in lost and start - 1 not in lost:
            assert page["start_offset"] == start


async def test_a_manifest_that_hangs_is_waited_for_shortly_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page waited 22 s: for the root, and again for the name. No test had a peer that hangs
    while what the reader remembers is there."""
    monkeypatch.setattr(manifest_calls, "MANIFEST_SECONDS", 0.01)
    harness = ReaderHarness(reader_root_ttl_ms=0, reader_name_ttl_ms=60_000)
    harness.fill(10)
    await harness.read(0)
    harness.manifest_hangs = True
    harness.asked.clear()

    for path in ("/records?offset=0", "/offsets"):
        answer = await harness.get(path)
        assert (answer.status_code, answer.json()["code"]) == (503, "peer-unavailable")
        assert answer.headers["retry-after"] == "1"
    assert harness.asked == [f"/internal/v1/streams/{harness.stream_id}/root"] * 2
    await harness.aclose()


async def test_where_the_named_owner_is_gone_another_ingest_may_claim(
    harness: ReaderHarness,
) -> None:
    harness.fill(20)
    harness.alive.discard("http://owner")

    assert shown(await harness.read(0)) == harness.texts(0, 20)


async def test_an_owner_of_an_older_epoch_is_not_believed(harness: ReaderHarness) -> None:
    harness.fill(20)
    harness.epoch = 2
    await harness.read(0)
    harness.epoch = 1

    answer = await harness.get("/records?offset=0")

    assert (answer.status_code, answer.json()["code"]) == (503, "not-owner")


async def test_a_missing_root_is_an_error_and_never_an_empty_stream(harness: ReaderHarness) -> None:
    harness.fill(20)
    await harness.upload(2, free=True)
    await harness.drive.delete([key for key in harness.drive.object_keys if "/root." in key])

    answer = await harness.get("/records?offset=0")

    assert (answer.status_code, answer.json()["code"]) == (502, "data-missing")
    assert not answer.json()["retryable"]


async def test_damage_on_the_way_is_fetched_again(harness: ReaderHarness) -> None:
    harness.fill(20)
    await harness.upload(2, free=True)
    harness.drive.damage_count = 1

    assert shown(await harness.read(0)) == harness.texts(0, 20)
    assert harness.drive.damage_count == 0


async def test_damage_that_stays_is_an_error_with_the_fragments_id(harness: ReaderHarness) -> None:
    harness.fill(40)
    bad = await harness.upload(2)
    await harness.upload(2, free=True)
    damage_chunk(harness, bad.first_offset)

    covering = await harness.get("/records?offset=5")
    other = await harness.read(20)

    assert (covering.status_code, covering.json()["code"]) == (502, "data-corrupt")
    assert covering.json()["fragment_id"] == bad.fragment_id
    assert shown(other) == harness.texts(20, 40)


def damage_chunk(harness: ReaderHarness, first_offset: int) -> None:
    key = next(
        key
        for key in harness.drive.object_keys
        if f"{first_offset:020d}." in key and "data/" in key
    )
    harness.drive.flip(key, 128 + 64 + 50)


async def test_a_fragment_that_is_gone_is_named(harness: ReaderHarness) -> None:
    harness.fill(20)
    info = await harness.upload(2, free=True)
    await harness.drive.delete(
        [key for key in harness.drive.object_keys if key.endswith(".fragment")]
    )

    answer = await harness.get("/records?offset=0")

    assert (answer.status_code, answer.json()["code"]) == (502, "data-missing")
    assert answer.json()["fragment_id"] == info.fragment_id


async def test_another_stream_of_the_name_is_refused(harness: ReaderHarness) -> None:
    other = STREAM_ID.replace("0", "1", 1)
    answer = await harness.get(f"/records?offset=0&expect_stream_id={other}")
    right = await harness.get(f"/records?offset=0&expect_stream_id={STREAM_ID}")

    assert (answer.status_code, answer.json()["code"]) == (409, "stream-replaced")
    assert right.status_code == 200


async def test_a_stream_that_is_not_there_is_not_remembered(harness: ReaderHarness) -> None:
    harness.exists = False
    missing = await harness.get("/records?offset=0")
    harness.exists = True

    assert missing.status_code == 404
    assert (await harness.get("/records?offset=0")).status_code == 200


async def test_many_readers_fetch_a_fragment_once(harness: ReaderHarness) -> None:
    harness.fill(200)
    await harness.upload(20, free=True)

    pages = await asyncio.gather(*(harness.read(0, limit=200) for _ in range(20)))

    assert all(shown(page) == harness.texts(0, 200) for page in pages)
    assert harness.fragments[0].size > 4096
    assert harness.service.blocks.fetch_count == 1


async def test_large_pages_are_assembled_over_many_fragments(harness: ReaderHarness) -> None:
    for _ in range(30):
        harness.append(*(Sent(bytes([n]) * 2_000) for n in range(20)))
        await harness.upload(1, free=True)

    answer = await harness.get("/records?offset=7&max_bytes=16777216", accept=ARROW)

    table = pa.ipc.open_stream(answer.content).read_all()
    assert table["offset"].to_pylist() == list(range(7, 600))
    assert table["value"].to_pylist() == [harness.records[n][1].value for n in range(7, 600)]
