"""Connections have bounds in time and in bytes, and who meets one is told so."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec

import orjson
import pytest
import uvloop
from starlette.types import Receive, Scope, Send
from support.asgi import listening

from bottomless.model.limits import KIB, MIB
from bottomless_server.runtime.http.app import ClientGone, read_body, wrap
from bottomless_server.runtime.listener.connections import HttpBounds
from bottomless_server.runtime.listener.listeners import Listener
from bottomless_server.runtime.listener.pipelining import PIPELINE_COUNT_MAX, PIPELINE_PIECE_SIZE
from bottomless_server.runtime.listener.protocol import LINGER_BYTES, BoundedProtocol

P = ParamSpec("P")

QUICK = HttpBounds(head_seconds=1.6, body_seconds=4.8, body_stall_seconds=1.6, idle_seconds=3.2)
GET = b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n"


def as_served(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """In the loop of our processes: transports of loops differ in small things."""

    @wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        uvloop.run(test(*arguments, **named))

    return run


class App:
    """`/small` answers at once, `/large` with 8 MiB, `/body` counts what it is sent,
    `/unread` refuses without reading, `/wait` answers when it is told to, `/headers` with the
    names of its headers when its body has come."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()
        self.count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.asked.set()
        if path == "/wait":
            await self.go.wait()
        body, status = path.encode(), 413 if path == "/unread" else 200
        if path == "/body":
            try:
                body = str(len(await read_body(scope, receive, 64 * MIB))).encode()
            except ClientGone:
                self.gone.set()
                return
        elif path == "/headers":
            await read_body(scope, receive, MIB)
            body = b" ".join(name for name, _ in scope["headers"])
        elif path == "/large":
            body = bytes(8 * MIB)
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.count += 1


class Client:
    """Bytes out, bytes in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def pour(self, count: int) -> None:
        for _ in range(count):
            await self.send(bytes(MIB))

    async def answer(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head.split(b" ")[1]), await self.reader.readexactly(size)

    async def problem(self) -> dict[str, Any]:
        """The problem that is the last that comes."""
        status, body = await self.answer()
        problem: dict[str, Any] = orjson.loads(body)
        assert problem["status"] == status
        assert await self.reader.read() == b""
        return problem

    async def end(self) -> bytes:
        """What comes until the connection ends, however it does."""
        data = b""
        try:
            while piece := await self.reader.read(1 << 20):
                data += piece
        except ConnectionError:
            pass
        return data


@asynccontextmanager
async def connected(listener: Listener) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=2**16)
    try:
        async with asyncio.timeout(240):
            yield Client(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def trickle(client: Client, data: bytes) -> None:
    """Send a byte now and then, until nobody takes it any more."""
    for byte in data:
        if client.writer.is_closing():
            return
        with suppress(ConnectionError):
            await client.send(bytes([byte]))
        await asyncio.sleep(0.05)


@as_served
async def test_a_head_that_trickles_is_answered_408_and_others_are_served_meanwhile() -> None:
    async with (
        listening(wrap(App()), QUICK) as listener,
        connected(listener) as slow,
        connected(listener) as other,
    ):
        trickling = asyncio.create_task(trickle(slow, GET[:-4] + b"\r\nA: " + b"a" * 1000))
        await other.send(GET)
        assert await other.answer() == (200, b"/small")
        problem = await slow.problem()
        trickling.cancel()
    assert (problem["status"], problem["code"]) == (408, "request-timeout")
    assert problem["retryable"] is True
    assert problem["outcome"] == "none"


@pytest.mark.parametrize("piece", [b"", b"a"], ids=["nothing more", "a byte now and then"])
@as_served
async def test_a_body_that_does_not_come_is_answered_408_and_its_request_is_given_up(
    piece: bytes,
) -> None:
    app = App()
    async with listening(wrap(app), QUICK) as listener, connected(listener) as client:
        await client.send(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        trickling = asyncio.create_task(trickle(client, piece * 1000))
        assert (await client.problem())["code"] == "request-timeout"
        await app.gone.wait()
        trickling.cancel()


@as_served
async def test_time_that_the_application_takes_is_not_the_clients() -> None:
    app = App()
    async with listening(wrap(app), QUICK) as listener, connected(listener) as client:
        # More than is read before the application asks for it, so the client cannot go on.
        size = 4 * MIB
        await client.send(
            b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + bytes(KIB)
        )
        sending = asyncio.create_task(client.send(bytes(size - KIB)))
        await asyncio.sleep(3 * QUICK.body_seconds / 2)
        app.go.set()
        assert await client.answer() == (200, b"/wait")
        await sending


@as_served
async def test_a_client_that_says_nothing_is_let_go_without_a_word() -> None:
    async with listening(wrap(App()), QUICK) as listener:
        async with connected(listener) as silent, connected(listener) as idle:
            await idle.send(GET)
            await idle.answer()
            assert await silent.end() == b""
            # Empty lines are no request, and do not keep a connection.
            await idle.send(b"\r\n\r\n")
            assert await idle.end() == b""
        assert listener.connections.ended["idle"] == 2


@as_served
async def test_who_is_refused_can_read_it_though_what_it_sent_is_not_read() -> None:
    async with listening(wrap(App())) as listener, connected(listener) as client:
        await client.send(b"GET / HTTP/1.1\r\nA: " + b"a" * (LINGER_BYTES // 2) + b"\r\n\r\n")
        assert (await client.problem())["code"] == "headers-too-large"
    async with listening(wrap(App())) as listener, connected(listener) as client:
        await client.send(
            b"POST /unread HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (8 * MIB)
            + bytes(8 * MIB)
        )
        assert await client.answer() == (413, b"/unread")
        assert await client.reader.read() == b""


@as_served
async def test_what_is_left_of_a_refused_body_is_dropped_within_a_bound() -> None:
    async with listening(wrap(App())) as listener, connected(listener) as client:
        head = b"POST /unread HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
        await client.send(head % MIB + bytes(MIB))
        assert await client.answer() == (413, b"/unread")
        await client.send(GET)
        assert await client.answer() == (200, b"/small")
        await client.send(head % (64 * MIB))
        assert await client.answer() == (413, b"/unread")
        with pytest.raises(ConnectionError):
            await client.pour(64)


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", "headers-too-large"),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * MIB, "headers-too-large"),
        (b"GET / HTTP/1.1\r\nA:" + b" " * MIB, "headers-too-large"),
        (b"GET /" + b"a" * MIB, "uri-too-long"),
        (b"POST /body HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * MIB,
         "headers-too-large"),
        (b"POST /body HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nA: "
         + b"a" * MIB, "headers-too-large"),
    ],
    ids=["count", "a value", "spaces", "a URL", "of a chunk", "of a trailer"],
)  # fmt: skip
@as_served
async def test_a_head_without_an_end_is_refused_before_it_is_gathered(
    head: bytes, code: str
) -> None:
    async with listening(wrap(App())) as listener, connected(listener) as client:
        await client.send(head)
        assert (await client.problem())["code"] == code


@as_served
async def test_a_request_before_one_that_is_refused_is_answered() -> None:
    app = App()
    async with listening(wrap(app)) as listener, connected(listener) as client:
        await client.send(b"GET /wait HTTP/1.1\r\n\r\nGARBAGE")
        await app.asked.wait()
        app.go.set()
        assert await client.answer() == (200, b"/wait")
        assert await client.reader.read() == b""


@as_served
async def test_a_connection_has_a_bound_on_requests_that_wait_and_all_are_answered() -> None:
    """Doubt 4: of those beyond the bound the rest was dropped, where it is read no further."""
    app = App()
    async with listening(wrap(app)) as listener, connected(listener) as client:
        count = 3_000
        await client.send(b"GET /wait HTTP/1.1\r\n\r\n" * count)
        await app.asked.wait()
        [connection] = listener.connections._open
        assert isinstance(connection, BoundedProtocol)
        many = PIPELINE_COUNT_MAX + PIPELINE_PIECE_SIZE // len(b"GET /wait HTTP/1.1\r\n\r\n") + 1
        assert PIPELINE_COUNT_MAX <= len(connection.pipeline) <= many
        connection.look(3_600)
        app.go.set()
        for _ in range(count):
            assert await client.answer() == (200, b"/wait")
        # Beside the bound nothing has changed: the connection goes on.
        await client.send(GET)
        assert (await client.answer())[0] == 200
        assert listener.connections.body_bytes == 0


@as_served
async def test_bodies_among_many_requests_come_whole_and_in_order() -> None:
    app = App()
    async with listening(wrap(app)) as listener, connected(listener) as client:
        sizes = [size % 700 for size in range(0, 30_000, 37)]
        requests = [
            b"POST /body HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size
            + b"\r\n\r\n".ljust(size, b"x")[:size]
            for size in sizes
        ]
        sending = asyncio.create_task(client.send(b"".join(requests)))
        for size in sizes:
            assert await client.answer() == (200, str(size).encode())
        await sending
        assert listener.connections.body_bytes == 0


@as_served
async def test_what_a_request_before_another_brought_is_let_go_with_its_answer() -> None:
    app = App()
    async with listening(wrap(app)) as listener, connected(listener) as client:
        # In one piece, so that somebody waits behind it when it is answered.
        body = b"POST /body HTTP/1.1\r\nContent-Length: 999\r\n\r\n" + bytes(999)
        await client.send(body + b"GET /wait HTTP/1.1\r\n\r\n" + GET)
        assert await client.answer() == (200, b"999")
        assert listener.connections.body_bytes == 0
        app.go.set()
        assert await client.answer() == (200, b"/wait")
        assert await client.answer() == (200, b"/small")


@as_served
async def test_nothing_behind_a_body_counts_among_its_headers() -> None:
    request = (
        b"POST /headers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\nAuthorization: Bearer x\r\nIdempotency-Key: y\r\n\r\n"
    )
    async with listening(wrap(App())) as listener, connected(listener) as client:
        # In one piece, so that all of it is there before the application is asked.
        await client.send(request + request)
        for _ in range(2):
            assert await client.answer() == (200, b"host transfer-encoding")


def offering_another_protocol(body: bytes, *, chunked: bool) -> bytes:
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    sent = b"%x\r\n%b\r\n0\r\nX: y\r\n\r\n" % (len(body), body) if chunked else body
    return (
        b"POST /body HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n%b\r\n\r\n%b" % (framing, sent)
    )


@as_served
@pytest.mark.parametrize("piece_size", [1, 60, 10_000])
async def test_who_offers_another_protocol_is_answered_in_this_one(piece_size: int) -> None:
    bodiless = b"GET /small HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    app = App()
    sent = b"".join(
        (
            offering_another_protocol(b"", chunked=False),
            # Read as the next request, it would be one too many.
            offering_another_protocol(GET, chunked=False),
            bodiless,
            offering_another_protocol(GET, chunked=True),
            offering_another_protocol(GET, chunked=False),
            GET,
        )
    )
    length = str(len(GET)).encode()
    async with listening(wrap(app)) as listener, connected(listener) as client:
        for start in range(0, len(sent), piece_size):
            await client.send(sent[start : start + piece_size])
            await asyncio.sleep(0)
        expected = [b"0", length, b"/small", length, length, b"/small"]
        assert [await client.answer() for _ in expected] == [(200, body) for body in expected]
        await client.send(GET)
        assert await client.answer() == (200, b"/small")
        assert app.count == len(expected) + 1


@as_served
async def test_a_body_has_its_bounds_also_where_another_protocol_is_offered() -> None:
    async with listening(wrap(App()), QUICK) as listener, connected(listener) as client:
        await client.send(offering_another_protocol(b"abc", chunked=False)[:-1])
        assert (await client.problem())["code"] == "request-timeout"
        assert listener.connections.body_bytes == 0


@as_served
async def test_a_listener_has_a_bound_on_connections_and_says_so() -> None:
    async with (
        listening(wrap(App()), HttpBounds(connection_count_max=2)) as listener,
        connected(listener) as first,
        connected(listener) as second,
    ):
        for client in (first, second):
            await client.send(GET)
            await client.answer()
        async with connected(listener) as third:
            assert (await third.problem())["code"] == "overloaded"
        second.writer.close()
        await second.writer.wait_closed()
        async with connected(listener) as fourth:
            await fourth.send(GET)
            assert (await fourth.answer())[0] == 200


@as_served
async def test_a_listener_has_a_bound_on_bodies_that_it_holds() -> None:
    bounds = HttpBounds(body_bytes_max=MIB)
    app = App()
    head = b"POST /body HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
    async with (
        listening(wrap(app), bounds) as listener,
        connected(listener) as holding,
        connected(listener) as client,
    ):
        await holding.send(head % MIB + bytes(MIB - 1))
        async with asyncio.timeout(240):
            while listener.connections.body_bytes < MIB - 1:
                await asyncio.sleep(0.01)
        await client.send(head % 2 + b"ab")
        problem = await client.problem()
        assert (problem["status"], problem["code"]) == (503, "overloaded")
        await holding.send(b"c")
        assert await holding.answer() == (200, str(MIB).encode())
        assert listener.connections.body_bytes == 0


@as_served
async def test_what_a_body_left_unread_is_let_go_of_with_its_connection() -> None:
    app = App()
    request = b"POST /wait HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % MIB + bytes(100 * KIB)
    count = 40
    async with listening(wrap(app)) as listener:
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(count):
                async with connected(listener) as client:
                    await client.send(request)
                    while listener.connections.body_bytes < 100 * KIB:
                        await asyncio.sleep(0.01)
                async with asyncio.timeout(240):
                    while len(listener.connections):
                        await asyncio.sleep(0.01)
            app.go.set()
            async with asyncio.timeout(240):
                while app.count < count:
                    await asyncio.sleep(0.01)
            left = tracemalloc.get_traced_memory()[0]
            assert left < count * 100 * KIB / 2
        finally:
            tracemalloc.stop()
            gc.enable()


@as_served
async def test_a_client_that_takes_nothing_of_a_page_is_cut_off() -> None:
    bounds = HttpBounds(send_stall_seconds=0.6)
    async with listening(wrap(App()), bounds) as listener, connected(listener) as client:
        await client.send(b"GET /large HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(240):
            while not listener.connections.ended["send_stall"]:
                await asyncio.sleep(0.02)
        assert len(await client.end()) < 8 * MIB


@as_served
async def test_a_client_that_takes_a_page_slowly_is_not_cut_off() -> None:
    # On a busy machine it may stand still against its will, which proves nothing: then with more time.
    for stall_seconds in (0.6, 1.8, 5.4):
        bounds = HttpBounds(send_stall_seconds=stall_seconds)
        async with listening(wrap(App()), bounds) as listener, connected(listener) as client:
            size, seconds = await taken_slowly(client, stall_seconds / 6)
        if size > 8 * MIB:
            assert seconds > 2 * stall_seconds
            return
    pytest.fail("it was cut off each time")


async def taken_slowly(client: Client, pause_seconds: float) -> tuple[int, float]:
    """Take a page with a pause after each piece: returns how much came, and how long it took."""
    await client.send(b"GET /large HTTP/1.1\r\n\r\n")
    loop = asyncio.get_running_loop()
    size, begun = 0, loop.time()
    with suppress(ConnectionError):
        while size <= 8 * MIB and (piece := await client.reader.read(1 << 20)):
            size += len(piece)
            await asyncio.sleep(pause_seconds)
    return size, loop.time() - begun


@as_served
async def test_what_waits_for_all_clients_together_has_a_bound() -> None:
    app = App()
    bounds = HttpBounds(send_bytes_max=20 * MIB)
    async with listening(wrap(app), bounds) as listener:
        clients = [
            await asyncio.open_connection("127.0.0.1", listener.port, limit=2**16)
            for _ in range(10)
        ]
        for _, writer in clients:
            writer.write(b"GET /large HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(240):
            while app.count < len(clients):
                assert listener.connections.waiting_bytes <= 20 * MIB
                await asyncio.sleep(0.02)
        # What the kernel takes off is not ours; the rest of eighty mebibytes is.
        assert listener.connections.ended["send_bytes"] >= 1
        assert listener.connections.waiting_bytes <= 20 * MIB
        async with connected(listener) as client:
            await client.send(b"GET /large HTTP/1.1\r\n\r\n")
            assert (await client.answer())[0] == 200
        for _, writer in clients:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()
