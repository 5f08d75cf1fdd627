"""The registry of super streams: which there are, and of which streams each is made.

A super stream is made in these steps, in this order:

1. One EXEC: its record, the records of all its partitions, all their names and places in indexes.
2. The registry object of each partition.
3. The super object. Only from here on may anybody be told of the super stream, or find one of its
   partitions by its name.
4. The answer.

After a crash that follows step 1 the records are there and nobody was told. Whoever asks for one of
the names, or creates it once more, does steps 2 and 3 first. So a rebuild that finds registry objects
of partitions and no super object knows that nothing was ever acknowledged of it; and where it finds the
super object it has all partitions.

A change of the record is one EXEC, and then the objects follow (super_objects.py).
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bottomless.errors import Exists, NotFound, Outcome, Unavailable
from bottomless.guards import guard
from bottomless.model.config import StreamConfig
from bottomless.model.names import FullName, SuperId, stream_id_from
from bottomless.model.routing import SEED
from bottomless.model.stream import PartitionOf, StreamRecord, StreamState
from bottomless.model.super_stream import Layout, Partition, SuperRecord, SuperState
from bottomless_server.coordination.base import (
    CoordinationUnavailable,
    CoordinationUnknown,
    Room,
)
from bottomless_server.core.not_found import stream_not_found, super_not_found
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.once_more import once_more, once_more_on_condition
from bottomless_server.manifest.registry.config_change import ConfigChange
from bottomless_server.manifest.registry.super_asked import (
    AskedSuper,
    partition_name,
    require_super_name,
    super_differences,
)
from bottomless_server.manifest.registry.super_objects import (
    StreamObjects,
    SuperObjects,
    partition_records,
    require_all,
)
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.supers import Supers, room_for_partitions

_ATTEMPT_COUNT: Final = 4


class DeclaredSuper(NamedTuple):
    record: SuperRecord
    created: bool


class SuperRegistry:
    def __init__(self, context: Context, registry: StreamObjects) -> None:
        self._context = context
        self._registry = registry
        self.supers = Supers(context.coordination, context.streams)
        self.objects = SuperObjects(context, registry, self.supers)

    async def declare(self, name: FullName, asked: AskedSuper) -> DeclaredSuper:
        """Create a super stream, or find that it exists and is as it is asked for.

        Raises:
            InvalidRequest: `bad-name`: it is too long.
            Exists: with `differences`; or with `taken_partitions`, or neither: a name is taken.
            Overloaded: `quota-exceeded`.
            Unavailable: the outcome says whether it may exist now; the same again is safe.
        """
        require_super_name(name.name)
        for _ in range(_ATTEMPT_COUNT):
            declared = await self._find(name, asked) or await self._create(name, asked)
            if declared is not None:
                record = await self.objects.ensure(declared.record, committed=declared.created)
                # Also of one that was there: what was found may be lost by now.
                await self._registry.require_generation(record.generation)
                return DeclaredSuper(record, declared.created)
        raise Unavailable("the name keeps changing", outcome=Outcome.UNKNOWN)

    async def find(self, name: FullName) -> SuperRecord:
        """The record of the super stream that has a name; its object is in the bucket.

        Raises:
            NotFound
            Unavailable: its object is not there yet.
        """
        return await self.load(await self.supers.find(name))

    async def load(self, super_id: SuperId) -> SuperRecord:
        """The record of a super stream that is not being deleted; its object is in the bucket.

        Raises:
            NotFound
            Unavailable: its object is not there yet.
        """
        record = await self.supers.load(super_id)
        if record.state is SuperState.DELETING:
            raise super_not_found()
        await self.objects.require(record, len(record.partitions))
        return record

    async def update(
        self, name: FullName, change: Callable[[SuperRecord], StreamConfig]
    ) -> SuperRecord:
        """Give a super stream, and so all its partitions, another configuration; returns its record,
        changed or not.

        `change` sees the record as it is now and says what the configuration should be; it may be
        asked again, and raises to leave it. After a crash that follows the EXEC some partitions have
        the older configuration, until the super object is put: by the same again, or by whoever finds
        it first in another process.

        Raises:
            NotFound: there is no such super stream.
            Corrupt: the record of a partition cannot be read; nothing has changed.
            Unavailable: the outcome says whether it may be so now; a partition without a record is an
                outcome of none.
        """
        configured = ConfigChange(change)
        super_id = await self.supers.find(name)
        before = await self.supers.load(super_id)

        def decide(record: SuperRecord) -> SuperRecord:
            if record.state is SuperState.DELETING:
                raise super_not_found()
            require_same_generation(before, record)
            return configured.apply(record)

        # It could not reach all of them, and until it has nobody finds the super stream.
        await self.require_readable(before)
        try:
            record = await self.supers.update(super_id, decide)
        except CoordinationUnknown as lost:
            again = self.supers.update(super_id, decide)
            record = await once_more_on_condition(lost, again)
        await reach("manifest.super.after-exec")
        record = await self.objects.ensure(record, committed=True)
        await self._registry.require_generation(record.generation)
        return record

    async def require_readable(self, record: SuperRecord) -> None:
        """Refuse to change a super stream whose partitions could not follow.

        Raises:
            Corrupt: the record of a partition cannot be read.
            Unavailable: a partition has no record.
        """
        count = 0
        async for records in partition_records(self._context, record):
            count += len(records)
        require_all(count, len(record.partitions))

    async def admit(self, partition: StreamRecord) -> None:
        """Let a stream be found by its name: of a partition, only when the super object is there.

        Raises:
            NotFound: there is no such super stream any more, so the partition is going too.
            Unavailable: its object is not there yet.
        """
        place = partition.partition_of
        if place is None:
            return
        if self.objects.is_named(place):
            return
        try:
            record = await self.supers.load(place.super_id)
        except NotFound:
            raise stream_not_found() from None
        if place.index >= len(record.partitions):
            # Its super stream is growing, and has not got it yet.
            raise stream_not_found()
        await self.objects.require(record, place.index + 1)

    async def _find(self, name: FullName, asked: AskedSuper) -> DeclaredSuper | None:
        try:
            record = await self.supers.load(await self.supers.find(name))
        except NotFound:
            return None
        if record.state is SuperState.DELETING:
            return None
        differences = super_differences(asked, record)
        if differences:
            raise Exists(
                "the super stream exists and is another one; PATCH changes its configuration, and"
                " gives it more partitions",
                facts={"super_id": record.super_id, "differences": differences},
            )
        return DeclaredSuper(record, created=False)

    async def _create(self, name: FullName, asked: AskedSuper) -> DeclaredSuper | None:
        record = self._new(name, asked)
        partitions = [self.new_partition(record, one) for one in record.partitions]
        count_max = self._context.settings.manifest_tenant_stream_count_max
        room = room_for_partitions(partitions, count_max)
        sentence = "the tenant has no room for so many streams; delete some that are not used"
        async with self._context.quotas.entering(room, sentence):
            try:
                await self.supers.create(record, partitions, room)
            except Exists:
                if await self._named(name) is None:
                    raise
                return None
            except CoordinationUnknown as lost:
                if not await once_more(lost, self._create_again(record, partitions, room)):
                    return None
        await reach("manifest.super.after-exec")
        return DeclaredSuper(record, created=True)

    async def _create_again(
        self, record: SuperRecord, partitions: Sequence[StreamRecord], room: Room
    ) -> bool:
        """Make it once more; false where its name is another's by now, or free again.

        Raises:
            Exists: a partition's name is taken.
        """
        try:
            # Either it kills the first attempt, or it finds what that has written.
            await self.supers.create(record, partitions, room)
        except Exists:
            found = await self._named(record.full_name)
            if found is None and not await self._was_made(record.super_id):
                raise
            # Ours, if the first attempt did arrive; it cannot arrive any more otherwise.
            return found == record.super_id
        return True

    async def _named(self, name: FullName) -> SuperId | None:
        try:
            return await self.supers.find(name)
        except NotFound:
            return None

    async def _was_made(self, super_id: SuperId) -> bool:
        """Whether the first attempt did arrive, of what has lost its name since: it was deleted."""
        try:
            await self.supers.load(super_id)
        except NotFound:
            return False
        return True

    def _new(self, name: FullName, asked: AskedSuper) -> SuperRecord:
        now = self._context.clock()
        return SuperRecord(
            super_id=SuperId(stream_id_from(now, secrets.token_bytes(10))),
            name=name.name,
            tenant=name.tenant,
            state=SuperState.ACTIVE,
            created_at=now,
            strategy=asked.strategy,
            seed=SEED,
            layouts=(Layout(1, asked.partition_count, now),),
            partitions=self.new_places(name, range(asked.partition_count), asked.binding_keys),
            config=self._settled(asked.config),
            generation=self._registry.generation,
        )

    def new_places(
        self, name: FullName, indexes: Sequence[int], binding_keys: Sequence[str]
    ) -> tuple[Partition, ...]:
        """Partitions that are to be made, with ids that were never given."""
        now = self._context.clock()
        return tuple(
            Partition(
                index,
                stream_id_from(now, secrets.token_bytes(10)),
                partition_name(name.name, index),
                binding_keys[place] if binding_keys else None,
            )
            for place, index in enumerate(indexes)
        )

    def new_partition(self, record: SuperRecord, place: Partition) -> StreamRecord:
        """The record of a partition that is made with, or after, the record of its super stream."""
        return StreamRecord(
            stream_id=place.stream_id,
            name=place.name,
            tenant=record.tenant,
            state=StreamState.ACTIVE,
            created_at=self._context.clock(),
            config=record.config,
            generation=record.generation,
            partition_of=PartitionOf(record.super_id, place.index),
        )

    def _settled(self, config: StreamConfig) -> StreamConfig:
        settings = self._context.settings
        return config.model_copy(
            update={
                "filter": config.filter.settled(settings.manifest_filter_index),
                "replication": config.replication.settled(settings.manifest_replicas),
            }
        )


@guard("the generation in which the partitions of a super stream were looked at")
def require_same_generation(before: SuperRecord, record: SuperRecord) -> None:
    """Refuse to change a super stream of which a rebuild may have lost partitions since they were looked at.

    Raises:
        CoordinationUnavailable: it was rebuilt; this attempt has changed nothing.
    """
    if record.generation != before.generation:
        raise CoordinationUnavailable("coordination was rebuilt while the super stream was changed")
