"""The bound on what all streams of a process remember of producers and keys.

Each stream had bounds, and a process may own ten thousand: at theirs, five hundred of them took
17 GiB. Tests filled one stream and looked at its answers, never at the memory of a process.
"""

import asyncio
import collections
import gc
import hashlib
import threading
import tracemalloc
from base64 import encodebytes
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.model.chunk import AppendEntry, AppendMode, TrackedEntry
from bottomless.model.config import StreamConfig
from bottomless.model.names import StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.core.tracking.known_producers import KEY_SIZE, TrackingBounds
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.tracking_room import TrackingRoom
from unit.ingest.harness import ROUTE, IngestHarness

KEEP_MS = 1_000
BOUNDS = TrackingBounds(
    producer_count_max=10_000, append_count_max=8, key_count_max=100_000, keep_ms=KEEP_MS
)
PRODUCER = BOUNDS.producer_size


def with_key(tracking: Tracking, number: int, timestamp: int) -> None:
    key, body = (hashlib.sha256(b"%d %d" % (number, each)).digest() for each in range(2))
    entry = AppendEntry(
        AppendMode.KEY, 0, 1_000, 10**9 + number, idempotency_hash=key, body_hash=body
    )
    tracking.take_chunk(10**9 + number, timestamp, [entry])


def by_producer(tracking: Tracking, producer_id: str, timestamp: int, sequence: int = 0) -> None:
    entry = AppendEntry(
        AppendMode.STRICT, 0, 1_000, 10**9 + sequence, 10**6 + sequence, 10**6, producer_id
    )
    tracking.take_chunk(10**9 + sequence, timestamp, [entry])


def at(room: TrackingRoom, elapsed: int) -> None:
    room.tell(elapsed)


def in_room(room: TrackingRoom) -> Tracking:
    tracking = Tracking(BOUNDS)
    room.join(tracking, 0)
    return tracking


@pytest.mark.parametrize("kind", ["keys", "producers"])
@pytest.mark.parametrize("count", [100, 1_000])
def test_what_is_counted_is_not_less_than_what_is_taken(kind: str, count: int) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        tracking = Tracking(BOUNDS)
        for number in range(count):
            if kind == "keys":
                with_key(tracking, number, 10**12 + number % KEEP_MS)
            else:
                for sequence in range(BOUNDS.append_count_max):
                    by_producer(tracking, f"{number:0255}", 10**12 + number, 10**6 + sequence)
        gc.collect()
        taken = taken_here(tracemalloc.take_snapshot())
    finally:
        tracemalloc.stop()

    assert taken <= tracking.size <= 3 * taken


def taken_here(snapshot: tracemalloc.Snapshot) -> int:
    """What lines of the product and of this file took, with what they generated and their collections. Threads
    of the tests take memory meanwhile: that which counts CPU seconds had this test fail once."""
    product = (f"*/{package}/*" for package in ("bottomless", "bottomless_server"))
    ours = [
        tracemalloc.Filter(True, place)
        for place in (*product, __file__, collections.__file__, "<string>")
    ]
    return sum(trace.size for trace in snapshot.filter_traces(ours).traces)


def test_what_a_thread_takes_meanwhile_does_not_count() -> None:
    kept: list[bytes] = []
    tracemalloc.start()
    try:
        mine = bytes(10_000)
        thread = threading.Thread(target=lambda: kept.append(encodebytes(bytes(100_000))))
        thread.start()
        thread.join()
        taken = taken_here(tracemalloc.take_snapshot())
    finally:
        tracemalloc.stop()
    assert len(kept[0]) > 100_000
    assert len(mine) <= taken < 50_000


def test_what_nothing_is_promised_of_goes_first_keys_and_then_who_is_silent_longest() -> None:
    room = TrackingRoom(3 * PRODUCER + 3 * KEY_SIZE)
    one, two = in_room(room), in_room(room)
    at(room, 10)
    by_producer(two, "silent longest", 10)
    at(room, 20)
    by_producer(one, "silent", 20)
    at(room, 30)
    with_key(one, 1, 30)
    at(room, 500)
    with_key(two, 2, 500)
    at(room, 900)
    by_producer(two, "young", 900)

    at(room, KEEP_MS)
    assert not room.fits(KEY_SIZE + 1), "something was forgotten within its time"
    at(room, 30 + KEEP_MS)
    assert room.fits(KEY_SIZE + 1)
    assert (len(one.keys), len(two.keys)) == (0, 1)
    assert (set(one.producers), set(two.producers)) == ({"silent"}, {"silent longest", "young"})
    assert room.fits(3 * KEY_SIZE)
    assert (set(one.producers), set(two.producers)) == ({"silent"}, {"young"})
    assert room.held == 2 * PRODUCER + KEY_SIZE == one.size + two.size


def test_a_stream_that_is_writing_keeps_what_it_was_decided_on() -> None:
    room = TrackingRoom(PRODUCER)
    tracking = in_room(room)
    by_producer(tracking, "silent", 0)
    tracking.begin()
    at(room, KEEP_MS)
    assert not room.fits(1)
    tracking.end()
    at(room, 2 * KEEP_MS)
    assert room.fits(1)
    room.leave(tracking)
    assert room.held == 0


def test_what_one_stream_forgets_is_not_judged_by_the_timestamps_of_another() -> None:
    """The checks before were blind: all their streams had the time of the node."""
    room = TrackingRoom(3 * KEY_SIZE)
    at(room, 0)
    here, ahead = in_room(room), in_room(room)
    with_key(here, 1, 0)
    with_key(ahead, 2, 100 * KEEP_MS)
    at(room, KEEP_MS - 1)
    with_key(ahead, 3, 100 * KEEP_MS)
    assert not room.fits(1), "a timestamp that is ahead makes nothing older"
    at(room, KEEP_MS)
    assert room.fits(KEY_SIZE + 1), "nor does it keep anything"
    assert (len(here.keys), len(ahead.keys)) == (0, 1)


def test_a_new_key_at_the_bound_costs_the_same_however_many_streams_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checks before were blind: they had two streams, and looked at no cost."""
    looks = 0
    due_at = Tracking.key_due_at

    def counted(tracking: Tracking) -> int | None:
        nonlocal looks
        looks += 1
        return due_at(tracking)

    monkeypatch.setattr(Tracking, "key_due_at", counted)

    def looks_for_a_key(stream_count: int) -> float:
        room = TrackingRoom(stream_count * 2 * KEY_SIZE)
        streams = [in_room(room) for _ in range(stream_count)]
        step = KEEP_MS / (2 * stream_count)
        for number in range(2 * stream_count):
            at(room, int(number * step))
            with_key(streams[number % stream_count], number, int(number * step))
        before, let_in = looks, 0
        for number in range(2 * stream_count, 3 * stream_count):
            at(room, int((number + 1) * step))
            tracking = streams[number % stream_count]
            tracking.begin()
            if tracking.keep_room(KEY_SIZE):
                let_in += 1
                with_key(tracking, number, int(number * step))
            tracking.end()
        assert let_in >= stream_count - 1, "keys grow old as fast as new ones come"
        assert room.held <= room.size_max
        return (looks - before) / stream_count

    few, many = looks_for_a_key(20), looks_for_a_key(400)
    assert many < 2 * few < 40


@pytest.mark.parametrize("kind", ["keys", "producers"])
def test_what_is_over_is_not_taken_up_again_beyond_the_room(kind: str) -> None:
    """The checks before were blind: none of them read a log again."""
    room = TrackingRoom(4 * PRODUCER)
    at(room, 0)
    write = (
        with_key if kind == "keys" else lambda tracking, n, at: by_producer(tracking, f"{n}", at)
    )
    for stream in range(20):
        tracking = Tracking(BOUNDS)
        for number in range(3):
            write(tracking, 10 * stream + number, 10 * KEEP_MS + number)
        room.join(tracking, newest=50 * KEEP_MS)
        assert room.held <= room.size_max
    young = Tracking(BOUNDS)
    for number in range(3):
        write(young, 1_000 + number, 50 * KEEP_MS)
    room.join(young, newest=50 * KEEP_MS)
    assert len(young.keys) + len(young.producers) == 3
    assert room.held <= room.size_max


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    harness = IngestHarness(tmp_path, ingest_tracking_bytes_max=64 * 1024)
    yield await (await harness.declare()).start()
    await harness.aclose()


async def test_a_process_that_remembers_enough_refuses_new_ones_and_keeps_its_word(
    narrow: IngestHarness,
) -> None:
    room = 64 * 1024 // KEY_SIZE

    async def append(number: int) -> int:
        headers = {"idempotency-key": f"k{number}"}
        body = {"records": [{"value": str(number)}]}
        return (await narrow.client.post(ROUTE, json=body, headers=headers)).status_code

    statuses = Counter(await asyncio.gather(*(append(number) for number in range(room + 40))))
    assert statuses == {200: room, 429: 40}, "the bound does not hold against requests at once"

    headers = {"producer-id": "new", "producer-seq": "0"}
    refused = await narrow.client.post(ROUTE, json={"records": [{"value": "x"}]}, headers=headers)
    told = refused.json()
    assert (refused.status_code, told["code"], told["outcome"]) == (429, "quota-exceeded", "none")
    assert "node" in told["detail"]

    again = await narrow.client.post(
        ROUTE, json={"records": [{"value": "0"}]}, headers={"idempotency-key": "k0"}
    )
    assert again.headers["idempotent-replayed"] == "true"
    assert len(await narrow.values()) == room
    await narrow.advance(3_600_000)
    stored = await narrow.client.post(ROUTE, json={"records": [{"value": "x"}]}, headers=headers)
    assert stored.status_code == 200


async def test_without_the_room_a_process_remembers_without_end(
    narrow: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "room for what a process remembers of producers", lambda *_: True)
    with pytest.raises(AssertionError, match="does not hold against requests at once"):
        await test_a_process_that_remembers_enough_refuses_new_ones_and_keeps_its_word(narrow)


OTHER = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12")


async def test_a_round_without_identities_keeps_what_its_segment_may_begin_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks before were blind: their rounds had identities, and kept room by themselves."""
    harness = IngestHarness(
        tmp_path, ingest_tracking_bytes_max=64 * 1024, ingest_segment_age_ms_max=1_000
    )
    await (await harness.declare()).start()
    active = StreamState.ACTIVE
    other = StreamRecord(OTHER, StreamName("other"), "default", active, 0, StreamConfig())
    await harness.streams.create(other)
    route = "/v1/streams/other/records"
    body = {"records": [{"value": "x"}]}
    # So many that the round forgets none of them before it begins, and the others' keys would.
    for number in range((64 * 1024 - PRODUCER) // KEY_SIZE):
        headers = {"idempotency-key": f"k{number}"}
        assert (await harness.client.post(ROUTE, json=body, headers=headers)).status_code == 200
    known = harness.appender.tracking
    await harness.client.post(route, json=body)
    await harness.advance(3_600_000 + 2_000)

    begun, seen, go = threading.Event(), list[int](), threading.Event()
    snapshot = Tracking.snapshot

    def slow(self: Tracking) -> list[TrackedEntry]:
        if threading.current_thread() is not threading.main_thread() and self is known:
            seen.append(len(self.keys))
            begun.set()
            go.wait(60)
            seen.append(len(self.keys))
        return snapshot(self)

    monkeypatch.setattr(Tracking, "snapshot", slow)
    plain = asyncio.create_task(harness.append("plain"))
    await eventually(begun.is_set)
    for number in range(PRODUCER // KEY_SIZE + 2):
        await harness.client.post(route, json=body, headers={"idempotency-key": f"n{number}"})
    go.set()
    assert (await plain).status_code == 200
    assert seen[0] == seen[1]
    await harness.aclose()


async def test_without_the_mark_of_a_round_what_it_writes_is_forgotten_beneath_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: the guard is taken out."""
    remove(monkeypatch, "the mark of a round that is under way", lambda _: None)
    with pytest.raises(AssertionError):
        await test_a_round_without_identities_keeps_what_its_segment_may_begin_with(
            tmp_path, monkeypatch
        )
