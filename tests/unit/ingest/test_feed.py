"""What the uploader and the reader get of a tail."""

import asyncio
import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.waiting import eventually

from bottomless.formats.chunk import split_chunks
from bottomless.model.config import parse_config
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.feed import CommitFeed
from bottomless_server.stores.streams import Loaded, Streams
from unit.ingest.harness import INTERNAL, STREAM, IngestHarness, problem

COMMITS = "/internal/v1/commits"


async def test_news_are_told_once_to_each_follower(harness: IngestHarness) -> None:
    await harness.append("a", "b")
    first = (await harness.internal.get(COMMITS)).json()
    after = {"after": first["token"]}
    nothing = (await harness.internal.get(COMMITS, params=after)).json()
    await harness.append("c")
    news = (await harness.internal.get(COMMITS, params=after)).json()

    assert nothing["streams"] == []
    assert [stream["committed_next"] for stream in first["streams"]] == [2]
    size = harness.segments()[0].stat().st_size - 64
    assert news["streams"] == [
        {
            "stream_id": STREAM,
            "epoch": 1,
            "committed_next": 3,
            "published_next": 0,
            "log_end": size,
            "target_bytes": 67_108_864,
            "max_age_ms": 60_000,
        }
    ]


async def test_a_follower_waits_for_news(harness: IngestHarness) -> None:
    token = (await harness.internal.get(COMMITS)).json()["token"]
    params = {"after": token, "wait_ms": "30000"}
    waiting = asyncio.create_task(harness.internal.get(COMMITS, params=params))
    await harness.append("a")

    assert [s["committed_next"] for s in (await waiting).json()["streams"]] == [1]


async def test_who_asks_at_a_stop_waits_for_nothing() -> None:
    feed = CommitFeed("instance")
    token = (await feed.wait(None, 0)).token
    waiting = asyncio.create_task(feed.wait(token, 3600))
    await asyncio.sleep(0)
    feed.end()

    assert (await waiting).streams == ()
    assert (await feed.wait(token, 3600)).streams == ()


async def test_a_new_follower_hears_of_what_is_not_published(harness: IngestHarness) -> None:
    await harness.append("a")
    unpublished = (await harness.internal.get(COMMITS, params={"after": "nonsense"})).json()
    await harness.published(1)
    published = (await harness.internal.get(COMMITS)).json()

    assert len(unpublished["streams"]) == 1
    assert published["streams"] == []


async def test_a_stream_leaves_the_feed_when_all_of_it_is_published(harness: IngestHarness) -> None:
    token = (await harness.internal.get(COMMITS)).json()["token"]
    await harness.append("a", "b")
    await harness.published(1)
    behind = (await harness.internal.get(COMMITS, params={"after": token})).json()
    assert [s["published_next"] for s in behind["streams"]] == [1]
    await harness.published(2)
    assert (await harness.internal.get(COMMITS, params={"after": token})).json()["streams"] == []
    assert not harness.service.feed._changes

    await harness.append("c")
    news = (await harness.internal.get(COMMITS, params={"after": behind["token"]})).json()
    assert [(s["published_next"], s["committed_next"]) for s in news["streams"]] == [(2, 3)]


@pytest.mark.parametrize("uploaded", [False, True])
async def test_of_a_stream_that_was_closed_nothing_is_kept(
    harness: IngestHarness, uploaded: bool
) -> None:
    """The feed kept the appender of every stream, with its index and all that was known of its
    producers, after its end; no check looked at what is left of a stream that has gone."""
    await harness.append("a")
    if uploaded:
        await harness.published(1)
    appender = weakref.ref(harness.appender)
    assert (await harness.internal.post(f"/internal/v1/streams/{STREAM}/close")).status_code == 200
    gc.collect()

    assert appender() is None
    # Not its end: whoever touches it claims it again, and it is told of again.
    await harness.append("b")
    told = (await harness.internal.get(COMMITS)).json()["streams"]
    assert [s["committed_next"] for s in told] == [2]


async def test_after_a_restart_a_follower_hears_everything_again(harness: IngestHarness) -> None:
    await harness.append("a")
    token = (await harness.internal.get(COMMITS)).json()["token"]
    after = harness.after_crash()
    await after.start()

    told = (await after.internal.get(COMMITS, params={"after": token})).json()

    assert [(s["epoch"], s["committed_next"]) for s in told["streams"]] == [(2, 1)]
    await after.aclose()


async def test_chunks_come_as_they_lie_on_disk_with_their_bounds(harness: IngestHarness) -> None:
    for value in ("a", "b", "c"):
        await harness.append(value)
    await harness.published(1, version=9)

    run = await harness.chunks(1)

    headers = [header for header, _ in split_chunks(run.content)]
    assert [header.first_offset for header in headers] == [1, 2]
    assert harness.segments()[0].read_bytes().endswith(run.content)
    told = {name: run.headers[name] for name in run.headers if name.count("-") >= 1}
    assert (
        told
        | {
            "chunks-epoch": "1",
            "chunks-first-offset": "1",
            "chunks-next-offset": "3",
            "chunks-log-end": str(harness.segments()[0].stat().st_size - 64),
            "local-first-offset": "0",
            "committed-next-offset": "3",
            "published-next-offset": "1",
            "manifest-version": "9",
            "last-chunk-offset": "2",
            "last-timestamp": str(harness.time.wall),
        }
        == told
    )


@pytest.mark.parametrize(("max_bytes", "count"), [(1, 1), (10**6, 4)])
async def test_a_run_has_at_most_so_many_bytes_but_one_chunk_at_least(
    harness: IngestHarness, max_bytes: int, count: int
) -> None:
    for number in range(4):
        await harness.append(str(number))

    run = await harness.chunks(0, max_bytes=max_bytes)

    assert len(list(split_chunks(run.content))) == count
    sizes = [len(chunk) for _, chunk in split_chunks((await harness.chunks(0)).content)]
    exactly = await harness.chunks(0, max_bytes=sizes[0] + sizes[1])
    assert len(exactly.content) == sizes[0] + sizes[1]


async def test_an_offset_within_a_chunk_gives_the_whole_chunk(harness: IngestHarness) -> None:
    await harness.append("a", "b", "c")

    run = await harness.chunks(1)

    assert run.headers["chunks-first-offset"] == "0"
    assert run.headers["chunks-next-offset"] == "3"


async def test_at_the_end_the_answer_is_empty_and_beyond_too(harness: IngestHarness) -> None:
    empty = await harness.chunks(0)
    await harness.append("a")

    assert empty.content == b""
    assert "last-chunk-offset" not in empty.headers
    assert empty.headers["chunks-next-offset"] == "0"
    for offset in (1, 7):
        run = await harness.chunks(offset, wait_ms=0 if offset == 1 else 30_000)
        assert run.content == b""
        assert run.headers["chunks-first-offset"] == run.headers["chunks-next-offset"]


async def test_a_reader_at_the_tail_waits_for_the_next_record(harness: IngestHarness) -> None:
    await harness.append("a")
    waiting = [asyncio.create_task(harness.chunks(1, wait_ms=30_000)) for _ in range(20)]
    await asyncio.sleep(0)
    await harness.append("b")

    runs = await asyncio.gather(*waiting)

    assert {run.headers["chunks-next-offset"] for run in runs} == {"2"}


async def test_runs_end_with_their_segment_and_together_give_all(tmp_path: Path) -> None:
    harness = await IngestHarness(tmp_path / "ingest", ingest_segment_chunk_count_max=3).declare()
    await harness.start()
    for number in range(10):
        await harness.append(str(number))

    assert len(harness.segments()) == 4
    assert (await harness.chunks(2)).headers["chunks-next-offset"] == "3"
    assert await harness.values() == [str(number).encode() for number in range(10)]
    ends = [int((await harness.chunks(n)).headers["chunks-log-end"]) for n in (0, 3, 6, 9)]
    assert ends == sorted(ends)
    assert ends[-1] == sum(path.stat().st_size - 64 for path in harness.segments())
    await harness.aclose()


async def test_time_finds_the_first_chunk_that_is_not_older(harness: IngestHarness) -> None:
    start = harness.time.wall
    for value in ("a", "b", "c"):
        await harness.append(value)
        harness.time.advance(1_000)

    async def located(timestamp: int) -> int | None:
        params = {"timestamp": timestamp}
        answer = (await harness.internal.get(f"{INTERNAL}/locate", params=params)).json()
        assert answer["committed_next"] == 3
        found: int | None = answer["offset"]
        return found

    assert [await located(start + ms) for ms in (-1, 0, 1, 1_000, 2_000)] == [0, 0, 1, 1, 2]
    assert await located(start + 2_001) is None


async def test_what_is_published_never_goes_back_or_beyond_what_is_committed(
    harness: IngestHarness,
) -> None:
    await harness.append("a", "b")
    await harness.published(2, version=5)
    url = f"{INTERNAL}/published"

    late = await harness.internal.put(url, json={"next_offset": 1, "version": 4})
    beyond = await harness.internal.put(url, json={"next_offset": 3, "version": 6})
    strange = await harness.internal.put(url, json={"next_offset": "1", "version": 6})

    assert late.status_code == 200
    assert (harness.appender.published_next, harness.appender.version) == (2, 5)
    assert problem(beyond) == (412, "offset-mismatch")
    assert problem(strange) == (422, "validation-failed")


async def test_parameters_are_checked(harness: IngestHarness) -> None:
    for params in ({}, {"first_offset": "01"}, {"first_offset": "0", "wait_ms": "30001"}):
        answer = await harness.internal.get(f"{INTERNAL}/chunks", params=params)
        assert problem(answer) == (400, "bad-parameter")
    unknown = await harness.internal.get(f"{INTERNAL}/chunks?first_offset=0&x=1")
    assert problem(unknown) == (400, "unknown-parameter")
    nobody = await harness.internal.get(
        "/internal/v1/streams/0198d2a4-5b1e-7c3a-9a51-000000000000/chunks?first_offset=0"
    )
    assert problem(nobody) == (404, "stream-not-found")


async def test_a_closed_stream_is_opened_again_by_the_next_touch(harness: IngestHarness) -> None:
    await harness.append("a")
    closed = await harness.internal.post(f"{INTERNAL}/close")

    assert closed.status_code == 200
    assert (await harness.append("b")).json()["first_offset"] == 1
    assert (await harness.record()).epoch == 2
    assert await harness.values() == [b"a", b"b"]


async def test_a_drain_answers_what_is_in_flight_and_refuses_what_comes(
    harness: IngestHarness,
) -> None:
    in_flight = asyncio.create_task(harness.append("a"))
    await eventually(lambda: harness.service.under_way.count)
    await harness.service.drain()
    late = await harness.append("b")

    assert (await in_flight).status_code == 200
    assert problem(late) == (503, "draining")
    assert late.json()["outcome"] == "none"
    assert await harness.values() == [b"a"]


async def test_too_many_bytes_in_flight_wait_and_then_are_refused(tmp_path: Path) -> None:
    harness = await IngestHarness(
        tmp_path / "ingest", ingest_in_flight_bytes_max=100_000, ingest_in_flight_wait_ms=0
    ).declare()
    await harness.start()
    await harness.append("warm")

    answers = await asyncio.gather(*(harness.append("x" * 60_000) for _ in range(4)))

    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[0] == 200
    assert statuses[-1] == 503
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert problem(refused) == (503, "overloaded")
    assert refused.headers["retry-after"] == "1"
    assert (await harness.append("after")).status_code == 200
    assert harness.service.room.admission.total == 0
    await harness.aclose()


async def changed_config(harness: IngestHarness) -> None:
    """What a PATCH does: it changes the record, and knows nothing of the owner."""
    config = parse_config({"fragment": {"target_bytes": 1_048_576, "max_age_ms": 5_000}})
    await harness.streams.update(STREAM, lambda record: replace(record, config=config))


async def test_an_owner_goes_on_with_a_configuration_that_was_changed(
    harness: IngestHarness,
) -> None:
    """Once its appender had that of its claim for as long as it lived."""
    await harness.append("a")
    token = (await harness.internal.get(COMMITS)).json()["token"]
    await changed_config(harness)
    await harness.service.configs.take_up()

    [news] = (await harness.internal.get(COMMITS, params={"after": token})).json()["streams"]
    assert (news["target_bytes"], news["max_age_ms"]) == (1_048_576, 5_000)


async def test_as_long_as_no_configuration_is_changed_no_record_is_read(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand slow streams cost a quarter of a core where each record was read at every look."""
    asked: list[int] = []
    load_many = Streams.load_many

    async def counted(streams: Streams, stream_ids: Sequence[StreamId]) -> Loaded:
        asked.append(len(stream_ids))
        return await load_many(streams, stream_ids)

    monkeypatch.setattr(Streams, "load_many", counted)
    await harness.append("a")
    look = harness.service.configs.take_up
    await look()
    # It may have been changed while the stream was being opened.
    assert asked == [1]
    await look()
    await harness.streams.update(STREAM, lambda record: replace(record, dirty=record.dirty))
    await look()
    assert asked == [1]
    await changed_config(harness)
    await look()
    assert asked == [1, 1]
    assert harness.appender.config.fragment.max_age_ms == 5_000
    await look()
    assert asked == [1, 1]


async def test_an_owner_looks_for_changes_several_times_a_lease(
    tmp_path: Path,
) -> None:
    harness = IngestHarness(tmp_path / "data", ingest_lease_ms=300, ingest_lease_margin_ms=10)
    await (await harness.declare()).start()
    await harness.append("a")
    await changed_config(harness)
    await eventually(lambda: harness.appender.config.fragment.max_age_ms == 5_000)
    await harness.service.stop()


async def test_a_configuration_of_another_epoch_is_not_taken_up(harness: IngestHarness) -> None:
    await harness.append("a")
    before = harness.appender.config
    await changed_config(harness)
    await harness.streams.update(STREAM, lambda record: replace(record, epoch=record.epoch + 1))
    await harness.service.configs.take_up()
    assert harness.appender.config == before


async def test_the_record_of_the_next_owner_is_read_once(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whoever owned the stream before acknowledges nothing any more."""
    asked: list[int] = []
    load_many = Streams.load_many

    async def counted(streams: Streams, stream_ids: Sequence[StreamId]) -> Loaded:
        asked.append(len(stream_ids))
        return await load_many(streams, stream_ids)

    monkeypatch.setattr(Streams, "load_many", counted)
    await harness.append("a")
    await harness.streams.update(STREAM, lambda record: replace(record, epoch=record.epoch + 1))
    for _ in range(3):
        await harness.service.configs.take_up()
    assert asked == [1]
    assert harness.appender.claim.fenced


async def test_offsets_are_told_with_their_age_and_what_comes_after_them(
    harness: IngestHarness,
) -> None:
    await harness.append("a", "b")
    await harness.append("c")
    path = f"/internal/v1/streams/{STREAM}/places"

    said = (await harness.internal.post(path, json={"offsets": [0, 1, 2, 3]})).json()["places"]

    size = harness.segments()[0].stat().st_size - 64
    first, second, third, beyond = said
    assert first == second
    assert first[1] == size
    assert 0 < third[1] < size
    assert first[0] <= third[0]
    assert beyond is None
    for offsets in ([], [-1], ["0"], [True], [0] * 1_001, 0):
        refused = await harness.internal.post(path, json={"offsets": offsets})
        assert problem(refused) == (422, "validation-failed")
