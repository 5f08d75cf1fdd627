"""Compaction in this process: real stores, a real manifest, writers of WAL objects, and clocks that a test
sets. No loop runs: a test lets an uploader look when it wants.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from unit.formats.examples import a_chunk, a_frame

from bottomless.drives.base import Body
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import decode_header, split_chunks
from bottomless.formats.fragment import decode_index
from bottomless.formats.keys import parse_fragment_key, parse_wal_key
from bottomless.formats.placing import place
from bottomless.model.chunk import AppendEntry, AppendMode
from bottomless.model.config import parse_stored_config
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId, StreamName, parse_stream_id
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.wal import Piece
from bottomless_server.coordination.base import Changes, Member
from bottomless_server.drives.table import DriveTable
from bottomless_server.leaderless.instance import decode_instance, encode_instance
from bottomless_server.leaderless.tail import TailEntry
from bottomless_server.leaderless.tail_format import decode_entry, decode_held
from bottomless_server.manifest.app import ManifestService
from bottomless_server.manifest.common.context import now_ms
from bottomless_server.manifest.common.trusted_time import elapsed_ms
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.stores import tails, wal
from bottomless_server.stores.tail_keys import tail_index_key, tail_key
from bottomless_server.uploader.app import UploaderService, create_service
from bottomless_server.uploader.budget import ByteBudget
from bottomless_server.uploader.calls import ManifestCalls
from bottomless_server.uploader.compaction.compactor import Compactor
from bottomless_server.uploader.failures import Failures, Retries
from bottomless_server.uploader.fragments import FragmentUploads, Parts
from bottomless_server.uploader.settings import UploaderSettings
from support.asgi import on_tcp
from support.leaderless import SERVED, WalWriter, a_leaderless_harness, a_leaderless_record
from support.manifest import FaultyDrive, ManifestHarness
from support.object_keys import fragment_key

MINUTE: Final = 60_000


def stream(number: int, shard: int | None = None) -> StreamId:
    """A stream of that shard; else of the one that its number says."""
    last = (number if shard is None else shard) % 16
    return StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:010x}{last:02x}")


def piece_of(stream_id: StreamId, *values: bytes, chunks: int = 1) -> Piece:
    """A piece of unplaced chunks, each with these records."""
    count = len(values)
    made = [
        a_chunk(
            count * number,
            frames=[a_frame(values)],
            entries=[AppendEntry(AppendMode.PLAIN, 0, count, 0)],
            timestamp=0,
            epoch=0,
            record_count=count,
        )
        for number in range(chunks)
    ]
    return Piece(stream_id, made, count * chunks, chunks, chunks)


def _stream_in(object_key: str) -> StreamId:
    return parse_stream_id(object_key.split("/")[1])


class NoPeers:
    """Ingest nodes of which there are none."""

    def at(self, url: str) -> Any:
        raise AssertionError(url)

    async def aclose(self) -> None:
        pass


class CompactionWorld:
    """Streams without an owner, in stores in memory, between writers and any number of uploaders."""

    def __init__(self, harness: ManifestHarness, manifest_url: str) -> None:
        self.harness = harness
        self.drive: FaultyDrive = harness.drive
        self.coordination = harness.coordination
        self.gets: Counter[str] = Counter()
        """How often each WAL object was fetched whole."""
        self.spoil_next_get = False
        """Whether the next WAL object that is fetched is damaged on its way."""
        self._manifest_url = manifest_url
        self._opened: list[Parts] = []
        self._services: list[UploaderService] = []
        self._get = harness.drive.get
        harness.drive.get = self._counted_get  # type: ignore[method-assign]
        self.before_fragment: Callable[[StreamId], Awaitable[None]] | None = None
        """Happens before each put of a fragment."""
        self.after_fragment: Callable[[StreamId], Awaitable[None]] | None = None
        """Happens when a fragment is there, before anybody hears of it."""
        self.refused: set[StreamId] = set()
        """Streams whose fragments can never be put: another object has the key of each."""
        self._put = harness.drive.put
        harness.drive.put = self._gated_put  # type: ignore[method-assign]

    async def _counted_get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        # The vacuum reads the directory of an object now and then, however long a test takes.
        if parse_wal_key(object_key) is not None and size is None:
            self.gets[object_key] += 1
            if self.spoil_next_get:
                self.spoil_next_get = False
                data = bytearray(await self._get(object_key, start, size))
                data[-1] ^= 1
                return bytes(data)
        return await self._get(object_key, start, size)

    async def _gated_put(self, object_key: str, body: Body, crc: int) -> None:
        fragment = parse_fragment_key(object_key)
        if fragment is not None and self.before_fragment is not None:
            await self.before_fragment(_stream_in(object_key))
        if fragment is not None and _stream_in(object_key) in self.refused:
            await self._put(object_key, [b"another"], crc32c(b"another"))
        await self._put(object_key, body, crc)
        if fragment is not None and self.after_fragment is not None:
            await self.after_fragment(_stream_in(object_key))

    @property
    def now(self) -> int:
        return self.harness.clock.now

    @now.setter
    def now(self, now: int) -> None:
        self.harness.clock.now = now

    async def create(
        self, stream_id: StreamId, *, max_age_ms: int = 10 * MINUTE, target_bytes: int = 64 * MIB
    ) -> None:
        fragment = {"max_age_ms": max_age_ms, "target_bytes": target_bytes}
        config = parse_stored_config({"profile": "leaderless", "fragment": fragment})
        record = a_leaderless_record(
            self.harness.streams.generation or 0,
            stream_id=stream_id,
            name=StreamName(f"s-{stream_id}"),
            config=config,
        )
        await tails.create(self.harness.streams, record)

    async def append(self, writer: WalWriter, *pieces: Piece) -> None:
        """Flush these pieces."""
        await writer.commit(await writer.put_pieces(pieces))

    async def delete(self, stream_id: StreamId) -> None:
        """Close a stream, as its deletion begins."""
        streams = self.harness.streams
        record = await streams.load(stream_id)

        def decide(record: StreamRecord) -> StreamRecord:
            return replace(record, state=StreamState.DELETING, version=record.version + 1)

        await tails.close(
            streams, stream_id, record.full_name, streams.generation or 0, decide, Changes()
        )

    def unsettle(self, writer: WalWriter) -> None:
        """Let a writer be one that has something left to decide of all its objects."""
        key = wal.instance_key(writer.instance)
        record = decode_instance(self.coordination.peek(key) or b"")
        self.coordination.write(Changes({key: encode_instance(replace(record, settled=0))}))

    def tail_as_it_is(self, writer: WalWriter, stream_id: StreamId) -> Changes:
        """What brings back the tail of a stream, and what holds its objects."""
        members = [
            Member(key, member, True)
            for key in (tail_index_key(stream_id), wal.held_key(writer.instance))
            for member in self.coordination.peek_members(key)
        ]
        value = self.coordination.peek(tail_key(stream_id))
        return Changes({tail_key(stream_id): value}, members=members)

    async def publish(self, stream_id: StreamId, chunk: bytes) -> None:
        """Publish a fragment of one placed chunk, as an uploader would."""
        uploads = FragmentUploads(stream_id, Failures(), asyncio.Event(), self._parts())
        opened = await uploads.begin()
        next_offset = decode_header(chunk).next_offset
        await uploads.run(lambda: uploads.take([chunk], opened.published_next, next_offset))

    def compactor(self, **settings: object) -> Compactor:
        """Another uploader that compacts."""
        return Compactor(self._parts(**settings), self.coordination)

    def service(
        self,
        *,
        with_coordination: bool = True,
        served: AbstractSet[str] = SERVED,
        **settings: object,
    ) -> UploaderService:
        """An uploader as a service, with clocks of its own."""
        service = create_service(
            self._settings(**settings),
            self.drive,
            coordination=self.coordination if with_coordination else None,
            served=served,
        )
        self._services.append(service)
        return service

    def _settings(self, **settings: object) -> UploaderSettings:
        small: dict[str, object] = {
            "manifest_url": self._manifest_url,
            "uploader_memory_bytes": MIB,
            "uploader_retry_initial_seconds": 0.005,
            "uploader_retry_max_seconds": 0.02,
            "uploader_retry_jitter_seconds": 0,
        }
        return UploaderSettings(**{**small, **settings})  # type: ignore[arg-type]

    def _parts(self, **settings: object) -> Parts:
        made = self._settings(**settings)
        parts = Parts(
            settings=made,
            drive=self.drive,
            drives=DriveTable.of_one(self.drive),
            ingest=NoPeers(),
            manifest=ManifestCalls(Peer(self._manifest_url, name="manifest")),
            budget=ByteBudget(made.uploader_memory_bytes),
            retries=Retries(made),
            clock_ms=self.harness.clock,
        )
        self._opened.append(parts)
        return parts

    async def close(self) -> None:
        for parts in self._opened:
            await parts.manifest.aclose()
        for service in self._services:
            await service.stop()

    async def published_next(self, stream_id: StreamId) -> int:
        return (await self.harness.streams.load(stream_id)).published_next

    async def fragments(self, stream_id: StreamId) -> list[FragmentInfo]:
        record = await self.harness.streams.load(stream_id)
        return [one for one in await self.harness.entries(record) if isinstance(one, FragmentInfo)]

    async def chunks(self, stream_id: StreamId) -> list[bytes]:
        """The chunks of all fragments of a stream, in order; all checksums are looked at."""
        found: list[bytes] = []
        for info in await self.fragments(stream_id):
            data = bytes(await self._get(fragment_key(stream_id, info.first_offset, info.uid)))
            index = decode_index(data[info.index_position :])
            start = index.place(0).position
            found += [bytes(chunk) for _, chunk in split_chunks(data[start : info.index_position])]
        return found

    def entries(self, stream_id: StreamId) -> list[TailEntry]:
        members = self.coordination.peek_members(tail_index_key(stream_id))
        return [decode_entry(member) for member in members]

    async def placed(self, entries: Sequence[TailEntry], epoch: int) -> list[bytes]:
        """The chunks of entries as a reader of the tail would have them."""
        chunks: list[bytes] = []
        for entry in entries:
            data = await self._get(
                f"_system/wal/{entry.instance}/{entry.sequence:012d}.wal",
                entry.position,
                entry.size,
            )
            chunks += [
                one.front + bytes(one.body)
                for one in place(
                    data,
                    first_offset=entry.first_offset,
                    record_count=entry.record_count,
                    timestamp=entry.timestamp,
                    epoch=epoch,
                )
            ]
        return chunks

    def held(self, writer: WalWriter) -> set[int]:
        """The sequences of a writer's objects that something holds."""
        members = self.coordination.peek_members(wal.held_key(writer.instance))
        return {decode_held(member).sequence for member in members}

    async def until_released(self, compactor: Compactor, writer: WalWriter, *left: int) -> None:
        """Look again and again until only these objects are held; the manifest prunes meanwhile."""
        async with asyncio.timeout(240):
            while self.held(writer) != set(left):
                self.now += 1_000
                await compactor.look()


@asynccontextmanager
async def a_world(**settings: object) -> AsyncIterator[CompactionWorld]:
    """Stores and a manifest that serves."""
    harness = await a_leaderless_harness(
        manifest_debounce_ms=1,
        manifest_register_wait_ms=200,
        manifest_fanout=256,
        **settings,
    )
    context = replace(harness.context, clock=now_ms, elapsed=elapsed_ms)
    service = ManifestService(context)
    await service.start()
    try:
        async with on_tcp(wrap(service.internal)) as port:
            world = CompactionWorld(harness, f"http://127.0.0.1:{port}")
            yield world
            await world.close()
    finally:
        await service.stop()


async def begun(world: CompactionWorld, *stream_ids: StreamId) -> WalWriter:
    """A writer, and these streams."""
    for stream_id in stream_ids:
        await world.create(stream_id)
    writer = WalWriter(world.harness)
    await writer.begin()
    return writer


async def holding(world: CompactionWorld, **settings: object) -> Compactor:
    """An uploader that holds all shards."""
    compactor = world.compactor(**settings)
    await compactor.shards.renew()
    return compactor
