"""A manifest and an ingest that answer as the internal protocol says, about the stream of a harness."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from support.peers import SilentPeer

from bottomless.errors import Code, NotFound, Unavailable
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import TENANT_DEFAULT, FullName, Reference, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.protocol.group_members import HELD, HeldAsked, encode_held
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import Params, PeerAnswer, PeerBytes
from bottomless_server.protocol.registry import (
    NODES,
    ROOT,
    NodeSaid,
    RootState,
    by_name,
    encode_nodes,
    encode_root,
    encode_stored_offset,
    encode_stream,
    stored_offset,
)
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
    from unit.reader.harness import LocalChunk, ReaderHarness

STREAM_ID = StreamId("01890a5d-ac96-774b-bcce-b302099a8057")
OWNER = "http://owner"
ORDERS = FullName(TENANT_DEFAULT, StreamName("orders"))


@dataclass
class Manifest(SilentPeer):
    harness: "ReaderHarness"

    async def call(
        self,
        _: str,
        path: str,
        /,
        *,
        body: Any = None,
        **__: Any,
    ) -> PeerAnswer:
        harness = self.harness
        harness.asked.append(path)
        if harness.manifest_hangs:
            await asyncio.Event().wait()
        if path == HELD:
            if harness.groups_fail:
                raise Unavailable("manifest does not answer", code=Code.PEER_UNAVAILABLE)
            places = HeldAsked.model_validate(body).places()
            return PeerAnswer(200, {}, encode_held([harness.holders.get(one) for one in places]))
        if path == NODES:
            return PeerAnswer(200, {}, encode_nodes([NodeSaid("0" * 32, "http://ingest")]))
        if path == by_name(FullName(TENANT_DEFAULT, StreamName(path.rpartition("/")[2]))):
            known = {ORDERS.name, *harness.other_names}
            if not harness.exists or path.rpartition("/")[2] not in known:
                raise NotFound("there is no such stream")
            return PeerAnswer(200, {}, encode_stream(self._record()))
        for consumer, next_offset in harness.stored.items():
            name = Reference(consumer)
            if path == stored_offset(harness.stream_id, name):
                stored = StoredOffset(name, next_offset, committed_at=1_000, revision=1)
                return PeerAnswer(200, {}, encode_stored_offset(stored))
        if path == of_stream(ROOT, harness.stream_id) and not harness.exists:
            raise NotFound("there is no such stream")
        if path != of_stream(ROOT, harness.stream_id):
            raise NotFound("nothing is stored", code=Code.OFFSET_NOT_FOUND)
        return PeerAnswer(200, {}, encode_root(self._root()))

    def _record(self) -> StreamRecord:
        harness = self.harness
        record = StreamRecord(
            harness.stream_id, ORDERS.name, ORDERS.tenant, StreamState.ACTIVE, 0, harness.config
        )
        return replace(record, epoch=harness.epoch, owner_url=harness.owner_url)

    def _root(self) -> RootState:
        harness = self.harness
        version = (
            harness.version if harness.announced_version is None else harness.announced_version
        )
        return RootState(
            version=version,
            # Of the stream's record, which is that of its newest owner.
            epoch=max(harness.node.epoch, harness.epoch),
            published_next=harness.node.next_offset,
            first_offset=harness.node.first_offset,
            root=harness.pointer,
            last_timestamp=harness.node.last_timestamp,
        )


@dataclass
class Owners:
    harness: "ReaderHarness"

    def at(self, url: str) -> "Ingest":
        return Ingest(self.harness, url)

    async def aclose(self) -> None:
        """There is nothing to close."""


@dataclass
class Ingest(SilentPeer):
    harness: "ReaderHarness"
    url: str

    def bounds(self) -> Bounds:
        harness = self.harness
        return Bounds(
            epoch=harness.epoch,
            local_first_offset=harness.local_first,
            committed_next=harness.committed_next,
            published_next=harness.node.next_offset,
            version=harness.version,
            last_chunk_offset=harness.chunks[-1].first_offset if harness.chunks else None,
            last_timestamp=harness.records[max(harness.records)][0] if harness.records else 0,
        )

    def check(self, path: str) -> None:
        if self.url not in self.harness.alive:
            raise Unavailable("ingest does not answer", code=Code.PEER_UNAVAILABLE)
        if not self.harness.exists or self.harness.stream_id not in path:
            raise NotFound("there is no such stream")

    async def call(
        self, _: str, path: str, /, *, params: Params | None = None, **__: Any
    ) -> PeerAnswer:
        self.check(path)
        assert path == of_stream(LOCATE, STREAM_ID)
        assert params is not None
        asked = decode_locate_asked(params)
        found = [c for c in self.harness.chunks if c.timestamp >= asked.timestamp]
        located = Located(found[0].first_offset if found else None, self.bounds())
        return PeerAnswer(200, {}, encode_located(located))

    async def fetch(self, path: str, /, *, params: Params | None = None, **__: Any) -> PeerBytes:
        self.check(path)
        harness = self.harness
        assert path == of_stream(CHUNKS, harness.stream_id)
        assert params is not None
        asked = decode_chunks_asked(params)
        offset = asked.first_offset
        harness.asked.append(f"chunks {offset}")
        if offset < harness.local_first:
            raise moved(self.bounds())
        if offset == harness.committed_next and asked.wait_ms:
            appended = harness.appended
            harness.waiting.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(appended.wait(), asked.wait_ms / 1000)
            self.check(path)
        chunks: list[LocalChunk] = []
        for chunk in harness.chunks:
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
