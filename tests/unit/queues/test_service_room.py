"""Room in memory for what requests bring and for what receives answer: what waits for it, and who is refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message
from support.asgi import scope_of
from support.waiting import eventually

from unit.queues.service_harness import QUEUE, QueuesHarness, one_node, problem, somebody, two_nodes

MIB = 2**20
LARGE = "x" * 600_000


class Slow:
    """A client that takes nothing of its answer until it is told to."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.may_take = asyncio.Event()

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        await self.may_take.wait()


@asynccontextmanager
async def slow_receive(node: QueuesHarness) -> AsyncIterator[Slow]:
    """A receive of one message, which is taken and not sent."""
    client, gone = Slow(), asyncio.Event()
    body = [{"type": "http.request", "body": b'{"limit": 1}', "more_body": False}]

    async def receive() -> Any:
        if body:
            return body.pop()
        await gone.wait()
        return None

    headers = {"content-type": "application/json", "content-length": "12"}
    scope = scope_of(headers, method="POST", path=f"{QUEUE}/receive")
    task = asyncio.create_task(node.as_principal(scope, receive, client.send))
    await eventually(lambda: client.sent)
    assert client.sent[0]["status"] == 200
    yield client
    client.may_take.set()
    await task


async def test_receives_wait_while_answers_are_not_sent_and_are_refused_then(
    tmp_path: Path,
) -> None:
    async with one_node(tmp_path, queues_answer_bytes_max=MIB, queues_wait_ms=0) as node:
        await node.installation.create_stream("dead")
        await node.create(max_deliveries=1, dead_letter={"stream": "dead"})
        for _ in range(2):
            await node.publish(LARGE)
        async with slow_receive(node):
            refused = await node.client.post(f"{QUEUE}/receive", json={})
            assert problem(refused, 503, "overloaded")["outcome"] == "none"
        # It was never delivered to whom it was refused.
        (message,) = await node.receive()
        assert (message["sequence"], message["deliveries"]) == (1, 1)


async def test_a_node_that_passes_receives_on_holds_room_for_their_answers(tmp_path: Path) -> None:
    small = {"queues_answer_bytes_max": MIB, "queues_wait_ms": 0}
    async with two_nodes(tmp_path, **small) as (home, other):
        await home.create()
        for _ in range(2):
            await home.publish(LARGE)
        async with slow_receive(other):
            refused = await other.client.post(f"{QUEUE}/receive", json={})
            assert problem(refused, 503, "overloaded")["outcome"] == "none"


@pytest.mark.parametrize("passed_on", [False, True])
async def test_looks_wait_while_answers_are_not_sent_and_are_refused_then(
    tmp_path: Path, passed_on: bool
) -> None:
    small = {"queues_answer_bytes_max": MIB, "queues_wait_ms": 0}
    async with two_nodes(tmp_path, **small) as (home, other):
        node = other if passed_on else home
        await home.create()
        for _ in range(2):
            await home.publish(LARGE)
        async with slow_receive(node):
            refused = await node.client.get(f"{QUEUE}/messages")
            assert problem(refused, 503, "overloaded")["outcome"] == "none"
        async with asyncio.timeout(20):
            shown = await node.client.get(f"{QUEUE}/messages?limit=1")
        assert len(shown.json()["messages"]) == 1


async def test_what_is_checked_before_it_is_passed_on_is_held_room_for_once(
    tmp_path: Path,
) -> None:
    """Two reservations of one body would wait for each other."""
    async with one_node(tmp_path, queues_waiting_bytes_max=MIB, queues_wait_ms=0) as node:
        await node.create()
        node.principal = somebody("queue-publish:jobs")
        body = {"queues": ["jobs"], "messages": [{"value": LARGE}]}
        answer = await node.client.post("/v1/publish", json=body)
        assert answer.status_code == 200, answer.text
