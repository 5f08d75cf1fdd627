"""The client of queues against answers that come late, never or wrong."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from support.guards import remove
from support.raw_server import NOTHING, Asked, Script, answer, problem, raw_server
from support.waiting import eventually

from bottomless.client import AsyncClient, AsyncWorker, Message, Timeouts
from bottomless.client import worker as worker_module
from bottomless.client.worker import AsyncHeldMessage
from bottomless.errors import Code, InvalidRequest, NotFound, Outcome, StoreError, Unavailable

STORED = answer(value={"messages": [{"message_id": "0" * 32, "sequence": 0, "duplicate": False}]})


def message(number: int = 1) -> dict[str, Any]:
    return {
        "receipt": f"receipt-{number}",
        "message_id": f"{number:032x}",
        "sequence": number,
        "deliveries": 1,
        "published_at": "2026-11-27T00:00:00.000Z",
        "priority": 0,
        "value": str(number),
    }


class Queue:
    """Gives messages once, and keeps in which order it was asked."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.asked: list[str] = []
        self.settled: dict[str, list[str]] = {"gone": [], "stale": []}
        self.special: dict[str, Callable[[], Awaitable[bytes]]] = {}
        """What is answered in another way."""

    async def __call__(self, asked: Asked) -> bytes:
        what = asked.path.rpartition("/")[2]
        self.asked.append(what)
        if what in self.special:
            return await self.special[what]()
        return self.usual(what)

    def usual(self, what: str) -> bytes:
        if what == "receive":
            given, self.messages = self.messages, []
            return answer(value={"messages": given})
        counted = {"ack": "acked", "nack": "returned", "extend": "extended"}[what]
        return answer(value={counted: 1, **self.settled})


@asynccontextmanager
async def working(script: Script, **options: Any) -> AsyncIterator[tuple[AsyncClient, AsyncWorker]]:
    async with (
        raw_server(script) as server,
        AsyncClient(server.url) as client,
        client.worker("jobs", **options) as worker,
    ):
        yield client, worker


@pytest.mark.parametrize(
    ("dedup_ids", "keys", "attempts"), [(0, 1, 2), (1, 0, 1), (2, 0, 2)], ids=["none", "one", "all"]
)
async def test_a_publish_is_repeated_where_its_repeat_is_known(
    dedup_ids: int, keys: int, attempts: int
) -> None:
    answers = [NOTHING, STORED]
    messages = [{"value": "x", **({"dedup_id": str(n)} if n < dedup_ids else {})} for n in range(2)]
    async with raw_server(lambda _: answers.pop(0)) as server, AsyncClient(server.url) as client:
        if attempts == 1:
            with pytest.raises(Unavailable) as lost:
                await client.publish("jobs", messages)
            assert lost.value.outcome is Outcome.UNKNOWN
        else:
            await client.publish("jobs", messages)
    sent = [asked.header("idempotency-key") for asked in server.asked]
    assert len(sent) == attempts
    assert len(set(sent) - {None}) == keys


async def test_two_publishes_have_keys_of_their_own() -> None:
    async with raw_server(lambda _: STORED) as server, AsyncClient(server.url) as client:
        await client.publish("jobs", ["x"])
        await client.publish_raw("jobs", b"x", headers={"Kind": "k"}, ttl_ms=5)
    keys = {asked.header("idempotency-key") for asked in server.asked}
    assert len(keys) == 2
    assert server.asked[1].header("message-header-kind") == "k"
    assert server.asked[1].header("message-ttl-ms") == "5"


async def test_what_was_received_can_be_published_anew() -> None:
    headers = {"a": "b", "c": {"base64": "/w=="}}
    received = Message({**message(), "headers": headers})
    anew = {"value": received.value, "headers": received.headers, "priority": 3}
    async with raw_server(lambda _: STORED) as server, AsyncClient(server.url) as client:
        await client.publish("jobs", [anew])
    [sent] = orjson.loads(server.asked[0].body)["messages"]
    published = Message({**message(), **sent})
    assert (published.value, published.headers) == (b"1", {"a": b"b", "c": b"\xff"})
    assert sent["priority"] == 3
    assert anew["value"] == b"1"


async def test_what_is_no_message_is_told_apart_before_anything_is_sent() -> None:
    async with AsyncClient("http://127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="must be a str, bytes or a dict, not int"):
            await client.publish("jobs", ["x", 7])  # type: ignore[list-item]


@pytest.mark.parametrize("call", ["purge_queue", "redrive", "delete_queue"])
async def test_what_would_do_more_the_second_time_is_asked_once(call: str) -> None:
    async with raw_server(lambda _: NOTHING) as server, AsyncClient(server.url) as client:
        with pytest.raises(Unavailable) as lost:
            await getattr(client, call)("jobs")
        assert lost.value.outcome is Outcome.UNKNOWN
        assert len(server.asked) == 1


async def test_an_answer_of_another_shape_is_no_answer() -> None:
    async with (
        raw_server(lambda _: answer(value={"messages": [{}]})) as server,
        AsyncClient(server.url) as client,
    ):
        for call in (client.publish("jobs", ["x"]), client.ack("jobs", "receipt")):
            with pytest.raises(Unavailable) as strange:
                await call
            assert strange.value.outcome is Outcome.UNKNOWN


async def given_back_while_it_is_extended(*, guarded: bool = True) -> list[str]:
    """What is asked of a queue, in its order, while an extension is answered late."""
    queue, answered = Queue(message()), asyncio.Event()

    async def late() -> bytes:
        await answered.wait()
        queue.asked.append("extended")
        return queue.usual("extend")

    async with working(queue, visibility_ms=100) as (client, worker):
        held = await anext(worker)
        queue.special["extend"] = late
        # Where this machine is slow there were some before.
        queue.asked.clear()
        await eventually(lambda: "extend" in queue.asked)
        giving = asyncio.ensure_future(held.nack())
        # It could be sent by now; what is asked in between is answered meanwhile.
        await client.ack("jobs", "other")
        if not guarded:
            await eventually(lambda: "nack" in queue.asked)
        answered.set()
        assert await giving
    return queue.asked


async def test_no_extension_comes_after_a_message_was_given_back() -> None:
    """It would take the message out of the queue again, for nobody."""
    asked = await given_back_while_it_is_extended()
    assert asked.index("nack") > asked.index("extended")
    assert "extend" not in asked[asked.index("nack") :]


async def test_without_its_guard_an_extension_comes_after_a_message_was_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def at_once(self: AsyncWorker) -> None:
        del self

    remove(monkeypatch, "no extension after a message was given back", at_once)
    asked = await given_back_while_it_is_extended(guarded=False)
    assert asked.index("nack") < asked.index("extended")


async def test_a_worker_goes_on_after_outages_and_tells_of_them() -> None:
    queue, told = Queue(message()), list[StoreError]()
    failures = [NOTHING, problem(503, "draining", retryable=True)]

    async def away() -> bytes:
        return failures.pop() if failures else queue.usual("receive")

    queue.special["receive"] = away
    async with working(queue, on_outage=told.append) as (_, worker), await anext(worker) as held:
        assert held.text == "1"
    assert len(told) == 2
    assert queue.asked[-1] == "ack"


async def test_an_extension_that_failed_is_tried_again() -> None:
    queue, tries = Queue(message()), Counter[str]()

    async def away() -> bytes:
        tries["extend"] += 1
        return NOTHING if tries["extend"] < 3 else queue.usual("extend")

    queue.special["extend"] = away
    told: list[StoreError] = []
    async with (
        working(queue, visibility_ms=100, on_outage=told.append) as (_, worker),
        await anext(worker),
    ):
        await eventually(lambda: tries["extend"] >= 4)
    assert len(told) == 2


@pytest.mark.parametrize("stalled", [False, True])
async def test_what_was_lost_while_it_waited_for_its_turn_is_not_given(stalled: bool) -> None:
    queue, lost = Queue(message(1), message(2), message(3)), list[tuple[str, str]]()
    queue.settled["stale"] = ["receipt-2"]

    def note(message: Message, loss: str) -> None:
        lost.append((message.text, loss))

    async with working(queue, visibility_ms=100, limit=3, on_lost=note) as (_, worker):
        first = await anext(worker)
        if stalled:
            # For longer than the visibility: nothing was extended meanwhile.
            time.sleep(0.2)  # noqa: ASYNC251  # the whole program stands still
        else:
            await eventually(lambda: lost)
        assert (await anext(worker)).text == "3"
        assert (lost, first.lost, worker.in_hand) == ([("2", "stale")], None, 2)


async def received_after_a_stall(patch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """What is worked on by a program that stood still after it had asked, and what it lost."""
    queue, lost, stood_still = Queue(message(1)), list[str](), [0.0]
    queue.settled["stale"] = ["receipt-1"]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(stood_still))
    patch.setattr(worker_module, "time", clock)

    async def taken_before() -> bytes:
        # For longer than the visibility: somebody else gets it meanwhile.
        stood_still.append(61.0)
        given = queue.usual("receive")
        del queue.special["receive"]
        queue.messages = [message(2)]
        return given

    queue.special["receive"] = taken_before

    def note(message: Message, _: str) -> None:
        lost.append(message.text)

    async with working(queue, visibility_ms=60_000, on_lost=note) as (_, worker):
        return (await anext(worker)).text, lost


async def test_what_came_to_a_program_that_stood_still_is_asked_about_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await received_after_a_stall(monkeypatch) == ("2", ["1"])


async def test_without_its_guard_work_begins_on_what_is_somebody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard = "a message is ours from the moment it was asked for"
    remove(monkeypatch, guard, lambda _, answered_at, seconds: answered_at + seconds)
    text, lost = await received_after_a_stall(monkeypatch)
    assert (text, lost) == ("1", [])


@pytest.fixture
def stood_still(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds for which a program stood still, for the clock of its workers."""
    seconds = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(seconds))
    monkeypatch.setattr(worker_module, "time", clock)
    return seconds


async def acknowledged_after_a_stall(
    stood_still: list[float],
) -> tuple[bool, list[tuple[str, str]]]:
    """Whether a message counts as acknowledged that left the queue while its worker stood still, and what
    was told as lost."""
    queue, lost = Queue(message()), list[tuple[str, str]]()
    queue.settled["gone"] = ["receipt-1"]

    def note(message: Message, loss: str) -> None:
        lost.append((message.text, loss))

    async with working(queue, visibility_ms=3_600_000, on_lost=note) as (_, worker):
        held = await anext(worker)
        stood_still.append(3_601.0)
        return await held.ack(), lost


async def test_what_left_the_queue_during_a_stall_was_not_acknowledged(
    stood_still: list[float],
) -> None:
    """It became a dead letter, with `max_deliveries`; or another consumer has acknowledged it."""
    assert await acknowledged_after_a_stall(stood_still) == (False, [("1", "gone")])


async def test_without_its_guard_a_dead_letter_counts_as_acknowledged(
    stood_still: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = "a message whose time was over is not acknowledged by its absence"
    remove(monkeypatch, guard, lambda *_: False)
    assert await acknowledged_after_a_stall(stood_still) == (True, [])


async def test_a_poll_ends_in_time_where_nobody_says_whether_a_message_is_still_ours(
    stood_still: list[float],
) -> None:
    queue = Queue(message(1), message(2))

    async def away() -> bytes:
        return NOTHING

    async with working(queue, visibility_ms=3_600_000, limit=2) as (_, worker):
        first = await anext(worker)
        stood_still.append(3_601.0)
        queue.special["extend"] = away
        assert await worker.poll(0.0) is None
        assert "extend" in queue.asked
        del queue.special["extend"]
        second = await worker.poll(240.0)
        assert second is not None
        assert (first.text, second.text) == ("1", "2")


async def test_what_a_caller_never_received_is_not_given_once_it_is_somebody_elses(
    stood_still: list[float],
) -> None:
    queue, given = Queue(message(1)), list[AsyncHeldMessage | None]()
    async with working(queue, visibility_ms=3_600_000) as (_, worker):
        given += [await worker.fetch(0), await worker.fetch(0)]
        stood_still.append(3_601.0)
        queue.settled["stale"], queue.messages = ["receipt-1"], [message(2)]
        given.append(await worker.fetch(0))
    assert [one and one.text for one in given] == ["1", "1", "2"]


async def test_a_worker_ends_with_a_refusal() -> None:
    async with working(lambda _: problem(404, "queue-not-found")) as (_, worker):
        with pytest.raises(NotFound) as refused:
            await anext(worker)
        assert refused.value.code is Code.QUEUE_NOT_FOUND


async def test_the_error_of_the_work_comes_before_that_of_giving_back() -> None:
    queue, told = Queue(message()), list[StoreError]()

    async def refused() -> bytes:
        return problem(403, "forbidden")

    queue.special["nack"] = refused
    async with working(queue, on_outage=told.append) as (_, worker):
        held = await anext(worker)
        with pytest.raises(KeyError):
            async with held:
                raise KeyError
        assert worker.in_hand == 0
    assert [error.code for error in told] == [Code.FORBIDDEN]


async def test_more_is_taken_when_something_left_the_hand() -> None:
    queue = Queue(message(1))
    async with working(queue) as (client, worker):
        held = await anext(worker)
        queue.messages = [message(2)]
        following = asyncio.ensure_future(anext(worker))
        assert await worker_asks_nothing(client, queue)
        await held.ack()
        assert (await following).text == "2"


async def worker_asks_nothing(client: AsyncClient, queue: Queue) -> bool:
    await client.extend("jobs", "other")
    return queue.asked.count("receive") == 1


@pytest.mark.parametrize(("answer_seconds", "wait_ms"), [(60.0, 20_000), (5.0, 2_500)])
async def test_a_worker_waits_for_less_than_its_client_does(
    answer_seconds: float, wait_ms: int
) -> None:
    """Else each wait for a message that does not come would look like an outage."""
    timeouts = Timeouts(answer=answer_seconds)
    async with (
        raw_server(Queue(message())) as server,
        AsyncClient(server.url, timeouts=timeouts) as client,
        client.worker("jobs") as worker,
        await anext(worker),
    ):
        assert orjson.loads(server.asked[0].body)["max_wait_ms"] == wait_ms


@pytest.mark.parametrize(
    "given", [{"limit": 0}, {"limit": 1001}, {"visibility_ms": 99}, {"nack_delay_ms": -1}]
)
async def test_numbers_out_of_range_are_refused(given: dict[str, int]) -> None:
    async with AsyncClient("http://127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest):
            client.worker("jobs", **given)  # type: ignore[arg-type]


def test_a_message_has_one_shape() -> None:
    found = Message({**message(), "headers": {"a": "b", "c": {"base64": "/w=="}}})
    assert (found.value, found.text, found.json()) == (b"1", "1", 1)
    assert found.headers == {"a": b"b", "c": b"\xff"}
    assert (found.published_at, found.dead_letter) == (1_795_737_600_000, None)
    assert repr(found).startswith("Message({")
