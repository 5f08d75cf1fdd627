"""What the reader and the uploader rely on of the chunks of a tail, whatever way the bytes take.

The owner is a real one, on a real listener: over TCP and over a unix socket, where the bytes are
read from its files.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.asgi import on_socket, on_tcp
from unit.ingest.harness import STREAM, IngestHarness

from bottomless.errors import Code, OffsetGone, StoreError
from bottomless.formats.chunk import split_chunks
from bottomless_server.protocol.peer import PeerBytes
from bottomless_server.protocol.tail import (
    BY_FILE_SIZE_MIN,
    ChunkRun,
    ChunksAsked,
    ChunkSource,
    HeadsRun,
    RunGone,
    bounds_of_moved,
    decode_run,
)
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.runtime.peers.tail_chunks import ChunksInAnswers, chunk_source

SECONDS = 60.0
LONG = "x" * (BY_FILE_SIZE_MIN // 3)
WAYS = ("answers over a socket", "answers over TCP", "files")


@dataclass
class Owner:
    harness: IngestHarness
    source: ChunkSource

    async def run(self, first_offset: int, max_bytes: int = 2**22, wait_ms: int = 0) -> ChunkRun:
        asked = ChunksAsked(first_offset, max_bytes, wait_ms)
        return await self.source.chunks(STREAM, asked, timeout_seconds=SECONDS)

    async def answered(self, first_offset: int, max_bytes: int = 2**22) -> ChunkRun:
        """The same, as the owner answers it to whoever asks for nothing special."""
        answer = await self.harness.chunks(first_offset, max_bytes=max_bytes)
        return decode_run(PeerBytes(answer.headers, answer.content))


async def opened(way: str, harness: IngestHarness, stack: AsyncExitStack, path: Path) -> Owner:
    app = harness.internal_app
    if way == "answers over TCP":
        url = f"http://127.0.0.1:{await stack.enter_async_context(on_tcp(app))}"
    else:
        url = await stack.enter_async_context(on_socket(app, path))
    peer = await stack.enter_async_context(Peer(url, name="ingest"))
    asked_plainly = way == "answers over a socket"
    return Owner(harness, ChunksInAnswers(peer) if asked_plainly else chunk_source(peer, url))


@pytest.fixture(params=WAYS)
async def owner(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Owner]:
    harness = await IngestHarness(tmp_path / "ingest", ingest_segment_chunk_count_max=5).declare()
    await harness.start()
    async with AsyncExitStack() as stack:
        yield await opened(request.param, harness, stack, tmp_path / "owner.sock")
    await harness.aclose()


async def test_a_run_is_what_the_owner_has_on_disk(owner: Owner) -> None:
    for number in range(8):
        await owner.harness.append(f"{number}{LONG}", "short")

    for first_offset in (0, 1, 2, 9, 10, 15):
        for max_bytes in (1, BY_FILE_SIZE_MIN, BY_FILE_SIZE_MIN + 1, 2**22):
            run = await owner.run(first_offset, max_bytes)
            answered = await owner.answered(first_offset, max_bytes)
            assert run._replace(data=b"") == answered._replace(data=b"")
            assert bytes(run.data) == bytes(answered.data)
            headers = [header for header, _ in split_chunks(run.data)]
            assert headers[0].first_offset == run.first_offset == first_offset // 2 * 2
            assert headers[-1].next_offset == run.next_offset


async def test_a_run_of_headers_is_the_same_run_whose_bytes_can_be_read_later(
    owner: Owner,
) -> None:
    for number in range(4):
        await owner.harness.append(f"{number}{LONG}", "short")
    asked = ChunksAsked(0, 2**22)
    found = await owner.source.heads(STREAM, asked, timeout_seconds=SECONDS)
    answered = await owner.answered(0)
    assert isinstance(found, HeadsRun) == owner.source.reads_files(STREAM)
    if isinstance(found, ChunkRun):
        assert bytes(found.data) == bytes(answered.data)
        return

    assert found.run == answered._replace(data=b"")
    data, position = bytearray(found.size), 0
    for start in range(0, found.size, 100_000):
        await found.bytes.read_into(start, memoryview(data)[start : start + 100_000])
    assert bytes(data) == bytes(answered.data)
    for head, (header, chunk) in zip(found.heads, split_chunks(memoryview(data)), strict=True):
        assert head == (header, bytes(chunk[:64]))
        position += len(chunk)
    assert position == found.size
    for path in owner.harness.segments():
        path.unlink()
    with pytest.raises(RunGone):
        await found.bytes.read_into(0, memoryview(data)[:1])


async def test_damage_in_a_header_brings_the_bytes(owner: Owner) -> None:
    """They are looked at by whoever asked, as they always were; and the way by file stays."""
    for number in range(4):
        await owner.harness.append(f"{number}{LONG}", "short")
    (path,) = owner.harness.segments()
    size = path.stat().st_size
    data = bytearray(path.read_bytes())
    data[64 + (size - 64) // 4 + 8] ^= 1
    path.write_bytes(data)
    before = owner.source.reads_files(STREAM)
    found = await owner.source.heads(STREAM, ChunksAsked(0, 2**22), timeout_seconds=SECONDS)
    assert isinstance(found, ChunkRun)
    assert found.data
    assert owner.source.reads_files(STREAM) == before


async def test_all_runs_together_are_the_whole_log(owner: Owner) -> None:
    for number in range(8):
        await owner.harness.append(f"{number}{LONG}")
    data, offset = b"", 0
    while (run := await owner.run(offset)).data:
        data += bytes(run.data)
        offset = run.next_offset

    assert offset == 8
    assert data == b"".join(path.read_bytes()[64:] for path in owner.harness.segments())


async def test_at_the_end_a_run_is_empty_and_tells_the_bounds(owner: Owner) -> None:
    await owner.harness.append("a")

    for offset in (1, 7):
        run = await owner.run(offset)
        assert not run.data
        assert run.bounds.committed_next == 1
        assert run.first_offset == run.next_offset == offset


async def test_what_is_gone_has_moved(owner: Owner) -> None:
    for number in range(6):
        await owner.harness.append(f"{number}{LONG}")
    for path in owner.harness.segments():
        path.unlink()

    with pytest.raises(OffsetGone) as caught:
        await owner.run(0)
    assert caught.value.code is Code.MOVED
    assert bounds_of_moved(caught.value).committed_next == 6


async def test_an_owner_whose_claim_is_in_doubt_gives_nothing_out(owner: Owner) -> None:
    for number in range(4):
        await owner.harness.append(f"{number}{LONG}")
    owner.harness.time.advance(60_000)

    with pytest.raises(StoreError) as caught:
        await owner.run(0)
    assert caught.value.code is Code.NOT_OWNER
