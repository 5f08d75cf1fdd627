"""All of one stream as it lies in store and coordination, read past every service.

Nothing here asks our processes: the record comes from Valkey, the objects from the store
by a client of its own. So what it finds is what is there, and not what somebody says.
"""

from dataclasses import dataclass
from typing import Any

from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import batches_of, split_chunks
from bottomless.formats.fragment import HEADER_SIZE, decode_fragment_header, decode_index
from bottomless.formats.keys import parse_consumers_key
from bottomless.formats.manifest import decode_node
from bottomless.formats.stream_record import decode_record
from bottomless.model.chunk import ChunkKind
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import EntryKind, Node, fragment_info
from bottomless.model.names import StreamId, uid_from_bytes
from bottomless.model.stream import Intent, StreamRecord
from bottomless_server.stores.streams import DELETES_KEY, stream_key
from support.object_keys import fragment_key, group_key, registry_key, root_key, stream_prefix
from support.stored import Stored
from support.valkey import another_client


@dataclass(frozen=True)
class Found:
    """A manifest that verified from its root down, and what else there is of the stream."""

    record: StreamRecord
    first_offset: int
    """The floor: what lies below it in a group whose front was cut is no part of the stream."""
    values: list[str]
    """Of the records in the fragments, in order: the list begins at the floor and has no hole."""
    fragments: list[FragmentInfo]
    group_count: int
    queued: frozenset[str]
    """Keys that the delete queue holds."""
    pending: frozenset[str]
    """Keys that intents and quarantine name."""
    strangers: frozenset[str]
    """Objects that nothing names: neither the manifest, nor intents, quarantine or queue."""
    unreachable: frozenset[str]
    """Those, and what waits to be deleted."""


class StoredStream:
    """One stream in a store and a coordination."""

    def __init__(self, stored: Stored, coordination_url: str, stream_id: StreamId) -> None:
        self._stored = stored
        self._coordination_url = coordination_url
        self._stream_id = stream_id

    def look(self) -> Found:
        """Read and verify everything; the stream has to be at rest.

        Raises:
            AssertionError: something is wrong, doubled or missing.
        """
        record, queued = self._coordinated()
        named: set[str] = {registry_key(self._stream_id, record.registry_version)}
        fragments: list[FragmentInfo] = []
        floor = 0
        if record.root is not None:
            root = self._root(record, named)
            floor = root.first_offset
            self._walk(root, floor, named, fragments)
        values: list[str] = []
        for info in fragments:
            end = floor + len(values)
            assert info.first_offset == end, f"{info.fragment_id} does not follow at offset {end}"
            values += self._values_of(info)
            assert floor + len(values) == info.next_offset, f"{info.fragment_id} lacks records"
        assert record.published_next == floor + len(values), (
            "the record says another end than the root"
        )
        named |= {self._fragment_key(info) for info in fragments}
        pending = {self._intent_key(one) for one in (*record.intents, *record.quarantine)}
        there = {
            key for key in self._stored.sizes() if key.startswith(stream_prefix(self._stream_id))
        }
        # Of offsets of consumers the newest says all of them.
        snapshots = {key: parse_consumers_key(key) for key in there}
        newest = max((one for one in snapshots.values() if one is not None), default=None)
        named |= {key for key, one in snapshots.items() if one is not None and one == newest}
        assert not named - there, f"named, but not in the store: {sorted(named - there)}"
        return Found(
            record,
            floor,
            values,
            fragments,
            group_count=sum(".g" in key for key in named),
            queued=frozenset(queued),
            pending=frozenset(pending),
            strangers=frozenset(there - named - pending - queued),
            unreachable=frozenset(there - named),
        )

    def _coordinated(self) -> tuple[StreamRecord, set[str]]:
        with another_client(self._coordination_url) as client:
            # One transaction, so that what moves from the one into the other is not missed.
            both = client.pipeline(transaction=True)
            both.get(stream_key(self._stream_id))
            both.zrange(DELETES_KEY, 0, -1)
            value, members = both.execute()
        assert value is not None, "the stream has no record"
        return decode_record(value), {member.decode().split("?")[0] for member in members}

    def _root(self, record: StreamRecord, named: set[str]) -> Node:
        root = record.root
        assert root is not None
        key = root_key(self._stream_id, root.generation, root.epoch, root.version, root.uid)
        named.add(key)
        return decode_node(self._read(key, root.size, root.crc))

    def _walk(self, node: Node, floor: int, named: set[str], fragments: list[FragmentInfo]) -> None:
        for entry in node.entries:
            if int(entry["next_offset"]) <= floor:
                continue
            if entry["kind"] == EntryKind.FRAGMENT:
                fragments.append(fragment_info(entry))
                continue
            assert entry["kind"] == EntryKind.GROUP, "a gap, where nothing was lost"
            uid = uid_from_bytes(entry["uid"].tobytes())
            key = group_key(self._stream_id, int(entry["first_offset"]), uid, int(entry["height"]))
            named.add(key)
            data = self._read(key, int(entry["object_size"]), int(entry["object_crc"]))
            self._walk(decode_node(data), floor, named, fragments)

    def _values_of(self, info: FragmentInfo) -> list[str]:
        data = self._read(self._fragment_key(info), info.size, info.crc)
        header = decode_fragment_header(data[:HEADER_SIZE])
        assert (header.stream_id, header.uid) == (self._stream_id, info.uid)
        index = decode_index(data[info.index_position :])
        start = index.place(0).position
        values: list[str] = []
        for chunk_header, chunk in split_chunks(data[start : info.index_position]):
            if chunk_header.kind is ChunkKind.TRACKING:
                continue
            assert chunk_header.first_offset == info.first_offset + len(values)
            for batch in decode_frames(batches_of(chunk_header, chunk)):
                stored: list[Any] = batch.column("value").to_pylist()
                values += [value.decode() for value in stored]
        return values

    def _read(self, object_key: str, size: int, crc: int) -> bytes:
        data = self._stored.read(object_key)
        assert (len(data), crc32c(data)) == (size, crc), f"{object_key} is not what was stored"
        return data

    def _fragment_key(self, info: FragmentInfo) -> str:
        return fragment_key(self._stream_id, info.first_offset, info.uid)

    def _intent_key(self, intent: Intent) -> str:
        return fragment_key(self._stream_id, intent.first_offset, intent.uid)
