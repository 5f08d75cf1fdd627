"""Put the notes that a dead writer owed: of what it committed, and of which it could not tell the bucket.

Otherwise only coordination knows of those commits until their streams are compacted: a loss of coordination
in that time would cost what was acknowledged long before it. Whoever calls this has settled the instance,
so nothing more is committed by it. What was committed stands in the tails of the streams that its last
objects hold pieces of.

The notes get an object of their own under the last sequence that the writer had reserved, or as many of
the last ones as they need; the very last is put last, and says that all of them are there. Each is put
only if absent, and they go as the last of their instance. They say nothing new of what is settled: a tail
that went back would not have all entries, and what is undecided stays so.

After a crash: some of the objects, or none. The next pass finds the notes in them, and puts the others.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.keys import WAL_PREFIX, parse_wal_key, wal_key
from bottomless.formats.wal import PackedWal, WalDirectory, pack_wal
from bottomless.model.limits import WAL_NOTE_COUNT_MAX
from bottomless.model.names import StreamId, Uid
from bottomless.model.wal import Note
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.instance import WalInstance
from bottomless_server.leaderless.tail import Tail, TailEntry
from bottomless_server.stores.noted_entries import is_of_pieces
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.tail_keys import entries_from, load_tails
from bottomless_server.stores.wal import is_older, load_directory

log = structlog.get_logger(__name__)

_PUT_SECONDS: Final = 10.0
NOTE_COUNT_MAX: Final = WAL_NOTE_COUNT_MAX
"""Notes of one object."""


class _Header(NamedTuple):
    """What the objects of notes say beside them."""

    noted_below: int
    attempt: int
    created_at: int
    generation: int


async def note_for_dead(
    drive: Drive, coordination: Coordination, instance: Uid, record: WalInstance, clock: int
) -> int:
    """Put the notes that are missing of an instance whose record is settled whole; how many there were.

    Raises:
        Unavailable: `coordination-regressed`: an object proves that coordination has gone back; or not
            now.
        Corrupt: one of the last objects, or an entry, cannot be read.
    """
    assert record.settled == record.reserved
    own = record.reserved - 1
    after = wal_key(instance, record.deleted - 1) if record.deleted else ""
    listing = drive.list(f"{WAL_PREFIX}{instance}/", after)
    present = [key.sequence async for facts in listing if (key := parse_wal_key(facts.object_key))]
    if not present or present[-1] >= own:
        return 0
    directories: dict[int, WalDirectory] = {}
    noted, noted_below = set[tuple[int, int]](), 0
    for sequence in reversed(present):
        if sequence < noted_below:
            break
        try:
            directory = await load_directory(drive, instance, sequence)
        except ObjectMissing:
            continue
        if await is_older(coordination, instance, record, directory.header):
            raise coordination_lost()
        if directory.header.generation != record.generation:
            break
        directories[sequence] = directory
        noted_below = max(noted_below, directory.header.noted_below)
        notes = map(directory.note, range(directory.header.note_count))
        noted |= {(note.sequence, note.first_piece) for note in notes}
    undecided = {one: directories[one] for one in directories if one >= noted_below}
    missing = await _missing(coordination, instance, record.generation, undecided, noted)
    if not missing:
        return 0
    header = _Header(noted_below, record.attempt, clock, record.generation)
    parts = [
        missing[start : start + NOTE_COUNT_MAX] for start in range(0, len(missing), NOTE_COUNT_MAX)
    ]
    room = own - present[-1]
    if len(parts) > room:
        # A writer has never so much under way; what is left out is in coordination until it is compacted.
        log.error("no sequence is left for some notes", instance=instance, count=len(parts) - room)
    parts = parts[:room]
    for sequence, some in enumerate(parts, own + 1 - len(parts)):
        packed = pack_wal(instance, sequence, [], some, **header._asdict())
        await _put(drive, instance, packed, some)
    log.warning("noted what a dead writer had committed", instance=instance, count=len(missing))
    return len(missing)


async def _missing(
    coordination: Coordination,
    instance: Uid,
    generation: int,
    undecided: Mapping[int, WalDirectory],
    noted: set[tuple[int, int]],
) -> list[Note]:
    """Notes of entries that name one of these objects, and are not noted. `noted` has sequence and first
    piece of each note that there is: offsets may be those of another stream."""
    stream_ids = sorted({one for found in undecided.values() for one in found.stream_ids()})
    tails = await load_tails(coordination, stream_ids, generation)
    missing: list[Note] = []
    for stream_id, tail in tails.items():
        if not isinstance(tail, Tail) or tail.generation != generation:
            continue
        offset = tail.pruned_next
        while page := await entries_from(coordination, stream_id, offset):
            notes = [
                _note(stream_id, entry, tail.epoch, undecided[entry.sequence])
                for entry in page
                if entry.instance == instance and entry.sequence in undecided
            ]
            missing += [
                note for note in notes if not is_of_pieces(noted, note.sequence, note.first_piece)
            ]
            offset = page[-1].next_offset
    return sorted(missing, key=lambda note: (note.sequence, note.first_piece))


def _note(stream_id: StreamId, entry: TailEntry, epoch: int, directory: WalDirectory) -> Note:
    """The note that the writer of an entry would have put.

    Raises:
        Corrupt: the object has no such pieces.
    """
    first, count, size = -1, 0, 0
    for number in directory.pieces_of(stream_id):
        line = directory.line(number)
        if line.position == entry.position:
            first = number
        if first >= 0 and size < entry.size:
            count, size = count + 1, size + line.size
    if first < 0 or size != entry.size:
        raise Corrupt("an entry names pieces that its object does not have")
    return Note(
        entry.sequence, first, count, entry.first_offset, entry.timestamp, epoch, entry.number
    )


async def _put(drive: Drive, instance: Uid, packed: PackedWal, notes: Sequence[Note]) -> None:
    """Put an object of notes. Another vacuum may have put the same notes meanwhile, at another time.

    Raises:
        Corrupt: what lies there has not all of them.
    """
    sequence = packed.header.sequence
    key = wal_key(instance, sequence)
    try:
        await put_object(drive, key, packed.parts, packed.crc, deadline_seconds=_PUT_SECONDS)
    except Corrupt:
        there = await load_directory(drive, instance, sequence)
        if not {*notes} <= {there.note(number) for number in range(there.header.note_count)}:
            raise
