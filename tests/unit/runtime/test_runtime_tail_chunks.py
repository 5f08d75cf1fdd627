"""Chunks read from their owner's file: which file is believed, and what happens where none is."""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.asgi import on_socket, on_tcp
from support.chunks import a_chunk
from support.guards import remove
from unit.ingest.harness import STREAM, IngestHarness

from bottomless.errors import Code, InvalidRequest, OffsetGone, Unavailable
from bottomless.formats.segment import HEADER_SIZE, decode_segment_header, encode_segment_header
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId
from bottomless_server.protocol.peer import Params, PeerBytes
from bottomless_server.protocol.tail import (
    BY_FILE_SIZE_MIN,
    ChunkRun,
    ChunksAsked,
    HeadsRun,
    RunGone,
    SegmentPart,
    decode_run,
)
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.runtime.peers.tail_chunks import (
    PAUSE_SECONDS,
    ChunksInAnswers,
    ChunksInFiles,
    ChunkSources,
    read_heads,
)

ASKED = ChunksAsked(0)


class WatchedPeer(Peer):
    """The owner over its socket; notes whether each question asked for a file, and how many bytes
    came in the answer."""

    def __init__(self, url: str) -> None:
        super().__init__(url, name="ingest")
        self.asked: list[tuple[int, int]] = []
        self.refuses = False
        """As the release before does what it does not know."""
        self.meanwhile: Callable[[Path], Any] = lambda _: None
        """Happens to the file that an answer names, before whoever asked opens it."""

    async def fetch(self, path: str, *, params: Params | None = None, **more: Any) -> PeerBytes:
        by_file = int((params or {}).get("by_file", 0))
        if by_file and self.refuses:
            self.asked.append((1, 0))
            raise InvalidRequest("there is no such parameter", code=Code.BAD_PARAMETER)
        answer = await super().fetch(path, params=params, **more)
        self.asked.append((by_file, len(answer.data)))
        part = decode_run(answer).part
        if part is not None:
            self.meanwhile(Path(part.path))
        return answer


class Stage:
    def __init__(self, harness: IngestHarness, peer: WatchedPeer) -> None:
        self.harness = harness
        self.peer = peer
        self.now = 0.0
        self.source = ChunksInFiles(ChunksInAnswers(peer), lambda: self.now)

    @property
    def segment(self) -> Path:
        return self.harness.segments()[0]

    async def run(self) -> ChunkRun:
        return await self.source.chunks(STREAM, ASKED, timeout_seconds=60)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    harness = await IngestHarness(tmp_path / "ingest").declare()
    await harness.start()
    await harness.append("x" * BY_FILE_SIZE_MIN)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(
            on_socket(harness.internal_app, tmp_path / "owner.sock")
        )
        yield Stage(harness, await stack.enter_async_context(WatchedPeer(url)))
    await harness.aclose()


async def test_a_long_run_is_read_from_its_file_and_a_short_one_comes_in_the_answer(
    stage: Stage,
) -> None:
    run = await stage.run()
    short = await stage.source.chunks(STREAM, ChunksAsked(1), timeout_seconds=60)

    assert bytes(run.data) == stage.segment.read_bytes()[HEADER_SIZE:]
    assert run.part is None
    assert stage.peer.asked == [(1, 0), (1, len(short.data))]


def _with_header(path: Path, **fields: Any) -> None:
    """Another segment under the name, with the same size and other bytes."""
    data = path.read_bytes()
    header = decode_segment_header(data[:HEADER_SIZE])._replace(**fields)
    path.rename(path.with_suffix(".before"))
    path.write_bytes(encode_segment_header(header) + data[HEADER_SIZE:][::-1])


def _symlink(path: Path) -> None:
    path.symlink_to(path.rename(path.with_suffix(".before")))


def _directory(path: Path) -> None:
    path.rename(path.with_suffix(".before"))
    path.mkdir()


def _pipe(path: Path) -> None:
    path.rename(path.with_suffix(".before"))
    os.mkfifo(path)


def _damaged(path: Path) -> None:
    path.rename(path.with_suffix(".before"))
    path.write_bytes(b"no segment" * 100_000)


def _shorter(path: Path) -> None:
    """A copy that ends early; the bytes of the owner's own file stay."""
    shutil.copy(path, path.with_suffix(".copy"))
    path.rename(path.with_suffix(".before"))
    path.with_suffix(".copy").rename(path)
    os.truncate(path, BY_FILE_SIZE_MIN)


SWAPS: dict[str, Callable[[Path], Any]] = {
    "a later epoch's": lambda path: _with_header(path, epoch=2),
    "another stream's": lambda path: _with_header(
        path, stream_id=StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12")
    ),
    "another segment": lambda path: _with_header(path, first_offset=1),
    "a symlink": _symlink,
    "a directory": _directory,
    "a pipe": _pipe,
    "no segment": _damaged,
    "a shorter one": _shorter,
    "missing here": lambda path: path.rename(path.with_suffix(".before")),
}


async def _whatever_lies_at_the_path(stage: Stage, swap: Callable[[Path], Any]) -> None:
    """The run is the owner's all the same, which sees its own file: after the look it is back."""
    path = stage.segment
    wanted = path.read_bytes()[HEADER_SIZE:]
    fetched = ChunksInAnswers(stage.peer)

    class ThenItIsBack(ChunksInAnswers):
        async def chunks(
            self, stream_id: StreamId, asked: ChunksAsked, *, timeout_seconds: float
        ) -> ChunkRun:
            before = path.with_suffix(".before")
            if before.exists():
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
                before.rename(path)
            return await fetched.chunks(stream_id, asked, timeout_seconds=timeout_seconds)

    stage.peer.meanwhile = swap
    stage.source = ChunksInFiles(ThenItIsBack(stage.peer), lambda: stage.now)

    run = await stage.run()

    assert bytes(run.data) == wanted
    assert [by_file for by_file, _ in stage.peer.asked] == [1, 0]


@pytest.mark.parametrize("name", SWAPS)
async def test_a_file_that_is_not_the_segment_meant_is_not_believed(
    stage: Stage, name: str
) -> None:
    await _whatever_lies_at_the_path(stage, SWAPS[name])


async def test_without_a_look_at_the_file_another_segment_is_taken_for_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the file is the segment that its owner means", lambda *_: None)

    with pytest.raises(AssertionError):
        await _whatever_lies_at_the_path(stage, SWAPS["a later epoch's"])


async def test_an_owner_of_another_user_or_over_tcp_names_no_file(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names_files(answer: PeerBytes) -> bool:
        return decode_run(answer).part is not None

    app = stage.harness.internal_app
    path = f"/internal/v1/streams/{STREAM}/chunks"
    params = ASKED._replace(by_file=1).params()
    async with on_tcp(app) as port, Peer(f"http://127.0.0.1:{port}", name="ingest") as over_tcp:
        assert names_files(await stage.peer.fetch(path, params=params))
        assert not names_files(await over_tcp.fetch(path, params=params))

        remove(monkeypatch, "files are shown to the same user only", lambda _: True)
        assert names_files(await over_tcp.fetch(path, params=params))


async def test_a_segment_that_was_freed_meanwhile_has_moved_and_files_are_read_on(
    stage: Stage,
) -> None:
    stage.peer.meanwhile = lambda path: path.rename(path.with_suffix(".before"))
    with pytest.raises(OffsetGone) as caught:
        await stage.run()
    assert caught.value.code is Code.MOVED
    stage.peer.meanwhile = lambda _: None
    before = next(stage.harness.data_dir.rglob("*.before"))
    before.rename(before.with_suffix(".segment"))

    await stage.run()

    assert stage.peer.asked[-1] == (1, 0)


async def test_after_a_file_that_could_not_be_read_bytes_are_asked_for_for_a_while(
    stage: Stage,
) -> None:
    stage.peer.refuses = True
    wanted = stage.segment.read_bytes()[HEADER_SIZE:]

    for now, by_file in ((0, [1, 0]), (PAUSE_SECONDS - 1, [0]), (PAUSE_SECONDS, [1, 0])):
        stage.now = now
        stage.peer.asked.clear()
        assert bytes((await stage.run()).data) == wanted
        assert [asked for asked, _ in stage.peer.asked] == by_file


async def test_a_stream_whose_bytes_cannot_be_read_is_asked_for_as_bytes_and_others_are_not(
    stage: Stage,
) -> None:
    """Its headers can be read: whoever reads them alone would never ask for its bytes."""
    found = await stage.source.heads(STREAM, ASKED, timeout_seconds=60)
    assert isinstance(found, HeadsRun)
    wanted = stage.segment.read_bytes()[HEADER_SIZE:]
    gone = stage.segment.rename(stage.segment.with_suffix(".before"))
    with pytest.raises(RunGone):
        await found.bytes.read_into(0, memoryview(bytearray(found.size)))
    gone.rename(gone.with_suffix(".segment"))

    for now, by_file in ((0, [0]), (PAUSE_SECONDS - 1, [0]), (PAUSE_SECONDS, [1])):
        stage.now = now
        stage.peer.asked.clear()
        assert stage.source.reads_files(STREAM) == bool(by_file[0])
        assert stage.source.reads_files(StreamId("another"))
        run = await stage.source.heads(STREAM, ASKED, timeout_seconds=60)
        assert isinstance(run, HeadsRun) or bytes(run.data) == wanted
        assert [asked for asked, _ in stage.peer.asked] == by_file


async def test_chunks_smaller_than_what_their_headers_take_come_as_bytes(stage: Stage) -> None:
    small = [a_chunk(number, 1, value_size=10) for number in range(2_000)]
    large = a_chunk(len(small), 1, value_size=MIB)
    for chunks, whole in ((small, True), ([*small, large], True), ([*small[:100], large], False)):
        data = b"".join(chunks)
        header = stage.segment.read_bytes()[:HEADER_SIZE]
        path = stage.segment.with_suffix(".copy")
        path.write_bytes(header + data)
        first, epoch = decode_segment_header(header)[1:]
        part = SegmentPart(str(path), HEADER_SIZE, len(data), first, epoch)
        heads = read_heads(STREAM, part)
        assert (heads is None) == whole
        assert heads is None or len(heads) == len(chunks)


async def test_a_disk_that_does_not_answer_keeps_nobody_for_longer_than_it_was_told(
    stage: Stage,
) -> None:
    """All threads are kept by it. Time was only looked at while the owner answered, and each other
    check has a disk that answers, or fails."""

    class InTime(ChunksInAnswers):
        async def chunks(
            self, stream_id: StreamId, asked: ChunksAsked, *, timeout_seconds: float
        ) -> ChunkRun:
            del timeout_seconds
            return await super().chunks(stream_id, asked, timeout_seconds=60)

    answers = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(answers.wait)
        try:
            stage.source = ChunksInFiles(InTime(stage.peer), lambda: stage.now, threads)
            async with asyncio.timeout(60):
                with pytest.raises(Unavailable) as caught:
                    await stage.source.chunks(STREAM, ASKED, timeout_seconds=0.05)
                after = await stage.run()
        finally:
            answers.set()

    assert caught.value.code is Code.PEER_UNAVAILABLE
    assert bytes(after.data) == stage.segment.read_bytes()[HEADER_SIZE:]
    assert [by_file for by_file, _ in stage.peer.asked] == [1, 0]


async def test_how_an_owner_is_asked_is_remembered_by_its_address(stage: Stage) -> None:
    class OnePeer:
        def at(self, _: str, /) -> WatchedPeer:
            return stage.peer

        async def aclose(self) -> None:
            """The stage closes it."""

    sources = ChunkSources(OnePeer())
    stage.peer.refuses = True
    for _ in range(2):
        await sources.at("unix:///owner.sock").chunks(STREAM, ASKED, timeout_seconds=60)
    await sources.at("http://owner").chunks(STREAM, ASKED, timeout_seconds=60)

    assert [by_file for by_file, _ in stage.peer.asked] == [1, 0, 0, 0]
