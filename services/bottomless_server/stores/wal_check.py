"""Whether coordination is an older copy of itself, which the WAL objects in the bucket prove.

A copy that is put back has the generation of the bucket. What was committed after it was made is not in
it, so the same offsets would be given again, to streams of which no process here remembers anything.
Ingest compares when it starts and after each new connection, before it commits anything: another run
of the store may have taken the place of the one before. The bucket is read first, then coordination:
so what an object speaks of was there before it is looked for. Nothing is written.

A commit of which no object speaks yet is not found. So who compares with another run of the store first
waits until the writers that live have put their notes (INGEST_WAL_NOTE_MS, and the time of one put), or
have shown that the store lacks nothing of theirs (other_writers.py).
"""

from collections.abc import AsyncIterator

import structlog

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.keys import WAL_PREFIX, parse_wal_key
from bottomless.formats.wal import WalDirectory
from bottomless.guards import guard
from bottomless.model.names import StreamId, Uid
from bottomless.model.wal import Note
from bottomless_server.coordination.base import Coordination, CoordinationUnavailable
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.instance import decode_instance
from bottomless_server.leaderless.proof import lacks, shows_less
from bottomless_server.leaderless.tail import Tail
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.tail_keys import load_tails
from bottomless_server.stores.wal import (
    instance_key,
    load_directory,
    readable,
    require_generation,
)

log = structlog.get_logger(__name__)


class Unchecked(CoordinationUnavailable):
    """Nobody has compared this run of the coordination store with the bucket: `check_wal` does."""


@guard("the run of the store that was compared with the bucket")
def require_checked(coordination: Coordination, numbers: AttemptNumbers) -> None:
    """Refuse to commit to a run of the store that was not compared; called once the values to go by
    were read, so that the connection they came over is counted.

    Raises:
        Unchecked
    """
    if coordination.connected_count != numbers.checked:
        raise Unchecked("the coordination store was connected to anew")


async def check_wal(drive: Drive, coordination: Coordination, generation: int) -> int:
    """Compare coordination with the newest objects of all instances; returns the run of the store of
    which that holds, for `AttemptNumbers.checked`.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
        DriveUnavailable, DriveRefused
    """
    run = coordination.connected_count
    async for instance, sequences in instances_with_objects(drive):
        await _check_instance(drive, coordination, generation, instance, sequences)
    return run


async def instances_with_objects(drive: Drive) -> AsyncIterator[tuple[Uid, list[int]]]:
    """Each instance that has objects, with their sequences; keys are in the order of instances."""
    current: Uid | None = None
    sequences: list[int] = []
    async for facts in drive.list(WAL_PREFIX):
        key = parse_wal_key(facts.object_key)
        if key is None:
            continue
        if current is not None and key.instance != current:
            yield current, sequences
            sequences = []
        current = key.instance
        sequences.append(key.sequence)
    if current is not None:
        yield current, sequences


async def _check_instance(
    drive: Drive,
    coordination: Coordination,
    generation: int,
    instance: Uid,
    sequences: list[int],
) -> None:
    """Compare one instance by its newest object; one without a record by all of its notes."""
    for sequence in reversed(sequences):
        directory = await directory_of(drive, instance, sequence)
        if directory is None:
            continue
        keys = [GENERATION_KEY, instance_key(instance)]
        held, value = await coordination.get_many(keys)
        require_generation({GENERATION_KEY: held}, generation)
        if directory.header.generation != generation:
            return
        if value is not None:
            record = readable(decode_instance, value)
            if isinstance(record, Corrupt):
                # It proves nothing, keeps its objects, and its writer takes a new instance.
                log.error("a WAL instance cannot be read", instance=instance, error=str(record))
            elif shows_less(record, directory.header):
                raise coordination_lost()
            return
        # Forgotten, and this object came late; or the copy is older than the instance.
        await _check_notes(drive, coordination, generation, instance, directory)


async def _check_notes(
    drive: Drive,
    coordination: Coordination,
    generation: int,
    instance: Uid,
    directory: WalDirectory,
) -> None:
    newest: dict[StreamId, Note] = {}
    for number in range(directory.header.note_count):
        note = directory.note(number)
        of_note = await directory_of(drive, instance, note.sequence)
        if of_note is not None and note.first_piece < of_note.header.piece_count:
            newest[of_note.line(note.first_piece).stream_id] = note
    tails = await load_tails(coordination, list(newest), generation)
    for stream_id, note in newest.items():
        tail = tails[stream_id]
        if isinstance(tail, Tail) and lacks(tail, note):
            raise coordination_lost()


async def directory_of(drive: Drive, instance: Uid, sequence: int) -> WalDirectory | None:
    """The directory of an object; None of one that is gone or damaged, which proves nothing."""
    try:
        return await load_directory(drive, instance, sequence)
    except (Corrupt, ObjectMissing):
        return None
