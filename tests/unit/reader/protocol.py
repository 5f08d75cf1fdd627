"""A manifest and an ingest that answer as the internal protocol says, about a world's stream."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bottomless.errors import Code, NotFound, OffsetGone, Unavailable
from bottomless.model.names import StreamId
from bottomless.model.stream import RootPointer
from bottomless_server.runtime.peers.peers import PeerAnswer, PeerBytes

if TYPE_CHECKING:
    from unit.reader.world import LocalChunk, World

STREAM_ID = StreamId("01890a5d-ac96-774b-bcce-b302099a8057")
OWNER = "http://owner"


@dataclass
class Manifest:
    world: "World"

    async def call(
        self,
        _: str,
        path: str,
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

    async def fetch(self, path: str, **_: Any) -> PeerBytes:
        raise AssertionError(path)


@dataclass
class Owners:
    world: "World"

    def at(self, url: str) -> "Ingest":
        return Ingest(self.world, url)


@dataclass
class Ingest:
    world: "World"
    url: str

    def bounds(self) -> dict[str, Any]:
        world = self.world
        return {
            "epoch": world.epoch,
            "local_first_offset": world.local_first,
            "committed_next": world.committed_next,
            "published_next": world.node.next_offset,
            "version": world.version,
            "last_chunk_offset": world.chunks[-1].first_offset if world.chunks else None,
            "last_timestamp": world.records[max(world.records)][0] if world.records else 0,
        }

    def check(self, path: str) -> None:
        if self.url not in self.world.alive:
            raise Unavailable("ingest does not answer", code=Code.PEER_UNAVAILABLE)
        if not self.world.exists or self.world.stream_id not in path:
            raise NotFound("there is no such stream")

    async def call(
        self,
        _: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        **__: Any,
    ) -> PeerAnswer:
        self.check(path)
        assert path == f"/internal/v1/streams/{STREAM_ID}/locate"
        assert params is not None
        found = [c for c in self.world.chunks if c.timestamp >= int(params["timestamp"])]
        return PeerAnswer(
            200, {}, {"offset": found[0].first_offset if found else None, **self.bounds()}
        )

    async def fetch(
        self,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        **__: Any,
    ) -> PeerBytes:
        self.check(path)
        world = self.world
        assert params is not None
        offset, size, wait_ms = (
            int(params[name]) for name in ("first_offset", "max_bytes", "wait_ms")
        )
        world.asked.append(f"chunks {offset}")
        if offset < world.local_first:
            raise OffsetGone("moved", code=Code.MOVED, facts=self.bounds())
        if offset == world.committed_next and wait_ms:
            appended = world.appended
            world.waiting.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(appended.wait(), wait_ms / 1000)
            self.check(path)
        chunks: list[LocalChunk] = []
        for chunk in world.chunks:
            if chunk.next_offset > offset and (not chunks or sum(map(len, sent(chunks))) < size):
                chunks.append(chunk)
        bounds = self.bounds()
        headers = {
            "Chunks-Epoch": str(bounds["epoch"]),
            "Chunks-First-Offset": str(chunks[0].first_offset if chunks else offset),
            "Chunks-Next-Offset": str(chunks[-1].next_offset if chunks else offset),
            "Local-First-Offset": str(bounds["local_first_offset"]),
            "Committed-Next-Offset": str(bounds["committed_next"]),
            "Published-Next-Offset": str(bounds["published_next"]),
            "Manifest-Version": str(bounds["version"]),
            "Last-Timestamp": str(bounds["last_timestamp"]),
        }
        if bounds["last_chunk_offset"] is not None:
            headers["Last-Chunk-Offset"] = str(bounds["last_chunk_offset"])
        return PeerBytes(headers, b"".join(sent(chunks)))


def sent(chunks: "list[LocalChunk]") -> list[bytes]:
    return [chunk.data for chunk in chunks]
