"""Repeats against a service on a real directory: pending, failed, restarted, freed, torn."""

import asyncio
import errno
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from support.waiting import eventually

from bottomless.formats.chunk import HEADER_SIZE, split_chunks
from bottomless.formats.segment import HEADER_SIZE as SEGMENT_HEADER_SIZE
from bottomless.model.chunk import ChunkFlags, ChunkHeader, ChunkKind
from bottomless_server.node.lease import NodeLease
from unit.ingest.harness import (
    INTERNAL,
    ROUTE,
    IngestHarness,
    RecordedFiles,
    arrow,
    broken_disk,
    no_space,
    problem,
)

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
PRODUCERS = ROUTE.replace("records", "producers")
SMALL: dict[str, Any] = {"ingest_segment_chunk_count_max": 3, "ingest_local_keep_ms": 1_000}


async def send(harness: IngestHarness, *values: str, **headers: object) -> httpx.Response:
    sent = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    records = [{"value": value} for value in values]
    return await harness.client.post(ROUTE, json={"records": records}, headers=sent)


async def strict(
    harness: IngestHarness, number: int, count: int = 1, who: str = "p", **headers: object
) -> httpx.Response:
    values = [f"{who}-{n}" for n in range(number, number + count)]
    return await send(harness, *values, producer_id=who, producer_seq=number, **headers)


def chunks_of(path: Path) -> list[ChunkHeader]:
    return [header for header, _ in split_chunks(path.read_bytes()[SEGMENT_HEADER_SIZE:])]


async def a_small_harness(tmp_path: Path, **settings: Any) -> IngestHarness:
    return await (
        await IngestHarness(tmp_path / "ingest", **{**SMALL, **settings}).declare()
    ).start()


async def test_repeats_of_a_pending_append_wait_for_it_and_get_its_offsets(
    harness: IngestHarness,
) -> None:
    answers = await asyncio.gather(*(strict(harness, 0, 3) for _ in range(8)))

    assert {answer.json()["first_offset"] for answer in answers} == {0}
    assert sorted(answer.json()["duplicates"] for answer in answers) == [0] + [3] * 7
    assert len(await harness.values()) == 3


async def test_a_failed_write_is_not_a_repeats_original(harness: IngestHarness) -> None:
    await harness.append("before")
    harness.files.faults["pwritev"] = [no_space()]
    first, second = await asyncio.gather(strict(harness, 0), strict(harness, 0))

    assert problem(first) == (503, "storage-full")
    assert (second.status_code, second.json()["duplicates"]) == (200, 0)
    assert await harness.values() == [b"before", b"p-0"]


async def test_what_followed_a_failed_write_is_a_gap_and_not_stored(harness: IngestHarness) -> None:
    harness.files.faults["pwritev"] = [no_space()]
    first, second = await asyncio.gather(strict(harness, 0), strict(harness, 1))

    assert first.status_code == 503
    assert problem(second) == (409, "producer-unknown")
    assert await harness.values() == []


async def test_after_a_failed_sync_the_retry_finds_out(harness: IngestHarness) -> None:
    await strict(harness, 0)
    harness.files.faults["fdatasync"] = [broken_disk()]
    lost = await strict(harness, 1)
    assert (lost.status_code, lost.json()["outcome"]) == (503, "unknown")

    retried = await strict(harness, 1)
    assert (retried.status_code, retried.json()["duplicates"]) == (200, 0)
    assert (await strict(harness, 0)).headers["idempotent-replayed"] == "true"
    assert await harness.values() == [b"p-0", b"p-1"]


async def test_a_repeat_is_not_confirmed_without_the_lease(harness: IngestHarness) -> None:
    await strict(harness, 0)
    lease: NodeLease = harness.lease
    appender = harness.appender
    harness.time.advance(60_000)
    assert not lease.is_live()

    refused = await strict(harness, 0)
    assert problem(refused) == (503, "not-owner")
    assert appender.tracking.producers["p"].last_sequence == 0


class HeldFiles(RecordedFiles):
    """A disk that takes its time over a sync."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()

    def fdatasync(self, fd: int) -> None:
        assert self.go_on.wait(20)
        super().fdatasync(fd)


async def test_a_repeat_that_waited_is_not_confirmed_after_the_lease_ran_out(
    tmp_path: Path,
) -> None:
    files = HeldFiles()
    harness = await (await IngestHarness(tmp_path / "ingest", files=files).declare()).start()
    await strict(harness, 0)
    files.go_on.clear()
    before = len(files.calls)
    written = asyncio.create_task(harness.append("being written"))
    await eventually(lambda: len(files.calls) > before)
    repeated = asyncio.create_task(strict(harness, 0))
    await eventually(lambda: bool(harness.appender._waiting))
    harness.time.advance(60_000)
    files.go_on.set()

    first = await written
    assert (problem(first), first.json()["outcome"]) == ((503, "not-owner"), "unknown")
    assert problem(await repeated) == (503, "not-owner")
    await harness.aclose()


async def test_forms_may_change_between_appends_of_one_producer_and_order_stays(
    harness: IngestHarness,
) -> None:
    table = arrow(pa.table({"value": [b"p-0", b"p-1"]}))
    first = harness.client.post(
        ROUTE, content=table, headers={**ARROW, "producer-id": "p", "producer-seq": "0"}
    )
    answers = await asyncio.gather(harness.append("x"), first, strict(harness, 2, 2))

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    values = await harness.values()
    assert [value for value in values if value != b"x"] == [b"p-0", b"p-1", b"p-2", b"p-3"]


@pytest.mark.parametrize(
    ("ids", "pointer"),
    [
        ([1, 1], "/records/1/publishing_id"),
        ([2, 1], "/records/1/publishing_id"),
        ([1, None], "/records/1/publishing_id"),
        ([1, 2.0], "/records/1/publishing_id"),
        ([True], "/records/0/publishing_id"),
        (["1"], "/records/0/publishing_id"),
        ([-1], "/records/0/publishing_id"),
        ([2**53], "/records/0/publishing_id"),
    ],
)
async def test_ids_increase_within_a_request(
    harness: IngestHarness, ids: list[Any], pointer: str
) -> None:
    records = [{"value": "v"} if n is None else {"value": "v", "publishing_id": n} for n in ids]
    answer = await harness.client.post(
        ROUTE, json={"records": records}, headers={"producer-id": "p"}
    )
    assert problem(answer) == (422, "validation-failed")
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]
    if all(type(n) is int and n >= 0 for n in ids):
        column: Any = pa.array(ids, pa.uint64())
    else:
        column = pa.array([None] * len(ids), pa.int64())
    body = arrow(pa.table({"value": [b"v"] * len(ids), "publishing_id": column}))
    answer = await harness.client.post(ROUTE, content=body, headers={**ARROW, "producer-id": "p"})
    assert problem(answer) == (422, "validation-failed")
    assert answer.json()["errors"][0]["pointer"] == "/publishing_id"


async def test_an_id_without_a_producer_is_refused(harness: IngestHarness) -> None:
    records = [{"value": "v", "publishing_id": 1}]
    answer = await harness.client.post(ROUTE, json={"records": records})
    assert answer.json()["errors"][0]["pointer"] == "/records/0/publishing_id"
    body = arrow(pa.table({"value": [b"v"], "publishing_id": [1]}))
    assert (await harness.client.post(ROUTE, content=body, headers=ARROW)).status_code == 422
    raw = {"content-type": "application/octet-stream", "producer-id": "p"}
    assert problem(await harness.append_raw(b"v", **raw)) == (400, "bad-header")


@pytest.mark.parametrize("ahead_ms", [2 * 3_600_000, 30 * 365 * 86_400_000])
async def test_a_start_with_a_clock_that_is_ahead_forgets_nothing_of_the_last_hour(
    harness: IngestHarness, ahead_ms: int
) -> None:
    """A process believes the clock that it starts with. What one stream remembers was judged by
    it, and only what all streams share by the time of the node; no test started a node ahead."""
    producer: dict[str, object] = {"producer_id": "p", "producer_seq": 0}
    await send(harness, "keyed", idempotency_key="order-17")
    await send(harness, "numbered", **producer)
    await harness.advance(30_000)

    harness.time.wall += ahead_ms
    after = await harness.after_crash(ingest_producer_count_max=1, ingest_key_count_max=1).start()
    await after.lease.renew()
    assert (await send(after, "keyed", idempotency_key="order-17")).json()["first_offset"] == 0
    assert (await send(after, "numbered", **producer)).json()["first_offset"] == 1
    newcomers: list[dict[str, object]] = [
        {"idempotency_key": "new"},
        {"producer_id": "new", "producer_seq": 0},
    ]
    for new in newcomers:
        assert problem(await send(after, "no place", **new)) == (429, "quota-exceeded")
    assert await after.values() == [b"keyed", b"numbered"]

    await after.advance(3_600_000)
    for new in newcomers:
        assert (await send(after, "a place", **new)).status_code == 200
    assert (await send(after, "again", idempotency_key="order-17")).status_code == 429
    await after.aclose()


async def test_a_key_whose_append_failed_is_free(harness: IngestHarness) -> None:
    harness.files.faults["pwritev"] = [no_space()]
    assert (await send(harness, "v", idempotency_key="k")).status_code == 503
    assert (await send(harness, "other", idempotency_key="k")).status_code == 200


# After a restart


async def test_everything_that_was_known_is_known_after_a_crash(harness: IngestHarness) -> None:
    first = await strict(harness, 0, 3)
    await send(harness, "k", idempotency_key="k")
    await send(harness, "t", producer_id="t", txn_number=5)
    await strict(harness, 0, who="gone")
    await harness.client.delete(f"{PRODUCERS}/gone")
    raised = await harness.client.post(f"{PRODUCERS}/q/epoch")
    after = await harness.after_crash().start()

    again = await strict(after, 0, 3)
    assert again.json() == {**first.json(), "count": 0, "duplicates": 3}
    assert (await send(after, "k", idempotency_key="k")).headers["idempotent-replayed"]
    assert (await send(after, "t", producer_id="t", txn_number=5)).json()["duplicates"] == 1
    assert (await after.client.get(f"{PRODUCERS}/gone")).status_code == 404
    assert (await after.client.get(f"{PRODUCERS}/q")).json() == raised.json()
    assert problem(await strict(after, 0, who="q")) == (409, "producer-fenced")
    assert len(await after.values()) == 6
    await after.aclose()


async def test_state_outlives_the_segments_that_held_it(tmp_path: Path) -> None:
    harness = await a_small_harness(tmp_path)
    await harness.append("nobody is known yet")
    first = await strict(harness, 0, 4)
    keyed = await send(harness, "k", idempotency_key="k")
    for number in range(8):
        await harness.append(f"{number}")
    assert len(harness.segments()) > 3
    snapshot, *_ = chunks_of(harness.segments()[-1])
    assert (snapshot.kind, snapshot.flags) == (ChunkKind.TRACKING, ChunkFlags.MORE_FOLLOWS)
    assert chunks_of(harness.segments()[0])[0].kind is ChunkKind.DATA
    await harness.published(14)
    await harness.advance(10_000)
    harness.appender.tick()
    await eventually(lambda: len(harness.segments()) == 1)
    after = await harness.after_crash().start()

    assert after.appender.log.first_offset > 8
    again = await strict(after, 0, 4)
    assert again.json()["first_offset"] == first.json()["first_offset"] == 1
    assert (await send(after, "k", idempotency_key="k")).json() == keyed.json()
    await after.aclose()
    await harness.aclose()


async def test_readers_and_the_uploader_get_no_chunk_without_records_at_either_end(
    tmp_path: Path,
) -> None:
    harness = await a_small_harness(tmp_path)
    for number in range(7):
        await strict(harness, number)
        await harness.client.post(f"{PRODUCERS}/q/epoch")
    kinds = [header.kind for path in harness.segments() for header in chunks_of(path)]
    assert kinds.count(ChunkKind.TRACKING) >= 8
    offset, between = 0, 0
    while offset < 7:
        answer = await harness.chunks(offset)
        headers = [header for header, _ in split_chunks(answer.content)]
        assert headers[0].first_offset == offset
        assert headers[0].kind is headers[-1].kind is ChunkKind.DATA
        between += sum(header.kind is ChunkKind.TRACKING for header in headers)
        offset = int(answer.headers["chunks-next-offset"])
        assert answer.headers["last-chunk-offset"] == "6"
    assert between > 0
    assert len(await harness.values()) == 7
    await harness.aclose()


async def test_a_change_behind_the_last_record_is_not_found_by_offset_or_time(
    harness: IngestHarness,
) -> None:
    await harness.append("last")
    await harness.advance(1_000)
    changed_at = harness.time.wall
    await harness.client.post(f"{PRODUCERS}/q/epoch")

    answer = await harness.chunks(0)
    [(header, _)] = split_chunks(answer.content)
    assert header.kind is ChunkKind.DATA
    located = await harness.internal.get(f"{INTERNAL}/locate", params={"timestamp": changed_at})
    assert located.json()["offset"] is None
    await harness.append("next")
    located = await harness.internal.get(f"{INTERNAL}/locate", params={"timestamp": changed_at})
    assert located.json()["offset"] == 1


async def test_a_change_of_state_alone_makes_a_segment_that_opens_again(tmp_path: Path) -> None:
    harness = await a_small_harness(tmp_path)
    assert not (await harness.record()).dirty
    for _ in range(5):
        await harness.client.post(f"{PRODUCERS}/q/epoch")
    assert (await harness.record()).dirty, "nobody else may own the stream without this"
    assert [path.name[:20] for path in harness.segments()] == ["0" * 20]
    after = await harness.after_crash().start()

    assert (await after.client.get(f"{PRODUCERS}/q")).json()["epoch"] == 5
    assert (await after.append("first")).json()["first_offset"] == 0
    last = await after.after_crash().start()
    assert await last.values() == [b"first"]
    assert (await last.client.get(f"{PRODUCERS}/q")).json()["epoch"] == 5
    for each in (last, after, harness):
        await each.aclose()


async def test_a_segment_is_kept_while_the_next_one_has_not_taken_over_its_state(
    tmp_path: Path,
) -> None:
    harness = await a_small_harness(tmp_path)
    for number in range(4):
        await strict(harness, number)
    torn = harness.after_crash()
    newest = torn.segments()[-1]
    os.truncate(newest, SEGMENT_HEADER_SIZE)
    next_offset = int(newest.name[:20])
    # As after a power cut in the middle of the first round of a segment.
    await torn.start()
    assert torn.segments()[-1] == newest
    await torn.published(next_offset)
    await torn.advance(10_000)
    torn.appender.tick()
    await torn.appender._freeing.look()
    assert len(torn.segments()) == 2

    again = await strict(torn, next_offset - 1)
    assert again.json()["first_offset"] == next_offset - 1
    assert (await strict(torn, next_offset)).json()["duplicates"] == 0
    await torn.advance(10_000)
    torn.appender.tick()
    await eventually(partial(_one_left, torn))
    last = await torn.after_crash().start()
    assert (await strict(last, next_offset)).json()["duplicates"] == 1
    for each in (last, torn, harness):
        await each.aclose()


def _one_left(harness: IngestHarness) -> bool:
    return len(harness.segments()) == 1


async def test_a_torn_round_takes_its_state_with_it_wherever_it_is_cut(tmp_path: Path) -> None:
    harness = await a_small_harness(tmp_path)
    for number in range(3):
        await strict(harness, number)
    whole = harness.segments()[-1].read_bytes()
    first = len(harness.segments())
    await strict(harness, 3)
    assert len(harness.segments()) == first + 1, "the round begins with what is known"
    data = harness.segments()[-1].read_bytes()
    headers = chunks_of(harness.segments()[-1])
    assert [header.kind for header in headers] == [ChunkKind.TRACKING, ChunkKind.DATA]
    assert whole
    cuts = range(SEGMENT_HEADER_SIZE, len(data), 24)
    for number, cut in enumerate(cuts):
        torn = harness.after_crash()
        torn.data_dir.rename(tmp_path / f"cut-{number}")
        torn = IngestHarness(tmp_path / f"cut-{number}", before=harness)
        torn.segments()[-1].write_bytes(data[:cut])
        await torn.start()
        retried = await strict(torn, 3)
        assert (retried.json()["first_offset"], retried.json()["duplicates"]) == (3, 0), cut
        assert (await strict(torn, 2)).json()["first_offset"] == 2
        assert len(await torn.values()) == 4
        await torn.aclose()
    await harness.aclose()


async def test_damage_in_front_of_the_last_append_is_not_taken_for_a_torn_end(
    harness: IngestHarness,
) -> None:
    await harness.append("checked")
    await harness.client.post(f"{PRODUCERS}/q/epoch")
    await harness.append("acknowledged")
    after = harness.after_crash()
    path = after.segments()[0]
    data = bytearray(path.read_bytes())
    change = chunks_of(path)[1]
    position = SEGMENT_HEADER_SIZE + chunks_of(path)[0].total_size
    assert change.kind is ChunkKind.TRACKING
    data[position + HEADER_SIZE] ^= 1
    path.write_bytes(data)
    await after.start()

    assert (await after.append("x")).status_code == 502
    assert path.read_bytes() == bytes(data)
    await after.aclose()


@pytest.mark.parametrize("where", ["trailer", "body"])
async def test_a_damaged_trailer_is_damage_even_below_the_checkpoint(
    harness: IngestHarness, where: str
) -> None:
    await strict(harness, 0)
    await harness.append("more")
    await harness.append("and more")
    after = harness.after_crash()
    await harness.advance(60_000)
    await harness.appender._freeing.save_checkpoint()
    after = IngestHarness(after.data_dir, before=harness)
    checkpoint = (harness.directory / "checkpoint").read_bytes()
    (after.directory / "checkpoint").write_bytes(checkpoint)
    path = after.segments()[0]
    data = bytearray(path.read_bytes())
    first = chunks_of(path)[0]
    trailer = SEGMENT_HEADER_SIZE + HEADER_SIZE + first.batches_size
    data[trailer + 17 if where == "trailer" else SEGMENT_HEADER_SIZE + HEADER_SIZE + 50] ^= 1
    path.write_bytes(data)
    await after.start()

    assert (await after.append("x")).status_code == 502
    await after.aclose()


# The routes of producers


async def test_an_epoch_is_raised_durably_and_forgetting_is_too(harness: IngestHarness) -> None:
    await strict(harness, 0, 3)
    raised = await harness.client.post(f"{PRODUCERS}/p/epoch")
    assert (raised.json()["epoch"], raised.json()["last_seq"]) == (1, 2)
    synced = [call for call in harness.files.calls if call.path.endswith(".segment")]
    assert synced[-1].name == "fdatasync"

    assert problem(await strict(harness, 3)) == (409, "producer-fenced")
    assert (await strict(harness, 3, producer_epoch=1)).status_code == 200
    forgotten = await harness.client.delete(f"{PRODUCERS}/p")
    assert (forgotten.status_code, forgotten.content) == (204, b"")
    assert problem(await harness.client.delete(f"{PRODUCERS}/p")) == (404, "producer-not-found")
    assert problem(await strict(harness, 4)) == (409, "producer-unknown")


async def test_a_change_that_is_not_durable_is_not_there(harness: IngestHarness) -> None:
    await strict(harness, 0)
    harness.files.faults["pwritev"] = [OSError(errno.EIO, "")]
    assert (await harness.client.post(f"{PRODUCERS}/p/epoch")).status_code == 503
    assert (await harness.client.get(f"{PRODUCERS}/p")).json()["epoch"] == 0
    assert (await strict(harness, 1)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/p", b"", (404, "producer-not-found")),
        ("GET", "/-p", b"", (400, "bad-name")),
        ("POST", "/p/epoch", b"{}", (422, "validation-failed")),
        ("POST", "/p", b"", (405, "method-not-allowed")),
        ("GET", "/p?x=1", b"", (400, "unknown-parameter")),
    ],
)
async def test_what_is_not_served_is_said(
    harness: IngestHarness, method: str, path: str, body: bytes, expected: tuple[int, str]
) -> None:
    answer = await harness.client.request(method, PRODUCERS + path, content=body)
    assert problem(answer) == expected
