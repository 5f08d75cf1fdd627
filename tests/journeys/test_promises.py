"""The check that follows scenarios finds what it is there for."""

from typing import Any

import httpx
import pytest
from support.contract import QUICK, Stream, new_stream
from support.promises import Promises
from support.served import Served


@pytest.fixture
def told(client: httpx.Client) -> "Told":
    """A stream with an append in object storage, and what was told of it."""
    stream, promises = new_stream(client, QUICK), Promises()
    answers = [stream.post({"value": "a"}, {"json": {"n": 1}})]
    promises.note(answers[0])
    stream.wait_uploaded()
    return stream, promises, answers


Told = tuple[Stream, Promises, list[httpx.Response]]


def falsified(answer: httpx.Response, body: Any = None, **members: Any) -> httpx.Response:
    """The same answer with other members, or to another request."""
    request = answer.request
    if body is not None:
        request = httpx.Request("POST", request.url, json=body)
    return httpx.Response(200, json={**answer.json(), **members}, request=request)


def test_what_was_promised_and_is_there_is_in_order(running: Served, told: Told) -> None:
    stream, promises, _ = told
    promises.check(stream.client, running.stored)


def test_a_record_that_is_not_there_is_missed(running: Served, told: Told) -> None:
    stream, promises, (answer,) = told
    promises.note(falsified(answer, first_offset=2, last_offset=3, next_offset=4))
    with pytest.raises(AssertionError, match="lost"):
        promises.check(stream.client, running.stored)


def test_a_record_with_another_value_is_noticed(running: Served, told: Told) -> None:
    stream, _, (answer,) = told
    promises = Promises()
    records = [{"value": "a"}, {"json": {"n": 2}}]
    promises.note(falsified(answer, {"records": records}))
    with pytest.raises(AssertionError, match="another value at 1"):
        promises.check(stream.client, running.stored)


def test_an_offset_that_was_given_twice_is_noticed(told: Told) -> None:
    _, promises, (answer,) = told
    with pytest.raises(AssertionError, match="twice"):
        promises.note(falsified(answer, first_offset=1, last_offset=2))


def test_an_object_that_is_not_what_the_list_says_is_noticed(running: Served, told: Told) -> None:
    stream, promises, _ = told
    (path,) = running.objects.rglob(f"{stream.bounds()['stream_id']}/**/*.fragment")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        with pytest.raises(AssertionError, match="fragment"):
            promises.check(stream.client, running.stored)
    finally:
        path.write_bytes(whole)
