"""Bytes from peers: received in their place, over connections that are kept."""

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import pytest

from bottomless.errors import Outcome, Unavailable
from bottomless.model.limits import MIB
from bottomless_server.fetch import get_in_place
from bottomless_server.runtime.peers.peers import Peer

BODY: Final = bytes(range(256)) * (4 * MIB // 256)
OK: Final = b"HTTP/1.1 200 OK\r\n"


class Serving:
    """A server that answers each request with the next of its answers, whatever was asked."""

    def __init__(self, answers: list[bytes]) -> None:
        self.answers = answers
        self.requests: list[bytes] = []
        self.connection_count = 0
        self.left = asyncio.Event()
        """One of the connections has ended."""
        self.asked = asyncio.Event()
        self.hang_up = False
        """After each answer, without having said so."""
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        self._tasks.append(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), closing(writer):
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                self.asked.set()
                if self.answers:
                    answer = memoryview(self.answers.pop(0))
                    for start in range(0, len(answer), 100_000):
                        writer.write(answer[start : start + 100_000])
                        await writer.drain()
                if self.hang_up:
                    break
        self.left.set()

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def asked(path: Path, *answers: bytes) -> AsyncIterator[tuple[Serving, Peer]]:
    serving = Serving(list(answers))
    server = await asyncio.start_unix_server(serving.begin, path / "s.sock")
    async with server, Peer(f"unix://{path}/s.sock", name="test", timeout_seconds=30) as peer:
        yield serving, peer
        await peer.aclose()
        await serving.aclose()


def sized(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return OK + b"Content-Length: %d\r\n%b\r\n%b" % (len(body), lines, body)


async def test_a_large_body_is_held_in_memory_once(tmp_path: Path) -> None:
    async with asked(tmp_path, sized(b"warm"), sized(BODY)) as (_, peer):
        await peer.fetch("/")
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            answer = await peer.fetch("/")
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        assert answer.data == BODY
        assert peak < 1.5 * len(BODY), "received in its place"
        assert memoryview(answer.data).readonly


async def test_half_a_body_is_let_go_of_with_its_connection(tmp_path: Path) -> None:
    half = sized(BODY)[: len(BODY) // 2]
    async with asked(tmp_path, sized(b"warm"), half) as (serving, peer):
        await peer.fetch("/")
        serving.asked.clear()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            leaving = asyncio.create_task(peer.fetch("/"))
            async with asyncio.timeout(240):
                while tracemalloc.get_traced_memory()[0] - before < len(BODY):
                    await asyncio.sleep(0.01)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            async with asyncio.timeout(240):
                await serving.left.wait()
                while tracemalloc.get_traced_memory()[0] - before > MIB:
                    await asyncio.sleep(0.01)
        finally:
            tracemalloc.stop()
            gc.enable()


async def test_answers_of_all_forms_follow_each_other_on_one_connection(tmp_path: Path) -> None:
    chunked = OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n3\r\nway\r\n0\r\n\r\n"
    answers = sized(BODY), chunked, sized(b""), sized(b"small"), sized(BODY[:70_000])
    async with asked(tmp_path, *answers) as (serving, peer):
        found = [bytes((await peer.fetch("/a", params={"b": "c d"})).data) for _ in answers]
        assert found == [BODY, b"halfway", b"", b"small", BODY[:70_000]]
        assert serving.connection_count == 1
        assert serving.requests[0].startswith(b"GET /a?b=c+d HTTP/1.1\r\nhost: test\r\n")


async def test_a_body_that_does_not_say_its_size_has_a_bound_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get_in_place, "BODY_SIZE_MAX", 100_000)
    part = b"186a0\r\n" + bytes(100_000) + b"\r\n"
    endless = OK + b"Transfer-Encoding: chunked\r\n\r\n" + part * 3
    async with asked(tmp_path, endless, sized(b"next")) as (serving, peer):
        with pytest.raises(Unavailable):
            await peer.fetch("/")
        assert (await peer.fetch("/")).data == b"next"
        assert serving.connection_count == 2


async def test_a_kept_connection_that_was_closed_is_opened_anew(tmp_path: Path) -> None:
    async with asked(tmp_path, sized(b"one"), sized(b"two")) as (serving, peer):
        serving.hang_up = True
        assert (await peer.fetch("/")).data == b"one"
        assert (await peer.fetch("/")).data == b"two"
        assert serving.connection_count == 2


async def test_a_connection_that_says_so_is_not_used_again(tmp_path: Path) -> None:
    async with asked(tmp_path, sized(b"one", b"Connection: close"), sized(b"two")) as (s, peer):
        await peer.fetch("/")
        await peer.fetch("/")
        assert s.connection_count == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"SMTP ready\r\n\r\n",
        OK + b"Content-Length: 99999999999999\r\n\r\n",
        OK + b"Content-Length: 4\r\n\r\nfour and more",
        OK + b"X: " + bytes([65]) * 300_000,
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    ],
    ids=[
        "not HTTP",
        "a size beyond all bounds",
        "more than it says",
        "an endless head",
        "two sizes",
    ],
)
async def test_what_is_no_answer_of_ours_is_refused(tmp_path: Path, answer: bytes) -> None:
    async with asked(tmp_path, answer) as (_, peer):
        with pytest.raises(Unavailable):
            await peer.fetch("/", timeout_seconds=5)


async def test_who_goes_away_leaves_no_half_answer_to_the_next(tmp_path: Path) -> None:
    half = sized(BODY)[: 2 * MIB]
    async with asked(tmp_path, half, sized(b"whole")) as (serving, peer):
        leaving = asyncio.create_task(peer.fetch("/"))
        async with asyncio.timeout(240):
            await serving.asked.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert (await peer.fetch("/")).data == b"whole"
        assert serving.connection_count == 2
        async with asyncio.timeout(240):
            await serving.left.wait()


async def test_a_connection_that_was_on_its_way_at_the_end_is_ended_too(tmp_path: Path) -> None:
    """Ends were tested with connections that were open, idle or asked something."""
    loop = asyncio.get_running_loop()
    connecting, go = asyncio.Event(), asyncio.Event()

    async def connect(protocol: Callable[[], asyncio.BufferedProtocol]) -> Any:
        connecting.set()
        await go.wait()
        return await loop.create_unix_connection(protocol, str(tmp_path / "s.sock"))

    serving = Serving([sized(b"answer")])
    async with await asyncio.start_unix_server(serving.begin, tmp_path / "s.sock"):
        client = get_in_place.InPlaceClient(
            connect, {"host": "s"}, connection_count_max=1, connect_seconds=60, idle_seconds=60
        )
        asking = asyncio.create_task(client.get("/", {}, 60))
        await connecting.wait()
        client.close()
        go.set()
        with pytest.raises(get_in_place.NoConnection):
            await asking
        async with asyncio.timeout(60):
            await serving.left.wait()
        await serving.aclose()
    assert serving.requests == []


class Taking:
    """A server that takes POSTs, and hangs up instead of answering when it is told to."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.heads: list[bytes] = []
        self.answers = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError), closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(size))
                if not self.answers:
                    return
                writer.write(sized(b"taken"))


@asynccontextmanager
async def taking(path: Path) -> AsyncIterator[tuple[Taking, Peer]]:
    server = Taking()
    async with (
        await asyncio.start_unix_server(server.serve, path / "s.sock", limit=64 * MIB),
        Peer(f"unix://{path}/s.sock", name="test", timeout_seconds=30) as peer,
    ):
        yield server, peer
        await peer.aclose()


async def test_parts_are_sent_as_one_body(tmp_path: Path) -> None:
    async with taking(tmp_path) as (server, peer):
        bodies: list[list[bytes | memoryview]] = [[BODY, memoryview(BODY)[:5], b"end"], [b"1"], []]
        for parts in bodies:
            assert await peer.post("/a", parts, "text/plain", 60, {"x-y": "z"}) == b"taken"
            assert server.bodies.pop() == b"".join(parts)
        head = server.heads[0].lower()
        assert head.startswith(b"post /a http/1.1\r\nhost: test\r\n")
        assert b"content-type: text/plain\r\n" in head
        assert b"x-y: z\r\n" in head


async def test_a_post_is_sent_once_and_its_outcome_unknown_without_an_answer(
    tmp_path: Path,
) -> None:
    async with taking(tmp_path) as (server, peer):
        await peer.post("/", [b"one"], "text/plain", 60)
        server.answers = False
        with pytest.raises(Unavailable) as caught:
            await peer.post("/", [b"two"], "text/plain", 60)
        assert caught.value.outcome is Outcome.UNKNOWN
        server.answers = True
        assert await peer.post("/", [b"three"], "text/plain", 60) == b"taken"
        assert server.bodies == [b"one", b"two", b"three"]


async def test_nothing_was_sent_to_who_is_not_there(tmp_path: Path) -> None:
    async with Peer(f"unix://{tmp_path}/nobody.sock", name="test") as peer:
        with pytest.raises(Unavailable) as caught:
            await peer.post("/", [b"one"], "text/plain", 60)
    assert caught.value.outcome is Outcome.NONE
