"""A manifest and an ingest that answer as the internal protocol says, about a world's stream."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.peers import SilentPeer

from bottomless.errors import Code, NotFound, Unavailable
from bottomless.model.names import StreamId
from bottomless.model.stream import RootPointer
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import Params, PeerAnswer, PeerBytes
from bottomless_server.protocol.tail import (
    CHUNKS,
    LOCATE,
    Bounds,
    ChunkRun,
    Located,
    decode_chunks_asked,
    decode_locate_asked,
    encode_located,
    encode_run,
    moved,
)

if TYPE_CHECKING:
    from unit.reader.world import LocalChunk, World

STREAM_ID = StreamId("01890a5d-ac96-774b-bcce-b302099a8057")
OWNER = "http://owner"


@dataclass
class Manifest(SilentPeer):
    world: "World"

    async def call(
        self,
        _: str,
        path: str,
        /,
        **__: Any,
    ) -> PeerAnswer:
        world = self.world
        world.asked.append(path)
        if world.manifest_hangs:
            await asyncio.Event().wait()
        if path == "/internal/v1/nodes":
            return PeerAnswer(200, {}, {"nodes": [{"node_id": "0" * 32, "url": "http://ingest"}]})
        if path.startswith("/internal/v1/streams/by-name/"):
            if not world.exists or path.rpartition("/")[2] != "orders":
                raise NotFound("there is no such stream")
            members: dict[str, Any] = {
                "stream_id": world.stream_id,
                "name": "orders",
                "state": "active",
                "epoch": world.epoch,
                "owner_url": world.owner_url,
            }
            return PeerAnswer(200, {}, members)
        stream = f"/internal/v1/streams/{world.stream_id}"
        if path.startswith(f"{stream}/consumers/"):
            consumer = path.removeprefix(f"{stream}/consumers/").removesuffix("/offset")
            if consumer not in world.stored:
                raise NotFound("nothing is stored", code=Code.OFFSET_NOT_FOUND)
            return PeerAnswer(
                200,
                {},
                {
                    "consumer": consumer,
                    "next_offset": world.stored[consumer],
                    "committed_at": 1_000,
                },
            )
        assert path == f"{stream}/root"
        root = world.pointer
        version = world.version if world.announced_version is None else world.announced_version
        members = {
            "version": version,
            "epoch": world.node.epoch,
            "published_next": world.node.next_offset,
            "first_offset": world.node.first_offset,
            "last_timestamp": world.node.last_timestamp,
            "root": None
            if root is None
            else {name: getattr(root, name) for name in RootPointer.__slots__},
        }
        return PeerAnswer(200, {}, members)


@dataclass
class Owners:
    world: "World"

    def at(self, url: str) -> "Ingest":
        return Ingest(self.world, url)

    async def aclose(self) -> None:
        """There is nothing to close."""


@dataclass
class Ingest(SilentPeer):
    world: "World"
    url: str

    def bounds(self) -> Bounds:
        world = self.world
        return Bounds(
            epoch=world.epoch,
            local_first_offset=world.local_first,
            committed_next=world.committed_next,
            published_next=world.node.next_offset,
            version=world.version,
            last_chunk_offset=world.chunks[-1].first_offset if world.chunks else None,
            last_timestamp=world.records[max(world.records)][0] if world.records else 0,
        )

    def check(self, path: str) -> None:
        if self.url not in self.world.alive:
            raise Unavailable("ingest does not answer", code=Code.PEER_UNAVAILABLE)
        if not self.world.exists or self.world.stream_id not in path:
            raise NotFound("there is no such stream")

    async def call(
        self, _: str, path: str, /, *, params: Params | None = None, **__: Any
    ) -> PeerAnswer:
        self.check(path)
        assert path == of_stream(LOCATE, STREAM_ID)
        assert params is not None
        asked = decode_locate_asked(params)
        found = [c for c in self.world.chunks if c.timestamp >= asked.timestamp]
        located = Located(found[0].first_offset if found else None, self.bounds())
        return PeerAnswer(200, {}, encode_located(located))

    async def fetch(self, path: str, /, *, params: Params | None = None, **__: Any) -> PeerBytes:
        self.check(path)
        world = self.world
        assert path == of_stream(CHUNKS, world.stream_id)
        assert params is not None
        asked = decode_chunks_asked(params)
        offset = asked.first_offset
        world.asked.append(f"chunks {offset}")
        if offset < world.local_first:
            raise moved(self.bounds())
        if offset == world.committed_next and asked.wait_ms:
            appended = world.appended
            world.waiting.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(appended.wait(), asked.wait_ms / 1000)
            self.check(path)
        chunks: list[LocalChunk] = []
        for chunk in world.chunks:
            held = sum(map(len, sent(chunks)))
            if chunk.next_offset > offset and (not chunks or held < asked.max_bytes):
                chunks.append(chunk)
        data = b"".join(sent(chunks))
        first_offset = chunks[0].first_offset if chunks else offset
        next_offset = chunks[-1].next_offset if chunks else offset
        run = ChunkRun(self.bounds(), first_offset, next_offset, len(data), data)
        return PeerBytes(encode_run(run), data)


def sent(chunks: "list[LocalChunk]") -> list[bytes]:
    return [chunk.data for chunk in chunks]
