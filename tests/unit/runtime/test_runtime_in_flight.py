"""Whoever still waits when a process ends is answered with a problem, whatever was asked."""

import asyncio

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from support.asgi import listening

from bottomless_server.runtime.http.in_flight import InFlight
from bottomless_server.runtime.listener import listeners


@pytest.mark.parametrize(("method", "outcome"), [("POST", "unknown"), ("GET", "none")])
async def test_what_the_listener_ends_is_told_what_may_have_happened(
    method: str, outcome: str
) -> None:
    asked = asyncio.Event()

    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with httpx.AsyncClient(timeout=60) as client:
        async with listening(InFlight().around(never), close_seconds=0) as listener:
            url = f"http://127.0.0.1:{listener.port}/"
            answer = asyncio.ensure_future(client.request(method, url))
            await asked.wait()
        refused = await answer
    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert (problem["code"], problem["retryable"], problem.get("outcome", "none")) == (
        "draining",
        True,
        outcome,
    )


async def test_who_is_slow_to_end_is_told_before_the_connection_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Work that waits for work of its own takes a turn of the loop for each of them to be cancelled."""
    monkeypatch.setattr(listeners, "TOLD_SECONDS", 600)
    asked = asyncio.Event()

    async def deep(left: int) -> None:
        if not left:
            asked.set()
            await asyncio.Event().wait()
        await asyncio.create_task(deep(left - 1))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await deep(10)

    async with httpx.AsyncClient(timeout=60) as client:
        async with listening(InFlight().around(app), close_seconds=0) as listener:
            answer = asyncio.ensure_future(client.post(f"http://127.0.0.1:{listener.port}/"))
            await asked.wait()
        assert (await answer).json()["outcome"] == "unknown"


async def test_an_answer_that_has_begun_is_broken_off() -> None:
    """Nothing can be said any more that would not be taken for a part of it."""
    begun = asyncio.Event()

    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"10")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        begun.set()
        await asyncio.Event().wait()

    async with httpx.AsyncClient(timeout=60) as client:
        async with listening(InFlight().around(half), close_seconds=0) as listener:
            answer = asyncio.ensure_future(client.get(f"http://127.0.0.1:{listener.port}/"))
            await begun.wait()
        with pytest.raises(httpx.RemoteProtocolError):
            await answer
