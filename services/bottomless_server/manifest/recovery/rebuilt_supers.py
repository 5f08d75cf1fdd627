"""Find what the bucket says of super streams, and bring them back: part of a rebuild.

Of the objects of the bucket's generation the one with the highest version counts, and a rebuild puts
one of its own generation above all that are there.

A partition belongs to its super stream only if the super object names it. One that no super object
names was made by a creation, or by a growth, that was cut off before anybody could be told: no name of
it ever resolved, nothing was acknowledged in it, and so it is deleted. Where a super object cannot be
read nobody can tell that. Then nothing is deleted: the partitions come back as streams by themselves.

The objects of partitions come before the super object, and go before it. So a super object of whose
partitions the bucket has nothing at all was put late: after the super stream was deleted, and its
tombstone too. It does not count.

Nothing is deleted here. After a crash anywhere the same step puts another object, and goes on.
"""

from dataclasses import dataclass, replace
from typing import Final

import structlog
from cachetools import LRUCache

from bottomless.drives.base import Drive
from bottomless.errors import Corrupt, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import stream_prefix, super_key, super_prefix
from bottomless.formats.super_record import encode_super_object
from bottomless.guards import guard
from bottomless.model.names import SuperId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.left_partitions import has_partitions
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.bucket_streams import StreamPrefix
from bottomless_server.manifest.recovery.found_supers import read_supers
from bottomless_server.manifest.recovery.rebuilt_registry import find_registry, put_object_of
from bottomless_server.manifest.recovery.rebuilt_tombstones import Tombstones, buried
from bottomless_server.manifest.streams.super_deletion import KIND as DELETION
from bottomless_server.stores.name_values import Holder
from bottomless_server.stores.operations import entered
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_supers import NOTHING, bury_super, restore_super

log = structlog.get_logger(__name__)

_KNOWN_COUNT_MAX: Final = 64
"""Super streams that are remembered while their partitions are restored; forgetting one costs GETs."""


@dataclass(frozen=True, slots=True)
class FoundSuper:
    """What the super objects of one super stream say together."""

    record: SuperRecord | None
    """What counts: the last one of the bucket's generation; None where that cannot be read."""
    damaged: bool
    """Whether one that may be newer cannot be read."""
    version_max: int


class RebuiltSupers:
    """Brings super streams back; of one rebuild at a time."""

    def __init__(self, context: Context, operations: Operations, tombstones: Tombstones) -> None:
        self._context = context
        self._operations = operations
        self._tombstones = tombstones
        self._found: LRUCache[tuple[SuperId, int], FoundSuper | None] = LRUCache(_KNOWN_COUNT_MAX)

    async def find(self, super_id: SuperId, tenant: str, generation: int) -> FoundSuper | None:
        """What the bucket says of a super stream, for a rebuild to a generation; None if nothing.

        Raises:
            NotServed, DriveUnavailable, DriveRefused
        """
        place = super_id, generation
        if place not in self._found:
            self._found[place] = await self._read(super_id, tenant, generation)
        return self._found[place]

    async def _read(self, super_id: SuperId, tenant: str, generation: int) -> FoundSuper | None:
        drive, prefix = self._context.drive, super_prefix(super_id, tenant)
        sound, damaged = await read_supers(drive, prefix, self._context.served)
        if not sound and not damaged:
            return None
        counting = [one for one in sound if counts(one, generation)]
        best = max(counting, key=lambda one: one.registry_version, default=None)
        if best is not None and not await is_left(drive, best):
            log.warning("a super object was put after its deletion", super_id=super_id)
            best = None
        if best is None and not damaged:
            return None
        versions = [*damaged, *(one.registry_version for one in sound)]
        unknown = any(best is None or version > best.registry_version for version in damaged)
        return FoundSuper(best, unknown, max(versions))

    async def restore_below(self, prefix: StreamPrefix, step: RebuildStep) -> dict[str, int] | None:
        """Bring back the super stream below a prefix; what there is to say of it, None if there is none.

        Raises:
            NotServed, DriveUnavailable, DriveRefused, DriveAmbiguous
            Unavailable: as `restore`.
        """
        super_id = SuperId(prefix.stream_id)
        found = await self.find(super_id, prefix.tenant, step.generation)
        if found is None:
            return None
        if found.record is None:
            return {"unreadable_super_streams": 1}
        restored = await self.restore(found, step)
        if not restored or found.record.state is SuperState.DELETING:
            return {"deleted_super_streams": 1}
        return {"super_streams": 1}

    async def restore(self, found: FoundSuper, step: RebuildStep) -> bool:
        """Bring a super stream back, or go on with its deletion; false where its name is another's.

        Raises:
            DriveUnavailable, DriveRefused, DriveAmbiguous: the same again is right.
            Unavailable: the step is not what goes on; or somebody puts objects at this moment.
        """
        assert found.record is not None
        await step.check(self._context.coordination)
        record = replace(
            found.record, generation=step.generation, registry_version=found.version_max + 1
        )
        await self._put(record)
        also, coordination = self._also(record), self._context.coordination
        other = await restore_super(coordination, record, also, step)
        if other is None:
            return True
        # A name is given away only after a deletion, so the older one was deleted, and the bucket
        # does not know of it.
        if not await self._gives_way(other, found.record, step):
            await self._bury(record, step)
            return False
        if await restore_super(coordination, record, also, step) is not None:
            raise Unavailable("the name keeps changing")
        return True

    async def _gives_way(self, other: Holder, mine: SuperRecord, step: RebuildStep) -> bool:
        """Delete who has the name of a younger super stream; false if it is the younger one."""
        rank: tuple[int, str] = (mine.generation, mine.super_id)
        if other.super_id is not None:
            return await self.gives_way(other.super_id, mine.tenant, rank, step)
        assert other.stream_id is not None
        prefix = stream_prefix(other.stream_id, mine.tenant)
        context = self._context
        theirs = await find_registry(context.drive, prefix, step.generation, context.served)
        if theirs is not None and (theirs.record.generation, other.stream_id) > rank:
            return False
        older = await context.streams.load(other.stream_id)
        await put_object_of(context, buried(older))
        await self._tombstones.bury(older, step)
        return True

    async def gives_way(
        self, super_id: SuperId, tenant: str, rank: tuple[int, str], step: RebuildStep
    ) -> bool:
        """Delete a super stream that this rebuild has restored, if who needs its name is younger:
        of a higher generation, and then with a higher id; false if it stays.

        Raises:
            DriveUnavailable, DriveRefused, DriveAmbiguous, Unavailable: the same again is right.
        """
        found = await self.find(super_id, tenant, step.generation)
        theirs = None if found is None else found.record
        if found is None or theirs is None or (theirs.generation, super_id) > rank:
            return False
        version = found.version_max + 1
        mine = replace(theirs, generation=step.generation, registry_version=version)
        await self._bury(mine, step)
        return True

    async def _bury(self, record: SuperRecord, step: RebuildStep) -> None:
        version = record.registry_version + 1
        tombstone = replace(record, state=SuperState.DELETING, registry_version=version)
        # Before it is so in coordination: the next rebuild would have less to go by.
        await self._put(tombstone)
        await bury_super(self._context.coordination, tombstone, self._also(tombstone), step)
        log.critical("a super stream is deleted: its name is another's", super_id=record.super_id)

    def _also(self, record: SuperRecord) -> Changes:
        """The operation that deletes what is to be deleted."""
        if record.state is not SuperState.DELETING:
            return NOTHING
        deletion = self._operations.new(
            DELETION,
            tenant=record.tenant,
            arguments={"name": record.name, "super_id": record.super_id},
        )
        return entered(deletion, deletion.created_at)

    async def _put(self, record: SuperRecord) -> None:
        data = encode_super_object(record)
        try:
            await put_object(
                self._context.drive,
                super_key(record.super_id, record.registry_version, record.tenant),
                [data],
                crc32c(data),
                deadline_seconds=self._context.settings.manifest_put_seconds,
            )
        except Corrupt as error:
            raise Unavailable("a super object was put at this moment") from error

    async def of_its_super(self, record: StreamRecord, generation: int) -> StreamRecord:
        """What a partition comes back as: with the configuration of its super stream, as a stream by
        itself where nobody can tell, or as one that is deleted where nothing was acknowledged in it.

        Raises:
            NotServed, DriveUnavailable, DriveRefused
        """
        place = record.partition_of
        if place is None or record.state is StreamState.DELETING:
            return record
        found = await self.find(place.super_id, record.tenant, generation)
        if is_named(record, found):
            assert found is not None
            assert found.record is not None
            return _configured(record, found.record)
        if found is None or not found.damaged:
            return replace(record, state=StreamState.DELETING)
        log.critical("a partition comes back as a stream by itself", stream_id=record.stream_id)
        return replace(record, partition_of=None)


@guard("super objects of the bucket's generation alone")
def counts(record: SuperRecord, generation: int) -> bool:
    """Whether a super object counts, for a rebuild to a generation.

    Each rebuild puts one of its own for every super stream that it brings back. So what is of an older
    generation than the bucket's was put late, by a process of before a rebuild that did not know of
    it, and has deleted what was there of its partitions.
    """
    return record.generation == generation - 1


@guard("a super stream of which something is left, in a rebuild")
async def is_left(drive: Drive, record: SuperRecord) -> bool:
    """Whether the bucket has anything of a super stream beside what says that it is one.

    Of one that is being deleted it does not matter: the deletion goes on.
    """
    return record.state is SuperState.DELETING or await has_partitions(drive, record)


@guard("the super object that names a partition, in a rebuild")
def is_named(record: StreamRecord, found: FoundSuper | None) -> bool:
    """Whether a super object names a stream as its partition."""
    place, whole = record.partition_of, None if found is None else found.record
    if place is None or whole is None or place.index >= len(whole.partitions):
        return False
    return whole.partitions[place.index].stream_id == record.stream_id


def _configured(record: StreamRecord, whole: SuperRecord) -> StreamRecord:
    """A partition as its super stream is configured: a change may have been cut off on the way."""
    if record.config == whole.config:
        return record
    return replace(record, config=whole.config, config_version=record.config_version + 1)
