"""Answers of any kind, from whoever answers: a client reads them or raises a StoreError."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bottomless.client.appends import AppendCalls
from bottomless.client.follow import read_batches
from bottomless.client.fragments import FragmentCalls
from bottomless.client.problems import error_from_problem
from bottomless.client.producer import Wanted, identify
from bottomless.client.reads import ReadCalls
from bottomless.client.streams import StreamCalls
from bottomless.client.transport import Answer, Request, Transport
from bottomless.errors import Outcome, StoreError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
names = st.sampled_from(
    ["next_offset", "gaps", "end", "time", "code", "retryable", "first_offset", "errors", "detail"]
)
members = st.dictionaries(names, json_values | st.sampled_from(["rotate", "error", 5]), max_size=5)
lines = st.one_of(
    st.binary(max_size=40),
    json_values.map(orjson.dumps),
    st.builds(lambda value: orjson.dumps({"_control": value}), members | json_values),
    st.just(b'{"offset":0,"value":"a"}'),
    st.just(b'{"_control":{"next_offset":1,"up_to_date":true}}'),
)


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@settings(max_examples=300)
@given(st.lists(lines, max_size=5), st.integers(1, 50))
@example([b'{"_control":{}}'], 7)
@example([b'{"_control":{"end":"rotate"}}'], 7)
@example([b'{"_control":5}'], 7)
@example([b'{"_control":{"next_offset":"5"}}'], 7)
async def test_lines_of_any_kind_are_batches_or_an_error(sent: list[bytes], size: int) -> None:
    """What no server of ours says ended a reader with a KeyError once, and not with an answer."""
    with suppress(StoreError):
        async for batch in read_batches(in_pieces(b"\n".join(sent) + b"\n", size)):
            assert type(batch.next_offset) is int
            assert all(isinstance(record, dict) for record in batch.records)


@settings(max_examples=200)
@given(st.integers(200, 599), members | json_values, st.none() | st.text(max_size=5))
def test_problems_of_any_kind_are_errors(
    status: int, problem: Any, retry_after: str | None
) -> None:
    assert isinstance(error_from_problem(status, problem, retry_after=retry_after), StoreError)


class EveryCall(StreamCalls, AppendCalls, ReadCalls, FragmentCalls):
    """The calls that read an answer's members."""


class Says(Transport):
    """Answers everything with one value."""

    def __init__(self, value: object) -> None:
        self._answer = Answer(200, {"Request-Id": "01TEST"}, orjson.dumps(value))

    async def send(self, _request: Request) -> Answer:
        return self._answer

    async def close(self) -> None:
        pass


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


numbers = st.dictionaries(
    st.sampled_from(["first_offset", "next_offset", "timestamp", "count", "duplicates"]),
    json_values | st.just("2026-11-21T08:00:00.000Z"),
    max_size=5,
)


@settings(max_examples=200)
@given(numbers | json_values)
@example({})
@example({"first_offset": 0, "next_offset": 1, "timestamp": "x", "count": 1, "duplicates": 0})
@example({"first_offset": 0, "next_offset": "1", "timestamp": None, "count": 1, "duplicates": 0})
async def test_an_append_that_is_answered_with_anything_is_stored_or_unknown(value: Any) -> None:
    """It ended with a KeyError, or with the error of a bad time, of which nothing was stored."""
    says: Any = Says(value)
    client = AppendCalls(says, says, says, retry_seconds=0)
    try:
        stored = await client.append_raw("orders", b"x")
    except StoreError as error:
        outcome = error.outcome
    else:
        assert isinstance(stored.next_offset, int)
        return
    assert outcome is Outcome.UNKNOWN


@settings(max_examples=100)
@given(numbers | json_values)
@example({})
@example({"items": 5})
async def test_questions_that_are_answered_with_anything_are_read_or_an_error(value: Any) -> None:
    says: Any = Says(value)
    client = EveryCall(says, says, says, retry_seconds=0)
    with suppress(StoreError):
        await client.offsets("orders")
    with suppress(StoreError):
        await client.read("orders", 0)
    with suppress(StoreError):
        await all_of(client.list_streams())
    with suppress(StoreError):
        await all_of(client.list_fragments("orders"))
    with suppress(StoreError):
        await identify(client, Wanted("orders"))
