"""Answers that stay open, read over a real socket: events and lines as a client sees them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from support.asgi import on_tcp
from unit.reader.harness import ReaderHarness

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
SECONDS = 240


@dataclass(frozen=True)
class Event:
    name: str
    data: dict[str, Any]
    id: str | None = None

    @property
    def offsets(self) -> list[int]:
        return [record["offset"] for record in self.data["records"]]


@dataclass(frozen=True)
class Open:
    """One answer."""

    response: aiohttp.ClientResponse

    async def line(self) -> str:
        async with asyncio.timeout(SECONDS):
            return (await self.response.content.readline()).decode("utf-8")

    async def event(self) -> Event:
        """The next event; comments are passed over."""
        fields: dict[str, str] = {}
        while line := (await self.line()):
            if line == "\n" and fields:
                data = json.loads(fields["data"])
                return Event(fields["event"], data, fields.get("id"))
            if line != "\n" and not line.startswith(":"):
                name, _, value = line.rstrip("\n").partition(": ")
                fields[name] = value
        raise EOFError

    async def event_of(self, name: str) -> Event:
        """The next event of this name."""
        while (event := await self.event()).name != name:
            pass
        return event

    async def control(self) -> dict[str, Any]:
        """The next line that is no record."""
        while True:
            value = json.loads(await self.line())
            if "_control" in value:
                control: dict[str, Any] = value["_control"]
                return control


@dataclass(frozen=True)
class Client:
    http: aiohttp.ClientSession
    port: int

    @asynccontextmanager
    async def get(self, query: str, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://127.0.0.1:{self.port}/v1/streams/orders/records?{query}"
        async with self.http.get(url, headers=named) as response:
            yield response

    @asynccontextmanager
    async def events(self, query: str = "", **headers: str) -> AsyncIterator[Open]:
        async with self.get(query, accept=SSE, **headers) as response:
            assert response.status == 200, await response.text()
            yield Open(response)

    @asynccontextmanager
    async def lines(self, query: str, **headers: str) -> AsyncIterator[Open]:
        async with self.get(f"{query}&follow=true", accept=NDJSON, **headers) as response:
            assert response.status == 200, await response.text()
            yield Open(response)


@asynccontextmanager
async def served(harness: ReaderHarness) -> AsyncIterator[Client]:
    """A client of the reader in a harness, on a port of its own."""
    async with (
        on_tcp(harness.service.public) as port,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        yield Client(http, port)


async def comes_true(fact: Any) -> None:
    """Wait until `fact()` is true."""
    async with asyncio.timeout(SECONDS):
        while not fact():
            await asyncio.sleep(0.01)
