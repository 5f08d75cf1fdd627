"""Delete a super stream: tombstone, then each partition as a stream, then what was said of the whole.

What is there after a crash at each step; the operation goes on with the next one:

1. One EXEC writes the tombstone (state deleting), frees the super stream's name and enters the
   operation. Before it, nothing; after it nobody finds the super stream, and its partitions are still
   streams under their own names.
2. The super object with the tombstone is put. A crash before it: the bucket says that the super stream
   is active, and a rebuild would bring it back whole, since nothing of it is deleted yet. The operation
   puts it before anything else.
3. Each partition is deleted as a stream, by an operation of its own (`deletion.py`). A crash in
   between leaves partitions that are still there: whoever goes on begins with those. Only when all
   of them have stopped is the 202 sent.
4. When all of their records are gone, the consumer groups of the super stream go, then its objects, the
   tombstone last, then its record. A crash between the last two leaves a record that says deleting.

One that grows is deleted too: the operation of its growth finds the tombstone, and deletes the partitions
that it was to get (`super_growth.py`).

Step 4 waits until all partitions are gone: that takes as long as the deletion of any stream does, and
`waits_until` of the operation says until when it takes at least. Then it is looked at soon, and ever more
rarely.

A partition whose record cannot be read stops no other; it is deleted when it can be read again, and until
then the operation waits.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import structlog

from bottomless.errors import Code, Corrupt, NotFound, Outcome, Unavailable
from bottomless.formats.keys import parse_super_key, super_prefix
from bottomless.model.names import FullName, SuperId
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.super_stream import Partition, SuperRecord, SuperState
from bottomless_server.coordination.base import CoordinationUnknown
from bottomless_server.core.not_found import super_not_found
from bottomless_server.core.preconditions import require_match
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.once_more import once_more
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.registry.super_description import super_etag
from bottomless_server.manifest.streams.deletion import Deletions
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.forgetting import FOR_GOOD
from bottomless_server.stores.groups import ConsumerGroups
from bottomless_server.stores.operations import Operation, entered

log = structlog.get_logger(__name__)

KIND: Final = "delete-super-stream"

_AT_ONCE: Final = 16
"""Partitions whose deletions are begun side by side: each waits for the owner of its tail."""
_PAGE_COUNT: Final = 16
"""Partitions of one step."""
_READ_COUNT: Final = 100
_LOOK_AGAIN_MS: Final = 250
_LOOK_AGAIN_MS_MAX: Final = 5_000
_WAIT_MS_MAX: Final = 60_000
"""Not for all of a grace at once: leases end early, and settings change."""
_LOOKS: Final = "_looks"
"""How often somebody looked whether the partitions are gone, since they may be."""


class _Left(NamedTuple):
    """Partitions that still have a record, and the time (ms) before which some of them keep it."""

    partitions: int
    waits_until: int


class SuperDeletions:
    """Begins deletions of super streams and carries them out; registered with `Operations`."""

    def __init__(
        self, context: Context, registry: Registry, deletions: Deletions, operations: Operations
    ) -> None:
        self._context = context
        self._supers = registry.supers
        self._deletions = deletions
        self._operations = operations
        operations.register(KIND, self.step, endless=True)

    async def begin(self, name: FullName, if_match: str | None) -> Operation:
        """Write the tombstone, and delete all partitions as far as that does not wait for long.

        Raises:
            NotFound: there is no such super stream.
            WrongOffset: `etag-mismatch`.
            Overloaded: too many operations are under way.
            Unavailable: with outcome committed where it is deleted, but not all owners of partitions
                confirmed that they stopped, or the tombstone is not in the bucket yet.
        """
        await self._operations.make_room()
        super_id = await self._supers.supers.find(name)
        operation = self._operations.new(
            KIND, tenant=name.tenant, arguments={"name": name.name, "super_id": super_id}
        )
        record = await self._bury(super_id, if_match, operation)
        await reach("manifest.super-deletion.after-exec")
        log.info("a super stream is deleted", super_id=super_id, operation=operation.operation_id)
        record = await self._supers.objects.ensure(record, committed=True)
        await reach("manifest.super-deletion.after-object")
        self._operations.wake()
        await self._end_all(record, operation)
        return operation

    async def _bury(
        self, super_id: SuperId, if_match: str | None, operation: Operation
    ) -> SuperRecord:
        def decide(record: SuperRecord) -> SuperRecord:
            if record.state is SuperState.DELETING:
                raise super_not_found()
            require_match(if_match, super_etag(record))
            return replace(
                record,
                state=SuperState.DELETING,
                registry_version=record.registry_version + 1,
            )

        also, supers = entered(operation, operation.created_at), self._supers.supers
        try:
            return await supers.bury(super_id, decide, also)
        except CoordinationUnknown as lost:
            try:
                return await once_more(lost, supers.bury(super_id, decide, also))
            except NotFound:
                # Ours, if the first attempt did arrive: then our operation is there too.
                await once_more(lost, self._operations.find(operation.operation_id))
                return await once_more(lost, supers.load(super_id))

    async def _end_all(self, record: SuperRecord, operation: Operation) -> None:
        """Delete all partitions side by side, and wait until their owners have stopped."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def end(place: Partition) -> None:
            async with room:
                await self._end(place)

        seconds = self._context.settings.manifest_close_ms / 1000
        tasks = [asyncio.create_task(end(one)) for one in record.partitions]
        try:
            # The operation does what is left, so what ends here in the middle ends there.
            done, left = await asyncio.wait(tasks, timeout=max(seconds, 0.001))
        finally:
            await end_tasks(*tasks)
        failed = [error for task in done if (error := task.exception()) is not None]
        if left or failed:
            raise Unavailable(
                "the super stream is deleted, but not all owners of partitions confirmed that they"
                " stopped",
                code=Code.PEER_UNAVAILABLE,
                retryable=False,
                outcome=Outcome.COMMITTED,
                facts={"operation_id": operation.operation_id},
            ) from next(iter(failed), None)

    async def _end(self, place: Partition) -> None:
        try:
            await self._end_stream(await self._context.streams.load(place.stream_id))
        except NotFound:
            # Somebody else did it.
            return
        await reach("manifest.super-deletion.after-partition")

    async def _end_stream(self, stream: StreamRecord) -> None:
        if stream.state is StreamState.ACTIVE:
            await self._deletions.begin_partition(stream)

    async def step(self, context: Context, operation: Operation) -> Again | Done:
        """One step of a deletion that has begun."""
        super_id = SuperId(str(operation.arguments["super_id"]))
        progress = operation.progress
        try:
            record = await self._supers.supers.load(super_id)
        except NotFound:
            # Forgotten by the last step, which was not written down.
            return Done(_told(super_id, progress))
        phase, begun = progress.get("phase", "partitions"), int(progress.get("partitions", 0))
        if phase == "partitions":
            await self._supers.objects.ensure(record)
            page = record.partitions[begun : begun + _PAGE_COUNT]
            for place in page:
                try:
                    await self._end(place)
                except Corrupt as error:
                    log.warning("a partition cannot be read", stream=place.name, error=str(error))
            begun += len(page)
            more = begun < len(record.partitions)
            return Again({"phase": phase if more else "waiting", "partitions": begun})
        left = await self._left(record, operation.created_at)
        if left.partitions:
            told = {"partitions": begun, "partitions_left": left.partitions}
            return _look_again(left, told, int(progress.get(_LOOKS, 0)), context.clock())
        return await self._forget(record, {"partitions": begun})

    async def _left(self, record: SuperRecord, deleted_at: int) -> _Left:
        """What is left of the partitions; those that could not be read before are deleted."""
        stream_ids = [one.stream_id for one in record.partitions]
        count = waits_until = 0
        for start in range(0, len(stream_ids), _READ_COUNT):
            page = await self._context.streams.load_many(stream_ids[start : start + _READ_COUNT])
            for stream in page.records:
                with suppress(NotFound):
                    await self._end_stream(stream)
                waits_until = max(waits_until, self._deletions.done_at(stream, deleted_at))
            count += len(page.records) + len(page.unreadable)
        return _Left(count, waits_until)

    async def _forget(self, record: SuperRecord, progress: dict[str, Any]) -> Done:
        await ConsumerGroups(self._context.coordination).forget(record.super_id, FOR_GOOD)
        prefix = super_prefix(record.super_id, record.tenant)
        keys = [facts.object_key async for facts in self._context.drive.list(prefix)]
        last = [key for key in keys if parse_super_key(key) == record.registry_version]
        await self._delete([key for key in keys if key not in last])
        await self._delete(last)
        await self._context.drive.tidy(prefix)
        await reach("manifest.super-deletion.before-forget")
        await self._supers.supers.forget(record)
        log.info("a deleted super stream is gone", super_id=record.super_id)
        return Done(_told(record.super_id, progress))

    async def _delete(self, object_keys: Sequence[str]) -> None:
        failed = await self._context.drive.delete(object_keys) if object_keys else {}
        for error in failed.values():
            raise error


def _look_again(left: _Left, told: dict[str, Any], looks: int, now: int) -> Again:
    """Look again when the last partition may be gone; from then on soon, and ever more rarely."""
    rest = left.waits_until - now
    if rest > 0:
        shown = {"phase": "waiting", "waits_until": format_timestamp(left.waits_until), **told}
        return Again(shown, now + min(rest, _WAIT_MS_MAX))
    delay_ms = min(_LOOK_AGAIN_MS << min(looks, 10), _LOOK_AGAIN_MS_MAX)
    return Again({"phase": "sweeping", **told, _LOOKS: looks + 1}, now + delay_ms)


def _told(super_id: SuperId, progress: Any) -> dict[str, Any]:
    return {"super_id": super_id, "partitions": int(progress.get("partitions", 0))}
