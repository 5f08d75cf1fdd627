"""Requests over connections of our own: which share one, and what is known when one ends."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from support.http_bytes import body_of, read_head
from support.raw_server import answer

from bottomless.client import AsyncClient
from bottomless.client.appends import IN_LINE_SIZE_MAX
from bottomless.client.exchange import Exchange
from bottomless.client.transport import Request, Target, Timeouts
from bottomless.errors import Code, InvalidRequest, Outcome, Unavailable

LONG = b"x" * (8 << 20)


class Held:
    """A server that reads all requests of a connection, and answers when it is told to."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[int, str, int]] = []
        """Connection, path, size of the body; in the order of their arrival."""
        self.writers: list[asyncio.StreamWriter] = []
        self._came = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.writers.append(writer)
        number = len(self.writers) - 1
        try:
            while (head := await read_head(reader)) is not None:
                body = b"".join([piece async for piece in body_of(head, reader)])
                async with self._came:
                    self.asked.append((number, head.path, len(body)))
                    self._came.notify_all()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, count: int) -> None:
        async with self._came:
            await self._came.wait_for(lambda: len(self.asked) >= count)

    def answer_all(self, value: object = None) -> None:
        """Answer each request with a value, or with its path."""
        for number, path, _ in self.asked:
            self.writers[number].write(answer(value=value or path))
        self.asked.clear()


@asynccontextmanager
async def held_server() -> AsyncIterator[Held]:
    server = Held()
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()[:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        listening.close()
        await server.leave()


def asks(
    exchange: Exchange, paths: list[str], make: Callable[[str], Request]
) -> list["asyncio.Task[bytes]"]:
    async def ask(path: str) -> bytes:
        return (await exchange.send(make(path))).body

    return [asyncio.create_task(ask(path)) for path in paths]


PATHS = [f"/{number}" for number in range(5)]
BODIES = [f'"{path}"'.encode() for path in PATHS]


async def test_requests_of_a_line_share_a_connection_and_keep_their_order() -> None:
    async with held_server() as server:
        exchange = Exchange(Target(server.url))
        sent = asks(exchange, PATHS, lambda path: Request("POST", path, body=b"x", line="p"))
        # All five were read before any was answered.
        await server.until(5)
        assert server.asked == [(0, path, 1) for path in PATHS]
        server.answer_all()
        assert await asyncio.gather(*sent) == BODIES
        await exchange.close()


@pytest.mark.parametrize(
    ("size", "connections"), [(IN_LINE_SIZE_MAX, {0}), (IN_LINE_SIZE_MAX + 1, {0, 1, 2})]
)
async def test_small_appends_of_a_producer_share_a_connection_and_large_ones_do_not(
    size: int, connections: set[int]
) -> None:
    async with held_server() as server, AsyncClient(server.url) as client:
        sent = [
            asyncio.create_task(
                client.append_numbered(
                    "orders", bytes(size), "text/plain", producer="p", epoch=1, sequence=number
                )
            )
            for number in range(3)
        ]
        await server.until(3)
        assert {number for number, *_ in server.asked} == connections
        server.answer_all(
            {"first_offset": 0, "next_offset": 1, "timestamp": None, "count": 1, "duplicates": 0}
        )
        assert len(await asyncio.gather(*sent)) == 3


async def test_appends_without_a_number_do_not_share_a_connection() -> None:
    """When it ends nobody knows of any of them whether it is stored, and none is sent again."""
    async with held_server() as server, AsyncClient(server.url, retry_seconds=0) as client:
        sent = [asyncio.create_task(client.append_raw("orders", b"x")) for _ in range(3)]
        await server.until(3)
        assert {number for number, *_ in server.asked} == {0, 1, 2}
        server.writers[1].close()
        while not any(task.done() for task in sent):
            await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
        assert sum(task.done() for task in sent) == 1
        for task in sent:
            task.cancel()
        await asyncio.gather(*sent, return_exceptions=True)


async def test_long_bodies_of_a_line_follow_each_other_whole() -> None:
    async with held_server() as server:
        exchange = Exchange(Target(server.url))
        sent = asks(exchange, PATHS, lambda path: Request("POST", path, body=LONG, line="p"))
        await server.until(5)
        assert server.asked == [(0, path, len(LONG)) for path in PATHS]
        server.answer_all()
        assert await asyncio.gather(*sent) == BODIES
        await exchange.close()


async def test_a_request_without_a_line_has_a_connection_to_itself_and_leaves_it_to_the_next() -> (
    None
):
    async with held_server() as server:
        exchange = Exchange(Target(server.url))
        for _ in range(2):
            sent = asks(exchange, PATHS, lambda path: Request("POST", path, body=b"x"))
            await server.until(5)
            assert Counter(number for number, *_ in server.asked) == dict.fromkeys(range(5), 1)
            server.answer_all()
            assert await asyncio.gather(*sent) == BODIES
        await exchange.close()


async def test_when_a_connection_ends_the_outcome_of_all_on_it_is_unknown() -> None:
    async with held_server() as server:
        exchange = Exchange(Target(server.url))
        sent = asks(exchange, PATHS, lambda path: Request("POST", path, body=b"x", line="p"))
        await server.until(5)
        # One whole answer, and a part of the next.
        server.writers[0].write(answer(value="/0") + answer(value="/1")[:-2])
        server.writers[0].close()
        first, *others = await asyncio.gather(*sent, return_exceptions=True)
        assert first == BODIES[0]
        for error in others:
            assert isinstance(error, Unavailable)
            assert error.outcome is Outcome.UNKNOWN
        # And a later request of the line goes over another connection.
        again = asks(exchange, ["/5"], lambda path: Request("POST", path, body=b"x", line="p"))
        await server.until(6)
        assert server.asked[-1] == (1, "/5", 1)
        server.asked[:] = server.asked[-1:]
        server.answer_all()
        assert await again[0] == b'"/5"'
        await exchange.close()


async def test_after_an_answer_that_says_the_end_nothing_is_sent_there() -> None:
    async with held_server() as server:
        exchange = Exchange(Target(server.url))
        for number in range(2):
            sent = asks(exchange, ["/"], lambda path: Request("GET", path, line="p"))
            await server.until(number + 1)
            server.writers[number].write(answer(value=0, headers={"Connection": "close"}))
            assert await sent[0] == b"0"
        assert [number for number, *_ in server.asked] == [0, 1]
        await exchange.close()


async def test_an_answer_that_nobody_asked_for_is_given_to_nobody() -> None:
    async with held_server() as server:
        exchange = Exchange(Target(server.url))
        sent = asks(exchange, ["/"], lambda path: Request("GET", path))
        await server.until(1)
        server.writers[0].write(answer(value="first") + answer(value="second"))
        assert await sent[0] == b'"first"'
        sent = asks(exchange, ["/"], lambda path: Request("GET", path))
        await server.until(2)
        assert server.asked[1][0] == 1
        server.asked[:] = server.asked[1:]
        server.answer_all()
        assert await sent[0] == b'"/"'
        await exchange.close()


async def test_who_gives_up_leaves_no_answer_for_the_next() -> None:
    async with held_server() as server:
        exchange = Exchange(Target(server.url))
        (given_up,) = asks(exchange, ["/old"], lambda path: Request("GET", path))
        await server.until(1)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        server.answer_all()
        sent = asks(exchange, ["/new"], lambda path: Request("GET", path))
        await server.until(1)
        server.answer_all()
        assert await sent[0] == b'"/new"'
        await exchange.close()


async def test_a_server_that_refuses_a_body_before_its_end_is_heard() -> None:
    ended = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(answer(413, value="too large", headers={"Connection": "close"}))
        await writer.drain()
        # It reads on, as ours does, so that the answer is not lost with a reset.
        with suppress(ConnectionError):
            while await reader.read(1 << 20):
                pass
        writer.close()
        ended.set()

    listening = await asyncio.start_server(refuse, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()[:2]
    exchange = Exchange(Target(f"http://{host}:{port}"))
    answered = await exchange.send(Request("POST", "/", body=LONG * 4))
    assert answered.status == 413
    await exchange.close()
    await ended.wait()
    listening.close()


async def test_closing_fails_what_is_in_flight_and_leaves_no_connection() -> None:
    async with held_server() as server:
        exchange = Exchange(Target(server.url, timeouts=Timeouts()))
        sent = asks(exchange, PATHS, lambda path: Request("POST", path, body=b"x", line="p"))
        await server.until(5)
        await exchange.close()
        for error in await asyncio.gather(*sent, return_exceptions=True):
            assert isinstance(error, Unavailable)
        with pytest.raises(RuntimeError, match="closed"):
            await exchange.send(Request("GET", "/"))


@pytest.mark.parametrize("text", ["a\r\nX: y", "a\nb", "ä", "\0"])
async def test_a_header_cannot_bring_another_header_or_a_request(text: str) -> None:
    exchange = Exchange(Target("http://127.0.0.1:1"))
    with pytest.raises(InvalidRequest) as caught:
        await exchange.send(Request("POST", "/", headers={"Stream-Key": text}))
    assert caught.value.code is Code.BAD_HEADER
    assert text not in str(caught.value)
