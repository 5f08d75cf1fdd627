"""Consumer offsets in coordination: how far each consumer of a stream has come.

bottomless:consumer:{stream_id}:{consumer}    the last commit
bottomless:consumers:{stream_id}              index of the names
bottomless:consumers-snapshot:{stream_id}     which object holds them, too
bottomless:consumers-version:{stream_id}      the highest version that was given to such an object
bottomless:consumer-snapshots                 streams whose object lacks a commit, by the last one

A commit is one EXEC that also watches the stream's record: one that is being deleted takes
none; and who of a consumer group of this name holds the stream (`groups.py`): others commit
nothing. After a crash at any moment all of a commit is there or nothing of it, and with it the
stream stands in the queue for its next snapshot. Its time there grows with each commit and is
no clock's alone: whoever read the queue before a commit does not take the stream out after it.

A version is given out by EXEC before the offsets are read that the object will hold, and an
object is noted only while no higher version was given out. So what has a higher version than
the noted one was read later than the noted one, whether it was ever put or not.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, NamedTuple

import orjson

from bottomless.errors import Corrupt
from bottomless.formats.consumers import ConsumersSnapshot, decode_offset, encode_offset
from bottomless.formats.stream_record import SERVED, decode_record
from bottomless.guards import guard
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference, StreamId, Uid
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Coordination, Due, Member, Room, Values
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.stores.forgetting import Forgetting, forget_indexed
from bottomless_server.stores.groups import Claim, holder_key, place_of, require_holder
from bottomless_server.stores.streams import stream_key

SNAPSHOTS_KEY: Final = "bottomless:consumer-snapshots"
_PAGE_COUNT: Final = 500
_VERSIONS_EACH: Final = 2**44
"""Versions of one generation: more milliseconds than any clock shows before the year 2500."""


class SnapshotPointer(NamedTuple):
    """The snapshot object that was written last."""

    version: int
    uid: Uid


class Reserved(NamedTuple):
    """The start of a snapshot that is about to be made: its version, and the snapshot before."""

    version: int
    """The version of the new snapshot: higher than all that were given out before."""
    before: SnapshotPointer | None
    """The snapshot that was noted then."""


def consumer_key(stream_id: StreamId, consumer: Reference) -> str:
    return f"bottomless:consumer:{stream_id}:{consumer}"


def consumers_index(stream_id: StreamId) -> str:
    return f"bottomless:consumers:{stream_id}"


def room_for(stream_id: StreamId, consumer: Reference, count_max: int) -> Room:
    """The bound of a stream's consumers, for one that may be new."""
    return Room(consumers_index(stream_id), consumer.encode("ascii"), count_max)


def snapshot_key(stream_id: StreamId) -> str:
    return f"bottomless:consumers-snapshot:{stream_id}"


def snapshot_version_key(stream_id: StreamId) -> str:
    return f"bottomless:consumers-version:{stream_id}"


class ListedConsumers(NamedTuple):
    """A page of a stream's consumers, in the order of their names."""

    names: list[Reference]
    """All names of the page, also of consumers that are gone by now."""
    stored: dict[Reference, StoredOffset]
    unreadable: dict[Reference, Corrupt]
    """Consumers that are there, and whose offset this release cannot read."""


class _Elsewhere(NamedTuple):
    """The scope and the number of a partition, whose holder another key names."""

    scope: str
    number: int


class ConsumerOffsets:
    """The offsets of all consumers. Holds no state of its own."""

    def __init__(self, coordination: Coordination, served: AbstractSet[str] = SERVED) -> None:
        self._coordination = coordination
        self._served = served
        """Features of streams that may have consumers."""

    async def find(self, stream_id: StreamId, consumer: Reference) -> StoredOffset | None:
        """The last commit of a consumer, None if there is none."""
        value = await self._coordination.get(consumer_key(stream_id, consumer))
        return None if value is None else decode_offset(value)

    async def listed(
        self, stream_id: StreamId, after: str = "", limit: int = _PAGE_COUNT
    ) -> ListedConsumers:
        """Commits in the order of consumers' names, from after a name.

        One that cannot be read (a later release wrote it, or it is damaged) is told beside the
        others and does not end the question for them.
        """
        members = await self._coordination.members(
            consumers_index(stream_id), after.encode("ascii"), limit
        )
        page = ListedConsumers([Reference(member.decode("ascii")) for member in members], {}, {})
        values = await self._coordination.get_many(
            [consumer_key(stream_id, name) for name in page.names]
        )
        for name, value in zip(page.names, values, strict=True):
            # One that was forgotten between the two reads is not there.
            if value is None:
                continue
            try:
                page.stored[name] = decode_offset(value)
            except Corrupt as error:
                page.unreadable[name] = error
        return page

    async def all(self, stream_id: StreamId) -> tuple[StoredOffset, ...]:
        """Every commit of a stream; their number is bounded where they are taken.

        Raises:
            Corrupt: one of them cannot be read: whoever asks for all may leave none out.
        """
        found = await self.all_listed(stream_id)
        for error in found.unreadable.values():
            raise error
        return tuple(found.stored.values())

    async def all_listed(self, stream_id: StreamId) -> ListedConsumers:
        """All stored offsets of a stream, those that cannot be read beside the others."""
        found = ListedConsumers([], {}, {})
        after = ""
        while (page := await self.listed(stream_id, after)).names:
            found.names.extend(page.names)
            found.stored.update(page.stored)
            found.unreadable.update(page.unreadable)
            after = page.names[-1]
        return found

    async def change(
        self,
        stream_id: StreamId,
        consumer: Reference,
        decide: Callable[[StoredOffset | None], StoredOffset | None],
        now: int,
        room: Room | None = None,
        claim: Claim | None = None,
    ) -> StoredOffset | None:
        """Replace what is stored by what `decide` makes of it, None for nothing.

        `decide` is asked again after a conflict, and raises to leave it as it is.

        Raises:
            IndexFull: the consumer is new, and the stream has as many as `room` says.
            NotFound: there is no such stream, or it is being deleted.
            WrongOffset: `consumer-fenced`: a group of this name shares the stream, and who holds
                it is another one than `claim` says; or nobody holds it, and `claim` says so.
        """
        key, record_key = consumer_key(stream_id, consumer), stream_key(stream_id)

        def change(
            place: tuple[str, int], values: Values
        ) -> tuple[Changes, StoredOffset | _Elsewhere | None]:
            actual = place_of(self._require_active(values[record_key]))
            if actual != place:
                return Changes(), _Elsewhere(*actual)
            require_holder(values[holder_key(place[0], consumer, place[1])], claim)
            value = values[key]
            before = None if value is None else decode_offset(value)
            after = decide(before)
            if after == before:
                return Changes(), after
            return _written(stream_id, consumer, after, now), after

        # That a stream is a partition, and which, is in its record, and never changes.
        place: tuple[str, int] = (stream_id, 0)
        while True:
            watched = [key, record_key, holder_key(place[0], consumer, place[1])]
            changed = await self._coordination.transact(watched, partial(change, place), room=room)
            if not isinstance(changed, _Elsewhere):
                return changed
            place = changed.scope, changed.number

    async def is_behind(self, stream_id: StreamId) -> bool:
        """Whether there are commits that may not be in a snapshot yet."""
        (due_at,) = await self._coordination.due_at(SNAPSHOTS_KEY, [stream_id.encode("ascii")])
        return due_at is not None

    async def pointer(self, stream_id: StreamId) -> SnapshotPointer | None:
        """Read which snapshot object was written last; older ones are in the delete queue."""
        value = await self._coordination.get(snapshot_key(stream_id))
        return None if value is None else _pointer(value)

    async def highest_version(self, stream_id: StreamId) -> int | None:
        """The highest version that was given to a snapshot; None if coordination knows of none."""
        value = await self._coordination.get(snapshot_version_key(stream_id))
        return None if value is None else int(value)

    async def reserve(self, stream_id: StreamId, floor: int) -> Reserved:
        """Give out the version of a snapshot: `floor` or more, and higher than all before.

        Whoever calls this reads the offsets afterwards.

        Raises:
            NotFound: there is no such stream, or it is being deleted.
        """
        key, version_key = snapshot_key(stream_id), snapshot_version_key(stream_id)
        record_key = stream_key(stream_id)

        def change(values: Values) -> tuple[Changes, Reserved]:
            self._require_active(values[record_key])
            value = values[key]
            before = None if value is None else _pointer(value)
            highest = max(int(values[version_key] or 0), 0 if before is None else before.version)
            reserved = Reserved(max(floor, highest + 1), before)
            return Changes({version_key: b"%d" % reserved.version}), reserved

        return await self._coordination.transact([key, version_key, record_key], change)

    async def point(
        self,
        stream_id: StreamId,
        before: SnapshotPointer | None,
        after: SnapshotPointer,
        retired: Due | None,
    ) -> bool:
        """Note a snapshot object that is durable; False if somebody else noted one meanwhile, or
        was given a higher version."""
        key, version_key = snapshot_key(stream_id), snapshot_version_key(stream_id)

        def change(values: Values) -> tuple[Changes, bool]:
            value = values[key]
            found = None if value is None else _pointer(value)
            if found != before or not is_highest(after.version, values[version_key]):
                return Changes(), False
            queued = [] if retired is None else [retired]
            return Changes({key: orjson.dumps(list(after))}, queued), True

        return await self._coordination.transact([key, version_key], change)

    async def overtake(self, stream_id: StreamId, version: int, now: int) -> None:
        """Have a snapshot made that is above an object of this version, which nobody noted.

        Raises:
            NotFound: there is no such stream, or it is being deleted.
        """
        version_key, record_key = snapshot_version_key(stream_id), stream_key(stream_id)

        def change(values: Values) -> tuple[Changes, None]:
            self._require_active(values[record_key])
            highest = max(int(values[version_key] or 0), version)
            return Changes({version_key: b"%d" % highest}) | marked_behind(stream_id, now), None

        await self._coordination.transact([version_key, record_key], change)

    async def restore(self, snapshot: ConsumersSnapshot, uid: Uid) -> None:
        """Write what a snapshot holds into a coordination that has lost it; repeatable."""
        changes = restored(snapshot, uid)
        await self._coordination.transact(
            [snapshot_key(snapshot.stream_id)], lambda _: (changes, None)
        )

    async def forget(self, stream_id: StreamId, forgetting: Forgetting) -> None:
        """Remove everything of a stream, page by page; after a crash, the rest of it.

        Raises:
            Unavailable: as the condition says.
        """
        key, index = snapshot_key(stream_id), consumers_index(stream_id)

        def gone(page: Sequence[bytes], _: Values) -> Changes:
            changes = Changes()
            for name in page:
                changes |= _entered(stream_id, Reference(name.decode("ascii")), None)
            return changes

        if not await forget_indexed(
            self._coordination, index, _PAGE_COUNT, lambda _: [key], gone, forgetting
        ):
            return
        rest = Changes({key: None, snapshot_version_key(stream_id): None})
        await self._coordination.transact(
            [key, *forgetting.watched],
            lambda found: (Changes() if forgetting.stays(found) else rest, None),
        )

    def _require_active(self, value: bytes | None) -> StreamRecord:
        record = None if value is None else decode_record(value, self._served)
        if record is None or record.state is not StreamState.ACTIVE:
            raise stream_not_found()
        return record


def restored(snapshot: ConsumersSnapshot, uid: Uid) -> Changes:
    """Make the changes that write a snapshot back; they may be part of any transaction."""
    stream_id = snapshot.stream_id
    values: dict[str, bytes | None] = {
        snapshot_key(stream_id): orjson.dumps([snapshot.version, uid])
    }
    members: list[Member] = []
    for stored in snapshot.consumers:
        changes = _entered(stream_id, stored.consumer, stored)
        values |= changes.values
        members += changes.members
    return Changes(values, (), members)


@guard("versions of consumers' snapshots, by generation")
def first_version(generation: int) -> int:
    """The version below which no snapshot of a generation is: a writer adds its clock.

    So all snapshots of a generation are above those of the ones before, whatever clocks gave those
    out, and whenever they are put; and of one generation what is later by the clock is above, also
    where coordination came back from a backup.
    """
    return generation * _VERSIONS_EACH


def versions_of(stream_id: StreamId, generation: int) -> Changes:
    """Make the change by which the next snapshot is of a generation."""
    return Changes({snapshot_version_key(stream_id): b"%d" % first_version(generation)})


def _written(
    stream_id: StreamId, consumer: Reference, stored: StoredOffset | None, now: int
) -> Changes:
    return _entered(stream_id, consumer, stored) | marked_behind(stream_id, now)


@guard("a time in the queue of snapshots that grows with each commit")
def marked_behind(stream_id: StreamId, now: int) -> Changes:
    """Note that the snapshot of a stream does not hold everything, whoever is just making one."""
    return Changes(requeued=[Due(SNAPSHOTS_KEY, stream_id.encode("ascii"), now)])


def _entered(stream_id: StreamId, consumer: Reference, stored: StoredOffset | None) -> Changes:
    value = None if stored is None else encode_offset(stored)
    member = Member(consumers_index(stream_id), consumer.encode("ascii"), stored is not None)
    return Changes({consumer_key(stream_id, consumer): value}, (), [member])


@guard("the highest version that was given to a snapshot")
def is_highest(version: int, given_out: bytes | None) -> bool:
    # Nothing was given out where everything of the stream was forgotten since.
    return given_out is not None and int(given_out) == version


def _pointer(value: bytes) -> SnapshotPointer:
    return SnapshotPointer(*orjson.loads(value))
