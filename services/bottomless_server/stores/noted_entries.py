"""Whether what stands in a tail is noted in the bucket, whoever wrote it: then a rebuild gives it back.

Entries of any instance are looked for in the later objects of that instance. A note names pieces by their
number in their object, and no stream: streams that go on side by side have the same offsets in one object.
What was found is remembered, so a thousand repeats that come at once cost hardly more requests than one.
Nothing is written.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.keys import WAL_PREFIX, parse_wal_key, wal_key
from bottomless.formats.wal import WalDirectory
from bottomless.guards import guard
from bottomless.model.names import StreamId, Uid
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.tail import Tail, TailEntry, TailState
from bottomless_server.stores.tail_keys import entries_from, load_tails
from bottomless_server.stores.wal import load_directory

INSTANCE_COUNT_MAX: Final = 256
"""Instances of which it is remembered what they noted: the one that was asked for longest ago goes."""


@dataclass(slots=True)
class _Noted:
    """What durable objects of one instance say."""

    below: int = 0
    """Everything of lower sequences is noted."""
    notes: set[tuple[int, int]] = field(default_factory=set)
    """Sequence and first piece of each note that is known and not below: those of a few objects."""
    pieces: dict[tuple[int, int], int] = field(default_factory=dict)
    """The numbers of pieces of those objects, by sequence and position, as far as it was looked."""

    def take(self, directory: WalDirectory) -> None:
        self.below = max(self.below, directory.header.noted_below)
        notes = map(directory.note, range(directory.header.note_count))
        self.notes |= {(note.sequence, note.first_piece) for note in notes}
        self.notes = {one for one in self.notes if one[0] >= self.below}
        self.pieces = {one: at for one, at in self.pieces.items() if one[0] >= self.below}

    def take_pieces(self, directory: WalDirectory, stream_id: StreamId) -> None:
        """Remember which number each piece of a stream has in an object."""
        for number in directory.pieces_of(stream_id):
            self.pieces[directory.header.sequence, directory.line(number).position] = number

    def has(self, entry: TailEntry) -> bool:
        return entry.sequence < self.below or is_of_pieces(
            self.notes, entry.sequence, self.pieces.get((entry.sequence, entry.position))
        )

    def unknown(self, entries: Sequence[TailEntry]) -> list[int]:
        """Objects of which some pieces are noted, and nobody has looked whether they are those of an
        entry."""
        noted = {sequence for sequence, _ in self.notes}
        return sorted(
            {
                entry.sequence
                for entry in entries
                if entry.sequence in noted and (entry.sequence, entry.position) not in self.pieces
            }
        )


@guard("a note of the very pieces that an entry names")
def is_of_pieces(notes: Collection[tuple[int, int]], sequence: int, number: int | None) -> bool:
    """Tell whether one of these notes, each with its sequence and first piece, speaks of the entry that
    begins with this piece of an object; None if nobody has looked which piece that is."""
    return (sequence, number) in notes


class NotedEntries:
    """What is known to be noted: nothing that is true of it ever ceases to be, for as long as an entry
    names the objects."""

    def __init__(self, instance_count_max: int = INSTANCE_COUNT_MAX) -> None:
        self._count_max = instance_count_max
        self._instances: OrderedDict[Uid, _Noted] = OrderedDict()

    def of(self, instance: Uid) -> _Noted:
        noted = self._instances.setdefault(instance, _Noted())
        self._instances.move_to_end(instance)
        while len(self._instances) > self._count_max:
            self._instances.popitem(last=False)
        return noted


async def is_noted(
    drive: Drive,
    coordination: Coordination,
    stream_id: StreamId,
    generation: int,
    first_offset: int,
    end: int,
    known: NotedEntries | None = None,
) -> bool:
    """Tell whether all records from an offset up to an exclusive end, as coordination has them in this
    generation, would survive a loss of it: they lie in a fragment, or a note of their commit is durable.

    Raises:
        Corrupt: an entry, the tail, or an object that may have a note, is damaged.
        Unavailable: `coordination-regressed`, so nobody can tell any more; or not now.
    """
    entries: list[TailEntry] = []
    offset = first_offset
    while offset < end and (page := await entries_from(coordination, stream_id, offset)):
        entries += page
        offset = page[-1].next_offset
    # Looked at after them: what is in no entry any more was pruned by then, or was lost.
    tail = (await load_tails(coordination, [stream_id], generation))[stream_id]
    if isinstance(tail, Corrupt):
        raise tail
    if tail is None or tail.state is TailState.CLOSED:
        # The stream is deleted, and its records with it.
        return True
    if not is_covered(tail, generation, entries, first_offset, end):
        raise coordination_lost()
    of_instances: dict[Uid, list[TailEntry]] = {}
    for entry in entries:
        if entry.first_offset < end:
            of_instances.setdefault(entry.instance, []).append(entry)
    known = known or NotedEntries()
    for instance, entries in of_instances.items():
        if not await _are_noted(drive, instance, stream_id, entries, known.of(instance)):
            return False
    return True


@guard("where records lie that no entry has")
def is_covered(
    tail: Tail, generation: int, entries: Sequence[TailEntry], first_offset: int, end: int
) -> bool:
    """Whether a tail of this generation has pruned all records of this range that none of the entries
    has, which were read before it."""
    offset = max(first_offset, tail.pruned_next)
    for entry in entries:
        if entry.first_offset <= offset:
            offset = max(offset, entry.next_offset)
    return tail.generation == generation and offset >= end


async def _are_noted(
    drive: Drive,
    instance: Uid,
    stream_id: StreamId,
    entries: Sequence[TailEntry],
    noted: _Noted,
) -> bool:
    """Whether the objects of an instance have the notes of these entries of one stream, the newest looked
    at first."""
    if await _has_all(drive, instance, stream_id, entries, noted):
        return True
    first = min(entry.sequence for entry in entries if not noted.has(entry))
    listing = drive.list(f"{WAL_PREFIX}{instance}/", wal_key(instance, first))
    found = [key.sequence async for facts in listing if (key := parse_wal_key(facts.object_key))]
    for sequence in reversed(found):
        try:
            noted.take(await load_directory(drive, instance, sequence))
        except ObjectMissing:
            # It went with all before it, which are in fragments.
            continue
        if await _has_all(drive, instance, stream_id, entries, noted):
            return True
    return False


async def _has_all(
    drive: Drive,
    instance: Uid,
    stream_id: StreamId,
    entries: Sequence[TailEntry],
    noted: _Noted,
) -> bool:
    """Whether what is known notes all of these entries. The objects that they name are looked at where
    a note may be of another stream's piece."""
    for sequence in noted.unknown(entries):
        try:
            noted.take_pieces(await load_directory(drive, instance, sequence), stream_id)
        except ObjectMissing:
            # Nothing needs it any more, or it is lost: the next look at the tail tells.
            return False
    return all(map(noted.has, entries))
