"""Requests behind one that is being answered: who goes away is noticed, who stays is answered.

Connections were tested with one request under way, which is also the one that was read last. With
another one behind it the server reads no further: it did not see that its client had gone, told
the wrong request of it, and counted its own pause as the client's time.
"""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send
from support.asgi import listening
from support.waiting import eventually
from unit.runtime.test_runtime_protocol import GET, QUICK, App, as_served, connected

from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.listener.listeners import Listener
from bottomless_server.runtime.listener.pipelining import (
    PIPELINE_COUNT_MAX,
    PIPELINE_PIECE_SIZE,
    piece_size,
)
from bottomless_server.runtime.listener.protocol import BoundedProtocol

WAIT = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"
LONG = 3_600


class Staying:
    """`/poll` waits until its client goes, `/follow` has begun to answer before."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.gone = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/follow":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"some", "more_body": True})
        self.asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        # Nobody takes it, and that is no bug.
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.gone += 1


def is_open(listener: Listener) -> bool:
    return bool(listener.connections._open)


def only(listener: Listener) -> BoundedProtocol:
    [connection] = listener.connections._open
    assert isinstance(connection, BoundedProtocol)
    return connection


@pytest.mark.parametrize("path", [b"/poll", b"/follow"])
@pytest.mark.parametrize("behind", [0, 1, 3, 300], ids=lambda count: f"{count} behind it")
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "then"])
@as_served
async def test_who_goes_is_noticed_whatever_waits_behind_its_request(
    path: bytes, behind: int, at_once: bool
) -> None:
    app = Staying()
    first = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path
    async with listening(wrap(app), QUICK) as listener:
        async with connected(listener) as client:
            if at_once:
                await client.send(first + GET * behind)
            else:
                await client.send(first)
                await app.asked.wait()
                await client.send(GET * behind)
            await app.asked.wait()
            waiting = min(behind, PIPELINE_COUNT_MAX)
            await eventually(lambda: len(only(listener).pipeline) >= waiting)
        await eventually(lambda: app.gone == 1)
        await eventually(lambda: not len(listener.connections))
        # Those behind it were never begun: nobody would take what they say.
        assert app.gone == 1


@as_served
async def test_nothing_is_sent_on_a_connection_that_the_loop_has_closed() -> None:
    async with listening(wrap(App())) as listener, connected(listener) as client:
        await client.send(GET)
        await client.answer()
        connection = only(listener)
        connection.transport.abort()
        await eventually(lambda: not len(listener.connections))
        connection.write(b"late")


@as_served
async def test_the_pause_of_the_server_is_not_the_clients_time_for_a_head() -> None:
    app = App()
    async with listening(wrap(app)) as listener, connected(listener) as client:
        await client.send(WAIT + GET + GET[:-2])
        await eventually(lambda: is_open(listener) and len(only(listener).pipeline) == 1)
        for _ in range(3):
            only(listener).look(LONG)
        await client.send(GET[-2:])
        app.go.set()
        assert await client.answer() == (200, b"/wait")
        assert await client.answer() == (200, b"/small")
        assert await client.answer() == (200, b"/small")


@pytest.mark.parametrize("rest", [GET[:-2], b"GARBAGE\r\n\r\n"], ids=["a slow head", "no HTTP"])
@as_served
async def test_what_comes_behind_a_request_takes_no_answer_from_it(rest: bytes) -> None:
    app = App()
    async with listening(wrap(app)) as listener, connected(listener) as client:
        await client.send(WAIT)
        await app.asked.wait()
        await client.send(rest)
        await eventually(lambda: only(listener)._time.reading.name in ("HEAD", "REST"))
        for _ in range(3):
            only(listener).look(LONG)
        app.go.set()
        assert await client.answer() == (200, b"/wait")
        assert await client.reader.read() == b""


class Counted(bytes):
    """Bytes that count how many of them are copied to be searched."""

    copied = 0

    def __bytes__(self) -> bytes:
        Counted.copied += len(self)
        return bytes(memoryview(self))

    def __getitem__(self, at: slice) -> "Counted":  # type: ignore[override]
        return Counted(super().__getitem__(at))


@as_served
async def test_a_body_full_of_what_ends_a_head_is_searched_once() -> None:
    """The bound on waiting requests was tested with requests; a body that looks like their ends
    was copied and searched anew for each KiB of it."""
    body = b"\r\n\r\n" * 30_000
    async with listening(wrap(App())) as listener, connected(listener) as client:
        await client.send(b"POST /body HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        await eventually(lambda: is_open(listener) and only(listener).cycle is not None)
        data = Counted(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        only(listener).data_received(data)
        assert await client.answer() == (200, str(len(body)).encode())
        assert Counted.copied == len(data)


@pytest.mark.parametrize("behind", [0, 1, PIPELINE_COUNT_MAX + 50])
@as_served
async def test_a_body_that_says_its_length_is_not_searched(behind: int) -> None:
    """What came with its head was copied and searched, which took longer than all else with it."""
    body = b"\r\n\r\n" * 30_000
    head = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    app = App()
    async with listening(wrap(app)) as listener, connected(listener) as client:
        await eventually(lambda: is_open(listener))
        Counted.copied = 0
        only(listener).data_received(Counted(head + body + GET * behind))
        at_most = PIPELINE_COUNT_MAX + PIPELINE_PIECE_SIZE // len(GET)
        assert len(only(listener).pipeline) <= at_most
        assert await client.answer() == (200, str(len(body)).encode())
        for _ in range(behind):
            assert await client.answer() == (200, b"/small")
        assert behind or Counted.copied == PIPELINE_PIECE_SIZE


def test_bytes_that_may_hold_too_many_requests_are_fed_in_pieces() -> None:
    many = b"GET / HTTP/1.1\r\n\r\n" * PIPELINE_COUNT_MAX
    assert piece_size(many, 0) == len(many)
    assert piece_size(many, 1) == PIPELINE_PIECE_SIZE
    assert piece_size(bytes(1 << 18), PIPELINE_COUNT_MAX) == 1 << 18
