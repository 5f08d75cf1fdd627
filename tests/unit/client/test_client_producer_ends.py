"""Producers that have to wait, and producers that end: what is handed over then, and what is told."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import polars as pl
import pytest
from support.producing import never, producing, values
from support.raw_server import Asked, raw_server
from support.strict_ingest import StrictIngest

from bottomless.client import Ack, AsyncClient
from bottomless.client.producer import AsyncProducer
from bottomless.errors import Outcome, Overloaded, Unavailable


async def test_a_buffer_that_is_full_makes_sending_wait_and_holds_no_more() -> None:
    ingest, go = StrictIngest(), asyncio.Event()

    async def held(_: Asked, store: Callable[[], bytes]) -> bytes:
        await go.wait()
        return store()

    ingest.troubles.append(held)
    async with producing(ingest, in_flight=1, buffer_bytes=2000) as (producer, _):
        sending = asyncio.create_task(_send_all(producer, values(200)))
        done, _pending = await asyncio.wait({sending}, timeout=0.2)
        assert not done
        go.set()
        await sending
        await producer.flush()
        assert producer.outbox.buffer.held_max <= 2000
    assert ingest.values == values(200)


@pytest.mark.parametrize("take", [list, tuple, iter])
async def test_many_values_wait_for_room_and_stay_in_order(
    take: Callable[[list[bytes]], Iterable[bytes]],
) -> None:
    """As many together as fit; what is no list comes one by one."""
    ingest, many = StrictIngest(), values(3_000)
    options = {"in_flight": 1, "buffer_bytes": 2_000, "batch_bytes": 700}
    async with producing(ingest, **options) as (producer, _):
        stored = await (await producer.send_many(take(many)))
        assert producer.outbox.buffer.held_max <= 2_000
    assert ingest.values == many
    assert [acks.first_offset for acks in stored] == [
        sum(acks.record_count for acks in stored[:number]) for number in range(len(stored))
    ]
    assert sum(acks.record_count for acks in stored) == len(many)


async def test_many_values_wait_no_longer_than_was_said() -> None:
    ingest = StrictIngest()
    ingest.troubles.append(never)
    options = {"in_flight": 1, "buffer_bytes": 100, "block_seconds": 0.05}
    async with producing(ingest, **options) as (producer, _):
        with pytest.raises(Overloaded) as caught:
            await producer.send_many([b"x", b"y" * 50])
        assert caught.value.outcome is Outcome.NONE


async def test_waiting_for_room_ends_in_time_and_hands_nothing_over() -> None:
    ingest = StrictIngest()
    ingest.troubles.append(never)
    async with producing(ingest, in_flight=1, buffer_bytes=100, block_seconds=0.05) as (
        producer,
        _,
    ):
        await producer.send(b"x")
        with pytest.raises(Overloaded) as caught:
            await producer.send(b"y" * 50)
        assert caught.value.outcome is Outcome.NONE


async def test_waiting_for_room_ends_in_time_though_others_take_what_becomes_free() -> None:
    ingest = StrictIngest()
    ingest.troubles.append(never)
    options = {"in_flight": 1, "buffer_bytes": 100, "block_seconds": 0.5}
    async with producing(ingest, **options) as (producer, _), asyncio.timeout(60):
        await producer.send(b"x")

        async def settle() -> None:
            while True:
                producer.outbox._settled.set()
                await asyncio.sleep(0)

        settling = asyncio.create_task(settle())
        with pytest.raises(Overloaded):
            await producer.send(b"y" * 50)
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)


async def test_a_cancelled_send_hands_nothing_over() -> None:
    ingest, go = StrictIngest(), asyncio.Event()

    async def held(_: Asked, store: Callable[[], bytes]) -> bytes:
        await go.wait()
        return store()

    ingest.troubles.append(held)
    async with producing(ingest, in_flight=1, buffer_bytes=100) as (producer, _):
        await producer.send(b"first")
        waiting = asyncio.create_task(producer.send(b"cancelled"))
        # Until it waits for room: it lets others run once before it looks.
        for _ in range(5):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        await producer.flush()
        await producer.send(b"last")
        await producer.close()
    assert ingest.values == [b"first", b"last"]


async def test_who_stops_waiting_for_a_record_does_not_stop_the_record() -> None:
    ingest, go = StrictIngest(), asyncio.Event()

    async def held(_: Asked, store: Callable[[], bytes]) -> bytes:
        await go.wait()
        return store()

    ingest.troubles.append(held)
    async with producing(ingest) as (producer, _):
        delivery = await producer.send(b"x")
        for waiting in (asyncio.ensure_future(_awaited(delivery)), _task(producer.flush())):
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        go.set()
        assert (await delivery).offset == 0


async def test_leaving_by_an_error_sends_nothing_more_and_tells_what_is_known() -> None:
    ingest = StrictIngest()
    ingest.troubles.append(never)
    async with raw_server(ingest) as server, AsyncClient(server.url) as client:
        with suppress(ZeroDivisionError):
            async with client.producer("orders", in_flight=1, batch_bytes=50) as producer:
                first, second = await producer.send(b"x" * 50), await producer.send(b"y" * 50)
                while len(server.asked) < 2:
                    await asyncio.sleep(0)
                raise ZeroDivisionError
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send(b"z")
    told = [error.outcome for error in outcomes if isinstance(error, Unavailable)]
    assert told == [Outcome.UNKNOWN, Outcome.NONE]
    assert ingest.values == []


async def test_nobody_waits_for_ever_for_records_of_a_producer_whose_loop_ends() -> None:
    ingest = StrictIngest()
    ingest.troubles.append(never)
    async with producing(ingest, in_flight=1, batch_bytes=50) as (producer, server):
        first, second = await producer.send(b"x" * 50), await producer.send(b"y" * 50)
        while len(server.asked) < 2:
            await asyncio.sleep(0)
        # As the end of a loop cancels all tasks.
        producer.outbox._task.cancel()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send(b"z")
    told = [error.outcome for error in outcomes if isinstance(error, Unavailable)]
    assert told == [Outcome.UNKNOWN, Outcome.NONE]


async def test_who_keeps_deliveries_does_not_keep_what_was_delivered() -> None:
    ingest = StrictIngest()
    async with producing(ingest) as (producer, _):
        deliveries = [await producer.send(value) for value in values(50)]
        table = await producer.send_table(pl.DataFrame({"value": ["a", "b"]}))
        await producer.flush()
    bundles = {delivery._bundle for delivery in deliveries} | {table._spans[0].bundle}
    assert len(bundles) > 1
    assert all(bundle.body is None and not bundle.rows.values for bundle in bundles)


async def _send_all(producer: AsyncProducer, sent: list[bytes]) -> None:
    for value in sent:
        await producer.send(value)


async def _awaited(delivery: Awaitable[Ack]) -> Ack:
    return await delivery


def _task(work: Awaitable[None]) -> "asyncio.Future[None]":
    return asyncio.ensure_future(work)
