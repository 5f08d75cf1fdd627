"""An application on a real socket, and clients of applications."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from starlette.types import ASGIApp, Message, Scope

from bottomless_server.runtime.listener.connections import HttpBounds
from bottomless_server.runtime.listener.listeners import Listener, bind_internal, bind_tcp


def client_of(app: ASGIApp) -> httpx.AsyncClient:
    """Calls an application without a socket; its bugs come back as its answers."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


@asynccontextmanager
async def listening(
    app: ASGIApp, bounds: HttpBounds | None = None, *, close_seconds: int = 5
) -> AsyncIterator[Listener]:
    """Serves on a free port of the loopback."""
    listener = Listener(app, bind_tcp("127.0.0.1", 0), bounds=bounds, close_seconds=close_seconds)
    await listener.open()
    try:
        yield listener
    finally:
        await listener.close()


@asynccontextmanager
async def on_tcp(app: ASGIApp) -> AsyncIterator[int]:
    """Serves on a free port of the loopback, which it yields."""
    async with listening(app) as listener:
        yield listener.port


@asynccontextmanager
async def on_socket(app: ASGIApp, path: Path) -> AsyncIterator[str]:
    """Serves on a unix socket, whose url it yields."""
    url = f"unix://{path}"
    listener = Listener(app, bind_internal(url))
    await listener.open()
    try:
        yield url
    finally:
        await listener.close()


def scope_of(
    headers: dict[str, str] | None = None, query: str = "", method: str = "GET", path: str = "/"
) -> Scope:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }


async def no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
