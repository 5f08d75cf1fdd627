"""Whether what stands in a tail is noted in the bucket, whoever wrote it: then a rebuild gives it back.

Entries of any instance are looked for in the later objects of that instance. Nothing is written.
"""

from collections.abc import Sequence

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.formats.keys import WAL_PREFIX, parse_wal_key, wal_key
from bottomless.model.names import StreamId, Uid
from bottomless_server.coordination.base import Coordination
from bottomless_server.leaderless.tail import TailEntry
from bottomless_server.stores.tail_keys import entries_from
from bottomless_server.stores.wal import load_directory


async def is_noted(
    drive: Drive, coordination: Coordination, stream_id: StreamId, first_offset: int, end: int
) -> bool:
    """Tell whether all records from an offset up to an exclusive end would survive a loss of
    coordination: they lie in a fragment, or a note of their commit is durable.

    Raises:
        Corrupt: an entry, or an object that may have its note, is damaged.
        Unavailable: not now.
    """
    of_instances: dict[Uid, list[TailEntry]] = {}
    offset = first_offset
    while offset < end and (page := await entries_from(coordination, stream_id, offset)):
        for entry in page:
            # What is in no entry any more lies in a fragment.
            if entry.first_offset < end:
                of_instances.setdefault(entry.instance, []).append(entry)
        offset = page[-1].next_offset
    for instance, entries in of_instances.items():
        if not await _are_noted(drive, instance, entries):
            return False
    return True


async def _are_noted(drive: Drive, instance: Uid, entries: Sequence[TailEntry]) -> bool:
    """Whether the objects of an instance have the notes of these entries, the newest looked at first."""
    first = min(entry.sequence for entry in entries)
    last = max(entry.sequence for entry in entries)
    listing = drive.list(f"{WAL_PREFIX}{instance}/", wal_key(instance, first))
    found = [key.sequence async for facts in listing if (key := parse_wal_key(facts.object_key))]
    missing = {(entry.sequence, entry.first_offset) for entry in entries}
    for sequence in reversed(found):
        try:
            directory = await load_directory(drive, instance, sequence)
        except ObjectMissing:
            # It went with all before it, which are in fragments.
            continue
        if directory.header.noted_below > last:
            return True
        notes = map(directory.note, range(directory.header.note_count))
        missing -= {(note.sequence, note.first_offset) for note in notes}
        if not missing:
            return True
    return False
