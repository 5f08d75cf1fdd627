"""The registry: which streams exist, under which names, configured how.

Each change is two steps, in this order:

1. One EXEC on the record: a new one with its name and its places in the indexes; another
   configuration; a tombstone. From here on it is so.
2. The registry object is put under the next version, if absent; a rebuild after the loss
   of coordination starts from the newest. Only when it is there, the older one goes into
   the delete queue (`../common/registry_objects.py`).

After a crash between the two the record is ahead of the bucket; the next PUT, GET or first
touch in this process puts the object. After a crash before the older one is queued it stays
until the stream is swept: the newest counts, so it does no harm. The other order would leave
objects of streams that nobody can find, and a rebuild would bring them to life. An EXEC
without a reply is made again: either it kills the first attempt, or it meets what the first
one did, and knows it by its own id or version.

A process may stand still between the two while coordination is lost and rebuilt. Its object then
comes too late to count: a rebuild puts one of its own generation for every stream, and of several
the highest generation counts, and then the highest version. Whoever waits for an answer is told
that the outcome is unknown, since the generation is asked for once more after the object is there.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Code, Exists, NotFound, Outcome, Unavailable
from bottomless.formats.stream_record import LEADERLESS
from bottomless.guards import guard
from bottomless.model.config import ReplicationConfig, StreamConfig, config_differences
from bottomless.model.names import FullName, StreamId, stream_id_from
from bottomless.model.stream import EpochStart, StreamRecord, StreamState
from bottomless_server.coordination.base import (
    CoordinationUnavailable,
    CoordinationUnknown,
    Room,
)
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.leaderless.tail import first_epoch
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.once_more import once_more, once_more_on_condition
from bottomless_server.manifest.registry.config_change import ConfigChange
from bottomless_server.manifest.registry.super_registry import SuperRegistry
from bottomless_server.stores import tails
from bottomless_server.stores.generation import held_generation
from bottomless_server.stores.streams import room_for

log = structlog.get_logger(__name__)

_ATTEMPT_COUNT: Final = 4


class Declared(NamedTuple):
    record: StreamRecord
    created: bool


class Registry:
    def __init__(self, context: Context) -> None:
        self._context = context
        self.generation = 0
        """The generation of coordination and bucket, as the start found it."""
        self.supers = SuperRegistry(context, self)

    async def declare(self, name: FullName, config: StreamConfig) -> Declared:
        """Create a stream, or find that it exists with this very configuration.

        Raises:
            Exists: with `differences`, pointers to the members that differ.
            Unavailable: the outcome says whether it may exist now; the same again is safe.
        """
        for _ in range(_ATTEMPT_COUNT):
            declared = await self._find(name, config) or await self._create(name, config)
            if declared is not None:
                record = await self._object_of(declared.record, committed=declared.created)
                # Also of one that was there: what was found may be lost by now.
                await self.require_generation(declared.record.generation)
                return Declared(record, declared.created)
        raise Unavailable("the name keeps changing", outcome=Outcome.UNKNOWN)

    async def find(self, name: FullName) -> StreamRecord:
        """The record of the stream that has a name.

        Raises:
            NotFound
        """
        return await self._admitted(await self._context.streams.find_record(name))

    async def find_many(self, names: Sequence[FullName]) -> dict[FullName, StreamId]:
        """The streams that have these names; names of no stream, or of a deleted one, are left out.

        One whose record cannot be read is left out too: who asks for it alone is told why.
        """
        found = await self._context.streams.find_many(names)
        active = {
            record.stream_id
            for record in (await self._context.streams.load_many(list(found.values()))).records
            if record.state is StreamState.ACTIVE and await self._may_be_found(record)
        }
        return {name: stream_id for name, stream_id in found.items() if stream_id in active}

    async def _may_be_found(self, record: StreamRecord) -> bool:
        try:
            await self.supers.admit(record)
        except (NotFound, Unavailable):
            # Who asks for it alone is told why.
            return False
        return True

    async def load(self, stream_id: StreamId) -> StreamRecord:
        """The record of a stream that is not being deleted; mends what a crash left undone.

        Raises:
            NotFound
            Unavailable: of a partition whose super stream is not in the bucket yet.
        """
        return await self._admitted(await self._context.streams.load(stream_id))

    async def _admitted(self, record: StreamRecord) -> StreamRecord:
        if record.state is not StreamState.ACTIVE:
            raise stream_not_found()
        await self.supers.admit(record)
        try:
            return await self.ensure_object(record)
        except Unavailable as error:
            # Reading the registry does not need the object; the next one tries again.
            log.warning("a registry object is not there yet", error=str(error))
        return record

    async def load_active(self, stream_id: StreamId) -> StreamRecord:
        """The record of a stream that is not being deleted, and nothing else.

        Raises:
            NotFound
        """
        record = await self._context.streams.load(stream_id)
        if record.state is not StreamState.ACTIVE:
            raise stream_not_found()
        return record

    async def update(
        self, name: FullName, change: Callable[[StreamRecord], StreamConfig]
    ) -> StreamRecord:
        """Give a stream another configuration; returns its record, changed or not.

        `change` sees the record as it is now and says what the configuration should be; it may
        be asked again, and raises to leave it.

        Raises:
            NotFound: there is no such stream.
            Unavailable: the outcome says whether it may be so now.
        """
        configured = ConfigChange(change)

        def decide(record: StreamRecord) -> StreamRecord:
            if record.state is not StreamState.ACTIVE:
                raise stream_not_found()
            return configured.apply(record)

        stream_id = await self._context.streams.find(name)
        try:
            record = await self._change(stream_id, decide)
        except CoordinationUnknown as lost:
            again = self._change(stream_id, decide)
            record = await once_more_on_condition(lost, again)
        return await self.ensure_object(record, committed=True)

    async def _change(
        self, stream_id: StreamId, decide: Callable[[StreamRecord], StreamRecord]
    ) -> StreamRecord:
        """Change a record, and with it in one EXEC the tail of a stream that has one."""
        context = self._context
        if LEADERLESS in context.served:
            # The profile of a stream never changes.
            record = await context.streams.load(stream_id)
            if record.config.leaderless:
                return await tails.configure(
                    context.coordination, stream_id, self.generation, decide
                )
        return await context.streams.update(stream_id, decide)

    async def _find(self, name: FullName, config: StreamConfig) -> Declared | None:
        try:
            record = await self._context.streams.load(await self._context.streams.find(name))
        except NotFound:
            await self._require_no_super(name)
            return None
        try:
            await self.supers.admit(record)
        except NotFound as error:
            raise Exists("a partition of a super stream that changes has this name") from error
        differences = config_differences(config, record.config)
        if differences:
            profile = record.config.profile
            raise Exists(
                "the stream exists with another configuration; PATCH changes it"
                if profile == config.profile
                else f"the stream exists, and is {profile}: the profile of a stream never changes",
                facts={"stream_id": record.stream_id, "differences": differences},
            )
        return Declared(record, created=False)

    async def _require_no_super(self, name: FullName) -> None:
        try:
            super_id = await self.supers.supers.find(name)
        except NotFound:
            return
        raise Exists("a super stream has this name", facts={"super_id": super_id})

    def _replication(self, config: StreamConfig) -> ReplicationConfig:
        """What was asked for, or the server's default, of a stream whose tail is on nodes."""
        if config.leaderless:
            return config.replication
        return config.replication.settled(self._context.settings.manifest_replicas)

    async def _create(self, name: FullName, config: StreamConfig) -> Declared | None:
        now = self._context.clock()
        index = self._context.settings.manifest_filter_index
        record = StreamRecord(
            stream_id=stream_id_from(now, secrets.token_bytes(10)),
            name=name.name,
            tenant=name.tenant,
            state=StreamState.ACTIVE,
            created_at=now,
            config=config.model_copy(
                update={
                    "filter": config.filter.settled(index),
                    "replication": self._replication(config),
                }
            ),
            generation=self.generation,
        )
        if config.leaderless:
            record = without_owner(record)
        room = room_for(record, self._context.settings.manifest_tenant_stream_count_max)
        sentence = "the tenant has as many streams as it may; delete one that is not used"
        async with self._context.quotas.entering(room, sentence):
            try:
                await self._enter(record, room)
            except Exists:
                return None
            except CoordinationUnknown as lost:
                return await once_more(lost, self._create_again(record, room))
        return Declared(record, created=True)

    async def _enter(self, record: StreamRecord, room: Room) -> None:
        """Enter a record, and in the same EXEC the tail of a stream that has one."""
        if record.config.leaderless:
            await tails.create(self._context.streams, record, room)
        else:
            await self._context.streams.create(record, room)

    async def _create_again(self, record: StreamRecord, room: Room) -> Declared | None:
        try:
            await self._enter(record, room)
        except Exists:
            # Ours, if the first attempt did arrive; it cannot arrive any more otherwise.
            try:
                found = await self._context.streams.find(record.full_name)
            except NotFound:
                # Somebody has deleted it since.
                return None
            return Declared(record, created=True) if found == record.stream_id else None
        return Declared(record, created=True)

    async def ensure_object(self, record: StreamRecord, *, committed: bool = False) -> StreamRecord:
        """Make sure that the bucket says of the stream what its record says.

        Returns the record, with a higher version where the one it had was taken by an object
        that says something else.

        `committed` says that the record was just written on somebody's behalf, who is told next
        that it is so. Coordination may have been lost since then, and rebuilt without it: so it
        is asked for its generation after the object is there.

        Raises:
            Unavailable: it is not there yet; the outcome is committed if `committed`. Or nobody
                can tell whether coordination still has what was written: the outcome is unknown.
            NotFound: the stream is gone.
        """
        durable = await self._object_of(record, committed=committed)
        if committed:
            await self.require_generation(record.generation)
        return durable

    @guard("the generation, asked for after a registry object is there")
    async def require_generation(self, generation: int) -> None:
        """Refuse to say of what was written in a generation that it is so, where that is over.

        What is asked for after the object is in the bucket is either the coordination that has
        the record, or one that a rebuild began to fill, or has filled, since.
        """
        if self._context.streams.generation is None:
            # Nobody has found out what it has to be: not in a service that has started.
            return
        try:
            held = await held_generation(self._context.coordination)
        except CoordinationUnavailable as error:
            raise Unavailable(
                "this may be done: coordination does not answer; ask for it once more",
                outcome=Outcome.UNKNOWN,
            ) from error
        if held is None or held < generation:
            raise Unavailable(
                "coordination was lost while this was done: it may be done, or not; it has to be"
                " rebuilt",
                code=Code.COORDINATION_REGRESSED,
                outcome=Outcome.UNKNOWN,
                retryable=False,
            )
        if held > generation:
            raise Unavailable(
                "coordination was lost and rebuilt while this was done: it may be done, or not; ask"
                " for it once more",
                outcome=Outcome.UNKNOWN,
            )

    async def _object_of(self, record: StreamRecord, *, committed: bool) -> StreamRecord:
        try:
            return await self._context.registry_objects.ensure(record)
        except Unavailable as error:
            if not committed:
                raise
            raise Unavailable(
                "this is done, but not safe from the loss of coordination yet",
                code=error.code,
                outcome=Outcome.COMMITTED,
            ) from error


def without_owner(record: StreamRecord) -> StreamRecord:
    """A new record as that of a leaderless stream: one epoch, which only a rebuild raises."""
    epoch = first_epoch(record.generation)
    return replace(record, epoch=epoch, epochs=(EpochStart(epoch, 0),))
