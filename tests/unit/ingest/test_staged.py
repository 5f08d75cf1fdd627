"""Staged batches: kept for a while, and committed once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.waiting import eventually

from bottomless.formats.batch import Codec
from bottomless.model.limits import KIB
from bottomless.model.names import StreamId
from bottomless.model.rows import Rows
from bottomless_server.core.tracking.known_producers import Producer
from bottomless_server.ingest import turns
from bottomless_server.ingest.staged import batches as staged_module
from unit.ingest.harness import ROUTE, STREAM, IngestHarness, no_space, pointers, problem
from unit.ingest.staging import (
    FRAMES,
    KEEP_MS,
    LARGE,
    SETTINGS,
    STAGE,
    STAGED,
    body_of,
    commit,
    files,
    last_number,
    raise_epoch,
    stage,
    staged_of,
    sweep,
    try_stage,
)


@pytest.fixture(autouse=True)
def nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes by the clock of the machine goes when a test says so."""
    monkeypatch.setattr(staged_module, "SWEEP_SECONDS", 1e6)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    made = await IngestHarness(tmp_path / "ingest", **SETTINGS).declare()
    await made.start()
    yield made
    await made.aclose()


@pytest.mark.parametrize(
    "name", ["producer-id", "idempotency-key", "stream-expected-offset", "stream-key"]
)
async def test_what_an_append_promises_is_refused_where_nothing_is_appended(
    harness: IngestHarness, name: str
) -> None:
    answer = await harness.client.post(STAGE, content=body_of("a"), headers={**FRAMES, name: "1"})
    assert problem(answer) == (400, "bad-header")


async def test_staged_batches_are_seen_by_nobody_until_they_are_committed_in_order(
    harness: IngestHarness,
) -> None:
    first, second = await stage(harness, "a", "b"), await stage(harness, "c")
    assert await harness.values() == []

    answer = await commit(harness, second, first)

    assert answer.status_code == 200
    assert answer.json() == {
        "stream_id": STREAM,
        "first_offset": 0,
        "last_offset": 2,
        "next_offset": 3,
        "count": 3,
        "duplicates": 0,
        "timestamp": "2025-06-15T15:06:40.000Z",
        "durability": "fsync",
    }
    assert await harness.values() == [b"c", b"a", b"b"]
    assert files(harness) == []
    assert (staged_of(harness).size, staged_of(harness).count) == (0, 0)


async def test_a_repeat_gets_the_first_answer_and_drops_the_batches_it_brings(
    harness: IngestHarness,
) -> None:
    first = (await commit(harness, await stage(harness, "a", "b"))).json()
    again = await commit(harness, await stage(harness, "b"), await stage(harness, "a"))

    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == {**first, "count": 0, "duplicates": 2}
    assert await harness.values() == [b"a", b"b"]
    assert files(harness) == []


async def test_a_batch_that_is_not_there_is_told_so_and_nothing_is_stored(
    harness: IngestHarness,
) -> None:
    there = await stage(harness, "a")
    answer = await commit(harness, there, "st_" + "0" * 32)

    assert problem(answer) == (404, "staged-not-found")
    assert answer.json()["outcome"] == "none"
    assert answer.json()["retryable"] is False
    assert await harness.values() == []
    assert (await commit(harness, there)).status_code == 200


async def test_what_waits_too_long_for_its_commit_goes(harness: IngestHarness) -> None:
    old = await stage(harness, "a")
    await harness.advance(KEEP_MS - 1)
    young = await stage(harness, "b")
    await sweep(harness)
    assert files(harness) == [".staged", ".staged"]

    await harness.advance(1)
    await sweep(harness)

    assert files(harness) == [".staged"]
    assert problem(await commit(harness, old)) == (404, "staged-not-found")
    assert (await commit(harness, young)).status_code == 200


async def test_a_commit_under_way_keeps_its_batches_from_the_sweep(harness: IngestHarness) -> None:
    staged = await stage(harness, "a")
    async with staged_of(harness).pinned(STREAM, "job", [staged]):
        await harness.advance(2 * KEEP_MS)
        await sweep(harness)
        assert files(harness) == [".staged"]
        assert problem(await commit(harness, staged, producer="other")) == (404, "staged-not-found")
    await sweep(harness)
    assert files(harness) == []


@pytest.mark.parametrize(
    ("setting", "limit"),
    [
        ("ingest_staged_stream_count_max", 2),
        ("ingest_staged_stream_bytes_max", len(body_of("a")) * 2),
        ("ingest_staged_bytes_max", len(body_of("a")) * 2),
    ],
)
async def test_as_much_is_staged_as_may_be(tmp_path: Path, setting: str, limit: int) -> None:
    settings: dict[str, Any] = {setting: limit}
    harness = await (await IngestHarness(tmp_path / "i", **settings).declare()).start()
    one, two = await stage(harness, "a"), await stage(harness, "b")

    refused = await try_stage(harness, "c")
    assert problem(refused) == (429, "quota-exceeded")
    assert refused.json()["retryable"] is True
    assert refused.headers["retry-after"] == "5"

    await commit(harness, one, two)
    assert (await try_stage(harness, "c")).status_code == 201
    await harness.aclose()


async def test_bounds_hold_for_bodies_that_arrive_together(tmp_path: Path) -> None:
    harness = await IngestHarness(tmp_path / "i", ingest_staged_stream_count_max=3).declare()
    await harness.start()
    answers = await asyncio.gather(*(try_stage(harness, "a") for _ in range(9)))
    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [429] * 6
    await harness.aclose()


async def test_staging_is_synced_before_it_is_answered(harness: IngestHarness) -> None:
    harness.files.calls.clear()
    await stage(harness, "a")
    calls = [(call.name, Path(call.path).suffix) for call in harness.files.calls]
    written = calls.index(("pwritev", ".new"))
    assert calls[written + 1] == ("fdatasync", ".new")
    assert ("fsync_dir", "") in calls[written + 2 :]


async def test_a_full_disk_stages_nothing_and_leaves_nothing(harness: IngestHarness) -> None:
    harness.files.only_on = ".staged"
    harness.files.faults["pwritev"] = [no_space()]
    refused = await try_stage(harness, "a")

    assert problem(refused) == (503, "storage-full")
    assert refused.json()["outcome"] == "none"
    assert files(harness) == []
    assert staged_of(harness).size == 0


@pytest.mark.parametrize("bound", ["COUNT_MAX", "STREAM_COUNT_MAX", "PRODUCER_COUNT_MAX"])
async def test_commits_at_once_have_bounds(harness: IngestHarness, bound: str) -> None:
    staged = await stage(harness, "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, bound, 0)
        assert problem(await commit(harness, staged)) == (503, "overloaded")
    assert (await commit(harness, staged)).status_code == 200


def epoch_of(known: Producer | None) -> int | None:
    return None if known is None else known.epoch


async def test_commits_of_one_producer_keep_no_other_out_and_no_fence(
    harness: IngestHarness,
) -> None:
    """The checks before were blind: whoever waited for a turn had it in the end."""
    ids = [await stage(harness, f"{number}{LARGE}") for number in range(3)]
    go, read = asyncio.Event(), staged_of(harness).read

    async def waits(stream_id: StreamId, part: Any) -> Any:
        if part[0].staged_id in ids:
            await go.wait()
        return await read(stream_id, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_of(harness), "read", waits)
        first = asyncio.create_task(commit(harness, *ids))
        repeats = [asyncio.create_task(commit(harness, *ids)) for _ in range(20)]
        await eventually(lambda: sum(one.done() for one in repeats) >= 20 + 1 - 8)

        other = await commit(harness, await stage(harness, "z"), producer="other")
        assert other.status_code == 200
        fence = asyncio.create_task(raise_epoch(harness))
        known = harness.appender.tracking.producers
        await eventually(lambda: epoch_of(known.get("job")) == 1 or fence.done())
        go.set()
        assert problem(await first) == (409, "producer-fenced")
        assert (await fence).json()["last_seq"] is None
    answers = [problem(await one) for one in repeats]
    assert sorted(answers) == [(409, "producer-fenced")] * 7 + [(503, "overloaded")] * 13
    service = harness.service.appenders.commits
    assert not service._turns._turns
    assert not service._turns._by_stream


async def test_staged_batches_outlive_a_crash_and_half_a_file_does_not(
    harness: IngestHarness,
) -> None:
    staged = await stage(harness, "a")
    (harness.data_dir / "staged" / STREAM / "st_half.new").write_bytes(b"half")
    after = await harness.after_crash().start()

    assert files(after) == [".staged"]
    assert (await commit(after, staged)).status_code == 200
    assert await after.values() == [b"a"]
    await after.aclose()


async def test_a_commit_that_was_not_answered_before_a_crash_is_a_repeat_after_it(
    harness: IngestHarness,
) -> None:
    first = (await commit(harness, await stage(harness, "a"))).json()
    after = await harness.after_crash().start()
    again = await commit(after, await stage(after, "a"))

    assert again.json() == {**first, "count": 0, "duplicates": 1}
    assert await after.values() == [b"a"]
    await after.aclose()


async def test_damage_of_a_staged_file_is_never_appended(harness: IngestHarness) -> None:
    staged = await stage(harness, "hello")
    [path] = (harness.data_dir / "staged" / STREAM).iterdir()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"hello", b"jello"))

    answer = await commit(harness, staged)

    assert problem(answer) == (502, "data-corrupt")
    assert await harness.values() == []


async def test_commits_of_one_producer_at_once_store_one_of_them(harness: IngestHarness) -> None:
    ids = [await stage(harness, "a") for _ in range(6)]
    answers = await asyncio.gather(*(commit(harness, staged) for staged in ids))

    assert [answer.status_code for answer in answers] == [200] * 6
    assert sum(answer.json()["count"] for answer in answers) == 1
    assert await harness.values() == [b"a"]
    await eventually(lambda: files(harness) == [])


async def test_a_group_is_appended_whole_where_it_is_larger_than_a_chunk(tmp_path: Path) -> None:
    harness = await IngestHarness(tmp_path / "i", ingest_chunk_size_max=4 * KIB).declare()
    await harness.start()
    ids = [await stage(harness, f"{number}{LARGE}") for number in range(5)]
    assert (await commit(harness, *ids)).json()["count"] == 5

    chunks = (await harness.chunks(0)).content
    assert len(await harness.values()) == 5
    assert len(chunks) > 5 * 3 * KIB
    assert await last_number(harness) == 7
    await harness.aclose()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"producer-id": "job", "producer-seq": "0"}, "bad-header"),
        ({"idempotency-key": "k"}, "bad-header"),
        ({}, "bad-header"),
    ],
)
async def test_staged_batches_are_committed_by_number_only(
    harness: IngestHarness, headers: dict[str, str], code: str
) -> None:
    staged = await stage(harness, "a")
    answer = await harness.client.post(
        ROUTE, json={"staged": [staged]}, headers={"content-type": STAGED, **headers}
    )
    assert problem(answer) == (400, code)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"staged": []}, "/staged"),
        ({"staged": "st_"}, "/staged"),
        ({"staged": ["st_1"]}, "/staged/0"),
        ({"staged": ["st_" + "0" * 32] * 2}, "/staged"),
        ({"staged": ["st_" + "0" * 32], "more": 1}, ""),
        ([], ""),
        ({}, ""),
    ],
)
async def test_a_commit_names_batches_and_nothing_else(
    harness: IngestHarness, body: Any, pointer: str
) -> None:
    named = {"content-type": STAGED, "producer-id": "job", "txn-number": "1"}
    answer = await harness.client.post(ROUTE, json=body, headers=named)
    assert problem(answer) == (422, "validation-failed")
    assert pointers(answer) == [pointer]


async def test_what_is_staged_is_validated_fully_before_it_is_kept(harness: IngestHarness) -> None:
    damaged = bytearray(body_of("a"))
    damaged[-1] ^= 1
    answer = await harness.client.post(STAGE, content=bytes(damaged), headers=FRAMES)
    assert problem(answer) == (422, "crc-mismatch")
    empty = await harness.client.post(STAGE, content=b"", headers=FRAMES)
    assert problem(empty) == (422, "validation-failed")
    other = await harness.client.post(STAGE, json={"records": []})
    assert problem(other) == (415, "unsupported-media-type")
    assert files(harness) == []


async def test_compressed_frames_stay_as_they_were_staged(harness: IngestHarness) -> None:
    from bottomless.formats.rows import build_batch, encode_frames

    batch: pa.RecordBatch = build_batch([Rows([b"x" * 1000] * 10, [0] * 10)])
    body = b"".join(frame.data for frame in encode_frames(batch, 4096, Codec.ZSTD))
    answer = await harness.client.post(STAGE, content=body, headers=FRAMES)
    await commit(harness, answer.json()["staged_id"])
    assert await harness.values() == [b"x" * 1000] * 10
    assert body in (await harness.chunks(0)).content
