"""Ingest nodes of leaderless streams over stores in memory: the whole way of a request but the line in
which appends gather.

The writer of these nodes takes all that is put in one turn of the loop into one object, and commits
that at once, by the same transactions as the real one. It knows no lost reply.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import orjson
from support.asgi import client_of

from bottomless.drives.base import Body, Drive, DriveUnavailable
from bottomless.errors import StoreError
from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import batches_of
from bottomless.formats.keys import generation_key, wal_key
from bottomless.formats.placing import place
from bottomless.formats.wal import pack_wal
from bottomless.model.config import parse_stored_config
from bottomless.model.limits import GIB, KIB, MIB
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless.model.stream import EpochStart, StreamRecord, StreamState
from bottomless_server.coordination.base import Coordination, CoordinationConflict
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.ingest.app import create_service
from bottomless_server.ingest.front.public import create_public_app
from bottomless_server.ingest.leaderless.appenders import known_bounds, leaderless_appenders
from bottomless_server.ingest.leaderless.asked import asked_of
from bottomless_server.ingest.leaderless.core.pieces import (
    TrimAgain,
    WaitingAppend,
    WaitingPiece,
    joined,
)
from bottomless_server.ingest.leaderless.core.remembered import KnownBounds
from bottomless_server.ingest.leaderless.core.sealing import seal_again, seal_pieces
from bottomless_server.ingest.leaderless.core.telling import told
from bottomless_server.ingest.leaderless.making import LeaderlessStores
from bottomless_server.ingest.leaderless.seen_tails import SeenTails
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.intake import Append
from bottomless_server.ingest.service import IngestService
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.tail import Tail, first_epoch
from bottomless_server.leaderless.tail_changes import Accepted, Committed, TailBounds
from bottomless_server.node.lease import Clocks
from bottomless_server.stores import tails, wal
from bottomless_server.stores.tail_commits import Commit, commit
from bottomless_server.stores.tail_keys import entries_from, load_tails
from unit.ingest.harness import NAME, ROUTE, STREAM, IngestHarness

GENERATION: Final = 1
CHUNK_SIZE_MAX: Final = 8 * KIB
STAGED_KEEP_MS: Final = 60_000


class TurnWriter:
    """Commits what is put in one turn of the loop."""

    def __init__(
        self, harness: IngestHarness, drive: MemoryDrive, instance: Uid, bounds: KnownBounds
    ) -> None:
        self.seen = SeenTails()
        self.bounds = bounds
        self.tail_bounds = TailBounds(2**40, 2**20)
        self.generation = GENERATION
        self.full: StoreError | None = None
        """Why it takes nothing, if it does not."""
        self.objects = 0
        self._harness = harness
        self._drive = drive
        self._line: list[tuple[StreamId, WaitingAppend]] = []
        self._committing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        checked = harness.coordination.connected_count
        self._numbers = AttemptNumbers(instance, GENERATION, lambda: True, checked)

    async def begin(self) -> None:
        await wal.begin(self._harness.coordination, self._numbers, "http://node", 10_000)

    def require_space(self) -> None:
        if self.full is not None:
            raise self.full

    def doubt(self) -> None:
        """It has nothing that could be of another generation."""

    def put(self, stream_id: StreamId, append: WaitingAppend) -> None:
        self._line.append((stream_id, append))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())

    async def noted(self, _: StreamId, said: Appended) -> Appended:
        return said

    async def commit_staged(self, stream_id: StreamId, parts: AsyncIterator[Append]) -> Appended:
        pieces: list[WaitingPiece] = []
        async for part in parts:
            [piece] = seal_pieces(stream_id, [WaitingAppend(part, lambda _: None)], CHUNK_SIZE_MAX)
            await self._put([piece])
            pieces.append(piece)
        [said] = await self._commit(joined(pieces))
        if isinstance(said, StoreError):
            raise said
        assert isinstance(said, Appended)
        return said

    async def _flush(self) -> None:
        while self._line:
            line, self._line = self._line, []
            appends: dict[StreamId, list[WaitingAppend]] = {}
            for stream_id, one in line:
                appends.setdefault(stream_id, []).append(one)
            for stream_id, ones in appends.items():
                await self._store(seal_pieces(stream_id, ones, CHUNK_SIZE_MAX))

    async def _store(self, pieces: list[WaitingPiece]) -> None:
        while pieces:
            await self._put(pieces)
            said = iter(await self._commit(pieces))
            again: list[WaitingPiece] = []
            for piece in pieces:
                for one in piece.appends:
                    answer = next(said)
                    if isinstance(answer, TrimAgain):
                        again.append(seal_again(piece, answer.duplicates, CHUNK_SIZE_MAX))
                    else:
                        one.settle(answer)
            pieces = again

    async def _put(self, pieces: Sequence[WaitingPiece]) -> None:
        sequence, self.objects = self.objects, self.objects + 1
        packed = pack_wal(
            self._numbers.instance,
            sequence,
            [piece.sealed for piece in pieces],
            noted_below=0,
            attempt=self._numbers.attempt,
            created_at=0,
            generation=GENERATION,
        )
        await self._drive.put(wal_key(self._numbers.instance, sequence), packed.parts, packed.crc)
        for piece, number in zip(pieces, packed.numbers, strict=True):
            line = packed.lines[number]
            where = (line.position, line.size, line.record_count, piece.last_chunk)
            piece.accepted = Accepted(self._numbers.instance, sequence, number, *where)

    async def _commit(
        self, pieces: Sequence[WaitingPiece]
    ) -> list[Appended | StoreError | TrimAgain]:
        [stream_id] = {piece.stream_id for piece in pieces}
        sequences = [piece.accepted.sequence for piece in pieces if piece.accepted is not None]
        async with self._committing:
            while True:
                clock = self._harness.time.wall
                asked = asked_of(self.seen.of(stream_id), pieces, clock, self.bounds)
                try:
                    done = await commit(
                        self._harness.coordination,
                        self._numbers,
                        [asked],
                        sequence=min(sequences),
                        clock=clock,
                        settled=0,
                        next_sequence=self.objects,
                        bounds=self.tail_bounds,
                    )
                except CoordinationConflict:
                    continue
                except StoreError as error:
                    return [error for piece in pieces for _ in piece.appends]
                assert isinstance(done, Commit), done
                found = done.streams[stream_id]
                if isinstance(found, Committed):
                    self.seen.note(stream_id, found.tail)
                return told(found, done.answers[stream_id], pieces)


class AwayDrive(MemoryDrive):
    """A drive that does not answer when a test says so."""

    is_away = False

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        if self.is_away:
            raise DriveUnavailable("for a test")
        await super().put(object_key, body, crc)


class LeaderlessNode:
    """One node: its routes, over stores that it may share with others."""

    def __init__(
        self,
        directory: Path,
        before: "LeaderlessNode | None" = None,
        *,
        commit_size_max: int = 4 * GIB,
    ) -> None:
        shared: IngestHarness | None = None if before is None else before.ingest
        self.ingest: IngestHarness = IngestHarness(directory, shared)
        self.ingest.show_generation(GENERATION)
        self.ingest.streams.generation = GENERATION
        self.coordination = self.ingest.coordination
        self.drive: AwayDrive = (
            AwayDrive(lambda: self.ingest.time.wall) if before is None else before.drive
        )
        number = 1 if before is None else before.number + 1
        self.number: int = number
        service = self.ingest.service
        settings = IngestSettings(
            data_dir=directory,
            ingest_group_bytes_max=4 * KIB,
            ingest_staged_keep_ms=STAGED_KEEP_MS,
            ingest_staged_stream_bytes_max=commit_size_max,
        )
        instance, bounds = Uid(f"{number:032x}"), known_bounds(settings)
        self.writer = TurnWriter(self.ingest, self.drive, instance, bounds)
        self.appenders = leaderless_appenders(
            settings,
            self.coordination,
            self.drive,
            self.writer,
            service.room,
            lambda: self.ingest.time.wall,
            put_seconds=0.05,
        )
        service.under_way.accept()
        self.public = create_public_app(
            service.names,
            {"leaderless": self.appenders},
            service.under_way,
            service.forwarded,
            service.room,
            service.counts,
            frame_size_max=MIB,
        )
        self.client = client_of(self.public.app)

    async def declare(self) -> "LeaderlessNode":
        """Enter the stream with its tail."""
        await tails.create(self.ingest.streams, a_leaderless_record())
        return self

    async def start(self) -> "LeaderlessNode":
        await self.writer.begin()
        return self

    async def aclose(self) -> None:
        await self.client.aclose()
        await self.ingest.aclose()

    async def append(self, *values: str) -> httpx.Response:
        return await self.client.post(ROUTE, json={"records": [{"value": v} for v in values]})

    async def append_raw(self, body: bytes, **headers: str) -> httpx.Response:
        sent = {"content-type": "application/json", **headers}
        return await self.client.post(ROUTE, content=body, headers=sent)

    async def tail(self) -> Tail:
        found = (await load_tails(self.coordination, [STREAM], GENERATION))[STREAM]
        assert isinstance(found, Tail)
        return found

    async def values(self) -> list[bytes]:
        return await values_in(self.coordination, self.drive)


async def values_in(coordination: Coordination, drive: Drive) -> list[bytes]:
    """Every record of the stream, as a reader of the tail finds and places it."""
    values: list[bytes] = []
    while True:
        page = await entries_from(coordination, STREAM, len(values))
        if not page:
            return values
        for entry in page:
            assert entry.first_offset == len(values)
            key = wal_key(entry.instance, entry.sequence)
            placed = place(
                await drive.get(key, entry.position, entry.size),
                first_offset=entry.first_offset,
                record_count=entry.record_count,
                timestamp=entry.timestamp,
                epoch=first_epoch(GENERATION),
            )
            for chunk in placed:
                whole = memoryview(chunk.front + bytes(chunk.body))
                for batch in decode_frames(batches_of(chunk.header, whole)):
                    values += [row["value"] for row in batch.to_pylist()]


class ServedNode:
    """A service as `create_service` makes it, with its own writer, over stores that others share; the
    line in which appends gather goes by the clock of this machine."""

    def __init__(self, directory: Path, shared: IngestHarness, drive: MemoryDrive) -> None:
        self._shared = shared
        self._drive = drive
        time_of = shared.time
        settings = IngestSettings(
            data_dir=directory,
            ingest_url=f"http://{directory.name}",
            ingest_wal_linger_ms=0,
            ingest_wal_note_ms=10_000,
            ingest_group_bytes_max=4 * KIB,
            ingest_staged_keep_ms=STAGED_KEEP_MS,
        )
        self.service: IngestService = create_service(
            settings,
            shared.coordination,
            manifest=shared.manifest,
            clocks=Clocks(lambda: time_of.wall, time.monotonic, time.monotonic),
            leaderless=LeaderlessStores(drive, shared.coordination),
        )
        self.client = client_of(self.service.public)

    async def values(self) -> list[bytes]:
        return await values_in(self._shared.coordination, self._drive)

    async def aclose(self) -> None:
        await self.client.aclose()
        await self.service.stop()


@asynccontextmanager
async def two_served(directory: Path) -> AsyncIterator[tuple[ServedNode, ServedNode]]:
    """Two services that have begun, over the same stores, which hold the stream."""
    shared = IngestHarness(directory / "shared")
    shared.show_generation(GENERATION)
    shared.streams.generation = GENERATION
    drive = MemoryDrive(lambda: shared.time.wall)
    value = orjson.dumps({"generation": GENERATION, "bucket": True})
    await drive.put(generation_key(GENERATION), [value], crc32c(value))
    await tails.create(shared.streams, a_leaderless_record())
    first, second = (
        ServedNode(directory / name, shared, drive) for name in ("ingest-0", "ingest-1")
    )
    await first.service.start()
    await second.service.start()
    yield first, second
    await second.aclose()
    await first.aclose()
    await shared.aclose()


def a_leaderless_record() -> StreamRecord:
    """The stream of these nodes, as it is created."""
    epoch = first_epoch(GENERATION)
    return StreamRecord(
        STREAM,
        StreamName(NAME),
        "default",
        StreamState.ACTIVE,
        0,
        parse_stored_config({"profile": "leaderless"}),
        generation=GENERATION,
        epoch=epoch,
        epochs=(EpochStart(epoch, 0),),
    )
