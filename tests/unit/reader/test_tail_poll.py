"""Waiting at the ends of leaderless streams: at whose cost, and for how long."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from unit.reader.harness import shown
from unit.reader.leaderless import LeaderlessHarness
from unit.reader.open_answers import comes_true, served
from unit.reader.protocol import STREAM_ID

from bottomless.errors import Code, NotFound, Unavailable
from bottomless.model.limits import KIB
from bottomless.model.names import StreamId
from bottomless_server.leaderless.tail_format import encode_tail
from bottomless_server.reader.tail import TailAnswer
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.tail_keys import tail_key

IDS = [StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d{number:04x}") for number in range(30)]
WAIT_MS = 20_000


@pytest.fixture
async def quick() -> AsyncIterator[LeaderlessHarness]:
    harness = LeaderlessHarness(reader_tail_poll_ms=1)
    yield harness
    await harness.aclose()


def waits(harness: LeaderlessHarness, stream_id: StreamId, offset: int) -> Any:
    tail = harness.wal.tail
    return asyncio.create_task(tail.chunks(harness.facts(stream_id), offset, KIB, WAIT_MS))


async def all_waiting(harness: LeaderlessHarness, count: int) -> None:
    await comes_true(lambda: harness.wal.poll.stream_count == count)
    polls = harness.wal.poll.poll_count
    await comes_true(lambda: harness.wal.poll.poll_count > polls + 1)


async def test_all_streams_are_asked_for_in_one_question(quick: LeaderlessHarness) -> None:
    for number, one in enumerate(IDS):
        quick.create(one, f"s{number}")
    waiting = {one: waits(quick, one, 0) for one in IDS}
    await all_waiting(quick, len(IDS))
    assert set(quick.coordination.asked[-1]) == {GENERATION_KEY, *map(tail_key, IDS)}
    quick.flush({IDS[3]: [["a"]], IDS[4]: [["b"]]})
    for one in IDS[3:5]:
        answer: TailAnswer = await waiting.pop(one)
        assert (answer.first_offset, answer.next_offset) == (0, 1)
    assert quick.wal.poll.wake_count == 2
    assert not any(task.done() for task in waiting.values())
    quick.flush({one: [["c"]] for one in waiting})
    assert [answer.next_offset for answer in await asyncio.gather(*waiting.values())] == [1] * 28


async def test_while_nobody_waits_nothing_is_asked(quick: LeaderlessHarness) -> None:
    quick.fill(10)
    first, second = waits(quick, STREAM_ID, 10), waits(quick, STREAM_ID, 10)
    await all_waiting(quick, 1)
    first.cancel()
    await comes_true(first.done)
    assert quick.wal.poll.stream_count == 1
    quick.append("more")
    await second
    polling = quick.wal.poll.task
    await comes_true(lambda: polling is None or polling.done())
    asked = len(quick.coordination.asked)
    assert shown(await quick.read(10)) == quick.texts(10, 11)
    assert quick.wal.poll.stream_count == 0
    # The one question is that of the page.
    assert len(quick.coordination.asked) == asked + 1
    third = waits(quick, STREAM_ID, 11)
    await all_waiting(quick, 1)
    quick.append("and more")
    assert (await third).next_offset == 12


async def test_who_waits_gets_what_was_committed_before_the_first_question(
    quick: LeaderlessHarness,
) -> None:
    quick.fill(10)
    waiting = waits(quick, STREAM_ID, 10)
    await comes_true(lambda: quick.wal.poll.stream_count == 1)
    quick.append("more")
    assert (await waiting).next_offset == 11


async def test_a_wait_ends_empty_when_its_time_is_over(quick: LeaderlessHarness) -> None:
    quick.fill(10)
    answer = await quick.wal.tail.chunks(quick.facts(), 10, KIB, 5)
    assert (answer.data, answer.first_offset, answer.next_offset) == (b"", 10, 10)
    assert answer.bounds.committed_next == 10
    assert quick.wal.poll.stream_count == 0


async def test_beyond_the_end_nobody_waits(quick: LeaderlessHarness) -> None:
    quick.fill(10)
    answer = await quick.wal.tail.chunks(quick.facts(), 11, KIB, WAIT_MS)
    assert (answer.data, answer.bounds.committed_next) == (b"", 10)
    assert quick.wal.poll.poll_count == 0


@pytest.mark.parametrize("record", ["closed", "gone"])
async def test_the_deletion_of_a_stream_ends_a_wait(quick: LeaderlessHarness, record: str) -> None:
    quick.fill(10)
    waiting = waits(quick, STREAM_ID, 10)
    await all_waiting(quick, 1)
    quick.exists = False
    quick.write(tail_key(STREAM_ID), quick.closed() if record == "closed" else None)
    with pytest.raises(NotFound):
        await waiting


async def test_a_store_that_is_away_ends_all_waits(quick: LeaderlessHarness) -> None:
    quick.fill(10)
    waiting = [waits(quick, STREAM_ID, 10) for _ in range(3)]
    await all_waiting(quick, 1)
    quick.coordination.away = True
    for one in waiting:
        with pytest.raises(Unavailable) as raised:
            await one
        assert raised.value.code is Code.COORDINATION_UNAVAILABLE
    assert quick.wal.poll.stream_count == 0
    quick.coordination.away = False
    again = waits(quick, STREAM_ID, 10)
    await all_waiting(quick, 1)
    quick.append("more")
    assert (await again).next_offset == 11


async def test_a_store_that_went_back_ends_all_waits(quick: LeaderlessHarness) -> None:
    quick.fill(10)
    before = encode_tail(quick.tail())
    quick.append("more")
    waiting = waits(quick, STREAM_ID, 11)
    await all_waiting(quick, 1)
    quick.write(tail_key(STREAM_ID), before)
    with pytest.raises(Unavailable) as raised:
        await waiting
    assert raised.value.code is Code.COORDINATION_REGRESSED


async def test_long_polls_share_one_wait_and_wake_together(quick: LeaderlessHarness) -> None:
    """L13."""
    quick.fill(10)
    polls = [
        asyncio.create_task(quick.get("/records?offset=10&max_wait_ms=20000")) for _ in range(20)
    ]
    await comes_true(lambda: quick.service.shared.joined_count == 20)
    await all_waiting(quick, 1)
    quick.append("new")
    pages = [(await poll).json() for poll in polls]
    assert [shown(page) for page in pages] == [quick.texts(10, 11)] * 20
    assert quick.wal.poll.wake_count == 1


@pytest.mark.parametrize("cached", [True, False])
async def test_followers_see_every_record_once(quick: LeaderlessHarness, cached: bool) -> None:
    """L13: over server-sent events, while fragments replace what they follow."""
    quick.fill(20)
    async with served(quick) as client, client.events("offset=15") as events:
        assert (await events.event_of("records")).offsets == list(range(15, 20))
        for number in range(20, 26):
            quick.flush({STREAM_ID: [[f"{number}"]]}, cached=cached)
            assert (await events.event_of("records")).offsets == [number]
            if number == 22:
                await quick.upload(3, free=True)


async def test_offsets_wait_for_growth(quick: LeaderlessHarness) -> None:
    quick.fill(10)
    waiting = asyncio.create_task(quick.get("/offsets?after=10&wait_ms=20000"))
    await comes_true(lambda: quick.wal.poll.stream_count == 1)
    quick.append("new")
    assert (await waiting).json()["next_offset"] == 11
