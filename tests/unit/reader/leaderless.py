"""A reader of a leaderless stream: real WAL objects, committed as an ingest node commits them.

Nobody owns the stream, so where the other harness has an owner that answers, this one has stores in
memory, and nodes that give out the objects which they still have.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from support.leaderless import SERVED, WalWriter, a_leaderless_record, at_once
from support.peers import SilentPeer
from unit.reader.harness import LocalChunk, ReaderHarness, Sent, WatchedDrive, a_chunk, a_text
from unit.reader.protocol import ORDERS, STREAM_ID

from bottomless.errors import Code, NotFound, Unavailable
from bottomless.formats.keys import wal_key
from bottomless.formats.placing import place
from bottomless.model.config import parse_stored_config
from bottomless.model.manifest import Node
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless.model.stream import StreamRecord
from bottomless.model.wal import Piece, PieceLine
from bottomless_server.coordination.base import Changes, Coordination, Member
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.leaderless.tail import Tail, first_epoch, shard_of
from bottomless_server.leaderless.tail_changes import Committed, closed
from bottomless_server.leaderless.tail_format import encode_tail
from bottomless_server.protocol.peer import Params, PeerBytes
from bottomless_server.protocol.wal import decode_wal_bytes_asked, wal_bytes
from bottomless_server.reader.leaderless.wal_tail import WalReads
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.stores import releases, tails, wal
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.streams import Streams
from bottomless_server.stores.tail_keys import load_tails, tail_index_key

EPOCH: Final = first_epoch(0)


def nothing() -> None:
    """Nothing happens."""


class WatchedCoordination(MemoryCoordination):
    """Counts questions, and stops before chosen ones until a test has done something."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_000)
        self.asked: list[Sequence[str]] = []
        """Keys of each question for several at once."""
        self.index_reads = 0
        self.away = False
        self.before_index: Callable[[], None] = nothing
        """What happens right before the next look at an index."""

    async def get_many(self, redis_keys: Sequence[str]) -> list[bytes | None]:
        if self.away:
            raise Unavailable("it does not answer", code=Code.COORDINATION_UNAVAILABLE)
        self.asked.append(redis_keys)
        return await super().get_many(redis_keys)

    async def members(self, redis_key: str, after: bytes, limit: int) -> list[bytes]:
        self.index_reads += 1
        happens, self.before_index = self.before_index, nothing
        happens()
        return await super().members(redis_key, after, limit)


class HookedDrive(WatchedDrive):
    """Stops before a GET of a WAL object until a test has done something."""

    before_get: Callable[[], None] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.flips: dict[str, int] = {}
        """Bytes of objects of which the next GET has a bit flipped."""

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        if object_key.endswith(".wal"):
            happens, self.before_get = self.before_get, None
            if happens is not None:
                happens()
        data = await super().get(object_key, start, size)
        position = self.flips.pop(object_key, -1) - start
        if 0 <= position < len(data):
            flipped = bytearray(data)
            flipped[position] ^= 1
            return bytes(flipped)
        return data


@dataclass
class WalNode(SilentPeer):
    """The node at one address: it has the objects that a test left it."""

    nodes: "WalNodesStandIn"

    async def fetch(self, path: str, /, *, params: Params | None = None, **__: Any) -> PeerBytes:
        assert params is not None
        nodes = self.nodes
        nodes.asked.append(path)
        if nodes.fails:
            raise Unavailable("the node does not answer", code=Code.PEER_UNAVAILABLE)
        data = nodes.objects.get(path)
        if data is None:
            raise NotFound("it is not here", code=Code.NOT_FOUND)
        asked = decode_wal_bytes_asked(params)
        return PeerBytes({}, data[asked.start : asked.start + asked.size])


@dataclass
class WalNodesStandIn:
    objects: dict[str, bytes] = field(default_factory=dict)
    """What the nodes still have, by its path."""
    asked: list[str] = field(default_factory=list)
    fails: bool = False

    def at(self, _: str) -> WalNode:
        return WalNode(self)

    async def aclose(self) -> None:
        """There is nothing to close."""


class LeaderlessHarness(ReaderHarness):
    """The stream of the other harness as a leaderless one; each append is a flush of its own."""

    config = parse_stored_config({"profile": "leaderless"})
    coordination: WatchedCoordination
    drive: HookedDrive

    def __init__(self, **settings: Any) -> None:
        self.coordination = WatchedCoordination()
        self.wal_nodes = WalNodesStandIn()
        self.now = 1_000
        super().__init__(drive=HookedDrive(), **settings)
        self.streams = Streams(self.coordination, SERVED)
        self.streams.generation = at_once(check_generation(self.drive, self.coordination))
        self.create(STREAM_ID, "orders")
        self.writer = self.new_writer(Uid("5" * 32))

    def clock(self) -> int:
        return self.now

    def given_coordination(self) -> Coordination | None:
        return self.coordination

    def nodes(self) -> WalNodesStandIn:
        return self.wal_nodes

    @property
    def wal(self) -> WalReads:
        reads = self.service.wal
        assert reads is not None
        return reads

    def facts(self, stream_id: StreamId = STREAM_ID) -> StreamFacts:
        return StreamFacts(stream_id, ORDERS, EPOCH, None, "leaderless")

    def create(self, stream_id: StreamId, name: str) -> None:
        record = a_leaderless_record(0, stream_id=stream_id, name=StreamName(name))
        at_once(tails.create(self.streams, record))

    def new_writer(self, instance: Uid) -> WalWriter:
        writer = WalWriter(self, instance)
        at_once(writer.begin())
        return writer

    def append(self, *records: Sent | str, timestamp: int = 0, batches: int = 1) -> None:
        """One append, one chunk, one object."""
        self.flush({STREAM_ID: [records]}, timestamp=timestamp, batches=batches)

    def flush(
        self,
        appends: dict[StreamId, list[Sequence[Sent | str]]],
        *,
        timestamp: int = 0,
        batches: int = 1,
        cached: bool = False,
    ) -> int:
        """Put an object with a piece for each append, and commit it; returns its sequence.

        `cached`: its node keeps it.
        """
        self.now = timestamp or 1_000 + self.committed_next
        sent = {one: [_sent(each) for each in each_of] for one, each_of in appends.items()}
        pieces = [
            Piece(stream_id, [a_chunk(0, records, 0, 0, batches).data], len(records), 1, 1)
            for stream_id, each_of in sent.items()
            for records in each_of
        ]
        self.commit(pieces, lambda _: 0, cached=cached)
        for records in sent.get(STREAM_ID, []):
            first = self.committed_next
            self.chunks.append(a_chunk(first, records, self.now, EPOCH, batches))
            self._note(records)
        return self.writer.sequence - 1

    def commit(
        self,
        pieces: Sequence[Piece],
        last_chunk: Callable[[PieceLine], int],
        *,
        cached: bool = False,
    ) -> None:
        """Put pieces, and commit them."""
        packed = at_once(self.writer.put_pieces(pieces))
        sequence = packed.header.sequence
        if cached:
            data = b"".join(bytes(part) for part in packed.parts)
            self.wal_nodes.objects[wal_bytes(self.writer.instance, sequence)] = data
        done = at_once(self.writer.commit(packed, last_chunk=last_chunk))
        assert all(isinstance(one, Committed) for one in done.streams.values())
        self.appended.set()
        self.appended = asyncio.Event()

    def commit_chunks(self, chunks: Sequence[tuple[bytes, Sequence[Sent]]]) -> None:
        """Put one piece of several unplaced chunks, and commit it."""
        count = sum(len(records) for _, records in chunks)
        parts = [data for data, _ in chunks]
        self.now = 1_000 + self.committed_next
        before = count - len(chunks[-1][1])
        self.commit([Piece(STREAM_ID, parts, count, len(chunks), 1)], lambda _: before)
        placed = place(
            b"".join(parts),
            first_offset=self.committed_next,
            record_count=count,
            timestamp=self.now,
            epoch=EPOCH,
        )
        for one, (_, records) in zip(placed, chunks, strict=True):
            header = one.header
            data = one.front + bytes(one.body)
            self.chunks.append(LocalChunk(header.first_offset, header.next_offset, self.now, data))
            self._note(records)

    def _note(self, records: Sequence[Sent]) -> None:
        for number, record in enumerate(records):
            self.records[self.committed_next + number] = (self.now, record)
        self.committed_next += len(records)

    async def publish(self, node: Node) -> None:
        """The manifest's EXEC; entries stay until they are pruned."""
        await super().publish(node)

        def change(record: StreamRecord) -> StreamRecord:
            return replace(record, published_next=node.next_offset, version=self.version)

        await self.streams.update(STREAM_ID, change)

    def free(self) -> None:
        """Prune what is published, release its objects, and delete them."""
        at_once(self._free())
        super().free()

    async def _free(self) -> None:
        await tails.prune(self.coordination, STREAM_ID, 0)
        instance = self.writer.instance
        directories = {sequence: {STREAM_ID} for sequence in range(self.writer.sequence)}
        await releases.release(self.coordination, instance, 0, directories, {shard_of(STREAM_ID)})
        found = await wal.deletable(self.drive, self.coordination, instance, 0)
        deleted = await wal.delete_objects(self.drive, instance, found.sequences)
        await wal.note_deleted(self.coordination, instance, 0, deleted)

    def closed(self) -> bytes:
        """The record of the tail once the stream is being deleted."""
        return encode_tail(closed(self.tail()))

    def take_out(self, member: bytes) -> None:
        """Lose an entry of the index, as nobody of the product does."""
        gone = Member(tail_index_key(STREAM_ID), member, False)
        self.coordination.write(Changes(members=[gone]))

    def tail(self) -> Tail:
        found = at_once(load_tails(self.coordination, [STREAM_ID], 0))[STREAM_ID]
        assert isinstance(found, Tail)
        return found

    def write(self, redis_key: str, value: bytes | None) -> None:
        """Write to coordination as nobody of the product does."""
        self.coordination.write(Changes({redis_key: value}))

    @property
    def object_reads(self) -> list[str]:
        """GETs of WAL objects so far."""
        return [key for key in self.drive.reads if key.endswith(".wal")]

    def object_key(self, sequence: int) -> str:
        return wal_key(self.writer.instance, sequence)


def _sent(records: Sequence[Sent | str]) -> list[Sent]:
    return [a_text(one) if isinstance(one, str) else one for one in records]
