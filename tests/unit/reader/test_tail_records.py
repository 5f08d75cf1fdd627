"""Tail records that a reader believes, and a coordination store that has gone back."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.guards import remove
from unit.reader.harness import shown
from unit.reader.leaderless import LeaderlessHarness
from unit.reader.protocol import STREAM_ID

from bottomless.errors import Code, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import generation_key
from bottomless.model.names import StreamId
from bottomless_server.leaderless.tail import UNSEEN, SeenTail, Tail
from bottomless_server.leaderless.tail_format import decode_tail, encode_tail
from bottomless_server.reader.leaderless import tail_records
from bottomless_server.reader.leaderless.tail_records import TailRecords
from bottomless_server.stores.generation import encode_generation
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.tail_keys import tail_key

GENERATION_READ = "_system/generation.json"


async def refused(harness: LeaderlessHarness) -> None:
    answer = await harness.get("/records?offset=0")
    assert answer.status_code == 503
    assert answer.json()["code"] == Code.COORDINATION_REGRESSED


async def test_an_older_copy_that_was_put_back_is_not_believed(
    leaderless: LeaderlessHarness,
) -> None:
    leaderless.fill(10)
    copy = leaderless.coordination.copy()
    leaderless.append("more")
    assert (await leaderless.read(10))["next_offset"] == 11
    leaderless.coordination.put_back(copy)
    await refused(leaderless)


async def test_without_its_memory_of_tails_a_reader_believes_an_older_copy(
    monkeypatch: pytest.MonkeyPatch, leaderless: LeaderlessHarness
) -> None:
    def nothing_seen(_: TailRecords, __: StreamId) -> SeenTail:
        return UNSEEN

    remove(monkeypatch, "the highest tail that a reader has seen before it asked", nothing_seen)
    with pytest.raises(AssertionError):
        await test_an_older_copy_that_was_put_back_is_not_believed(leaderless)


@pytest.mark.parametrize(
    "back", [{"epoch": 0}, {"pruned_next": 0, "pruned_end": 0}, {"generation": 7}]
)
async def test_a_record_that_goes_back_in_any_of_what_never_does_is_refused(
    leaderless: LeaderlessHarness, back: dict[str, Any]
) -> None:
    leaderless.fill(30)
    await leaderless.upload(2, free=True)
    await leaderless.read(20)
    tail = leaderless.tail()._replace(**back)
    leaderless.write(tail_key(STREAM_ID), encode_tail(tail))
    await refused(leaderless)


async def test_one_stream_that_went_back_is_proof_of_all_in_the_same_answer(
    leaderless: LeaderlessHarness,
) -> None:
    other = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d0001")
    leaderless.create(other, "other")
    leaderless.fill(10)
    records = TailRecords(leaderless.coordination, leaderless.drive)
    await records.load([STREAM_ID, other])
    before = leaderless.tail()
    leaderless.append("more")
    await records.load([STREAM_ID])
    leaderless.write(tail_key(STREAM_ID), encode_tail(before))
    with pytest.raises(Unavailable):
        await records.load([other, STREAM_ID])


async def test_an_answer_that_another_overtook_is_no_proof(
    leaderless: LeaderlessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked for when nobody had seen more."""
    leaderless.fill(10)
    records = TailRecords(leaderless.coordination, leaderless.drive)
    await records.load([STREAM_ID])
    looked, arrives = asyncio.Event(), asyncio.Event()
    get_many = leaderless.coordination.get_many

    async def late(redis_keys: Sequence[str]) -> list[bytes | None]:
        values = await get_many(redis_keys)
        looked.set()
        await arrives.wait()
        return values

    monkeypatch.setattr(leaderless.coordination, "get_many", late)
    overtaken = asyncio.create_task(records.load([STREAM_ID]))
    await looked.wait()
    monkeypatch.setattr(leaderless.coordination, "get_many", get_many)
    leaderless.append("more")
    newer = (await records.load([STREAM_ID]))[STREAM_ID].tail
    arrives.set()
    older = (await overtaken)[STREAM_ID].tail
    assert isinstance(newer, Tail)
    assert isinstance(older, Tail)
    assert (older.next_offset, newer.next_offset) == (10, 11)
    assert records.seen(STREAM_ID).next_offset == 11


@pytest.mark.parametrize("held", [None, encode_generation(7)])
async def test_a_store_of_another_generation_than_the_bucket_is_refused(
    leaderless: LeaderlessHarness, held: bytes | None
) -> None:
    """FLUSHALL, and a store of elsewhere: never a 404, and never an empty page."""
    leaderless.fill(10)
    await leaderless.read(0)
    before = leaderless.coordination.peek(GENERATION_KEY)
    leaderless.write(GENERATION_KEY, held)
    await refused(leaderless)
    leaderless.write(GENERATION_KEY, before)
    assert shown(await leaderless.read(0)) == leaderless.texts(0, 10)


async def test_a_generation_that_a_rebuild_has_raised_is_learned_from_the_bucket(
    leaderless: LeaderlessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_records, "GENERATION_SECONDS", 0)
    leaderless.fill(10)
    records = TailRecords(leaderless.coordination, leaderless.drive)
    await records.load([STREAM_ID])
    tail = leaderless.tail()
    after = encode_tail(tail._replace(generation=1, epoch=(1 << 40) + 1))
    leaderless.write(GENERATION_KEY, encode_generation(1))
    leaderless.write(tail_key(STREAM_ID), after)
    with pytest.raises(Unavailable):
        await records.load([STREAM_ID])
    data = encode_generation(1)
    await leaderless.drive.put(generation_key(1), [data], crc32c(data))
    assert (await records.load([STREAM_ID]))[STREAM_ID].tail == decode_tail(after)


async def test_the_bucket_is_asked_once_and_not_with_every_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It is asked again after this time, which a busy machine may take for the reads.
    monkeypatch.setattr(tail_records, "GENERATION_SECONDS", 3_600)
    leaderless = LeaderlessHarness()
    leaderless.fill(10)
    leaderless.drive.reads.clear()
    await asyncio.gather(*(leaderless.read(0) for _ in range(20)))
    assert leaderless.drive.reads.count(GENERATION_READ) == 1
    leaderless.write(GENERATION_KEY, None)
    await asyncio.gather(*(refused(leaderless) for _ in range(20)))
    assert leaderless.drive.reads.count(GENERATION_READ) == 1
    await leaderless.aclose()


async def test_what_was_seen_of_streams_is_bounded(
    leaderless: LeaderlessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_records, "SEEN_COUNT_MAX", 2)
    records = TailRecords(leaderless.coordination, leaderless.drive)
    ids = [StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d000{number}") for number in range(3)]
    for number, one in enumerate(ids):
        leaderless.create(one, f"s{number}")
        leaderless.flush({one: [["x"]]})
        await records.load([one])
    assert [records.seen(one).next_offset for one in ids] == [0, 1, 1]


async def test_bytes_that_are_known_are_not_decoded_again(
    leaderless: LeaderlessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaderless.fill(10)
    records = TailRecords(leaderless.coordination, leaderless.drive)
    decoded: list[Any] = []

    def decode(value: bytes) -> Tail:
        decoded.append(value)
        return decode_tail(value)

    monkeypatch.setattr(tail_records, "decode_tail", decode)
    known = await records.load([STREAM_ID])
    assert await records.load([STREAM_ID], known) == known
    assert len(decoded) == 1
    leaderless.append("more")
    await records.load([STREAM_ID], known)
    assert len(decoded) == 2
