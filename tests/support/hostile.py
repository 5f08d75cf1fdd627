"""Load that means harm, from one loop: bodies without end, bombs, readers that take nothing, and
many who stay. And what a server's memory does meanwhile."""

import asyncio
import gzip
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import psutil
import pyarrow as pa

MIB: Final = 1024 * 1024
JSON: Final = "application/json"
ANSWER_SECONDS: Final = 60.0
"""Within which everybody is answered, also where the machine is slow: the server's own bounds are
some seconds."""
CONNECT_COUNT_MAX: Final = 100
"""Connections that are being opened at once."""


class Memory:
    """The resident memory of processes, sampled while something happens."""

    def __init__(self, pids: Mapping[str, int], seconds: float = 0.2) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._seconds = seconds
        self.peak: dict[str, int] = {}

    def now(self) -> dict[str, int]:
        return {name: process.memory_info().rss for name, process in self._processes.items()}

    @contextmanager
    def sampled(self) -> Iterator[dict[str, int]]:
        """The peaks of what happens inside."""
        peaks = self.now()
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(self._seconds):
                for name, size in self.now().items():
                    peaks[name] = max(peaks[name], size)

        sampling = threading.Thread(target=sample)
        sampling.start()
        try:
            yield peaks
        finally:
            ended.set()
            sampling.join()


class Hostile:
    """Clients of one server, each a connection of its own. What they were answered is counted."""

    def __init__(self, url: str, stream: str) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname, where.port
        self._records = f"/v1/streams/{stream}/records"
        self.answers: Counter[str] = Counter()
        self.events = 0
        """Pages of records that followers got."""
        self._opening = asyncio.Semaphore(CONNECT_COUNT_MAX)

    async def body_without_end(self) -> None:
        """Declare as much as may be sent, send nearly all of it, and then nothing."""
        head = self._post(JSON, 8 * MIB)
        await self._talk("unfinished", head + b" " * (8 * MIB - 1), ANSWER_SECONDS)

    async def bomb(self, encoding: str, size: int) -> None:
        """Little that becomes much."""
        data = _bomb(encoding, size)
        head = self._post(JSON, len(data), f"Content-Encoding: {encoding}\r\n")
        await self._talk(f"{encoding} bomb", head + data, ANSWER_SECONDS)

    async def take_nothing(self, seconds: float) -> None:
        """Ask for a large page, and never read of it."""
        accept = "application/vnd.apache.arrow.stream"
        path = f"{self._records}?offset=first&limit=10000&max_bytes=16777216"
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"
        _, writer = await self._open(2**12)
        try:
            writer.write(request.encode())
            await asyncio.sleep(seconds)
            self.answers["page not taken"] += 1
        finally:
            await _close(writer)

    async def follow(self, ended: asyncio.Event) -> None:
        """Stay, and take what comes."""
        request = (
            f"GET {self._records}?offset=next HTTP/1.1\r\nHost: x\r\n"
            "Accept: text/event-stream\r\n\r\n"
        )
        reader, writer = await self._open()
        leaving = asyncio.create_task(ended.wait())
        try:
            writer.write(request.encode())
            status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
            self.answers[f"follow {status}"] += 1
            reading = asyncio.create_task(self._count_events(reader))
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        finally:
            leaving.cancel()
            await _close(writer)

    async def go_on(self, seconds: float) -> None:
        """Append and read as usual, a little; a refusal for now is no fault. Goes on until both
        were done once, as slow as this machine may be."""
        began_at = time.monotonic()
        while (passed := time.monotonic() - began_at) < ANSWER_SECONDS:
            if passed >= seconds and self.answers["append 200"] and self.answers["read 200"]:
                return
            body = b'{"records": [{"value": "usual"}]}'
            await self._talk("append", self._post(JSON, len(body)) + body, 30)
            read = f"GET {self._records}?offset=next HTTP/1.1\r\nHost: x\r\n\r\n"
            await self._talk("read", read.encode(), 30)
            await asyncio.sleep(0.5)

    async def _count_events(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(2**16):
            self.events += data.count(b"event: records")
        self.answers["follow ended"] += 1

    async def _talk(self, what: str, request: bytes, seconds: float) -> None:
        """Send, and note the status that comes in time."""
        reader, writer = await self._open()
        try:
            async with asyncio.timeout(seconds):
                writer.write(request)
                with suppress(ConnectionError):
                    await writer.drain()
                status = (await reader.readuntil(b"\r\n"))[9:12].decode()
            self.answers[f"{what} {status}"] += 1
        except TimeoutError:
            self.answers[f"{what} unanswered"] += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.answers[f"{what} closed"] += 1
        finally:
            await _close(writer)

    async def _open(self, limit: int = 2**16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with self._opening:
            return await asyncio.open_connection(self._host, self._port, limit=limit)

    def _post(self, media_type: str, size: int, more: str = "") -> bytes:
        head = (
            f"POST {self._records} HTTP/1.1\r\nHost: x\r\nContent-Type: {media_type}\r\n"
            f"{more}Content-Length: {size}\r\n\r\n"
        )
        return head.encode()


@dataclass(frozen=True)
class Numbers:
    """How many of each."""

    bodies: int = 20
    bombs: int = 8
    slow_readers: int = 20
    followers: int = 200
    bomb_size: int = 128 * MIB
    seconds: float = 12


async def assault(url: str, stream: str, numbers: Numbers) -> Hostile:
    """All of it at once, while somebody appends and reads as usual; returns what was answered."""
    hostile = Hostile(url, stream)
    ended = asyncio.Event()
    async with asyncio.TaskGroup() as following:
        for _ in range(numbers.followers):
            following.create_task(hostile.follow(ended))
        async with asyncio.timeout(120):
            while sum(hostile.answers.values()) < numbers.followers:
                await asyncio.sleep(0.05)
        try:
            async with asyncio.TaskGroup() as attacks:
                attacks.create_task(_bodies(hostile, numbers))
                for _ in range(numbers.slow_readers):
                    attacks.create_task(hostile.take_nothing(numbers.seconds))
                attacks.create_task(hostile.go_on(numbers.seconds))
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    while hostile.events < numbers.followers:
                        await asyncio.sleep(0.05)
        finally:
            ended.set()
    return hostile


async def _bodies(hostile: Hostile, numbers: Numbers) -> None:
    # One after the other, since who holds all the room keeps the others out.
    bombs = [
        hostile.bomb(encoding, numbers.bomb_size)
        for encoding in ("gzip", "zstd")
        for _ in range(numbers.bombs)
    ]
    await asyncio.gather(*bombs)
    unfinished = [hostile.body_without_end() for _ in range(numbers.bodies)]
    await asyncio.gather(*unfinished)


@cache
def _bomb(encoding: str, size: int) -> bytes:
    start, end = b'{"records": [{"value": "', b'"}]}'
    text = start + b"a" * size + end
    if encoding == "gzip":
        return gzip.compress(text, 1)
    packed: bytes = pa.compress(text, codec="zstd", asbytes=True)
    return packed


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()
