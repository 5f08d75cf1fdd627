"""Whether other writers may have acknowledged what neither coordination nor the bucket tells of yet.

A coordination store that is put back as an older copy of itself lacks the last commits. The bucket proves
that as soon as their notes are in it (wal_check.py), and a note may take as long as a put. Until then only
the writer knows, and who commits to the copy gives its offsets once more. But a writer compares each EXEC
with its record as it left it. So of a writer that has done one since the store runs nothing is missing;
and of one whose objects are all settled in the record neither, since it commits nothing below `settled`.

Whoever waits for others shows its own life meanwhile, or two would wait for each other. Who may have to
repeat a commit shows it by an odd attempt (leaderless/attempts.py), and is waited for by those that have
nothing to repeat.

A process shows life, or begins an instance, only once the notes of all that it has lost are in the bucket.
It looks at all instances as which it writes before it shows the life of one, and shows an odd attempt while
any of them may have to repeat a commit. So where one instance of an address was heard of, there is nothing
to hear of the others there: they are of a process that is dead, or their notes lie there, or they lack
nothing.

In Redis after a crash: an instance with another attempt, and nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bottomless.drives.base import Drive
from bottomless.errors import Corrupt
from bottomless.guards import guard
from bottomless.model.limits import WAL_SEQUENCE_MAX
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Changes, Coordination, Values
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.attempts import AttemptNumbers, is_owing
from bottomless_server.leaderless.instance import (
    Loss,
    WalInstance,
    decode_instance,
    loss_of,
)
from bottomless_server.stores.lost_commits import outdating
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.wal import (
    instance_key,
    load_instances,
    readable,
    require_generation,
)
from bottomless_server.stores.wal_check import directory_of, instances_with_objects


class Own(NamedTuple):
    """The instances of the process that looks."""

    living: Sequence[AttemptNumbers] = ()
    losing: frozenset[Uid] = frozenset()
    """Instances that are lost, of which not all notes are in the bucket yet."""


class Found(NamedTuple):
    """What is seen of a writer."""

    attempt: int | None
    """What its record has; None where it has none."""
    url: str | None
    """Where its process is, as far as the record says."""
    doubtful: bool
    """Whether it may have committed what the store lacks: there is an object with pieces of it that is
    not settled."""


class Unheard:
    """The writers of which nothing was heard yet, in one run of the store."""

    def __init__(self) -> None:
        self._attempts: dict[Uid, int | None] = {}
        """What the record of each had when it was looked at first."""

    def note(self, found: Mapping[Uid, Found], *, owes: bool = False) -> bool:
        """Take up what was seen of all writers; whether one that is in doubt is unheard still. Who
        `owes` something itself does not wait for those that may as well."""
        for instance, one in found.items():
            self._attempts.setdefault(instance, one.attempt)
        heard = {one for one in found if self._is_heard(one, found[one].attempt, owes=owes)}
        urls = {found[one].url for one in heard} - {None}
        return any(
            one.doubtful and instance not in heard and one.url not in urls
            for instance, one in found.items()
        )

    def _is_heard(self, instance: Uid, attempt: int | None, *, owes: bool) -> bool:
        if self._attempts[instance] == attempt or attempt is None:
            return False
        # Two that may both have to repeat something would wait for each other.
        return owes or not is_owing(attempt)


@guard("what other writers may know of, in a new run of the store")
async def in_doubt(
    drive: Drive, coordination: Coordination, generation: int, url: str, own: Own
) -> dict[Uid, Found]:
    """Look at all writers, and find those that may have committed what the store lacks.

    Those of this process that live (`own`) know it themselves, and are left out; of those that are lost
    the notes have to come. Others of the same `url` are dead.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
        DriveUnavailable, DriveRefused
    """
    found = {
        instance: Found(record.attempt, record.url, doubtful=False)
        for instance, record in (await load_instances(coordination)).items()
        if isinstance(record, WalInstance) and record.url not in (None, url)
    }
    living = {numbers.instance for numbers in own.living}
    async for instance, sequences in instances_with_objects(drive):
        if instance in living:
            continue
        keys = [GENERATION_KEY, instance_key(instance)]
        held, value = await coordination.get_many(keys)
        require_generation({GENERATION_KEY: held}, generation)
        record = None if value is None else readable(decode_instance, value)
        if instance not in own.losing and _is_silent(record, url):
            continue
        record = None if isinstance(record, Corrupt) else record
        if await _has_unsettled(drive, instance, sequences, record, generation):
            attempt = None if record is None else record.attempt
            of_url = None if record is None or instance in own.losing else record.url
            found[instance] = Found(attempt, of_url, doubtful=True)
    return found


def _is_silent(record: WalInstance | Corrupt | None, url: str) -> bool:
    """Whether nobody will ever hear of a writer: its record cannot be read, a rebuild entered it, or it
    was at this very address before."""
    if record is None:
        return False
    return isinstance(record, Corrupt) or record.url in (None, url)


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


async def show_life(
    coordination: Coordination, numbers: AttemptNumbers, beside: Sequence[AttemptNumbers] = ()
) -> None:
    """Tell others by a new attempt that a writer has found its record as it left it: in another run of
    the store than the one that it committed to last, so no lost commit of it is under way any more.

    Others take it for the word of the whole process. So the records of `beside`, its other instances,
    are looked at in the same EXEC.

    Whoever commits as the instance calls it by itself. After a lost reply the writer finds a higher
    number than it knows of, and begins another instance.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
    """
    key, owing = instance_key(numbers.instance), numbers.owes_lost
    # As of before the question: they may commit meanwhile.
    known = {instance_key(one.instance): (one, one.attempt) for one in beside if one is not numbers}

    def decide(values: Values) -> tuple[Changes, int | None]:
        require_generation(values, numbers.generation)
        for other, (one, attempt) in known.items():
            require_not_gone_back(values[other], one, attempt)
        value = values[key]
        record = None if value is None else decode_instance(value)
        loss = loss_of(record, numbers, WAL_SEQUENCE_MAX + 1)
        if loss is Loss.REGRESSED:
            raise coordination_lost()
        if record is None or loss is not None or record.attempt == numbers.lost:
            # It is lost, and its next commit says so; or what was lost is there, and must be found.
            return Changes(), None
        attempt = numbers.take(owing=owing)
        return outdating(key, record, attempt), attempt

    attempt = await coordination.transact([GENERATION_KEY, key, *known], decide)
    if attempt is not None:
        numbers.shown(attempt)


@guard("all instances of a process, looked at before one shows its life")
def require_not_gone_back(value: bytes | None, numbers: AttemptNumbers, attempt: int) -> None:
    """Require that the record of an instance is not older than what its writer knew of it.

    Raises:
        Unavailable: `coordination-regressed`.
        Corrupt: it cannot be read.
    """
    record = None if value is None else decode_instance(value)
    gone = numbers.is_held() if record is None else record.attempt < attempt
    if gone or (record is not None and record.generation != numbers.generation):
        raise coordination_lost()
