"""Give a super stream more partitions: who routes by the older layout is refused from then on.

What is there after a crash at each step; the operation goes on with the next one:

1. The records of all partitions are read: of one that cannot be read nobody could tell who owns it, and
   with one that is gone no super object would be put, so that the growth would never end. Then one EXEC lets the super stream be one that grows, enters the new partitions (records, names, places
   in indexes) and the operation. From here on ingest answers 503 `super-stream-growing`. The super
   record does not name the new partitions, so nobody finds them.
2. The owner of each older partition says that it takes no part of an older layout any more. One that
   does not answer is waited out, until its lease is over; whoever opens a partition later reads the
   super record. A crash in between: owners are told once more.
3. One EXEC names the new partitions and the next layout, and the super stream is active. Only after 2:
   else a part of the older layout could be stored beside one of the newer, in two partitions by one
   key.
4. The registry objects of the new partitions are put, then the super object; whoever finds the super
   stream puts them first. Then consumer groups share the new partitions too.

Where coordination is lost before 4 is done, so is the growth: the bucket does not know of it, and a super
object is not put without the objects of all its partitions. Whoever
slept through the rebuild ends nothing then: the super stream has another generation, and may grow to
other partitions.

A super stream that grows can be deleted (super_deletion.py). Its tombstone names the partitions of before
alone, so the operation of the growth deletes the new ones, whenever it finds the tombstone or nothing:
their ids are in its arguments. After a crash in between it does so again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Corrupt, NotFound, Outcome, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.names import FullName, SuperId
from bottomless.model.routing import Strategy
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.super_stream import Layout, Partition, SuperRecord, SuperState
from bottomless_server.coordination.base import CoordinationUnknown
from bottomless_server.core.not_found import super_not_found
from bottomless_server.core.preconditions import require_match
from bottomless_server.core.super_growing import super_growing
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.once_more import once_more
from bottomless_server.manifest.common.owners import NodeAt
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.registry.super_asked import (
    parse_binding_keys,
    parse_count,
    refused,
)
from bottomless_server.manifest.registry.super_description import super_etag
from bottomless_server.manifest.registry.super_registry import require_same_generation
from bottomless_server.manifest.streams.deletion import Deletions
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.operations import Operation, entered
from bottomless_server.stores.streams import node_key
from bottomless_server.stores.supers import room_for_partitions

log = structlog.get_logger(__name__)

KIND: Final = "grow-super-stream"

_MEMBERS: Final = frozenset({"partitions", "binding_keys", "accept_rehash"})

_ASK_SECONDS: Final = 5.0
_AT_ONCE: Final = 16
_ASK_AGAIN_MS: Final = 1_000
_PAUSE_SECONDS: Final = 0.2
"""Between two questions of a request whether all owners have heard of it."""

Replan = Callable[[SuperRecord], Awaitable[None]]
"""Lets the consumer groups of a super stream share all partitions that it has."""


class AskedGrowth(NamedTuple):
    """How many partitions a super stream is to have, as a request says it."""

    partition_count: int
    binding_keys: tuple[str, ...]
    """The keys of all partitions, those that there are first; none by the strategy of hashes."""
    accept_rehash: bool
    """Whether it is known that most keys go to another partition by it."""

    def new_of(self, record: SuperRecord) -> tuple[str, ...] | None:
        """The keys of the partitions that are to be new, none by hash; None where none is new.

        Raises:
            InvalidRequest: it cannot grow so.
        """
        count = len(record.partitions)
        by_key = record.strategy is Strategy.KEY
        if by_key is not bool(self.binding_keys):
            wrong = "/partitions" if by_key else "/binding_keys"
            raise refused("the super stream is divided by the other strategy", wrong)
        known = tuple(one.binding_key or "" for one in record.partitions)
        if by_key and self.binding_keys[:count] != known:
            raise refused(
                "must begin with the keys that there are, in their order", "/binding_keys"
            )
        if self.partition_count < count:
            raise refused(
                f"a super stream never gets fewer partitions, and has {count}", "/partitions"
            )
        if self.partition_count == count:
            return None
        if not by_key and not self.accept_rehash:
            raise refused(
                "must be true: with more partitions most keys go to another one", "/accept_rehash"
            )
        return self.binding_keys[count:]


def asked_growth(patch: object) -> AskedGrowth | None:
    """Read what a patch says of partitions; None of one that says nothing of them.

    Raises:
        InvalidRequest: `validation-failed`; it is also about something else.
    """
    if not isinstance(patch, dict) or not _MEMBERS & patch.keys():
        return None
    if len({"partitions", "binding_keys"} & patch.keys()) != 1 or not patch.keys() <= _MEMBERS:
        sentence = "a super stream grows by partitions or binding_keys, and by nothing beside them"
        raise refused(sentence, "")
    accepts = patch.get("accept_rehash", False)
    if not isinstance(accepts, bool):
        raise refused("must be true or false", "/accept_rehash")
    if "partitions" in patch:
        return AskedGrowth(parse_count(patch["partitions"]), (), accepts)
    keys = parse_binding_keys(patch["binding_keys"])
    return AskedGrowth(len(keys), keys, accepts)


class SuperGrowth:
    """Begins growths of super streams and carries them out; registered with `Operations`."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        operations: Operations,
        deletions: Deletions,
        replan: Replan,
    ) -> None:
        self._context = context
        self._supers = registry.supers
        self._deletions = deletions
        self._operations = operations
        self._replan = replan
        operations.register(KIND, self.step, endless=True)

    async def begin(
        self, name: FullName, if_match: str, asked: AskedGrowth
    ) -> tuple[SuperRecord, Operation | None]:
        """Let a super stream grow, and wait for that as long as for the end of an owner.

        Returns its record, and the operation that goes on where it still grows.

        Raises:
            NotFound: there is no such super stream.
            InvalidRequest: it cannot grow so.
            WrongOffset: `etag-mismatch`.
            Exists: a name of a new partition is taken.
            Overloaded: `quota-exceeded`, or too many operations are under way.
            Corrupt: the record of a partition cannot be read; nothing has begun.
            Unavailable: `super-stream-growing`; or a partition has no record, and nothing has begun; or
                the outcome says whether it may have grown.
        """
        before = await self._supers.find(name)
        require_match(if_match, super_etag(before))
        keys = asked.new_of(before)
        if keys is None:
            return before, None
        # It could not end.
        await self._supers.require_readable(before)
        await self._operations.make_room()
        indexes = range(len(before.partitions), asked.partition_count)
        places = self._supers.new_places(name, indexes, keys)
        operation = self._operations.new(
            KIND,
            tenant=name.tenant,
            arguments={
                "super_id": before.super_id,
                "generation": before.generation,
                "layout": before.layouts[-1].version,
                "partitions": [
                    [one.index, one.stream_id, one.name, one.binding_key] for one in places
                ],
            },
        )
        await self._grow(before, places, if_match, operation)
        await reach("manifest.super-growth.after-exec")
        return await self._wait_grown(operation)

    async def _grow(
        self,
        before: SuperRecord,
        places: tuple[Partition, ...],
        if_match: str,
        operation: Operation,
    ) -> None:
        """The first EXEC; made again where its reply was lost."""
        partitions = [self._supers.new_partition(before, one) for one in places]
        settings = self._context.settings
        room = room_for_partitions(partitions, settings.manifest_tenant_stream_count_max)
        sentence = "the tenant has no room for so many streams; delete some that are not used"
        # The request goes on by itself; whoever else looks at it looks when that has had its time.
        also = entered(operation, operation.created_at + settings.manifest_close_ms)

        def decide(record: SuperRecord) -> SuperRecord:
            if record.state is SuperState.DELETING:
                raise super_not_found()
            # A growth that has ended since took the names that this one would take.
            if record.state is SuperState.GROWING or record.layouts != before.layouts:
                raise super_growing()
            require_same_generation(before, record)
            require_match(if_match, super_etag(record))
            return replace(record, state=SuperState.GROWING)

        async def attempt() -> None:
            await self._supers.supers.begin_growth(before.super_id, decide, partitions, room, also)

        async with self._context.quotas.entering(room, sentence):
            try:
                await attempt()
            except CoordinationUnknown as lost:
                try:
                    await once_more(lost, attempt())
                except CoordinationUnknown:
                    raise
                except StoreError as error:
                    await self._require_ours(operation, lost, error)

    async def _require_ours(
        self, operation: Operation, lost: CoordinationUnknown, refused: StoreError
    ) -> None:
        """Find out whether a first attempt did arrive: then its operation is there; else raise why the
        second one was refused."""
        try:
            await once_more(lost, self._operations.find(operation.operation_id))
        except NotFound:
            raise refused from None

    async def _wait_grown(self, operation: Operation) -> tuple[SuperRecord, Operation | None]:
        super_id = SuperId(str(operation.arguments["super_id"]))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._context.settings.manifest_close_ms / 1000
        while not await self._go_on(operation):
            left = deadline - loop.time()
            if left <= 0:
                self._operations.wake()
                return await self._supers.supers.load(super_id), operation
            await asyncio.sleep(min(left, _PAUSE_SECONDS))
        record = await self._supers.load(super_id)
        if record.generation != operation.arguments["generation"]:
            raise Unavailable(
                "coordination was lost while the super stream grew; look whether it has grown",
                outcome=Outcome.UNKNOWN,
            )
        return record, None

    async def step(self, context: Context, operation: Operation) -> Again | Done:
        """One step of a growth that has begun."""
        growths = context.counts.growths
        growths.note(operation.operation_id, operation.created_at, context.elapsed())
        if await self._go_on(operation):
            growths.end(operation.operation_id)
            return Done({"super_id": operation.arguments["super_id"]})
        return Again({"phase": "telling owners"}, context.clock() + _ASK_AGAIN_MS)

    async def _go_on(self, operation: Operation) -> bool:
        """Do what can be done now; whether it is all done. The same again is right."""
        arguments = operation.arguments
        super_id, layout = SuperId(str(arguments["super_id"])), int(arguments["layout"])
        generation = int(arguments["generation"])
        places = tuple(Partition(*one) for one in arguments["partitions"])
        try:
            record = await self._supers.supers.load(super_id)
        except NotFound:
            return await self._give_up(places)
        if record.generation != generation:
            # Lost with its coordination; what grows now is another growth.
            return True
        if record.state is SuperState.GROWING and record.layouts[-1].version == layout:
            if not await self._all_told(record):
                return False
            await reach("manifest.super-growth.after-owners")
            try:
                record = await self._end(super_id, layout, places, generation)
            except CoordinationUnknown:
                record = await self._end(super_id, layout, places, generation)
            log.info("a super stream has grown", super_id=super_id, count=len(record.partitions))
            await reach("manifest.super-growth.after-second-exec")
        if record.state is SuperState.DELETING:
            named = {one.stream_id for one in record.partitions}
            # Those that it names go by its own deletion.
            return await self._give_up([one for one in places if one.stream_id not in named])
        record = await self._supers.objects.ensure(record, committed=True)
        await self._replan(record)
        return True

    async def _give_up(self, places: Sequence[Partition]) -> bool:
        """Delete new partitions of a super stream that was deleted while it grew; whether no record of
        them is active any more."""
        done = True
        for place in places:
            try:
                stream = await self._context.streams.load(place.stream_id)
                if stream.state is StreamState.ACTIVE:
                    await self._deletions.begin_partition(stream)
            except NotFound:
                continue
            except Corrupt as error:
                log.warning("a partition cannot be read", stream=place.name, error=str(error))
                done = False
        return done

    async def _end(
        self, super_id: SuperId, layout: int, places: tuple[Partition, ...], generation: int
    ) -> SuperRecord:
        """The second EXEC."""
        now = self._context.clock()

        def decide(record: SuperRecord) -> SuperRecord:
            if record.state is not SuperState.GROWING or record.layouts[-1].version != layout:
                # The attempt whose reply was lost did arrive, or somebody else's.
                return record
            if record.generation != generation:
                # Another growth, of after a rebuild: its partitions are others.
                return record
            partitions = (*record.partitions, *places)
            created_at = max(now, record.layouts[-1].created_at)
            return replace(
                record,
                state=SuperState.ACTIVE,
                partitions=partitions,
                layouts=(*record.layouts, Layout(layout + 1, len(partitions), created_at)),
                registry_version=record.registry_version + 1,
            )

        return await self._supers.supers.update(super_id, decide)

    @guard("owners that have heard of a growth before it is done")
    async def _all_told(self, record: SuperRecord) -> bool:
        """Whether no part of the layout that there is can be stored any more."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def told(place: Partition) -> bool:
            async with room:
                return await self._told(place, record.layouts[-1].version + 1)

        # All of them, though one says no: the next try finds most of them told.
        answers = await asyncio.gather(*(told(one) for one in record.partitions))
        waited = [
            one.name for one, heard in zip(record.partitions, answers, strict=True) if not heard
        ]
        if waited:
            log.warning("a growth waits for owners", partition=waited[0], count=len(waited))
        return not waited

    async def _told(self, place: Partition, layout: int) -> bool:
        try:
            stream = await self._context.streams.load(place.stream_id)
        except NotFound:
            return True
        if stream.home is None or stream.owner_url is None:
            # Whoever claims it from now on reads the super record after that.
            return True
        owners, at = self._context.owners, NodeAt(stream.home, stream.owner_url)
        if await owners.fence_layouts(at, place.stream_id, layout, _ASK_SECONDS):
            return True
        return await self._is_over(stream)

    async def _is_over(self, stream: StreamRecord) -> bool:
        """Whether the lease of an owner that does not answer is over: it acknowledges nothing then,
        since coordination keeps a lease for longer than its holder believes in it."""
        assert stream.home is not None
        try:
            return await self._context.coordination.get(node_key(stream.home)) is None
        except StoreError:
            return False
