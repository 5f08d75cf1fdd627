"""Producers against a stream that answers late, wrongly or not at all: every record once, in order."""

import asyncio
from collections.abc import Callable

import polars as pl
import pytest
from support.producing import producing, values
from support.raw_server import NOTHING, Asked, Cut, answer, problem, raw_server
from support.strict_ingest import StrictIngest

from bottomless.client import Ack, Acks, AsyncClient
from bottomless.client.appends import IN_LINE_SIZE_MAX
from bottomless.errors import (
    Code,
    InvalidRequest,
    NotFound,
    Outcome,
    Overloaded,
    StoreError,
    WrongOffset,
)

Answering = Callable[[], bytes]
STORED_AT = 1795248000000


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

    async def held_if_first(asked: Asked, store: Answering) -> bytes:
        # Over two connections either may come first.
        if asked.header("producer-seq") == str(already):
            await second_refused.wait()
            return store()
        reply = store()
        assert code in reply
        second_refused.set()
        return reply

    ingest.troubles.extend([held_if_first] * 2)
    # Smaller ones would go over one connection, on which nothing overtakes.
    large = [value.ljust(IN_LINE_SIZE_MAX) for value in values(20)]
    async with producing(ingest, in_flight=2, **given) as (producer, _):
        for value in large:
            await producer.send(value)
        await producer.flush()
    assert second_refused.is_set()
    assert ingest.values == large


async def test_appends_of_one_connection_are_stored_in_order_after_one_is_refused() -> None:
    """The second is on its way when the first is refused, and is too early; both come again."""
    ingest = StrictIngest()
    refused = problem(503, "overloaded", retryable=True, headers={"Retry-After": "0"})
    ingest.troubles.append(lambda *_: refused)
    async with producing(ingest, in_flight=5) as (producer, server):
        for value in values(20):
            await producer.send(value)
        await producer.flush()
    assert ingest.values == values(20)
    assert len({asked.body for asked in server.asked}) < len(server.asked)


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
