"""Whether other writers may have acknowledged what neither coordination nor the bucket tells of yet.

A coordination store that is put back as an older copy of itself lacks the last commits. The bucket proves
that as soon as their notes are in it (wal_check.py), and a note may take as long as a put. Until then only
the writer knows, and who commits to the copy gives its offsets once more. But a writer compares each EXEC
with its record as it left it. So of a writer that has done one since the store runs nothing is missing;
and of one whose objects are all settled in the record neither, since it commits nothing below `settled`.

Whoever waits for others shows its own life meanwhile, or two would wait for each other.

In Redis after a crash: an instance with another attempt, and nothing else.
"""

from bottomless.drives.base import Drive
from bottomless.errors import Corrupt
from bottomless.guards import guard
from bottomless.model.limits import WAL_SEQUENCE_MAX
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Changes, Coordination, Values
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.instance import (
    Loss,
    WalInstance,
    decode_instance,
    loss_of,
)
from bottomless_server.stores.lost_commits import outdating
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.wal import instance_key, readable, require_generation
from bottomless_server.stores.wal_check import directory_of, instances_with_objects


class Unheard:
    """The writers of which nothing was heard yet, in one run of the store."""

    def __init__(self) -> None:
        self._attempts: dict[Uid, int | None] = {}
        """What the record of each had when it was looked at first; None where it has none."""

    def note(self, found: dict[Uid, int | None]) -> bool:
        """Take up what was found of all that are in doubt; whether one of them is unheard still."""
        for instance, attempt in found.items():
            self._attempts.setdefault(instance, attempt)
        return any(self._attempts[instance] == attempt for instance, attempt in found.items())


@guard("what other writers may know of, in a new run of the store")
async def in_doubt(
    drive: Drive, coordination: Coordination, generation: int, url: str, own: frozenset[Uid]
) -> dict[Uid, int | None]:
    """Find the writers that may have committed what the store lacks, each with the attempt that its
    record has: there is an object with pieces of theirs that is not settled.

    Those of this process (`own`) know it themselves, and one before them at the same `url` is dead.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
        DriveUnavailable, DriveRefused
    """
    found: dict[Uid, int | None] = {}
    async for instance, sequences in instances_with_objects(drive):
        if instance in own:
            continue
        keys = [GENERATION_KEY, instance_key(instance)]
        held, value = await coordination.get_many(keys)
        require_generation({GENERATION_KEY: held}, generation)
        record = None if value is None else readable(decode_instance, value)
        if isinstance(record, Corrupt) or (record is not None and record.url in (None, url)):
            # Of one that cannot be read nobody will hear; one that a rebuild entered never writes.
            continue
        if await _has_unsettled(drive, instance, sequences, record, generation):
            found[instance] = None if record is None else record.attempt
    return found


async def _has_unsettled(
    drive: Drive,
    instance: Uid,
    sequences: list[int],
    record: WalInstance | None,
    generation: int,
) -> bool:
    """Whether an object has pieces that its writer may have committed beyond what the record says."""
    for sequence in reversed(sequences):
        if record is not None and sequence < record.settled:
            return False
        directory = await directory_of(drive, instance, sequence)
        if directory is None:
            continue
        if directory.header.generation != generation:
            return False
        if directory.header.piece_count:
            return True
    return False


async def show_life(coordination: Coordination, numbers: AttemptNumbers) -> None:
    """Tell others by a new attempt that a writer has found its record as it left it.

    Whoever commits as the instance calls it by itself. After a lost reply the writer finds a higher
    number than it knows of, and begins another instance.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
    """
    if numbers.lost is not None:
        # A new attempt would hide whether that commit was applied.
        return
    key = instance_key(numbers.instance)

    def decide(values: Values) -> tuple[Changes, int | None]:
        require_generation(values, numbers.generation)
        value = values[key]
        record = None if value is None else decode_instance(value)
        loss = loss_of(record, numbers, WAL_SEQUENCE_MAX + 1)
        if loss is Loss.REGRESSED:
            raise coordination_lost()
        if record is None or loss is not None:
            # It is lost, and its next commit says so.
            return Changes(), None
        attempt = numbers.take()
        return outdating(key, record, attempt), attempt

    attempt = await coordination.transact([GENERATION_KEY, key], decide)
    if attempt is not None:
        numbers.decided(attempt)
