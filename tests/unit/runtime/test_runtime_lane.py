"""Requests on the lane of a connection: in order, within the bounds of all, and never lost between
the two ways."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Scope
from support.guards import remove
from support.waiting import eventually
from unit.runtime.test_runtime_protocol import GET, QUICK, App, Client, as_served, connected

from bottomless.model.limits import KIB
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.http.lane import Answering
from bottomless_server.runtime.http.whole_answer import WholeAnswer
from bottomless_server.runtime.listener.connections import HttpBounds
from bottomless_server.runtime.listener.lane_protocol import LaneProtocol
from bottomless_server.runtime.listener.listeners import Listener, bind_tcp
from bottomless_server.runtime.listener.pipelining import PIPELINE_COUNT_MAX

WAIT = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"
DAY = HttpBounds(head_seconds=86_400, idle_seconds=86_400)


class Taken:
    """A request that the lane has taken, and what became of it."""

    def __init__(self, lane: "HandLane", turn: str) -> None:
        self.lane = lane
        self.turn = turn
        self.body = b""
        self.answer: Answering | None = None
        self.ended = ""

    def receive(self, size: int) -> bool:
        self.lane.received += size
        return self.lane.has_room

    def take(self, body: bytes, answer: Answering) -> bool:
        if body == b"bug":
            raise ZeroDivisionError
        if body == b"refused":
            return False
        self.body, self.answer = body, answer
        self.lane.in_line.append(self)
        return True

    def leave(self) -> None:
        self.ended = "left"

    def lose(self) -> None:
        self.ended = "lost"

    def say(self) -> None:
        assert self.answer is not None
        headers = [(b"content-length", b"%d" % len(self.body))]
        self.answer(WholeAnswer(200, headers, self.body))


class HandLane:
    """Takes what is posted below `/v1/lane/`, whose last part is the turn; answers when told to."""

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.in_line: list[Taken] = []
        self.has_room = True
        self.received = 0

    def begin(self, scope: Scope, _size: int) -> Taken | None:
        path = scope["path"]
        if path == "/v1/lane/bug":
            raise ZeroDivisionError
        if not path.startswith("/v1/lane/"):
            return None
        taken = Taken(self, path.rpartition("/")[2])
        self.taken.append(taken)
        return taken

    async def waiting(self, count: int) -> None:
        await eventually(lambda: len(self.in_line) >= count)


class Echo(App):
    """Answers below `/v1/` with the body, the usual way."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not scope["path"].startswith("/v1/"):
            await super().__call__(scope, receive, send)
            return
        self.count += 1
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if message["type"] == "http.disconnect":
                self.gone.set()
                return
        body = b"usual " + body
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def turns() -> None:
    """Let whoever can go on do so."""
    for _ in range(50):
        await asyncio.sleep(0)


class Side:
    def __init__(self, listener: Listener, lane: HandLane, app: Echo, client: Client) -> None:
        self.listener, self.lane, self.app, self.client = listener, lane, app, client
        self.closing: asyncio.Task[None] | None = None

    def close(self) -> None:
        self.closing = asyncio.create_task(self.listener.close())

    async def told(self, count: int) -> list[bytes]:
        return [(await self.client.answer())[1] for _ in range(count)]


@asynccontextmanager
async def laned(bounds: HttpBounds = DAY) -> AsyncIterator[Side]:
    lane, app = HandLane(), Echo()
    listener = Listener(wrap(app), bind_tcp("127.0.0.1", 0), bounds=bounds, lane=lane)
    await listener.open()
    async with connected(listener) as client:
        side = Side(listener, lane, app, client)
        yield side
    await eventually(lambda: not len(listener.connections))
    assert listener.connections.body_bytes == 0
    await (side.closing or listener.close())


def post(body: bytes, turn: bytes = b"a", *, size: int | None = None) -> bytes:
    said = len(body) if size is None else size
    return b"POST /v1/lane/%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        turn,
        said,
        body,
    )


@as_served
async def test_answers_go_out_in_the_order_of_requests_however_they_come() -> None:
    async with laned() as side:
        await side.client.send(post(b"1") + post(b"22") + post(b"333"))
        await side.lane.waiting(3)
        for one in reversed(side.lane.in_line):
            one.say()
        assert await side.told(3) == [b"1", b"22", b"333"]


@as_served
async def test_all_that_one_read_brings_is_in_line_before_anything_is_answered() -> None:
    async with laned() as side:
        await side.client.send(post(b"x") * 8)
        await side.lane.waiting(8)
        assert side.app.count == 0
        for one in side.lane.in_line:
            one.say()
        assert await side.told(8) == [b"x"] * 8


@as_served
async def test_a_request_for_the_usual_way_is_begun_when_those_on_the_lane_are_answered() -> None:
    async with laned() as side:
        await side.client.send(post(b"1") + GET + GET + post(b"2"))
        await side.lane.waiting(1)
        await turns()
        assert side.app.count == 0
        side.lane.in_line[0].say()
        # What was read with it goes the same way: it waits for it.
        assert await side.told(4) == [b"1", b"/small", b"/small", b"usual 2"]


@as_served
async def test_a_connection_comes_back_to_the_lane_after_the_usual_way() -> None:
    """A client with several requests under way never leaves a moment without one."""
    async with laned() as side:
        await side.client.send(WAIT)
        await side.app.asked.wait()
        await side.client.send(post(b"1") + post(b"2"))
        connection = only(side.listener)
        await eventually(lambda: connection.held_size > 0)
        assert not side.lane.taken
        side.app.go.set()
        await side.lane.waiting(2)
        for one in side.lane.in_line:
            one.say()
        assert await side.told(3) == [b"/wait", b"1", b"2"]
        assert side.app.count == 1


def only(listener: Listener) -> LaneProtocol:
    [connection] = listener.connections
    assert isinstance(connection, LaneProtocol)
    return connection


async def mixed(side: Side) -> list[bytes]:
    """Two requests of different turns, of which the first is answered late."""
    await side.client.send(post(b"1", b"a") + post(b"2", b"b"))
    await side.lane.waiting(1)
    await turns()
    order = [one.body for one in side.lane.in_line]
    for one in side.lane.in_line:
        one.say()
    assert [body[-1:] for body in await side.told(2)] == [b"1", b"2"]
    return order


@as_served
async def test_a_request_that_might_be_done_before_others_waits_for_them() -> None:
    async with laned() as side:
        assert await mixed(side) == [b"1"]


@as_served
async def test_without_the_order_of_requests_of_one_connection_it_does_not() -> None:
    with pytest.MonkeyPatch.context() as patch:
        remove(patch, "the order of requests of one connection", lambda _, __: True)
        async with laned() as side:
            assert await mixed(side) == [b"1", b"2"]


@pytest.mark.parametrize("body", [b"refused", b"bug"])
@as_served
async def test_what_the_lane_refuses_goes_the_usual_way_with_all_its_bytes(body: bytes) -> None:
    async with laned() as side:
        await side.client.send(post(b"1") + post(body) + post(b"3", b"bug"))
        await side.lane.waiting(1)
        side.lane.in_line[0].say()
        assert await side.told(3) == [b"1", b"usual " + body, b"usual 3"]
        assert [one.ended for one in side.lane.taken] == ["", "left"]


@as_served
async def test_a_body_that_there_is_no_room_for_goes_on_the_usual_way() -> None:
    async with laned() as side:
        await side.client.send(post(b"abc", size=6))
        await eventually(lambda: side.lane.received == 3)
        side.lane.has_room = False
        await side.client.send(b"def")
        assert await side.told(1) == [b"usual abcdef"]
        assert [one.ended for one in side.lane.taken] == ["left"]


@as_served
async def test_bodies_on_the_lane_count_for_the_bound_on_all_bodies() -> None:
    async with laned(HttpBounds(body_bytes_max=4 * KIB)) as side:
        await side.client.send(post(bytes(3 * KIB)))
        await side.lane.waiting(1)
        assert side.listener.connections.body_bytes == 3 * KIB
        async with connected(side.listener) as other:
            await other.send(post(bytes(2 * KIB)))
            assert (await other.problem())["code"] == "overloaded"
        side.lane.in_line[0].say()
        await side.told(1)
        assert side.listener.connections.body_bytes == 0


@as_served
async def test_a_client_that_goes_in_the_midst_of_a_body_is_lost_and_its_bytes_with_it() -> None:
    async with laned() as side:
        await side.client.send(post(b"1") + post(b"abc", size=6))
        await eventually(lambda: side.lane.received == 4)
        side.client.writer.transport.abort()
        await eventually(lambda: side.lane.taken[1].ended == "lost")
        assert side.listener.connections.body_bytes == 0
        # What is in line is done all the same, and nobody takes the answer.
        side.lane.in_line[0].say()


@as_served
async def test_a_body_that_does_not_come_in_time_is_refused() -> None:
    async with laned(QUICK) as side:
        await side.client.send(post(b"abc", size=6))
        assert (await side.client.problem())["code"] == "request-timeout"
        assert [one.ended for one in side.lane.taken] == ["left"]


@as_served
async def test_a_connection_that_only_used_the_lane_may_idle_as_long_as_any_other() -> None:
    async with laned(HttpBounds(head_seconds=0.2, idle_seconds=86_400)) as side:
        for _ in range(2):
            side.lane.in_line.clear()
            await side.client.send(post(b"1"))
            await side.lane.waiting(1)
            # Nor is it the client's time while it waits for the answer.
            await asyncio.sleep(0.5)
            side.lane.in_line[0].say()
            assert await side.told(1) == [b"1"]


@as_served
async def test_what_is_no_request_after_those_in_line_ends_the_connection_after_their_answers() -> (
    None
):
    async with laned() as side:
        await side.client.send(post(b"1") + post(b"2") + b"nonsense\r\n\r\n")
        await side.lane.waiting(2)
        for one in side.lane.in_line:
            one.say()
        rest = await side.client.end()
        assert rest.count(b"HTTP/1.1 200 OK") == 2
        assert rest.count(b"connection: close") == 1
        assert rest.endswith(b"\r\n\r\n2")


@as_served
async def test_a_listener_that_closes_answers_what_is_in_line() -> None:
    async with laned() as side:
        await side.client.send(post(b"1") + post(b"abc", size=6))
        await eventually(lambda: side.lane.received == 4)
        side.close()
        await eventually(lambda: side.lane.taken[1].ended == "left")
        await side.client.send(b"def")
        side.lane.in_line[0].say()
        assert await side.told(2) == [b"1", b"usual abcdef"]
        assert await side.client.end() == b""

    async with laned() as side:
        await side.client.send(post(b"1"))
        await side.lane.waiting(1)
        side.close()
        await eventually(lambda: only(side.listener).closes)
        side.lane.in_line[0].say()
        assert b"connection: close" in await side.client.end()


@as_served
async def test_no_more_requests_of_a_connection_are_in_line_than_may_wait() -> None:
    async with laned() as side:
        await side.client.send(post(b"x" * 100) * 400)
        await side.lane.waiting(PIPELINE_COUNT_MAX)
        await turns()
        assert len(side.lane.in_line) < PIPELINE_COUNT_MAX + 20
        answered = 0
        while answered < 400:
            await side.lane.waiting(1)
            ready, side.lane.in_line = side.lane.in_line, []
            for one in ready:
                one.say()
            answered += len(await side.told(len(ready)))
        assert side.app.count == 0


@pytest.mark.parametrize(
    "message",
    [
        b"POST /v1/lane/a HTTP/1.0\r\nContent-Length: 1\r\n\r\nx",
        b"POST /v1/lane/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
        b"POST /v1/lane/%61 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
        b"POST /v1/lane/a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
        b"PUT /v1/lane/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
        b"POST http://x/v1/lane/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
        b"POST /v1/lane/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"POST /v1/lane/a HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 1\r\n\r\nx",
    ],
)
@as_served
async def test_what_is_not_usual_is_never_offered_to_the_lane(message: bytes) -> None:
    async with laned() as side:
        await side.client.send(message)
        assert await side.told(1) == [b"usual x"]
        assert not side.lane.taken
