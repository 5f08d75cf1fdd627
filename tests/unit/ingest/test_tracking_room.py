"""The bound on what all streams of a process remember of producers and keys.

Each stream had bounds, and a process may own ten thousand: at theirs, five hundred of them took
17 GiB. Tests filled one stream and looked at its answers, never at the memory of a process.
"""

import asyncio
import gc
import hashlib
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bottomless.model.chunk import AppendEntry, AppendMode
from bottomless_server.ingest.core.tracking import KEY_SIZE, Tracking, TrackingBounds
from bottomless_server.ingest.core.tracking_room import TrackingRoom
from unit.ingest.house import ROUTE, House

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


def in_room(room: TrackingRoom) -> Tracking:
    tracking = Tracking(BOUNDS)
    room.join(tracking)
    return tracking


@pytest.mark.parametrize("kind", ["keys", "producers"])
@pytest.mark.parametrize("count", [300, 3_000])
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
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken <= tracking.size <= 3 * taken


def test_what_nothing_is_promised_of_goes_first_keys_and_then_who_is_silent_longest() -> None:
    room = TrackingRoom(3 * PRODUCER + 3 * KEY_SIZE)
    one, two = in_room(room), in_room(room)
    by_producer(one, "silent", 20)
    by_producer(two, "silent longest", 10)
    by_producer(two, "young", 900)
    with_key(one, 1, 30)
    with_key(two, 2, 500)

    assert not room.fits(KEY_SIZE + 1, KEEP_MS), "something was forgotten within its time"
    assert room.fits(KEY_SIZE + 1, 30 + KEEP_MS)
    assert (len(one.keys), len(two.keys)) == (0, 1)
    assert (set(one.producers), set(two.producers)) == ({"silent"}, {"silent longest", "young"})
    assert room.fits(3 * KEY_SIZE, 30 + KEEP_MS)
    assert (set(one.producers), set(two.producers)) == ({"silent"}, {"young"})
    assert room.held == 2 * PRODUCER + KEY_SIZE == one.size + two.size


def test_a_stream_that_is_writing_keeps_what_it_was_decided_on() -> None:
    room = TrackingRoom(PRODUCER)
    tracking = in_room(room)
    by_producer(tracking, "silent", 0)
    assert tracking.keep_room(0, KEEP_MS)
    assert not room.fits(1, KEEP_MS)
    tracking.give_back()
    assert room.fits(1, 2 * KEEP_MS)
    room.leave(tracking)
    assert room.held == 0


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path, ingest_tracking_bytes_max=64 * 1024)
    yield await (await house.declare()).start()
    await house.aclose()


async def test_a_process_that_remembers_enough_refuses_new_ones_and_keeps_its_word(
    narrow: House,
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
    narrow: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracking, "keep_room", lambda *_: True)
    with pytest.raises(AssertionError, match="does not hold against requests at once"):
        await test_a_process_that_remembers_enough_refuses_new_ones_and_keeps_its_word(narrow)
