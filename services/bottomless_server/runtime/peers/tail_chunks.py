"""Where the chunks of a tail come from: the owner's answer, or its files where we can open them.

On one machine a socket is a way round: the owner copies a run out of its file and into the socket,
and we copy it out of there into fresh memory. So an owner at a unix socket is asked where the run
lies, and its bytes are read from there. What the owner says then is the same as before: what it
names is durable and visible, and its claim held when it said so. The bytes of committed chunks do
not change, and a file that is unlinked stays readable for whoever has it open.

Nothing is stored here and nothing deleted, so a crash leaves nothing. Whatever fails (the owner
does not know the question, the file is gone, another file has its name, our process sees other
directories) is asked for again, as bytes in an answer: that answer is the true one, `moved` among
them.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

import numpy as np
import structlog
from cachetools import LRUCache, TTLCache

from bottomless.errors import Corrupt, InvalidRequest, Unavailable
from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.chunk import ChunkHead, decode_header
from bottomless.formats.segment import HEADER_SIZE, decode_segment_header
from bottomless.guards import guard
from bottomless.model.chunk import ChunkKind
from bottomless.model.limits import KIB
from bottomless.model.names import StreamId
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import PeerPort, PeersPort
from bottomless_server.protocol.tail import (
    CHUNKS,
    HEAD_SIZE,
    ChunkRun,
    ChunksAsked,
    ChunkSource,
    HeadsRun,
    RunGone,
    SegmentPart,
    decode_run,
)
from bottomless_server.runtime.base.on_loop import in_thread, loop_time

log = structlog.get_logger(__name__)

T = TypeVar("T")

PAUSE_SECONDS: Final = 60.0
"""After a file could not be read, its owner is asked for bytes alone for so long: where we see
other directories than it does, each file would cost two questions."""
_PAUSED_COUNT_MAX: Final = 1_000
"""Streams of one owner of which is remembered that they are asked for as bytes."""
_OWNER_COUNT_MAX: Final = 1_000
"""Owners of which is remembered how they are asked."""
_SMALL_SIZE: Final = 64 * KIB
"""Headers may take so much more memory than the bytes of their chunks: a few small ones among large
ones do not matter."""
_THREADS: Final = ThreadPoolExecutor(8, "tail-files")
"""Files of owners are read here and nowhere else, so that a disk that does not answer keeps nobody
waiting who reads something else."""


class NotTheFile(Exception):
    """What lies at a path is not the segment that the owner means, or less of it."""


class ChunksInAnswers:
    """The bytes come in the owner's answer."""

    def __init__(self, peer: PeerPort) -> None:
        self._peer = peer

    def reads_files(self, stream_id: StreamId) -> bool:
        del stream_id
        return False

    async def heads(
        self, stream_id: StreamId, asked: ChunksAsked, *, timeout_seconds: float
    ) -> ChunkRun | HeadsRun:
        return await self.chunks(stream_id, asked, timeout_seconds=timeout_seconds)

    async def chunks(
        self, stream_id: StreamId, asked: ChunksAsked, *, timeout_seconds: float
    ) -> ChunkRun:
        answer = await self._peer.fetch(
            of_stream(CHUNKS, stream_id), params=asked.params(), timeout_seconds=timeout_seconds
        )
        return decode_run(answer)


class ChunksInFiles:
    """The bytes are read from the owner's file, where it names one."""

    def __init__(
        self,
        answers: ChunksInAnswers,
        clock: Callable[[], float] = loop_time,
        threads: Executor = _THREADS,
    ) -> None:
        """`clock` tells seconds, from any moment on; files are read in `threads`."""
        self._answers = answers
        self._clock = clock
        self._threads = threads
        self._paused_until = float("-inf")
        self._paused: TTLCache[StreamId, None] = TTLCache(_PAUSED_COUNT_MAX, PAUSE_SECONDS, clock)
        """Streams of which bytes could not be read whose headers could."""

    def reads_files(self, stream_id: StreamId) -> bool:
        return self._clock() >= self._paused_until and stream_id not in self._paused

    async def chunks(
        self, stream_id: StreamId, asked: ChunksAsked, *, timeout_seconds: float
    ) -> ChunkRun:
        def read(run: ChunkRun, part: SegmentPart) -> ChunkRun:
            return run._replace(data=read_part(stream_id, part), part=None)

        return await self._ask(stream_id, asked, timeout_seconds, read)

    async def heads(
        self, stream_id: StreamId, asked: ChunksAsked, *, timeout_seconds: float
    ) -> ChunkRun | HeadsRun:
        def read(run: ChunkRun, part: SegmentPart) -> ChunkRun | HeadsRun:
            heads = read_heads(stream_id, part)
            if heads is None:
                return run._replace(data=read_part(stream_id, part), part=None)

            def cannot_be_read(error: Exception) -> None:
                self._pause_stream(stream_id, error)

            there = BytesInFile(stream_id, part, self._threads, timeout_seconds, cannot_be_read)
            return HeadsRun(run._replace(part=None), heads, part.size, there)

        return await self._ask(stream_id, asked, timeout_seconds, read)

    async def _ask(
        self,
        stream_id: StreamId,
        asked: ChunksAsked,
        timeout_seconds: float,
        read: "Callable[[ChunkRun, SegmentPart], T]",
    ) -> "T | ChunkRun":
        """What `read`, which blocks, makes of the file that the owner names, or else its answer."""
        failure: Exception | None = None
        if self.reads_files(stream_id):
            try:
                return await self._read(stream_id, asked, timeout_seconds, read)
            except TimeoutError as error:
                # Not asked again: who asked has waited for as long as it would. Of an owner that
                # does not answer it hears the same.
                self._pause(error)
                raise Unavailable("the file of an ingest node is not read in time") from error
            except (NotTheFile, OSError, Corrupt, InvalidRequest) as error:
                failure = error
        run = await self._answers.chunks(stream_id, asked, timeout_seconds=timeout_seconds)
        if failure is not None:
            # Not where the owner says `moved`: then the file was freed between answer and look.
            self._pause(failure)
        return run

    def _pause(self, failure: Exception) -> None:
        self._paused_until = self._clock() + PAUSE_SECONDS
        log.warning(
            "chunks are fetched, since they cannot be read from their file",
            error=repr(failure),
            seconds=PAUSE_SECONDS,
        )

    def _pause_stream(self, stream_id: StreamId, failure: Exception) -> None:
        """Ask the owner for the bytes of one stream: else its headers would be read again, and well,
        and its bytes again not, for ever. The owner has them, or says what is wrong with them."""
        self._paused[stream_id] = None
        log.warning(
            "chunks of a stream are fetched, since they cannot be read from their file",
            stream_id=stream_id,
            error=repr(failure),
            seconds=PAUSE_SECONDS,
        )

    async def _read(
        self,
        stream_id: StreamId,
        asked: ChunksAsked,
        timeout_seconds: float,
        read: "Callable[[ChunkRun, SegmentPart], T]",
    ) -> "T | ChunkRun":
        ends = loop_time() + timeout_seconds
        by_file = asked._replace(by_file=1)
        run = await self._answers.chunks(stream_id, by_file, timeout_seconds=timeout_seconds)
        if run.part is None:
            return run
        async with asyncio.timeout_at(ends):
            return await in_thread(self._threads, read, run, run.part)


class BytesInFile:
    """The bytes of a run, in the file in which they lie.

    It is opened, and looked at, for each piece: nothing is held open for as long as an upload may
    last, and a file that was put in its place meanwhile is not taken for it.
    """

    def __init__(
        self,
        stream_id: StreamId,
        part: SegmentPart,
        threads: Executor,
        timeout_seconds: float,
        cannot_be_read: Callable[[Exception], None],
    ) -> None:
        """`cannot_be_read` is told, before whoever reads is."""
        self._stream_id = stream_id
        self._part = part
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self._cannot_be_read = cannot_be_read

    async def read_into(self, position: int, buffer: memoryview) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await in_thread(
                    self._threads, read_into, self._stream_id, self._part, position, buffer
                )
        except (NotTheFile, OSError, Corrupt) as error:
            # One that is not read in time is among them.
            self._cannot_be_read(error)
            raise RunGone("the file of an ingest node cannot be read any more") from error


class ChunkSources:
    """The sources of the owners of streams, by their address."""

    def __init__(self, peers: PeersPort) -> None:
        self._peers = peers
        self._sources: LRUCache[str, ChunkSource] = LRUCache(_OWNER_COUNT_MAX)

    def at(self, url: str) -> ChunkSource:
        """The source at a url.

        Raises:
            ValueError: it is not the url of a peer.
        """
        source = self._sources.get(url)
        if source is None:
            source = self._sources[url] = chunk_source(self._peers.at(url), url)
        return source


def chunk_source(peer: PeerPort, url: str) -> ChunkSource:
    """The best source that an owner at this address may have."""
    answers = ChunksInAnswers(peer)
    return ChunksInFiles(answers) if url.startswith("unix://") else answers


def read_part(stream_id: StreamId, part: SegmentPart) -> memoryview:
    """Read a run from its file; blocks.

    Read, not mapped: a mapped file that somebody cuts would end this process.

    Raises:
        NotTheFile, Corrupt, OSError: nothing was read.
    """
    view = np.empty(part.size, dtype=np.uint8).data
    read_into(stream_id, part, 0, view)
    return view.toreadonly()


def read_into(stream_id: StreamId, part: SegmentPart, position: int, buffer: memoryview) -> None:
    """Fill a buffer with the bytes of a run from `position` on; blocks.

    Raises:
        NotTheFile, Corrupt, OSError
    """
    assert position + buffer.nbytes <= part.size
    with _opened(stream_id, part) as file:
        _fill(file, part.position + position, buffer)


def read_heads(stream_id: StreamId, part: SegmentPart) -> tuple[ChunkHead, ...] | None:
    """Read the headers of the chunks of a run; blocks. None where they do not say enough: one is
    damaged, or that of a hole, which has no checksum. Then the bytes must be looked at. And where
    chunks are so small that their headers take more memory than their bytes.

    Raises:
        NotTheFile, Corrupt, OSError
    """
    heads = []
    position = 0
    with _opened(stream_id, part) as file:
        while position < part.size:
            if part.size - position < CHUNK_HEADER_SIZE:
                return None
            raw = bytearray(CHUNK_HEADER_SIZE)
            _fill(file, part.position + position, memoryview(raw))
            try:
                header = decode_header(memoryview(raw))
            except Corrupt:
                return None
            position += header.total_size
            if header.kind is ChunkKind.HOLE or position > part.size:
                return None
            heads.append(ChunkHead(header, bytes(raw)))
            if HEAD_SIZE * len(heads) > position + _SMALL_SIZE:
                return None
    return tuple(heads)


@contextmanager
def _opened(stream_id: StreamId, part: SegmentPart) -> Iterator[int]:
    # No waiting for whoever writes, should it be a pipe.
    file = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        check_file(file, stream_id, part)
        yield file
    finally:
        os.close(file)


def _fill(file: int, position: int, buffer: memoryview) -> None:
    done = 0
    while done < buffer.nbytes:
        count = os.preadv(file, [buffer[done:]], position + done)
        if not count:
            raise NotTheFile("the file is shorter than what its owner has committed")
        done += count


@guard("the file is the segment that its owner means")
def check_file(file: int, stream_id: StreamId, part: SegmentPart) -> None:
    """Refuse a file that is not the segment of which the owner spoke.

    A path alone may name another file here: of another node, where two of them see different
    directories under one name, or a later segment, where the owner has lost the stream and taken it
    up again meanwhile. That one begins at the same offset and may hold what nobody has committed, but
    under another epoch, since each epoch is given once.

    Raises:
        NotTheFile, Corrupt, OSError
    """
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise NotTheFile("it is not a file of our own user")
    header = decode_segment_header(os.pread(file, HEADER_SIZE, 0))
    if header != (stream_id, part.first_offset, part.epoch):
        raise NotTheFile("the file at the path is another segment")
