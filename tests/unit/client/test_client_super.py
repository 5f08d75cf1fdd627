"""Super streams against answers that say that some partitions have their parts, or that there is none."""

import asyncio
from typing import Any

import pytest
from support.raw_server import Asked, answer, problem, raw_server

from bottomless.client import AsyncClient
from bottomless.client.super_reads import gathered
from bottomless.errors import Code, NotFound, Outcome, StoreError, Unavailable

STREAM_ID = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"
LATER = {"code": "storage-full", "title": "full", "status": 507, "retryable": True}
NEVER = {"code": "producer-sequence-overlap", "title": "overlap", "status": 409, "retryable": False}


def part(index: int, records: list[int], why: dict[str, Any] | None = None) -> dict[str, Any]:
    said: dict[str, Any] = {
        "partition": index,
        "stream": f"events-{index}",
        "stream_id": STREAM_ID,
        "status": 200 if why is None else why["status"],
        "record_indexes": records,
    }
    if why is not None:
        return {**said, "problem": {**why, "outcome": "none"}}
    stored = {"first_offset": 7, "last_offset": 6 + len(records), "next_offset": 7 + len(records)}
    more = {"count": len(records), "duplicates": 0, "timestamp": "2026-11-22T08:00:00.000Z"}
    return {**said, **stored, **more}


def whole(*parts: dict[str, Any]) -> bytes:
    return answer(value={"count": 2, "duplicates": 0, "results": list(parts)})


def partly(*parts: dict[str, Any]) -> bytes:
    body = {"count": 1, "duplicates": 0, "committed": 1, "failed": 1, "results": list(parts)}
    return answer(207, value=body)


class Script:
    """Answers to requests with records, one after the other; the last one again and again."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []
        self.numbers: list[str | None] = []

    def __call__(self, asked: Asked) -> bytes:
        if asked.path.endswith("/epoch"):
            return answer(value={"producer_id": "p", "epoch": 1, "last_seq": None})
        self.bodies.append(asked.body)
        self.numbers.append(asked.header("Producer-Seq"))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


PARTLY = partly(part(0, [1]), part(1, [0], LATER))
WHOLE = whole(part(0, [1]), part(1, [0]))


async def test_a_request_that_is_stored_in_part_comes_again_as_it_was() -> None:
    script = Script(PARTLY, problem(503, "commit-timeout", retryable=True), WHOLE)
    async with raw_server(script) as server, AsyncClient(server.url) as client:
        async with client.super_producer("events", producer_id="p") as producer:
            first, second = [await producer.send(key, key=key) for key in ("a", "b")]
        assert [(await one).partition for one in (first, second)] == [1, 0]
        assert (await first).offset == 7
    assert len(script.bodies) == 3
    assert len(set(script.bodies)) == 1
    assert script.numbers == ["0"] * 3


async def test_without_numbers_it_is_not_repeated_and_says_what_is_missing() -> None:
    script = Script(PARTLY)
    async with raw_server(script) as server, AsyncClient(server.url) as client:
        with pytest.raises(StoreError) as refused:
            await client.append_super("events", [{"value": "a", "key": "a"}])
    assert len(script.bodies) == 1
    assert refused.value.outcome is Outcome.UNKNOWN
    assert refused.value.facts["failed_records"] == [0]


async def test_what_a_repeat_does_not_mend_ends_the_producer() -> None:
    script = Script(partly(part(0, [0]), part(1, [1], NEVER), part(2, [2], LATER)))
    async with raw_server(script) as server, AsyncClient(server.url) as client:
        producer = client.super_producer("events", producer_id="p")
        await producer.start()
        await producer.send("a", key="a")
        with pytest.raises(StoreError) as refused:
            await producer.flush()
        await producer.abort()
    assert refused.value.code is Code.PRODUCER_SEQUENCE_OVERLAP
    assert refused.value.outcome is Outcome.UNKNOWN
    assert len(script.bodies) == 1


async def test_an_answer_that_makes_no_sense_leaves_it_unknown() -> None:
    async with raw_server(Script(answer(value={}))) as server, AsyncClient(server.url) as client:
        with pytest.raises(Unavailable) as refused:
            await client.append_super("events", [{"value": "a", "key": "a"}])
    assert refused.value.outcome is Outcome.UNKNOWN


async def test_what_is_given_up_before_its_turn_is_not_begun() -> None:
    """Python would complain in the user's program of a coroutine that was never awaited."""
    begun: list[int] = []

    async def work(number: int) -> None:
        begun.append(number)
        await asyncio.Event().wait()

    for turn_count in range(4):
        under_way = asyncio.ensure_future(gathered(work, range(100)))
        for _ in range(turn_count):
            await asyncio.sleep(0)
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
    assert 0 < len(begun) < 100


async def test_an_error_is_the_end_of_a_consumer_and_not_of_its_loop() -> None:
    async with (
        raw_server(lambda _: problem(404, "super-stream-not-found")) as server,
        AsyncClient(server.url) as client,
        client.super_consumer("events") as consumer,
    ):
        with pytest.raises(NotFound):
            await anext(consumer)
        with pytest.raises(RuntimeError, match="has ended"):
            await anext(consumer)
