"""Servers that break the rules of HTTP, by a table: who asks gets the own answer, or an error.

The tests of exchanges had servers that answer rightly or end. These say more, less, in pieces, and
in an order of their own; what they say of the end of a connection is not what they do.
"""

import asyncio
import socket
import struct
import traceback
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from typing import Any

import pytest
from support.connections import Connections
from support.guards import remove
from support.http_bytes import body_of, read_head
from support.raw_server import answer

from bottomless.client.answer_parser import AnswerParser
from bottomless.client.credential import Credential
from bottomless.client.exchange import Exchange
from bottomless.client.transport import Request, Target
from bottomless.errors import Code, InvalidRequest, StoreError, Unavailable

PATHS = [f"/{number}" for number in range(4)]
TOKEN = "the-token-of-somebody"  # of nobody


class Then(Enum):
    """What a server does after what it said."""

    STAYS = auto()
    CLOSES = auto()
    RESETS = auto()


class Speaking:
    """Reads some requests of its first connection, and says what a test wants. Later connections
    are answered rightly, each request with its path."""

    def __init__(self, said: bytes, then: Then, count: int) -> None:
        self._said, self._then, self._count = said, then, count
        self.connection_count = 0
        self.spoken = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        try:
            if self.connection_count == 1:
                await self._speak(reader, writer)
            else:
                await _answer_rightly(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(self._count):
            await _asked(reader)
        writer.write(self._said)
        await writer.drain()
        self.spoken.set()
        if self._then is Then.STAYS:
            await _answer_rightly(reader, writer)
        elif self._then is Then.RESETS:
            # On one machine, what was said is with the client by then.
            found: socket.socket = writer.get_extra_info("socket")
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


async def _answer_rightly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while (path := await _asked(reader)) is not None:
        writer.write(ok(path))


async def _asked(reader: asyncio.StreamReader) -> str | None:
    head = await read_head(reader)
    if head is None:
        return None
    async for _ in body_of(head, reader):
        pass
    return head.path


def ok(path: str, **headers: str) -> bytes:
    return answer(value=path, headers=headers)


def closing(path: str) -> bytes:
    return ok(path, Connection="close")


@asynccontextmanager
async def speaking(
    said: bytes, then: Then, count: int = len(PATHS)
) -> AsyncIterator[tuple[Exchange, Speaking]]:
    server = Speaking(said, then, count)
    connections = Connections(server)
    listening = await asyncio.start_server(connections, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()[:2]
    exchange = Exchange(Target(f"http://{host}:{port}", Credential(TOKEN)))
    try:
        yield exchange, server
    finally:
        await exchange.close()
        listening.close()
        await connections.end()


async def ask(exchange: Exchange, path: str, line: str | None = "p") -> str:
    """What is answered, or the outcome and what the error says."""
    try:
        answered = await exchange.send(Request("POST", path, body=b"x", line=line))
    except Unavailable as error:
        return f"{error.outcome}: {error.message}"
    return answered.body.decode().strip('"')


TABLE: dict[str, tuple[bytes, Then, int]] = {
    "whole": (b"".join(map(ok, PATHS)), Then.STAYS, 4),
    "whole, and closed": (b"".join(map(ok, PATHS)), Then.CLOSES, 4),
    "hints before each": (
        b"".join(b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" * 9 + ok(path) for path in PATHS),
        Then.STAYS,
        4,
    ),
    "the end said in the midst, and not done": (ok("/0") + closing("/1"), Then.STAYS, 2),
    "the end said in the midst, and answers after it": (
        ok("/0") + closing("/1") + ok("/7") + ok("/8") + ok("/9"),
        Then.STAYS,
        2,
    ),
    "an answer of HTTP/1.0 in the midst": (
        ok("/0") + ok("/1").replace(b"HTTP/1.1", b"HTTP/1.0") + ok("/7"),
        Then.STAYS,
        2,
    ),
    "another protocol in the midst": (ok("/0") + ok("/1") + b"SSH-2.0-x\r\n", Then.STAYS, 2),
    "lines that end with LF alone": (ok("/0") + b"HTTP/1.1 200 OK\nX: y\n\n", Then.STAYS, 1),
    "an answer that nobody asked for": (b"".join(map(ok, [*PATHS, "/7"])), Then.STAYS, 4),
    "half an answer, and closed": (ok("/0") + ok("/1")[:-3], Then.CLOSES, 1),
    "a body without a length, reset": (
        ok("/0") + b"HTTP/1.1 200 OK\r\n\r\nhalf",
        Then.RESETS,
        1,
    ),
}


@pytest.mark.parametrize(("said", "then", "answered"), TABLE.values(), ids=TABLE)
async def test_each_of_a_line_gets_its_own_answer_or_is_told_that_it_is_unknown(
    said: bytes, then: Then, answered: int
) -> None:
    """The server of the third to the sixth row was believed once: the word that the connection ends
    was forgotten with the next answer, and who waited there waited for all of their time."""
    async with speaking(said, then) as (exchange, server):
        told = await asyncio.gather(*(ask(exchange, path) for path in PATHS))
        assert told[:answered] == PATHS[:answered]
        assert [each.partition(":")[0] for each in told[answered:]] == ["unknown"] * (4 - answered)
        # Without waiting until the time is over.
        assert not any("in time" in each for each in told)
        await server.spoken.wait()
        if answered < len(PATHS):
            assert await ask(exchange, "/next") == "/next"
            assert server.connection_count == 2


async def test_a_connection_that_is_cut_at_any_byte_gives_whole_answers_only() -> None:
    answers = [ok(path) for path in PATHS]
    said = b"".join(answers)
    for size in range(len(said) + 1):
        whole = sum(len(b"".join(answers[: count + 1])) <= size for count in range(len(PATHS)))
        async with speaking(said[:size], Then.CLOSES) as (exchange, _):
            told = await asyncio.gather(*(ask(exchange, path) for path in PATHS))
        assert told[:whole] == PATHS[:whole]
        assert all(each.startswith("unknown: ") for each in told[whole:])


@pytest.mark.parametrize(("then", "told"), [(Then.CLOSES, "half"), (Then.RESETS, "unknown")])
async def test_only_a_polite_end_makes_a_body_without_a_length_whole(then: Then, told: str) -> None:
    """What had come of it was once taken for all of it after a reset too."""
    async with speaking(b"HTTP/1.1 200 OK\r\n\r\nhalf", then, 1) as (exchange, _):
        assert (await ask(exchange, "/", None)).partition(":")[0] == told


async def test_a_client_that_is_closed_does_not_take_half_a_body_for_the_whole() -> None:
    async with speaking(b"HTTP/1.1 200 OK\r\n\r\nhalf", Then.STAYS, 1) as (exchange, server):
        asking = asyncio.create_task(ask(exchange, "/", None))
        await server.spoken.wait()
        await exchange.close()
        assert (await asking).startswith("unknown: ")


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_in_tiny_pieces_takes_no_more_memory_than_it_has_bytes(
    size: int, *, chunked: bool
) -> None:
    """Each piece was an object once: 256 MiB in chunks of a byte would have taken 11 GiB."""
    count = 20_000
    value = b"x" * size
    parser = AnswerParser()
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 99999999"
    list(parser.feed(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n"))
    tracemalloc.start()
    try:
        for _ in range(count):
            list(parser.feed(b"%x\r\n%b\r\n" % (size, value) if chunked else value))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 2 * size * count + 64 * 1024
    if chunked:
        (answered,) = parser.feed(b"0\r\n\r\n")
        assert answered.body == value * count


HEADERS_REFUSED = [
    {"A\r\nEvil": "1"},
    {"A B": "1"},
    {"": "1"},
    {"Ä": "1"},
    {"Content-Length": "0"},
    {"transfer-encoding": "chunked"},
    {"Connection": "close"},
    {"HOST": "elsewhere"},
    {"Authorization": "Bearer other"},
    {"Stream-Key": " padded"},
    {"Stream-Key": "padded "},
]


@pytest.mark.parametrize("headers", HEADERS_REFUSED, ids=str)
async def test_a_header_cannot_move_the_bounds_of_a_request_or_lose_a_part(
    headers: dict[str, str],
) -> None:
    """Only values were looked at: a name with a line end made a second header, and a coding of the
    caller's made a second request of the body. A server cuts spaces from the ends of a value, so a
    key was stored as another one."""
    exchange = Exchange(Target("http://127.0.0.1:1"))
    with pytest.raises(InvalidRequest) as caught:
        await exchange.send(Request("POST", "/", headers=headers, body=b"x"))
    assert caught.value.code is Code.BAD_HEADER
    assert "Evil" not in str(caught.value)


@pytest.mark.parametrize("value", [5, b"key", None])
async def test_a_header_that_is_no_text_is_a_type_error(value: Any) -> None:
    exchange = Exchange(Target("http://127.0.0.1:1"))
    with pytest.raises(TypeError, match="the header Stream-Key must be a str"):
        await exchange.send(Request("POST", "/", headers={"Stream-Key": value}))


async def test_without_the_look_at_headers_a_request_can_have_two_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "names and values of headers", lambda name, text: f"{name}: {text}\r\n")
    for headers in HEADERS_REFUSED[-3:]:
        with pytest.raises(Unavailable):
            await test_a_header_cannot_move_the_bounds_of_a_request_or_lose_a_part(headers)


async def test_text_that_no_url_can_hold_is_refused() -> None:
    exchange = Exchange(Target("http://127.0.0.1:1"))
    with pytest.raises(InvalidRequest):
        await exchange.send(Request("GET", "/", {"prefix": "\ud800"}))


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..example"])
async def test_a_host_that_no_name_can_be_is_not_known(host: str) -> None:
    exchange = Exchange(Target(f"http://{host}"))
    with pytest.raises(Unavailable, match="is not known"):
        await exchange.send(Request("GET", "/"))


@pytest.mark.parametrize("headers", [{}, {"Stream-Key": "\n"}])
async def test_no_traceback_shows_the_token_also_with_the_variables_of_each_line(
    headers: dict[str, str],
) -> None:
    exchange = Exchange(Target("http://127.0.0.1:1", Credential(TOKEN)))
    with pytest.raises(StoreError) as caught:
        await exchange.send(Request("GET", "/", headers=headers))
    whole = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    shown = "".join(whole.format())
    assert TOKEN not in shown
    assert "exchange.py" in shown
