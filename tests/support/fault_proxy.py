"""A TCP proxy before an HTTP server that disturbs the requests which a test names.

Bytes are forwarded as they are, the Host header too, so signatures stay valid. What it did
stands in its story, and a rule that never met a request fails its test: a test of faults
must have faults. The choice by chance, the byte that is flipped and how long the store is made
to take come from a seed; in what order connections ask for them is up to the processes.

It runs on a thread with a loop of its own, so tests of either kind use it.
"""

import asyncio
import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from support.connections import Connections
from support.faults import CALM, Answer, Fault, Rule
from support.http_bytes import Head, body_of, read_head
from support.latencies import StoreLatency
from support.s3 import bill_kind

DRIP_COUNT = 8


class Deed(NamedTuple):
    """One disturbed request."""

    rule: Rule
    method: str
    path: str
    stored_status: int | None
    """What the server behind answered; None where it was not asked, or did not answer."""


class _Over(Exception):
    """The connection to the client ends here, on purpose."""


@dataclass
class _Exchange:
    """One request with its body, and the two connections it is between."""

    request: Head
    body: bytes
    client: asyncio.StreamReader
    writer: asyncio.StreamWriter
    rule: Rule
    reply: Head | None = None
    reply_body: bytes = b""

    def deed(self) -> Deed:
        status = None if self.reply is None else self.reply.status
        return Deed(self.rule, self.request.method, self.request.path, status)


class FaultProxy:
    """Arm it with rules; the first that fits a request disturbs it."""

    def __init__(self, server: str, seed: int = 0, latency: StoreLatency | None = None) -> None:
        """`latency` is how long the server seems to take at least, before its reply."""
        parts = urlsplit(server)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._chance = random.Random(seed)
        self._latency = latency or {}
        self._latency_chance = random.Random(f"latency {seed}")
        self._lock = threading.Lock()
        self._rules: list[_Armed] = []
        self.endpoint = ""
        self.story: list[Deed] = []
        self.asked: list[tuple[str, str]] = []
        """Method and path of every request, disturbed or not."""
        self.kinds = Counter[str]()
        """These requests, by what a bill calls them."""
        self._stopped = asyncio.Event()
        self._connections = Connections(self._converse)

    @property
    def request_count(self) -> int:
        return len(self.asked)

    @property
    def connection_count(self) -> int:
        """Connections that are open; without one, no request is under way."""
        return len(self._connections)

    def arm(self, *rules: Rule) -> None:
        """Disturb what these name, beside what is armed already."""
        with self._lock:
            self._rules += [_Armed(rule) for rule in rules]

    def calm(self) -> None:
        """Disturb nothing more; what is disturbed already stays so."""
        with self._lock:
            self._rules.clear()

    @contextmanager
    def disturbing(self, *rules: Rule) -> Iterator[None]:
        """Armed inside the block, in which every rule must have met a request."""
        begin = len(self.story)
        self.arm(*rules)
        try:
            yield
        finally:
            self.calm()
        missed = [rule for rule in rules if not self.count(rule, begin)]
        assert not missed, f"these faults never happened: {missed}"

    def count(self, rule: Rule, begin: int = 0) -> int:
        """How often a rule has disturbed a request."""
        return sum(deed.rule == rule for deed in self.story[begin:])

    def exhausted(self, *rules: Rule) -> bool:
        """Whether each rule has done all that it may."""
        return all(rule.times is not None and self.count(rule) >= rule.times for rule in rules)

    async def serve(self) -> None:
        """Serve until `stop`; `endpoint` is set before the first request can come."""
        server = await asyncio.start_server(self._connections, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.endpoint = f"http://{host}:{port}"
        await self._stopped.wait()
        server.close()
        await self._connections.end()

    def stop(self) -> None:
        self._stopped.set()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while (request := await read_head(reader)) is not None:
                self._note(request)
                due = self._due(request)
                if behind is None:
                    behind = await asyncio.open_connection(*self._server)
                rule = self._choose(request)
                if rule is CALM:
                    await _forward(request, reader, writer, behind, due)
                    continue
                body = b"".join([piece async for piece in body_of(request, reader)])
                exchange = _Exchange(request, body, reader, writer, rule)
                await _until(due)
                await self._disturb(exchange, behind)
        except (_Over, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for closing in (writer, *(() if behind is None else behind[1:])):
                closing.close()

    def _note(self, request: Head) -> None:
        self.asked.append((request.method, request.path))
        self.kinds[bill_kind(request.method, request.path)] += 1

    def _due(self, request: Head) -> float:
        """When the reply may be given, by the clock of the loop."""
        latency = self._latency.get(request.method)
        seconds = latency.draw(self._latency_chance) / 1000 if latency else 0.0
        return asyncio.get_running_loop().time() + seconds

    def _choose(self, request: Head) -> Rule:
        with self._lock:
            for armed in self._rules:
                if armed.takes(request, self._chance):
                    return armed.rule
        return CALM

    async def _disturb(
        self, exchange: _Exchange, behind: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        fault = exchange.rule.fault
        if fault is Fault.LATE_REQUEST:
            self._tell(exchange)
            await exchange.client.read(1)
        if fault is Fault.CUT_REQUEST:
            exchange.body = exchange.body[: len(exchange.body) // 2]
        if fault is Fault.FLIP_REQUEST:
            exchange.body = self._flipped(exchange.body)
        if fault.reaches_the_server:
            await _ask(exchange, behind)
        if fault is not Fault.LATE_REQUEST:
            self._tell(exchange)
        match fault:
            case Fault.REFUSE | Fault.MISREPORT:
                exchange.writer.write(_answer(exchange.request, exchange.rule.answer))
                await exchange.writer.drain()
            case Fault.STALL:
                # Until the caller has had enough, however long that is.
                await exchange.client.read(1)
                raise _Over
            case (
                Fault.FLIP_REQUEST
                | Fault.DRIP
                | Fault.FLIP
                | Fault.TRUNCATE
                | Fault.TRUNCATE_AND_RESET
            ):
                await self._spoil(exchange)
            case _:
                raise _Over

    async def _spoil(self, exchange: _Exchange) -> None:
        """Give the reply, but not as it was."""
        reply, body, writer = exchange.reply, exchange.reply_body, exchange.writer
        if reply is None:
            raise _Over
        fault = exchange.rule.fault
        if fault is Fault.FLIP:
            body = self._flipped(body)
        if fault is Fault.DRIP:
            whole = reply.raw + body
            size = max(1, len(whole) // DRIP_COUNT)
            for start in range(0, len(whole), size):
                writer.write(whole[start : start + size])
                await writer.drain()
                await asyncio.sleep(exchange.rule.pause_seconds)
            return
        if fault in (Fault.TRUNCATE, Fault.TRUNCATE_AND_RESET):
            body = body[: len(body) // 2]
        writer.write(reply.raw + body)
        await writer.drain()
        if fault is Fault.TRUNCATE_AND_RESET:
            _reset(writer)
        if fault in (Fault.TRUNCATE, Fault.TRUNCATE_AND_RESET):
            raise _Over

    def _flipped(self, data: bytes) -> bytes:
        with self._lock:
            place = self._chance.randrange(len(data)) if data else 0
        return (
            data[:place]
            + bytes([byte ^ 0x10 for byte in data[place : place + 1]])
            + data[place + 1 :]
        )

    def _tell(self, exchange: _Exchange) -> None:
        with self._lock:
            self.story.append(exchange.deed())


@dataclass
class _Armed:
    """A rule with what it has seen."""

    rule: Rule
    seen: int = field(default=0)
    done: int = field(default=0)

    def takes(self, request: Head, chance: random.Random) -> bool:
        rule = self.rule
        if rule.method is not None and request.method != rule.method:
            return False
        if re.search(rule.path, request.path) is None:
            return False
        self.seen += 1
        if self.seen <= rule.after or (rule.times is not None and self.done >= rule.times):
            return False
        if rule.chance < 1 and chance.random() >= rule.chance:
            return False
        self.done += 1
        return True


async def _forward(
    request: Head,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    behind: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    due: float,
) -> None:
    behind[1].write(request.raw)
    async for piece in body_of(request, reader):
        behind[1].write(piece)
        await behind[1].drain()
    while True:
        reply = await read_head(behind[0])
        if reply is None:
            raise _Over
        if reply.status >= 200:
            await _until(due)
        writer.write(reply.raw)
        if reply.status >= 200:
            break
    async for piece in body_of(reply, behind[0], request=request):
        writer.write(piece)
        await writer.drain()
    await writer.drain()
    if reply.headers.get("connection", "").lower() == "close":
        raise _Over


async def _until(due: float) -> None:
    left = due - asyncio.get_running_loop().time()
    if left > 0:
        await asyncio.sleep(left)


async def _ask(
    exchange: _Exchange, behind: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Send it to the server and take the whole reply, if there is one."""
    reader, writer = behind
    writer.write(exchange.request.raw + exchange.body)
    if exchange.rule.fault is Fault.CUT_REQUEST:
        writer.write_eof()
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        await writer.drain()
        reply = await read_head(reader)
        while reply is not None and reply.status < 200:
            reply = await read_head(reader)
        if reply is not None:
            pieces = [piece async for piece in body_of(reply, reader, request=exchange.request)]
            exchange.reply, exchange.reply_body = reply, b"".join(pieces)


def _answer(request: Head, answer: Answer) -> bytes:
    """An error as S3 words it; a HEAD has no words."""
    words = f"<Error><Code>{answer.code}</Code><Message>no</Message></Error>".encode()
    body = b"" if request.method == "HEAD" else words
    head = f"HTTP/1.1 {answer.status} Answer\r\nContent-Type: application/xml\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with RST, as a peer that died or a firewall does."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


@contextmanager
def running_fault_proxy(
    server: str, seed: int = 0, latency: StoreLatency | None = None
) -> Iterator[FaultProxy]:
    """Start one before the server at this url, on a free port."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    made: list[FaultProxy] = []

    async def main() -> None:
        proxy = FaultProxy(server, seed, latency)
        serving = asyncio.ensure_future(proxy.serve())
        while not proxy.endpoint and not serving.done():
            await asyncio.sleep(0)
        made.append(proxy)
        ready.set()
        await serving

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), name="fault proxy")
    thread.start()
    ready.wait()
    try:
        yield made[0]
    finally:
        loop.call_soon_threadsafe(made[0].stop)
        thread.join()
        loop.close()
