"""Read what the WAL objects of a bucket say of leaderless streams: the first look of a rebuild at them.

Headers, lines and notes are read, and no piece. Only objects of the bucket's own generation count:
what is older was looked at by the rebuild that ended it, and a writer of before it commits nothing.
Nothing is written here, so after a crash the same look is taken again.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog
from cachetools import LRUCache

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.keys import WAL_PREFIX, parse_wal_key, wal_key
from bottomless.formats.wal import WalDirectory
from bottomless.guards import guard
from bottomless.model.names import StreamId, Uid
from bottomless.model.wal import Note, WalFlags
from bottomless_server.leaderless.noted import NotedEntry
from bottomless_server.manifest.recovery.reads_ahead import AheadBounds, reads_ahead
from bottomless_server.stores.wal import load_directory

log = structlog.get_logger(__name__)

_DIRECTORY_COUNT: Final = 32
"""Directories that are kept while the notes of one instance are read: most speak of the last few
objects. One has at most 8 MiB."""
_SIZE_NO_MATTER: Final = 2**63


class InDoubt(NamedTuple):
    """An undecided object whose appends may have been acknowledged."""

    instance: Uid
    sequence: int
    stream_count: int
    record_count: int


class FoundInstance(NamedTuple):
    """An instance that has objects."""

    sequences: range
    """From the first that is there to the last."""
    in_doubt: bool
    """Whether an object of it is in doubt, or cannot be read."""


@dataclass(slots=True)
class FoundWal:
    """What the WAL objects of a bucket say together."""

    instances: dict[Uid, FoundInstance] = field(default_factory=dict)
    noted: dict[StreamId, list[NotedEntry]] = field(default_factory=dict)
    undecided: set[StreamId] = field(default_factory=set)
    """Streams with pieces in an undecided object."""
    in_doubt: list[InDoubt] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Keys of objects whose directory cannot be read: nobody knows which streams have pieces in
    them, and of which entries their notes were."""

    def covers(self, stream_id: StreamId, offset: int) -> bool:
        """Tell whether a note speaks of a record."""
        noted = self.noted.get(stream_id, ())
        return any(one.first_offset <= offset < one.next_offset for one in noted)

    def noted_next(self, stream_id: StreamId) -> int:
        """After the last offset of which a note speaks; 0 where none does."""
        return max((one.next_offset for one in self.noted.get(stream_id, ())), default=0)

    def has(self, stream_id: StreamId) -> bool:
        """Tell whether there is anything to be brought back, or to be left out, of a stream."""
        return stream_id in self.noted or self.may_have_more(stream_id)

    @guard("an object that cannot be read, taken for one of every stream")
    def may_have_more(self, stream_id: StreamId) -> bool:
        """Tell whether a stream may have given offsets that nobody knows."""
        return stream_id in self.undecided or bool(self.unreadable)


async def scan_wal(drive: Drive, generation: int, read_count: int = 1) -> FoundWal:
    """Look at all WAL objects, `read_count` of them at a time; `generation` is the bucket's.

    Raises:
        DriveUnavailable, DriveRefused
    """
    found = FoundWal()
    sequences: dict[Uid, list[int]] = {}
    async for facts in drive.list(WAL_PREFIX):
        if (key := parse_wal_key(facts.object_key)) is not None:
            sequences.setdefault(key.instance, []).append(key.sequence)
    for instance, present in sequences.items():
        await _InstanceScan(drive, generation, instance, found, read_count).run(present)
    return found


class _InstanceScan:
    """The look at the objects of one instance, in the order of their sequences."""

    def __init__(
        self, drive: Drive, generation: int, instance: Uid, found: FoundWal, read_count: int
    ) -> None:
        self._drive = drive
        self._generation = generation
        self._instance = instance
        self._found = found
        self._bounds = AheadBounds(read_count, _SIZE_NO_MATTER)
        self._directories: LRUCache[int, WalDirectory | None] = LRUCache(_DIRECTORY_COUNT)
        self._unreadable = set[int]()

    async def run(self, present: list[int]) -> None:
        noted_below = 0
        async with reads_ahead(self._directory, present, self._bounds) as directories:
            async for directory in directories:
                if directory is None or directory.header.generation != self._generation:
                    continue
                noted_below = max(noted_below, directory.header.noted_below)
                for number in range(directory.header.note_count):
                    await self._take(directory.note(number))
        keys = [wal_key(self._instance, sequence) for sequence in sorted(self._unreadable)]
        self._found.unreadable += keys
        in_doubt = bool(keys)
        undecided = [sequence for sequence in present if is_undecided(sequence, noted_below)]
        async with reads_ahead(self._directory, undecided, self._bounds) as directories:
            for sequence in undecided:
                directory = await anext(directories)
                in_doubt = self._note_undecided(sequence, directory) or in_doubt
        sequences = range(present[0], present[-1] + 1)
        self._found.instances[self._instance] = FoundInstance(sequences, in_doubt)

    async def _directory(self, sequence: int) -> WalDirectory | None:
        if sequence not in self._directories:
            try:
                directory = await load_directory(self._drive, self._instance, sequence)
            except ObjectMissing:
                # It went with all that it holds in fragments.
                directory = None
            except Corrupt:
                log.exception(
                    "a WAL object cannot be read", instance=self._instance, sequence=sequence
                )
                self._unreadable.add(sequence)
                directory = None
            self._directories[sequence] = directory
        return self._directories[sequence]

    async def _take(self, note: Note) -> None:
        """Find the pieces that a note speaks of."""
        directory = await self._directory(note.sequence)
        if directory is None:
            return
        end = note.first_piece + note.piece_count
        if end > directory.header.piece_count:
            log.critical(
                "a note speaks of pieces that are not there",
                instance=self._instance,
                sequence=note.sequence,
            )
            return
        lines = [directory.line(number) for number in range(note.first_piece, end)]
        entry = NotedEntry(
            first_offset=note.first_offset,
            record_count=sum(line.record_count for line in lines),
            epoch=note.epoch,
            timestamp=note.timestamp,
            number=note.number,
            instance=self._instance,
            sequence=note.sequence,
            position=lines[0].position,
            size=sum(line.size for line in lines),
        )
        self._found.noted.setdefault(lines[0].stream_id, []).append(entry)

    def _note_undecided(self, sequence: int, directory: WalDirectory | None) -> bool:
        """Note the streams of an undecided object; whether answers may have spoken of it."""
        if directory is None or directory.header.generation != self._generation:
            return False
        streams = directory.stream_ids()
        self._found.undecided.update(streams)
        if not streams or WalFlags.SYNC in directory.header.flags:
            # With that flag nothing was answered whose note is not in the bucket.
            return False
        records = sum(
            directory.line(number).record_count for number in range(directory.header.piece_count)
        )
        doubt = InDoubt(self._instance, sequence, len(streams), records)
        log.critical("a WAL object is in doubt", **doubt._asdict())
        self._found.in_doubt.append(doubt)
        return True


@guard("what is not noted before a loss, taken for undecided")
def is_undecided(sequence: int, noted_below: int) -> bool:
    """Whether nobody can tell what was committed of an object: its notes may not be in the bucket."""
    return sequence >= noted_below
