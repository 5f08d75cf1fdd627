"""A client stays with the loop and the process in which it was first used."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from support.guards import remove
from support.raw_server import Asked, answer, raw_server

from bottomless.client import AsyncClient
from bottomless.client.transport import Timeouts
from bottomless.errors import Unavailable

STORED = {"first_offset": 0, "next_offset": 1, "timestamp": None, "count": 1, "duplicates": 0}
LISTED: dict[str, list[object]] = {"items": []}


def said(asked: Asked) -> bytes:
    return answer(value=STORED if asked.method == "POST" else LISTED)


async def append(client: AsyncClient) -> object:
    return await client.append_raw("orders", b"x")


async def list_streams(client: AsyncClient) -> object:
    return [each async for each in client.list_streams()]


async def follow(client: AsyncClient) -> object:
    async with client.consumer("orders") as consumer:
        return await anext(aiter(consumer))


CALLS: list[Callable[[AsyncClient], Coroutine[Any, Any, object]]] = [append, list_streams, follow]


@pytest.mark.parametrize("call", CALLS)
async def test_a_client_is_refused_on_another_loop_before_anything_is_sent(
    call: Callable[[AsyncClient], Coroutine[Any, Any, object]],
) -> None:
    """An append went out there over a connection of the first loop, was stored, and its answer was
    waited for until the time was over. Every test had one loop."""
    async with raw_server(said) as server, AsyncClient(server.url, retry_seconds=0) as client:
        await append(client)
        await list_streams(client)

        def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="event loop"):
                asyncio.run(call(client))

        await asyncio.to_thread(elsewhere)
        assert len(server.asked) == 2


async def test_without_the_look_at_the_loop_an_append_goes_out_whose_answer_nobody_hears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the process and the event loop of a client", lambda _: None)
    times = Timeouts(answer=0.5)
    async with raw_server(said) as server:
        client = AsyncClient(server.url, retry_seconds=0, timeouts=times)
        await append(client)
        # By luck the answer is passed on from loop to loop.
        with suppress(Unavailable, RuntimeError):
            await asyncio.to_thread(lambda: asyncio.run(append(client)))
        assert len(server.asked) == 2
        await client.aclose()


async def test_a_child_of_a_fork_is_told_and_sends_nothing_by_its_parents_connections() -> None:
    """Its request went out there, and its answer came to whoever of the parent asked next."""
    async with raw_server(said) as server, AsyncClient(server.url, retry_seconds=0) as client:
        await append(client)
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            _call_in_child(client, write_end)
        os.close(write_end)
        with os.fdopen(read_end) as told:
            assert "after a fork" in await asyncio.to_thread(told.read)
        await asyncio.to_thread(os.waitpid, child, 0)
        await append(client)
        assert len(server.asked) == 2


def _call_in_child(client: AsyncClient, told: int) -> None:
    def call() -> None:
        try:
            asyncio.run(append(client))
        except RuntimeError as error:
            os.write(told, str(error).encode())

    try:
        # This thread is in the midst of the parent's loop.
        calling = threading.Thread(target=call)
        calling.start()
        calling.join()
    finally:
        os._exit(0)
