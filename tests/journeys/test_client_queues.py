"""Queues by the client on a real server: repeats that store once, workers that extend, die and are overtaken."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count

import httpx
import pytest
from support.raw_server import NOTHING, Asked, answer, raw_server
from support.served import PATIENT
from support.server import AllInOne
from support.waiting import eventually, until

from bottomless.client import AsyncClient, Client, Message
from bottomless.errors import Code, Exists, InvalidRequest, NotFound, Outcome, Overloaded

_NAMES = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("client-queues") / "data", PATIENT) as running:
        yield running


@pytest.fixture
async def client(server: AllInOne) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as made:
        yield made


@pytest.fixture
async def queue(client: AsyncClient) -> str:
    name = f"jobs-{next(_NAMES)}"
    await client.create_queue(name)
    return name


@asynccontextmanager
async def lossy(server: AllInOne, path: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A way to the server that loses the answer to the first request for such a path, after it was done."""
    lost: list[str] = []
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as behind:

        async def pass_on(asked: Asked) -> bytes:
            kept = ("content-type", "accept", "idempotency-key")
            headers = {name: text for name in kept if (text := asked.header(name)) is not None}
            told = await behind.request(
                asked.method, asked.path, content=asked.body, headers=headers
            )
            if asked.path.endswith(path) and not lost:
                lost.append(asked.path)
                return NOTHING
            return answer(told.status_code, body=told.content)

        async with raw_server(pass_on) as way:
            yield way.url, lost


async def test_a_queue_is_created_found_changed_emptied_and_deleted(client: AsyncClient) -> None:
    made = await client.create_queue("first", {"visibility_ms": 5_000})
    assert await client.create_queue("first", {"visibility_ms": 5_000}) == made
    with pytest.raises(Exists) as refused:
        await client.create_queue("first")
    assert refused.value.code is Code.QUEUE_EXISTS
    described = await client.queue("first")
    changed = await client.update_queue("first", {"visibility_ms": 9}, etag=described["etag"])
    assert (changed["visibility_ms"], changed["config_version"]) == (9, 2)
    assert [one["name"] async for one in client.queues(prefix="fir")] == ["first"]
    await client.publish("first", ["a", b"\xff", {"json": {"n": 1}, "headers": {"k": "v"}}])
    peeked = await client.peek("first", limit=2)
    assert [one.value for one in peeked.messages] == [b"a", b"\xff"]
    (last,) = (await client.peek("first", after=peeked.after)).messages
    assert (last.json(), last.headers, last.dead_letter) == ({"n": 1}, {"k": b"v"}, None)
    with pytest.raises(Exists):
        await client.delete_queue("first", if_empty=True)
    assert await client.purge_queue("first") == 3
    await client.delete_queue("first", if_empty=True)
    with pytest.raises(NotFound) as gone:
        await client.queue("first")
    assert gone.value.code is Code.QUEUE_NOT_FOUND


async def test_messages_are_received_extended_given_back_and_acknowledged(
    client: AsyncClient, queue: str
) -> None:
    published = await client.publish(queue, ["one", "two"])
    assert [one.sequence for one in published] == [0, 1]
    first, second = await client.receive(queue, visibility_ms=60_000)
    assert (first.text, first.deliveries, first.priority) == ("one", 1, 0)
    assert first.message_id == published[0].message_id
    assert (await client.extend(queue, [first, second], visibility_ms=60_000)).done == 2
    assert (await client.nack(queue, second)).done == 1
    (again,) = await client.receive(queue, max_wait_ms=30_000)
    assert (again.text, again.deliveries) == ("two", 2)
    assert await client.ack(queue, second) == (0, [], [second.receipt])
    assert await client.ack(queue, [first, again.receipt]) == (2, [], [])
    assert await client.ack(queue, first) == (0, [first.receipt], [])
    assert await client.receive(queue) == []


async def test_a_publish_to_several_queues_is_in_all_or_in_none(client: AsyncClient) -> None:
    await client.create_queue("left")
    await client.create_queue("right", {"max_messages": 1})
    told = await client.publish_to(["left", "right"], ["both"])
    assert told["left"][0].message_id == told["right"][0].message_id
    with pytest.raises(Overloaded) as full:
        await client.publish_to(["left", "right"], ["more"])
    assert (full.value.code, full.value.facts["queue"]) == (Code.QUEUE_FULL, "right")
    assert full.value.outcome is Outcome.NONE
    assert (await client.queue("left"))["ready"] == 1


async def test_dead_letters_go_back_where_they_came_from(client: AsyncClient) -> None:
    await client.create_queue("dead")
    config = {"max_deliveries": 1, "dead_letter": {"queue": "dead"}}
    await client.create_queue("origin", config)
    await client.publish_raw("origin", b"poison", headers={"Kind": "bad"}, priority=3)
    (message,) = await client.receive("origin")
    await client.nack("origin", message)
    (dead,) = await client.receive("dead", max_wait_ms=30_000)
    assert dead.dead_letter is not None
    assert (dead.dead_letter["queue"], dead.dead_letter["reason"]) == ("origin", "max-deliveries")
    await client.nack("dead", dead)
    assert await client.redrive("dead") == (1, 0)
    (back,) = await client.receive("origin")
    assert (back.value, back.priority) == (b"poison", 3)


@pytest.mark.parametrize("kind", ["key made up", "key given", "dedup ids"])
async def test_a_publish_whose_answer_is_lost_is_stored_once(
    server: AllInOne, client: AsyncClient, queue: str, kind: str
) -> None:
    more = {"dedup_id": "once"} if kind == "dedup ids" else {}
    async with lossy(server, "/messages") as (url, lost), AsyncClient(url) as cut_off:
        key = "mine" if kind == "key given" else None
        (told,) = await cut_off.publish(queue, [{"value": "x", **more}], idempotency_key=key)
        assert len(lost) == 1
    assert told.duplicate
    (stored,) = (await client.peek(queue)).messages
    assert (stored.message_id, stored.sequence) == (told.message_id, told.sequence)


async def test_an_acknowledgement_whose_answer_is_lost_counts(
    server: AllInOne, client: AsyncClient, queue: str
) -> None:
    await client.publish(queue, ["x"])
    async with lossy(server, "/ack") as (url, lost), AsyncClient(url) as cut_off:
        async with cut_off.worker(queue) as worker, await anext(worker) as message:
            pass
        assert len(lost) == 1
    assert (message.settled, message.lost) == (True, None)
    assert (await client.queue(queue))["totals"]["acked"] == 1


async def test_a_worker_acknowledges_what_is_done_and_gives_back_what_failed(
    client: AsyncClient, queue: str
) -> None:
    await client.publish(queue, ["good", {"value": "bad", "priority": 1}])
    async with client.worker(queue, limit=2) as worker:
        bad = await anext(worker)
        assert bad.text == "bad"
        with pytest.raises(ZeroDivisionError):
            async with bad:
                raise ZeroDivisionError
        async with await anext(worker) as good:
            assert good.text == "good"
        async with await anext(worker) as again:
            assert (again.text, again.deliveries) == ("bad", 2)
            assert await again.nack(dead_letter=True)
        assert (good.settled, bad.settled, again.settled) == (True, True, True)
        assert await worker.poll(0) is None
        assert worker.in_hand == 0
    shown = await client.queue(queue)
    assert (shown["ready"], shown["in_flight"], shown["totals"]["acked"]) == (0, 0, 1)


async def test_a_worker_keeps_a_message_for_longer_than_its_visibility(
    client: AsyncClient, queue: str
) -> None:
    """Also one that waits in its hand for its turn."""
    await client.publish(queue, ["long", "waits"])
    async with client.worker(queue, visibility_ms=4_000, limit=2) as worker:
        async with await anext(worker) as message:
            begun = await due(client, queue)
            while (now := await due(client, queue))[0] <= begun[0] or now[1] <= begun[1]:
                await asyncio.sleep(0.1)
        async with await anext(worker) as second:
            assert (second.text, second.deliveries) == ("waits", 1)
    assert (message.settled, message.lost) == (True, None)
    assert (await client.queue(queue))["totals"]["redelivered"] == 0


async def due(client: AsyncClient, queue: str) -> list[str]:
    """When each message of a queue may go to another consumer."""
    return [str(one["due_at"]) for one in (await client.peek(queue)).messages]


async def test_a_worker_that_was_overtaken_hears_it_and_says_so(
    client: AsyncClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.publish(queue, ["x"])
    async with client.worker(queue, visibility_ms=60_000) as slow:
        async with await anext(slow) as message:
            # As after a stall: the server has given it to somebody else.
            await client.nack(queue, message)
            (others,) = await client.receive(queue)
        assert (message.settled, message.lost) == (False, "stale")
        assert not await message.ack()
    assert f"message {message.message_id} was delivered to another consumer" in caplog.text
    assert (await client.ack(queue, others)).done == 1


async def test_two_workers_share_the_messages(client: AsyncClient, queue: str) -> None:
    await client.publish(queue, [str(number) for number in range(20)])
    done: dict[str, list[str]] = {"one": [], "two": []}

    async def work(name: str) -> None:
        async with client.worker(queue) as worker:
            while (message := await worker.poll(0)) is not None:
                async with message:
                    done[name].append(message.text)
                    # Until the other one has begun too.
                    await eventually(lambda: all(done.values()))

    await asyncio.gather(work("one"), work("two"))
    assert sorted(done["one"] + done["two"], key=int) == [str(number) for number in range(20)]
    assert (await client.queue(queue))["totals"]["redelivered"] == 0


async def test_what_is_in_hand_at_the_end_is_given_back_at_once(
    client: AsyncClient, queue: str
) -> None:
    await client.publish(queue, ["a", "b", "c"])
    async with (
        client.worker(queue, limit=3, visibility_ms=3_600_000) as worker,
        await anext(worker),
    ):
        assert worker.in_hand == 3
    back = await client.receive(queue)
    assert [one.text for one in back] == ["b", "c"]


DIES = """
import os, sys
from bottomless import Client

with Client(sys.argv[1]) as client, client.worker(sys.argv[2], visibility_ms=1000) as worker:
    for message in worker:
        with message:
            print(message.text, flush=True)
            sys.stdin.read()
"""


def test_the_message_of_a_worker_that_died_goes_to_another(server: AllInOne) -> None:
    with Client(server.url) as client:
        client.create_queue("mortal")
        client.publish("mortal", ["x"])
        with subprocess.Popen(
            [sys.executable, "-c", DIES, server.url, "mortal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == b"x\n"
            first.kill()
        with client.worker("mortal") as second, next(second) as message:
            assert (message.text, message.deliveries) == ("x", 2)
        assert message.settled
        assert second.in_hand == 0


def test_a_program_without_a_loop_works_the_same_way(server: AllInOne) -> None:
    with Client(server.url) as client:
        client.create_queue("blocking")
        client.publish("blocking", ["a", "b"])
        with client.worker("blocking") as worker:
            with pytest.raises(KeyError), next(worker):
                raise KeyError
            for message in worker:
                with message:
                    assert isinstance(message, Message)
                if message.text == "b":
                    break
            assert worker.poll(0) is None
        assert client.queue("blocking")["totals"]["acked"] == 2
        with pytest.raises(RuntimeError, match="closed"):
            next(worker)
        with pytest.raises(InvalidRequest):
            client.worker("blocking", limit=0)
        with pytest.raises(TypeError):
            client.publish("blocking", "abc")
        until(lambda: client.queue("blocking")["in_flight"] == 0, what="nothing in flight")
