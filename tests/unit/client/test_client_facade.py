"""`Client`: nothing of its own but a thread, and it says so where that does not work."""

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
from support.raw_server import RawServer, answer, problem, raw_server

import bottomless
from bottomless.client import AsyncClient, BottomlessClient, Client
from bottomless.client.loop_thread import LoopThread
from bottomless.errors import NotFound

PAGE = answer(value={"records": [{"offset": 0}], "next_offset": 1, "up_to_date": True})


@pytest.fixture
def server() -> Iterator[RawServer]:
    """A server on a thread of its own, since here everybody blocks."""
    ready, stop = threading.Event(), asyncio.Event()
    loop, made = asyncio.new_event_loop(), list[RawServer]()

    async def main() -> None:
        async with raw_server(lambda _: PAGE) as running:
            made.append(running)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    ready.wait()
    yield made[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_each_call_has_its_twin_with_the_same_words() -> None:
    assert public(AsyncClient) - {"aclose"} == public(Client) - {"close"}
    for name in public(Client) - {"close"}:
        mine, theirs = getattr(Client, name), getattr(AsyncClient, name)
        assert mine.__doc__ == theirs.__doc__ or name == "fragment_bytes"
        assert str(inspect.signature(mine)) == str(inspect.signature(theirs)) or (
            name == "fragment_bytes"
        )


def test_the_package_shows_both_and_loads_neither_before_it_is_named() -> None:
    assert (bottomless.Client, bottomless.AsyncClient) == (Client, AsyncClient)
    assert BottomlessClient is Client
    with pytest.raises(AttributeError):
        _ = bottomless.Nothing
    code = "import sys, bottomless.errors; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_may_be_used_from_many_threads(server: RawServer) -> None:
    with Client(server.url) as client:
        found: list[int] = []

        def work() -> None:
            found.extend(client.read("orders", 0).next_offset for _ in range(10))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [1] * 40


def test_errors_come_through_as_they_are(server: RawServer) -> None:
    server.script = lambda _: problem(404, "stream-not-found")
    with Client(server.url) as client, pytest.raises(NotFound):
        client.describe("orders")


def test_items_of_a_list_come_when_they_are_asked_for(server: RawServer) -> None:
    server.script = lambda asked: answer(
        value={"items": [{"name": asked.path}], "next_page_token": "more"}
    )
    with Client(server.url) as client:
        items = client.list_streams()
        next(items)
        assert len(server.asked) == 1
        next(items)
        assert len(server.asked) == 2


def test_after_its_end_it_says_so_and_ends_again_without_a_word(server: RawServer) -> None:
    client = Client(server.url)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.read("orders", 0)


def test_one_that_nobody_closed_is_closed_when_nobody_has_it(server: RawServer) -> None:
    client = Client(server.url)
    client.read("orders", 0)
    thread = client._thread
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del client
        gc.collect()
    assert not thread.alive


def test_a_child_of_a_fork_is_told_and_the_parent_goes_on(server: RawServer) -> None:
    with Client(server.url) as client:
        client.read("orders", 0)
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            try:
                client.read("orders", 0)
            except RuntimeError as error:
                os.write(write_end, str(error).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        os.waitpid(child, 0)
        with os.fdopen(read_end) as told:
            assert "after a fork" in told.read()
        assert client.read("orders", 0).next_offset == 1


def test_a_callback_on_its_own_thread_may_not_wait_for_it() -> None:
    thread = LoopThread()

    async def within() -> None:
        thread.run(asyncio.sleep(0))

    try:
        with pytest.raises(RuntimeError, match="own thread"):
            thread.run(within())
    finally:
        thread.stop()


def test_an_end_cancels_what_runs() -> None:
    thread, cancelled, begun = LoopThread(), threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    future = asyncio.run_coroutine_threadsafe(work(), thread.loop)
    begun.wait()
    thread.stop()
    assert cancelled.is_set()
    assert future.cancelled()
