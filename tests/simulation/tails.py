"""What must hold at every moment of leaderless streams: of their tails, and of WAL objects.

Numbers are those of the invariants of docs/leaderless.md's protocol: 1 (entries name objects that are
there, verify and are held), 2 (no hole), 3 (bounds), 4 (a piece has one place).

After a loss of coordination a gap is right only where nothing says what was committed. What had a note
in the bucket at the loss comes back, and so does what a node acknowledged after its note was durable,
and what a node acknowledged that lived on undisturbed until the rebuild had looked.
"""

from typing import Final

from bottomless.errors import Corrupt
from bottomless.formats.keys import WAL_PREFIX, WalKey, parse_wal_key, wal_key
from bottomless.formats.placing import place
from bottomless.formats.wal import decode_directory
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.leaderless.instance import WalInstance, decode_instance
from bottomless_server.leaderless.tail import (
    Tail,
    TailEntry,
    TailState,
    check_index,
    check_step,
    shard_of,
)
from bottomless_server.leaderless.tail_format import decode_entry, decode_held, decode_tail
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.tail_keys import tail_index_key, tail_key
from bottomless_server.stores.wal import INSTANCES_KEY, held_key, instance_key, live_key
from simulation.expected import Broken, Expected
from simulation.invariants import Watch
from simulation.programs import Ground, Program

_FOREVER: Final = 10**18


class TailWatch(Watch):
    """Looks at one leaderless stream, and at its tail."""

    def __init__(self, expected: Expected, ground: Ground, nodes: list[Program]) -> None:
        super().__init__(expected, ground.coordination, ground.drive, nodes)
        self._default = ground.drive
        self._ground = ground
        self._tail: Tail | None = None
        self._raw: bytes | None = None
        self._entries: list[TailEntry] = []
        self._held: dict[Uid, tuple[list[bytes], set[tuple[int, int]]]] = {}
        self._places: dict[tuple[Uid, int, int], int] = {}
        """The offset of each place of a WAL object that was ever committed."""
        self._lost_at: float | None = None
        """When coordination was lost, until it is there again."""
        self._noted: list[tuple[int, int]] = []
        """First and next offset of what had a note in the bucket then."""

    def note_loss(self) -> None:
        """Coordination is lost at this moment."""
        self._lost_at = self._ground.loop.now
        noted = noted_in(self._default).get(self._stream_id, [])
        manifest = self.manifest.next_offset
        self._noted = [(0, manifest), *noted]

    def _forget(self) -> None:
        self._tail = self._raw = None
        self._entries = []
        self._places.clear()
        self._held.clear()

    def _objection(self, first_offset: int, next_offset: int) -> str | None:
        told = f"the gap {first_offset} to {next_offset}"
        if self._lost_at is None:
            return f"{told} came, and coordination was not lost"
        for first, end in self._noted:
            if first < next_offset and first_offset < end:
                return f"{told} covers {first} to {end}, of which the bucket knew"
        for offset, value in self._expected.acknowledged.items():
            if first_offset <= offset < next_offset and self._has_to_come_back(offset):
                by = self._expected.acknowledged_by[offset]
                return f"{told} covers {offset}, {value[:20]}, which has to be noted: {by}"
        self._ground.story.count("gaps after a rebuild")
        lost = sum(first_offset <= one < next_offset for one in self._expected.acknowledged)
        self._ground.story.count("acknowledgements lost with nodes and coordination", lost)
        return None

    def _has_to_come_back(self, offset: int) -> bool:
        by = self._expected.acknowledged_by.get(offset)
        if by is None:
            return False
        if by.noted:
            return True
        assert self._lost_at is not None
        (node,) = (one for one in self._nodes if one.name == by.node)
        hindered = self._ground.hindered
        return (
            node.alive
            and node.lives == by.life
            and hindered.get(node.name, -1.0) < by.at
            and hindered.get("drive", -1.0) < by.at
            and hindered.get("manifest", -1.0) < self._lost_at
        )

    def _given(self, record: StreamRecord) -> int:
        value = self._coordination.peek(tail_key(self._stream_id))
        self._require(value is not None, "its tail is gone")
        assert value is not None
        if value != self._raw:
            self._take(value)
        assert self._tail is not None
        self._lost_at = None
        self._require(
            self._tail.pruned_next <= self._tail.published_next <= record.published_next,
            f"pruned beyond what is published: {self._tail}",
        )
        self._check_objects(self._tail)
        return self._tail.next_offset

    def _take(self, value: bytes) -> None:
        tail = decode_tail(value)
        members = self._coordination.peek_members(tail_index_key(self._stream_id))
        entries = [decode_entry(member) for member in members]
        try:
            if self._tail is not None:
                check_step(self._tail, tail)
            check_index(tail, entries)
        except AssertionError as error:
            raise Broken(f"{self._expected.name}: its tail: {error} {tail}") from error
        self._require(tail.state is not TailState.CLOSED, "its tail is closed")
        known = set(self._entries)
        for entry in entries:
            if entry not in known:
                self._verify(tail, entry)
        self._tail, self._raw, self._entries = tail, value, entries

    def _verify(self, tail: Tail, entry: TailEntry) -> None:
        data = self._drive.peek(wal_key(entry.instance, entry.sequence))
        self._require(data is not None, f"an entry names what is not there: {entry}")
        assert data is not None
        try:
            place(
                data[entry.position : entry.position + entry.size],
                first_offset=entry.first_offset,
                record_count=entry.record_count,
                timestamp=entry.timestamp,
                epoch=tail.epoch,
            )
        except Corrupt as error:
            raise Broken(f"{self._expected.name}: {entry} does not verify: {error}") from error
        place_of = entry.instance, entry.sequence, entry.position
        before = self._places.setdefault(place_of, entry.first_offset)
        self._require(before == entry.first_offset, f"a piece is at {before} and at {entry}")

    def _check_objects(self, tail: Tail) -> None:
        shard = shard_of(self._stream_id)
        for entry in self._entries:
            if entry.next_offset <= tail.pruned_next:
                continue
            there = self._drive.has(wal_key(entry.instance, entry.sequence))
            self._require(there, f"deleted, and an entry names it: {entry}")
            held = (entry.sequence, shard) in self._held_of(entry.instance)
            self._require(held, f"an entry needs what nothing holds: {entry}")

    def _held_of(self, instance: Uid) -> set[tuple[int, int]]:
        members = self._coordination.peek_members(held_key(instance))
        known = self._held.get(instance)
        if known is None or known[0] != members:
            held = [decode_held(member) for member in members]
            known = members, {(one.sequence, one.shard) for one in held}
            self._held[instance] = known
        return known[1]


class WalWatch:
    """Looks at all instances of writers, and in the end at what is left of WAL objects."""

    def __init__(self, coordination: MemoryCoordination, drive: MemoryDrive) -> None:
        self._coordination = coordination
        self._drive = drive
        self._known: dict[Uid, tuple[bytes, WalInstance]] = {}

    def look(self) -> None:
        """Raises:
        Broken: something went back.
        """
        if self._coordination.peek(GENERATION_KEY) is None:
            self._known.clear()
            return
        instances = self.instances()
        for instance in self._known.keys() - instances.keys():
            record = self._known.pop(instance)[1]
            if record.deleted != record.settled or record.settled != record.reserved:
                # The last step of the vacuum is one EXEC: it may have done all of this at once.
                held = self._coordination.peek_members(held_key(instance))
                if held:
                    raise Broken(f"an instance is forgotten, and holds {len(held)}: {record}")
        for instance, value in instances.items():
            before = self._known.get(instance)
            if before is not None and before[0] == value:
                continue
            record = decode_instance(value)
            if before is not None and not before[1].goes_on_as(record):
                raise Broken(f"an instance went back from {before[1]} to {record}")
            self._known[instance] = value, record

    def instances(self) -> dict[Uid, bytes]:
        """The records of all instances that are entered."""
        names = [
            Uid(member.decode("ascii")) for member in self._coordination.peek_members(INSTANCES_KEY)
        ]
        found = {name: self._coordination.peek(instance_key(name)) for name in names}
        missing = [name for name, value in found.items() if value is None]
        if missing:
            raise Broken(f"instances are entered and have no record: {missing}")
        return {name: value for name, value in found.items() if value is not None}

    def unreclaimed(self) -> list[str]:
        """What a bucket at rest still has, without a writer that lives: nothing, but what is kept
        for an operator, and what was put after its deletion, which is garbage collection's."""
        left: list[str] = []
        deleted: dict[Uid, int] = {}
        for instance, value in self.instances().items():
            record = decode_instance(value)
            deleted[instance] = 0 if record.keep_until else record.deleted
            if record.keep_until:
                deleted[instance] = -1
                continue
            live = self._coordination.peek(live_key(instance)) is not None
            left.append(f"{instance} {'live' if live else 'dead'} {record}")
        left += [
            f"held of {instance}"
            for instance in deleted
            if self._coordination.peek_members(held_key(instance))
        ]
        left += [
            str(key)
            for key in wal_keys(self._drive)
            if key.sequence >= deleted.get(key.instance, _FOREVER) >= 0
        ]
        return left


def wal_keys(drive: MemoryDrive) -> list[WalKey]:
    """Whose objects there are."""
    keys = [key for key in drive.object_keys if key.startswith(WAL_PREFIX)]
    return [found for key in keys if (found := parse_wal_key(key)) is not None]


def noted_in(drive: MemoryDrive) -> dict[StreamId, list[tuple[int, int]]]:
    """First and next offset of all that has a note in the bucket, by stream."""
    directories = {}
    for key in wal_keys(drive):
        data = drive.peek(wal_key(key.instance, key.sequence))
        assert data is not None
        directories[key] = decode_directory(data)
    newest = max((one.header.generation for one in directories.values()), default=0)
    noted: dict[StreamId, list[tuple[int, int]]] = {}
    for key, directory in directories.items():
        if directory.header.generation != newest:
            continue
        for number in range(directory.header.note_count):
            note = directory.note(number)
            named = directories.get(WalKey(key.instance, note.sequence))
            if named is None:
                continue
            pieces = range(note.first_piece, note.first_piece + note.piece_count)
            lines = [named.line(piece) for piece in pieces]
            end = note.first_offset + sum(line.record_count for line in lines)
            noted.setdefault(lines[0].stream_id, []).append((note.first_offset, end))
    return noted
