"""A reader in this process, between a manifest and an ingest that answer as the protocol says.

What was appended is kept as a plain list, which is the oracle; chunks, fragments, groups
and roots are made by the real formats and lie in a real drive.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
from support.harness import ServiceHarness
from support.object_keys import fragment_key, group_key, root_key
from unit.reader.protocol import OWNER, STREAM_ID, Manifest, Owners

from bottomless.formats.batch import FIELDS, encode_frame
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import seal_chunk
from bottomless.formats.fragment import pack_fragment
from bottomless.formats.manifest import encode_node
from bottomless.model.chunk import AppendEntry, AppendMode
from bottomless.model.config import FilterConfig, StreamConfig
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.manifest import (
    ENTRY_DTYPE,
    EntryKind,
    GapReason,
    Node,
    no_entries,
    taken,
)
from bottomless.model.names import Uid
from bottomless.model.record import Columns, Content
from bottomless.model.stream import RootPointer
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.filter_making import make_filters
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable
from bottomless_server.protocol.group_members import MemberOf
from bottomless_server.protocol.peer import PeersPort
from bottomless_server.reader.app import ReaderService, create_service
from bottomless_server.reader.settings import ReaderSettings
from bottomless_server.tree.append import append_entries, append_fragments
from bottomless_server.tree.rebalance import SealedNode, rebalance

ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class Sent:
    """One record as a producer sends it."""

    value: bytes
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] | None = None
    event_time: int | None = None
    content: Content = Content.BYTES
    filter_value: str | None = None


@dataclass(frozen=True)
class LocalChunk:
    first_offset: int
    next_offset: int
    timestamp: int
    data: bytes


class WatchedDrive(MemoryDrive):
    """Counts reads, and damages or holds those of chosen keys."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.read_size = 0
        self.damage_count = 0
        """Reads of fragments that come back damaged."""

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        self.reads.append(object_key)
        data = await super().get(object_key, start, size)
        self.read_size += len(data)
        if object_key.endswith(".fragment") and self.damage_count:
            self.damage_count -= 1
            return bytes(byte ^ 0x40 for byte in data)
        return data


def a_text(value: str) -> Sent:
    """A record as it is sent of a text."""
    return Sent(value.encode(), content=Content.TEXT)


def a_batch(records: Sequence[Sent], columns: Columns = Columns.ALL) -> pa.RecordBatch:
    names = [field.name for column, field in FIELDS.items() if column in columns]
    arrays = {
        name: pa.array([getattr(record, name) for record in records], FIELDS[column].type)
        for column, name in zip(
            [column for column in FIELDS if column in columns], names, strict=True
        )
    }
    fields = [FIELDS[column] for column in FIELDS if column in columns]
    return pa.record_batch([arrays[name] for name in names], schema=pa.schema(fields))


def a_chunk(
    first_offset: int, records: Sequence[Sent], timestamp: int, epoch: int = 1, batches: int = 1
) -> LocalChunk:
    """A chunk of these records; hundreds of tests begin with the same ones, which are made once."""
    asked = repr((first_offset, records, timestamp, epoch, batches))
    if asked not in _CHUNKS:
        if len(_CHUNKS) >= CHUNKS_COUNT_MAX:
            _CHUNKS.clear()
        _CHUNKS[asked] = _made(first_offset, records, timestamp, epoch, batches)
    return _CHUNKS[asked]


CHUNKS_COUNT_MAX = 1_000
_CHUNKS: dict[str, LocalChunk] = {}


def _made(
    first_offset: int, records: Sequence[Sent], timestamp: int, epoch: int, batches: int
) -> LocalChunk:
    step = -(-len(records) // batches)
    parts = [records[start : start + step] for start in range(0, len(records), step)]
    sealed = seal_chunk(
        [encode_frame(a_batch(part)) for part in parts],
        [AppendEntry(AppendMode.PLAIN, 0, len(records), 0)],
        record_count=len(records),
        first_offset=first_offset,
        timestamp=timestamp,
        epoch=epoch,
    )
    return LocalChunk(first_offset, first_offset + len(records), timestamp, b"".join(sealed))


class ReaderHarness(ServiceHarness):
    """One stream, its owner, its manifest, and a reader in front of them."""

    config = StreamConfig()
    time_passes = True
    """Whether names and members grow old by themselves, too."""

    def __init__(self, fanout: int = 4, drive: WatchedDrive | None = None, **settings: Any) -> None:
        self.drive = drive or WatchedDrive()
        self.chunks: list[LocalChunk] = []
        self.records: dict[int, tuple[int, Sent]] = {}
        self.fragments: list[FragmentInfo] = []
        self.epoch = 1
        self.owner_url: str | None = OWNER
        self.alive = {OWNER, "http://ingest"}
        self.exists = True
        self.manifest_hangs = False
        self.other_names: set[str] = set()
        """Names that the stream has beside its own."""
        self.stream_id = STREAM_ID
        """Of the stream that has the name."""
        self.stored: dict[str, int] = {}
        """Next offsets that consumers have committed."""
        self.holders: dict[MemberOf, int] = {}
        """The generation with which a member of a consumer group holds a stream."""
        self.groups_fail = False
        """Manifest does not answer what members hold."""
        self.now_ms = 0
        """Added to the clock by which the reader remembers."""
        self.committed_next = 0
        self.local_first = 0
        self.version = 0
        self.fanout = fanout
        self.node = Node(STREAM_ID, Uid("0" * 32), 0, 0, 0, 1, 0, 0, 0, entries=no_entries())
        self.pointer: RootPointer | None = None
        self.announced_version: int | None = None
        """What the manifest still says, where it lags behind the owner."""
        self.asked: list[str] = []
        self.appended = asyncio.Event()
        self.waiting = asyncio.Event()
        """Somebody waits at the tail."""
        self.uid_count = 0
        given = {
            "reader_root_ttl_ms": 0,
            "reader_block_bytes": 4096,
            # No page ends early because the machine stood still, but where a test is about that.
            "reader_filter_scan_ms": 30_000,
            **settings,
        }
        self.service: ReaderService = create_service(
            ReaderSettings(manifest_url="http://manifest", **given),
            self.drive,
            coordination=self.given_coordination(),
            manifest=Manifest(self),
            ingest=self.nodes(),
            elapsed=lambda: time.monotonic_ns() // 1_000_000 * self.time_passes + self.now_ms,
            table=self.given_table(),
        )
        super().__init__(self.service)

    def given_coordination(self) -> Coordination | None:
        """What the reader is given of coordination: for a stream with an owner it needs none."""
        return None

    def given_table(self) -> DriveTable | None:
        """The drives of fragments that the reader is given: none beside the one of everything."""
        return None

    def nodes(self) -> PeersPort:
        """The ingest nodes that the reader asks."""
        return Owners(self)

    def append(self, *records: Sent | str, timestamp: int = 0, batches: int = 1) -> None:
        """One append, one chunk."""
        sent = [a_text(record) if isinstance(record, str) else record for record in records]
        timestamp = timestamp or 1_000 + self.committed_next
        chunk = a_chunk(self.committed_next, sent, timestamp, self.epoch, batches)
        for number, record in enumerate(sent):
            self.records[chunk.first_offset + number] = (timestamp, record)
        self.chunks.append(chunk)
        self.committed_next = chunk.next_offset
        self.appended.set()
        self.appended = asyncio.Event()

    def fill(self, count: int, per_chunk: int = 10) -> None:
        for first in range(self.committed_next, self.committed_next + count, per_chunk):
            self.append(*(f"value {first + number}" for number in range(per_chunk)))

    def new_uid(self) -> Uid:
        self.uid_count += 1
        return Uid(f"{self.uid_count:032x}")

    async def upload(
        self, chunk_count: int, *, free: bool = False, filter_: FilterConfig | None = None
    ) -> FragmentInfo:
        """Make one fragment of the oldest chunks that no fragment holds, and publish it; with the
        filters that a stream of this configuration has.
        """
        chunks = [c for c in self.chunks if c.first_offset >= self.node.next_offset][:chunk_count]
        info = await self._put(chunks, filter_)
        await self.publish(append_fragments(self.node, [info]))
        if free:
            self.free()
        return info

    async def upload_each(self, filter_: FilterConfig | None = None) -> None:
        """Make a fragment of each chunk that no fragment holds, publish all at once, and free them."""
        chunks = [c for c in self.chunks if c.first_offset >= self.node.next_offset]
        infos = [await self._put([chunk], filter_) for chunk in chunks]
        await self.publish(append_fragments(self.node, infos))
        self.free()

    async def _put(self, chunks: list[LocalChunk], filter_: FilterConfig | None) -> FragmentInfo:
        data = [chunk.data for chunk in chunks]
        # A size with room for filters of chunks as small as these.
        tables = make_filters(data, MIB, filter_ or FilterConfig())
        packed = pack_fragment(STREAM_ID, self.new_uid(), data, tables)
        info = packed.info
        key = fragment_key(STREAM_ID, info.first_offset, info.uid)
        await self.drive.put(key, packed.parts, info.crc)
        self.fragments.append(info)
        return info

    async def lose(self, count: int) -> None:
        """Give offsets up: the manifest gets a gap, and the log goes on behind it."""
        gap = np.zeros(1, dtype=ENTRY_DTYPE)
        gap["first_offset"], gap["next_offset"] = self.committed_next, self.committed_next + count
        gap["first_timestamp"] = gap["last_timestamp"] = self.node.last_timestamp
        gap["kind"], gap["reason"] = EntryKind.GAP, GapReason.LOCAL_LOG_LOST
        await self.publish(append_entries(self.node, gap))
        self.committed_next += count
        self.local_first = self.committed_next
        self.chunks.clear()

    def lose_log(self, chunk_count: int) -> tuple[int, int]:
        """Lose the oldest chunks that no fragment holds; returns the hole."""
        first = self.node.next_offset
        kept = [chunk for chunk in self.chunks if chunk.first_offset >= first][chunk_count:]
        self.chunks = kept
        self.local_first = kept[0].first_offset if kept else self.committed_next
        return first, self.local_first

    async def accept_loss(self) -> None:
        """What an operator does about such a hole: the manifest gets a gap up to the log."""
        gap = np.zeros(1, dtype=ENTRY_DTYPE)
        gap["first_offset"], gap["next_offset"] = self.node.next_offset, self.local_first
        gap["first_timestamp"] = gap["last_timestamp"] = self.node.last_timestamp
        gap["kind"], gap["reason"] = EntryKind.GAP, GapReason.LOCAL_LOG_LOST
        await self.publish(append_entries(self.node, gap))

    async def trim(self, floor: int) -> None:
        kept = self.node.entries["next_offset"] > floor
        entries, filters = taken(self.node.entries[kept], self.node.filters)
        root = replace(self.node, first_offset=floor, entries=entries, filters=filters)
        await self.publish(root)

    async def publish(self, node: Node) -> None:
        def seal(group: Node) -> SealedNode:
            data = encode_node(group)
            return SealedNode(group, data, crc32c(data))

        node, groups = rebalance(node, self.fanout, self.new_uid, seal)
        for group in groups:
            inner = group.node
            key = group_key(STREAM_ID, inner.first_offset, inner.uid, inner.height)
            await self.drive.put(key, [group.data], group.crc)
        self.version += 1
        self.node = replace(node, uid=self.new_uid(), version=self.version)
        key = root_key(STREAM_ID, 0, self.node.epoch, self.version, self.node.uid)
        root = seal(self.node)
        await self.drive.put(key, [root.data], root.crc)
        self.pointer = RootPointer(
            self.node.uid, 0, self.node.epoch, self.version, len(root.data), root.crc
        )

    def free(self) -> None:
        """Drop locally what is published."""
        self.chunks = [c for c in self.chunks if c.first_offset >= self.node.next_offset]
        self.local_first = self.node.next_offset

    async def get(self, path: str, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.get(f"/v1/streams/orders{path}", headers=named)

    async def read(self, offset: object, **parameters: object) -> dict[str, Any]:
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        answer = await self.get(f"/records?offset={offset}&{query}".rstrip("&"))
        assert answer.status_code == 200, answer.text
        members: dict[str, Any] = answer.json()
        return members

    def texts(self, first: int, end: int) -> list[tuple[int, str]]:
        """What a page of these offsets must hold."""
        return [(n, self.records[n][1].value.decode()) for n in range(first, end)]


def shown(page: dict[str, Any]) -> list[tuple[int, str]]:
    return [(record["offset"], record["value"]) for record in page["records"]]
