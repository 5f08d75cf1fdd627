"""Producers against a stream that answers late, wrongly or not at all: every record once, in order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import polars as pl
import pytest
from support.raw_server import NOTHING, Asked, Cut, RawServer, answer, problem, raw_server
from support.strict_ingest import StrictIngest

from bottomless.client import Ack, Acks, AsyncClient
from bottomless.client.producer import AsyncProducer
from bottomless.errors import (
    Code,
    InvalidRequest,
    NotFound,
    Outcome,
    Overloaded,
    StoreError,
    Unavailable,
    WrongOffset,
)

Answering = Callable[[], bytes]
STORED_AT = 1795248000000


@asynccontextmanager
async def producing(
    ingest: StrictIngest, **options: object
) -> AsyncIterator[tuple[AsyncProducer, RawServer]]:
    """A producer of small batches, which is not closed in good order unless a test does it."""
    given = {"batch_bytes": 100, "linger_seconds": 0.001, **options}
    async with raw_server(ingest) as server, AsyncClient(server.url) as client:
        producer = client.producer("orders", **given)  # type: ignore[arg-type]
        await producer.start()
        try:
            yield producer, server
        finally:
            await producer.abort()


def values(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def lost_reply(_: Asked, store: Answering) -> bytes:
    store()
    return NOTHING


def lost_request(_: Asked, __: Answering) -> bytes:
    return NOTHING


def cut_reply(_: Asked, store: Answering) -> bytes:
    return Cut(store()[:-5])


def busy(_: Asked, __: Answering) -> bytes:
    return problem(503, "overloaded", retryable=True, headers={"Retry-After": "0"})


def slow_commit(_: Asked, store: Answering) -> bytes:
    store()
    return problem(504, "commit-timeout", retryable=True, outcome="unknown")


def garbage(_: Asked, store: Answering) -> bytes:
    store()
    return Cut(b"\0\0 what?\r\n\r\n")


def proxy_page(_: Asked, store: Answering) -> bytes:
    store()
    return answer(502, body=b"<html>", media_type="text/html")


TROUBLES = (lost_reply, lost_request, cut_reply, busy, slow_commit, garbage, proxy_page)


async def test_records_are_stored_in_order_and_acknowledged_with_their_places() -> None:
    ingest = StrictIngest()
    async with producing(ingest) as (producer, _):
        deliveries = [await producer.send(value) for value in values(50)]
        await producer.flush()
        acks = [await delivery for delivery in deliveries]
    assert ingest.values == values(50)
    assert acks == [Ack(offset, STORED_AT, duplicate=False) for offset in range(50)]


@pytest.mark.parametrize("in_flight", [1, 2, 5])
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
async def test_whatever_happens_to_a_request_every_record_is_there_once_and_in_order(
    trouble: Callable[[Asked, Answering], bytes], in_flight: int
) -> None:
    ingest = StrictIngest()
    ingest.troubles.extend([trouble, trouble, *[lambda _, store: store()] * 3, trouble])
    async with producing(ingest, in_flight=in_flight) as (producer, _):
        deliveries = [await producer.send(value) for value in values(60)]
        await producer.flush()
        acks = [await delivery for delivery in deliveries]
    assert not ingest.troubles
    assert ingest.values == values(60)
    assert [ack.offset for ack in acks] == list(range(60))


async def test_a_record_whose_first_answer_was_lost_is_called_a_duplicate() -> None:
    ingest = StrictIngest()
    ingest.troubles.append(lost_reply)
    async with producing(ingest) as (producer, server):
        assert await (await producer.send(b"x")) == Ack(0, STORED_AT, duplicate=True)
        assert await (await producer.send(b"y")) == Ack(1, STORED_AT, duplicate=False)
        repeats = [asked.body for asked in server.asked if "records" in asked.path]
    assert repeats[0] == repeats[1]


@pytest.mark.parametrize(
    ("already", "given", "code"),
    [
        (0, {"producer_id": "p", "epoch": 0, "next_sequence": 0}, b"producer-unknown"),
        (0, {}, b"producer-sequence-gap"),
        (7, {}, b"producer-sequence-gap"),
    ],
    ids=["of an unknown producer", "of a new one", "of a known one"],
)
async def test_appends_that_overtake_each_other_are_stored_in_order(
    already: int, given: dict[str, object], code: bytes
) -> None:
    """The first is held back until the second was refused as too early."""
    ingest = StrictIngest()
    ingest.next_sequence = already
    second_refused = asyncio.Event()

    async def held(_: Asked, store: Answering) -> bytes:
        await second_refused.wait()
        return store()

    def early(_: Asked, store: Answering) -> bytes:
        reply = store()
        assert code in reply
        second_refused.set()
        return reply

    ingest.troubles.extend([held, early])
    async with producing(ingest, in_flight=2, **given) as (producer, _):
        for value in values(20):
            await producer.send(value)
        await producer.flush()
    assert second_refused.is_set()
    assert ingest.values == values(20)


async def test_the_first_append_that_fails_ends_the_producer_and_nothing_behind_it_is_sent() -> (
    None
):
    ingest = StrictIngest()
    ingest.troubles.extend(
        [
            lambda _, store: store(),
            lambda *_: problem(413, "batch-too-large", retryable=False, detail="too large"),
        ]
    )
    async with producing(ingest, in_flight=1) as (producer, _):
        deliveries = [await producer.send(value) for value in values(20)]
        with pytest.raises(InvalidRequest, match="too large") as flushed:
            await producer.flush()
        with pytest.raises(InvalidRequest, match="the producer ended"):
            await producer.send(b"more")
        outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
    stored = [ack for ack in outcomes if isinstance(ack, Ack)]
    failed = [error for error in outcomes if isinstance(error, StoreError)]
    assert ingest.values == values(len(stored))
    assert len(stored) + len(failed) == 20
    assert {error.outcome for error in failed} == {Outcome.NONE}
    assert flushed.value.code is Code.BATCH_TOO_LARGE


async def test_an_append_is_tried_no_longer_than_was_said_and_its_doubt_is_told() -> None:
    ingest = StrictIngest()
    ingest.troubles.extend([lost_request, *[busy] * 1000])
    async with producing(ingest, in_flight=1, delivery_seconds=2) as (producer, _):
        first, second = await producer.send(b"x" * 90), await producer.send(b"y" * 90)
        with pytest.raises(Overloaded) as caught:
            await first
        with pytest.raises(Overloaded) as behind:
            await second
        with pytest.raises(Overloaded) as flushed:
            await producer.flush()
    # One of the attempts may have been stored; the record behind it was never sent.
    assert (caught.value.outcome, behind.value.outcome) == (Outcome.UNKNOWN, Outcome.NONE)
    assert flushed.value.outcome is Outcome.UNKNOWN


async def test_a_gap_that_nobody_will_fill_ends_the_producer() -> None:
    ingest = StrictIngest()
    ingest.next_sequence = 5
    given = {"producer_id": "p", "epoch": 0, "next_sequence": 9}
    async with producing(ingest, **given) as (producer, _):
        with pytest.raises(WrongOffset) as caught:
            await (await producer.send(b"x"))
    assert caught.value.code is Code.PRODUCER_SEQUENCE_GAP


async def test_a_fenced_producer_stops() -> None:
    ingest = StrictIngest()
    async with producing(ingest, producer_id="p") as (older, server):
        await (await older.send(b"x"))
        async with (
            AsyncClient(server.url) as client,
            client.producer("orders", producer_id="p") as newer,
        ):
            assert (newer.identity.epoch, newer.identity.next_sequence) == (2, 1)
            with pytest.raises(WrongOffset) as caught:
                await (await older.send(b"y"))
            await (await newer.send(b"z"))
    assert caught.value.code is Code.PRODUCER_FENCED
    assert ingest.values == [b"x", b"z"]


async def test_a_stream_that_is_not_there_is_told_at_the_start() -> None:
    async with (
        raw_server(lambda _: problem(404, "stream-not-found")) as server,
        AsyncClient(server.url) as client,
    ):
        with pytest.raises(NotFound):
            async with client.producer("orders"):
                pass


async def test_a_buffer_that_is_full_makes_sending_wait_and_holds_no_more() -> None:
    ingest, go = StrictIngest(), asyncio.Event()

    async def held(_: Asked, store: Answering) -> bytes:
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


async def test_waiting_for_room_ends_in_time_and_hands_nothing_over() -> None:
    ingest = StrictIngest()
    ingest.troubles.append(_never)
    async with producing(ingest, in_flight=1, buffer_bytes=100, block_seconds=0.05) as (
        producer,
        _,
    ):
        await producer.send(b"x")
        with pytest.raises(Overloaded) as caught:
            await producer.send(b"y" * 50)
        assert caught.value.outcome is Outcome.NONE


async def test_a_cancelled_send_hands_nothing_over() -> None:
    ingest, go = StrictIngest(), asyncio.Event()

    async def held(_: Asked, store: Answering) -> bytes:
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

    async def held(_: Asked, store: Answering) -> bytes:
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
    ingest.troubles.append(_never)
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
    ingest.troubles.append(_never)
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


async def test_many_values_and_tables_go_where_they_stand_in_the_program() -> None:
    ingest = StrictIngest()
    async with producing(ingest, compression="zstd") as (producer, _):
        await producer.send("one")
        many = await producer.send_many([b"two", "three"])
        table = await producer.send_table(pl.DataFrame({"value": ["four", "five"]}))
        last = await producer.send_json({"six": 6}, key="k")
        assert await many == [Acks(1, 2, STORED_AT, duplicate=False)]
        assert await table == [Acks(3, 2, STORED_AT, duplicate=False)]
        assert (await last).offset == 5
    assert [bytes(v) if isinstance(v, bytes) else v.encode() for v in ingest.values] == [
        b"one",
        b"two",
        b"three",
        b"four",
        b"five",
        b'{"six":6}',
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"in_flight": 0},
        {"in_flight": 6},
        {"batch_bytes": 0},
        {"epoch": 1},
        {"epoch": 1, "next_sequence": 0},
    ],
)
async def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    async with AsyncClient("http://127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest):
            client.producer("orders", **options)  # type: ignore[arg-type]


async def _never(_: Asked, __: Answering) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def _send_all(producer: AsyncProducer, sent: list[bytes]) -> None:
    for value in sent:
        await producer.send(value)


async def _awaited(delivery: Awaitable[Ack]) -> Ack:
    return await delivery


def _task(work: Awaitable[None]) -> "asyncio.Future[None]":
    return asyncio.ensure_future(work)
