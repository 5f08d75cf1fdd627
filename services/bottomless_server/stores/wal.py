"""Instances of writers of WAL objects, what holds their objects, and how the objects go.

bottomless:wal-instance:{instance}    the record: what is reserved, settled, deleted
bottomless:wal-instances              index of all instances
bottomless:wal-held:{instance}        index of held members: which objects entries may still name
bottomless:wal-live:{instance}        lease of the writer, for efficiency alone

An object goes only with all earlier ones of its instance, so a note outlives what it speaks of. That
is decided without a clock and without a grace: what is below `settled` gets no entry any more, and
what no held member names has none.

After a crash at each step of the vacuum of one instance:

- `settle`: all that a dead writer reserved is settled; a writer that wakes takes a new instance.
- `deletable`: nothing has changed.
- `delete_objects`: the first objects are gone, without a hole; the same again finds them gone.
- `note_deleted`: `deleted` is higher, or the record of a dead instance is gone with its last object.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

import structlog

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.keys import WAL_PREFIX, parse_wal_key, wal_key
from bottomless.formats.wal import HEADER_SIZE, WalDirectory, decode_directory, decode_wal_header
from bottomless.guards import guard
from bottomless.model.names import Uid
from bottomless.model.wal import WalHeader
from bottomless_server.coordination.base import (
    Changes,
    Coordination,
    CoordinationUnavailable,
    Hold,
    Member,
    Values,
)
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.instance import (
    RESERVED_COUNT,
    Loss,
    WalInstance,
    decode_instance,
    encode_instance,
    loss_of,
    settled_whole,
)
from bottomless_server.leaderless.proof import shows_less
from bottomless_server.leaderless.tail import HeldMember
from bottomless_server.leaderless.tail_format import after_sequence, decode_held
from bottomless_server.stores.generation import decode_generation
from bottomless_server.stores.read_again import read_again
from bottomless_server.stores.streams import GENERATION_KEY

log = structlog.get_logger(__name__)

T = TypeVar("T")

INSTANCES_KEY: Final = "bottomless:wal-instances"
_PAGE_COUNT: Final = 500
_DIRECTORY_GUESS: Final = 16 * 1024
"""Bytes that hold the directory of most objects, so that one request brings it."""


def instance_key(instance: Uid) -> str:
    return f"bottomless:wal-instance:{instance}"


def held_key(instance: Uid) -> str:
    return f"bottomless:wal-held:{instance}"


def live_key(instance: Uid) -> str:
    """The lease by which a writer says that it lives; without it others settle its instance."""
    return f"bottomless:wal-live:{instance}"


@guard("the generation in each EXEC of leaderless streams")
def require_generation(values: Values, generation: int) -> None:
    """Refuse to write where coordination does not show the generation of who writes.

    Raises:
        Unavailable: `coordination-regressed`.
    """
    held = values[GENERATION_KEY]
    if held is None or decode_generation(held) != generation:
        raise coordination_lost()


@guard("what cannot be read of one stream or instance, told beside the others")
def readable(decode: Callable[[bytes], T], value: bytes) -> T | Corrupt:
    """A value as it is read, or why it cannot be read: it is damaged, or a later release wrote it."""
    try:
        return decode(value)
    except Corrupt as error:
        return error


async def begin(
    coordination: Coordination, numbers: AttemptNumbers, url: str, lease_ms: int
) -> None:
    """Enter a new instance with its first sequences, under a lease of its writer.

    The lease comes first, and the EXEC requires it: else the vacuum settles what has just begun. Who
    writes renews it with `hold_live` and gives it up with `retire`.

    After a crash, or a lost reply, it is there and nobody writes as it: the vacuum takes it away.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
    """
    instance = numbers.instance
    key, live = instance_key(instance), live_key(instance)
    await hold_live(coordination, instance, lease_ms)
    record = WalInstance(url, numbers.generation, reserved=RESERVED_COUNT, settled=0)

    def enter(values: Values) -> tuple[Changes, None]:
        require_generation(values, numbers.generation)
        assert values[key] is None, "an instance is never begun twice"
        if values[live] is None:
            raise CoordinationUnavailable("the lease of a new instance has run out")
        entered = Member(INSTANCES_KEY, instance.encode("ascii"), True)
        return Changes({key: encode_instance(record)}, members=[entered]), None

    await coordination.transact([GENERATION_KEY, key, live], enter)


async def hold_live(coordination: Coordination, instance: Uid, lease_ms: int) -> Hold:
    """Take or renew the lease of a writer.

    Raises:
        CoordinationUnavailable, CoordinationUnknown
    """
    return await coordination.hold(live_key(instance), instance.encode("ascii"), lease_ms)


async def retire(coordination: Coordination, numbers: AttemptNumbers) -> None:
    """End an instance of which everything is committed and noted: nothing that it reserved is used.

    No commit of the instance is under way meanwhile: whoever commits as it sees to that.

    In Redis after a crash: nothing, or `settled` = `reserved` and the lease, which runs out. Without
    it the vacuum could never take the record away for as long as the process lives.

    An instance whose record is older than what it has written is left as it is: settled, it would
    show that nothing of it is missing, and what was acknowledged would be taken for garbage.

    Raises:
        Unavailable: `coordination-regressed`, or not now; the same again is right.
    """
    assert numbers.lost is None, "a lost commit is decided before the instance ends"
    key = instance_key(numbers.instance)

    def end(values: Values) -> tuple[Changes, int | None]:
        require_generation(values, numbers.generation)
        value = values[key]
        if value is None:
            return Changes(), None
        record = decode_instance(value)
        _require_own(record, numbers)
        # Of each try: what others changed meanwhile may have a higher number than the first one.
        attempt = numbers.take()
        ended = replace(settled_whole(record), attempt=attempt)
        return Changes({key: encode_instance(ended)}), attempt

    attempt = await coordination.transact([GENERATION_KEY, key], end)
    if attempt is not None:
        numbers.decided(attempt)
    await coordination.release(live_key(numbers.instance), numbers.instance.encode("ascii"))


@guard("the record of an instance that ends, which must not be older than what it wrote")
def _require_own(record: WalInstance, numbers: AttemptNumbers) -> None:
    if loss_of(record, numbers, record.settled) is Loss.REGRESSED:
        raise coordination_lost()


async def load_instances(coordination: Coordination) -> dict[Uid, WalInstance | Corrupt]:
    """All instances that there are; one that is forgotten meanwhile is left out.

    Of one whose record cannot be read the error is told: its objects stay, and all others go on.
    """
    found: dict[Uid, WalInstance | Corrupt] = {}
    after = b""
    while page := await coordination.members(INSTANCES_KEY, after, _PAGE_COUNT):
        instances = [Uid(member.decode("ascii")) for member in page]
        values = await coordination.get_many([instance_key(one) for one in instances])
        for instance, value in zip(instances, values, strict=True):
            if value is not None:
                found[instance] = readable(decode_instance, value)
        after = page[-1]
    return found


async def each_held(
    coordination: Coordination, instance: Uid, first_sequence: int = 0
) -> AsyncIterator[tuple[HeldMember, bytes]]:
    """What holds objects of an instance, and as which bytes, the oldest first, from a sequence on.

    A member that cannot be read is passed over, and the log has it. It stays, and so do the objects
    from there on: `deletable` cannot read it either.
    """
    after = after_sequence(first_sequence)
    while page := await coordination.members(held_key(instance), after, _PAGE_COUNT):
        for member in page:
            held = readable(decode_held, member)
            if isinstance(held, Corrupt):
                log.error(
                    "what holds a WAL object cannot be read",
                    instance=instance,
                    member=member.hex(),
                )
            else:
                yield held, member
        after = page[-1]


def in_any_run() -> None:
    """What requires no run of the store."""


async def settle(
    coordination: Coordination,
    instance: Uid,
    generation: int,
    require_run: Callable[[], None] = in_any_run,
) -> WalInstance | None:
    """Settle a writer whose lease has run out; returns its record, None if there is none.
    `require_run` raises where another run of the store may answer than the one that was met.

    Of one that lives nothing is changed. In Redis after a crash: nothing, or `settled` = `reserved`;
    an EXEC of the writer that comes later finds that and commits nothing.

    Raises:
        Unavailable: `coordination-regressed`, or not now; what `require_run` raises.
    """
    key, live = instance_key(instance), live_key(instance)

    def change(values: Values) -> tuple[Changes, WalInstance | None]:
        require_generation(values, generation)
        require_run()
        value = values[key]
        if value is None:
            return Changes(), None
        record = decode_instance(value)
        if values[live] is not None or record.settled == record.reserved:
            return Changes(), record
        settled = settled_whole(record)
        return Changes({key: encode_instance(settled)}), settled

    return await coordination.transact([GENERATION_KEY, key, live], change)


class Deletable(NamedTuple):
    """Objects of an instance that nothing needs any more."""

    sequences: range
    keep_until: int
    """Before this time (ms since 1970) they stay all the same."""


NOTHING: Final = Deletable(range(0), 0)


@guard("what is settled, read before what is held")
async def deletable(
    drive: Drive, coordination: Coordination, instance: Uid, generation: int
) -> Deletable:
    """Find which objects of an instance may go.

    What is below `settled` gets no held member any more, so one that is not there when it is
    looked for afterwards never comes. The other way round a commit between the two would be missed.

    That nothing is held is believed only of a store that is still itself afterwards, and, where
    others settled the writer, of one that has all that the writer's newest object speaks of.

    Raises:
        Corrupt: its record, or the first member that holds one, cannot be read: all of it stays.
        Unavailable: `coordination-regressed`, or not now.
        DriveUnavailable, DriveRefused
    """
    value = await coordination.get(instance_key(instance))
    if value is None:
        return NOTHING
    record = decode_instance(value)
    oldest = await coordination.members(held_key(instance), b"", 1)
    end = min([record.settled, *(decode_held(member).sequence for member in oldest)])
    sequences = range(record.deleted, end)
    if not sequences:
        return NOTHING
    now = await looked_at_again(coordination, instance, generation, record)
    if now is None:
        # Another vacuum found nothing left of it.
        return NOTHING
    if record.settled == record.reserved:
        await require_newest(drive, coordination, instance, now)
    return Deletable(sequences, record.keep_until)


@guard("the instance, looked at again after what is held")
async def looked_at_again(
    coordination: Coordination, instance: Uid, generation: int, before: WalInstance
) -> WalInstance | None:
    """Load an instance, and require that it has not gone back; None if it is forgotten.

    Else what was read in between may be of a store that was emptied, or of an older copy.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
    """
    keys = [GENERATION_KEY, instance_key(instance)]
    values = dict(zip(keys, await coordination.get_many(keys), strict=True))
    require_generation(values, generation)
    value = values[instance_key(instance)]
    now = None if value is None else decode_instance(value)
    if now is not None and not before.goes_on_as(now):
        raise coordination_lost()
    return now


@guard("the newest object of an instance that others settled")
async def require_newest(
    drive: Drive, coordination: Coordination, instance: Uid, record: WalInstance
) -> None:
    """Require that the record of an instance is not older than its newest object.

    In an older copy no lease is held, so each writer there seems to be dead.

    Raises:
        Unavailable: `coordination-regressed`.
        DriveUnavailable, DriveRefused
    """
    after = wal_key(instance, record.deleted - 1) if record.deleted else ""
    keys = [facts.object_key async for facts in drive.list(f"{WAL_PREFIX}{instance}/", after)]
    for found in filter(None, map(parse_wal_key, reversed(keys))):
        try:
            directory = await load_directory(drive, instance, found.sequence)
        except (Corrupt, ObjectMissing):
            # It proves nothing, and the one before it says nearly as much.
            continue
        if await is_older(coordination, instance, record, directory.header):
            raise coordination_lost()
        return


async def is_older(
    coordination: Coordination, instance: Uid, record: WalInstance, header: WalHeader
) -> bool:
    """Tell whether the record of an instance is older than one of its objects: not only as it was read
    before the object, but as it is now. A writer that lives may have changed it in between, also where
    others have settled it.

    Raises:
        CoordinationUnavailable
        Corrupt: the record cannot be read.
    """
    if not shows_less(record, header):
        return False
    value = await coordination.get(instance_key(instance))
    return value is None or shows_less(decode_instance(value), header)


async def delete_objects(drive: Drive, instance: Uid, sequences: Sequence[int]) -> int:
    """Delete objects in ascending order; returns the sequence below which all are gone.

    One at a time, since a store does not say in which order it deletes several: an object must
    never be left over whose notes, in a later one, are gone.

    Raises:
        DriveUnavailable, DriveRefused: the first that could not be deleted; those before it are gone.
    """
    deleted = sequences[0] if sequences else 0
    for sequence in sequences:
        key = wal_key(instance, sequence)
        failed = await drive.delete([key])
        if key in failed:
            raise failed[key]
        deleted = sequence + 1
    return deleted


async def note_deleted(
    coordination: Coordination, instance: Uid, generation: int, deleted: int
) -> None:
    """Note that all objects below a sequence are gone; forget an instance of which nothing is left.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
    """
    key, live = instance_key(instance), live_key(instance)

    def change(values: Values) -> tuple[Changes, None]:
        require_generation(values, generation)
        value = values[key]
        if value is None:
            return Changes(), None
        record = decode_instance(value)
        if deleted > record.settled:
            # What is not settled is never deleted, so this is an older copy.
            raise coordination_lost()
        after = replace(record, deleted=max(record.deleted, deleted))
        if values[live] is None and after.deleted == after.reserved:
            gone = Member(INSTANCES_KEY, instance.encode("ascii"), False)
            return Changes({key: None}, members=[gone]), None
        return Changes({key: encode_instance(after)}), None

    await coordination.transact([GENERATION_KEY, key, live], change)


async def load_directory(drive: Drive, instance: Uid, sequence: int) -> WalDirectory:
    """Read what a WAL object says of itself, without its pieces.

    Raises:
        ObjectMissing: there is no such object.
        Corrupt: it is damaged, and was so when it was read once more.
        DriveUnavailable, DriveRefused
    """
    return await read_again(lambda: _directory(drive, instance, sequence))


async def _directory(drive: Drive, instance: Uid, sequence: int) -> WalDirectory:
    object_key = wal_key(instance, sequence)
    front = bytes(await drive.get(object_key, 0, _DIRECTORY_GUESS))
    header = decode_wal_header(front[:HEADER_SIZE])
    if len(front) < header.data_position:
        rest = await drive.get(object_key, len(front), header.data_position - len(front))
        front += bytes(rest)
    return decode_directory(front[: header.data_position])
