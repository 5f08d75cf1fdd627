"""Rebuild coordination from the bucket alone, after it was lost or went back.

Allowed only while coordination does not have the bucket's generation: the service is then
`regressed` and serves nothing else (`regression.py`). In this order, as an operation:

1. What an older coordination store still says is discarded: records, names, consumers' offsets,
   API keys, queues. A crash here leaves less of it; the same step goes on.
2. API keys come back, some at a time (`keys/key_rebuild.py`).
3. Stream by stream: a root of the next generation is put (`rebuild_stream.py`), then one EXEC writes
   the record, its names and indexes, the offsets of its consumers, and what is to be deleted. After a
   crash between the two that root is an object which nobody names: the step puts another one,
   and the stray goes into the delete queue with it. After a crash that follows the EXEC the stream is written once more.
4. The bucket's generation is raised, then coordination's. After a crash between the two both
   still differ: the step is done again, and a rebuild that begins anew takes the generation
   that the bucket shows, of which every stream has a root by then.

Before the last EXEC nothing is served and no stream can be claimed, since its record is of a
generation that coordination does not show; so all of it may be done again from the beginning,
as often as it takes. Each EXEC refuses to write where a rebuild has finished meanwhile, and none
discards what the same rebuild has restored: a process that was paused for longer than its lease of
the operation wakes up beside the next one, and does what it was about to do. The operation itself lives in coordination: lost once more, it is asked for once more.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import structlog

from bottomless.errors import Code, Corrupt, Exists, InvalidRequest, NotFound, Unavailable
from bottomless.formats.keys import registry_key, stream_prefix
from bottomless.model.names import StreamId, parse_stream_id
from bottomless.model.stream import StreamRecord, StreamState, unknown_epoch
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.keys.key_rebuild import QUEUES as KEY_QUEUES
from bottomless_server.manifest.keys.key_rebuild import discard_keys, restore_keys
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done
from bottomless_server.manifest.recovery.rebuild_stream import (
    find_consumers,
    find_registry,
    rebuild_stream,
)
from bottomless_server.manifest.streams.deletion import KIND as DELETION
from bottomless_server.manifest.tree.core.rebuild_decision import record_before
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.consumers import SNAPSHOTS_KEY, ConsumerOffsets, restored
from bottomless_server.stores.generation import is_regressed, raise_generation
from bottomless_server.stores.operations import OPERATIONS_KEY, Operation, OperationStore, entered
from bottomless_server.stores.restored_streams import discard_stream, restore_stream
from bottomless_server.stores.streams import (
    DELETES_KEY,
    FAILING_DELETES_KEY,
    STREAMS_KEY,
    delete_later,
)

log = structlog.get_logger(__name__)

KIND: Final = "rebuild"

_STREAM_COUNT: Final = 16
"""Streams of one step."""
_PAGE_COUNT: Final = 500
_NAMED_COUNT_MAX: Final = 100
"""Streams that a result names; it counts all of them."""
_FOREVER: Final = 2**52
_COUNTS: Final = (
    "keys",
    "unreadable_keys",
    "streams",
    "deleted_streams",
    "adopted_fragments",
    "unreadable_streams",
    "damaged_streams",
    "damaged_configurations",
    "unknown",
)
_LISTS: Final = ("unreadable", "damaged", "without_retention", "unknown_prefixes")


class _Prefix(NamedTuple):
    tenant: str
    stream_id: StreamId

    def __str__(self) -> str:
        return stream_prefix(self.stream_id, self.tenant)


class Rebuild:
    """Begins a rebuild and carries it out; registered with `Operations`."""

    def __init__(
        self,
        context: Context,
        operations: Operations,
        notice: Callable[[], Awaitable[None]],
        *,
        stream_count: int = _STREAM_COUNT,
    ) -> None:
        """`notice` stops everything that coordination is not to be believed for."""
        self._context = context
        self._operations = operations
        self._notice = notice
        self._stream_count = stream_count
        operations.register(KIND, self.step, endless=True)

    async def begin(self, tenant: str) -> Operation:
        """Enter a rebuild, or find the one that is under way.

        Raises:
            Exists: `coordination-intact`.
            Unavailable
        """
        context = self._context
        stored = await is_regressed(context.drive, context.coordination)
        if stored is None:
            raise coordination_intact()
        await self._notice()
        for due in await context.coordination.due(OPERATIONS_KEY, _FOREVER, _PAGE_COUNT):
            operation = await self._found(due)
            if operation is not None and operation.kind == KIND and not operation.finished:
                return operation
        operation = self._operations.new(KIND, tenant=tenant, arguments={"generation": stored + 1})
        await OperationStore(context.coordination).enter(operation)
        log.critical("coordination is rebuilt from the bucket", generation=stored + 1)
        self._operations.wake()
        return operation

    async def _found(self, due: Due) -> Operation | None:
        try:
            return await self._operations.find(due.member.decode("ascii"))
        except (NotFound, Corrupt):
            # What cannot be read is forgotten with everything else.
            return None

    async def step(self, context: Context, operation: Operation) -> Again | Done:
        """One step of a rebuild that has begun."""
        generation = int(operation.arguments["generation"])
        progress: dict[str, Any] = {"phase": "discarding", **operation.progress}
        match progress["phase"]:
            case "discarding":
                if not await self._discard(operation, generation, progress):
                    progress["phase"] = "keys"
            case "keys":
                await self._restore_keys(progress, generation)
            case "streams":
                await self._restore_some(progress, generation)
            case _:
                await reach("manifest.rebuild.before-generation")
                await raise_generation(context.drive, context.coordination, generation)
                await reach("manifest.rebuild.after-generation")
                log.critical("coordination is rebuilt", generation=generation)
                return Done({"generation": generation, **_shown(progress)})
        return Again(progress)

    async def _discard(
        self, operation: Operation, generation: int, progress: dict[str, Any]
    ) -> bool:
        """Forget one page of what an older coordination says; whether there may be more."""
        coordination = self._context.coordination
        after = str(progress.get("_after_discarded", "")).encode("ascii")
        members = await coordination.members(STREAMS_KEY, after, _PAGE_COUNT)
        for member in members:
            stream_id = StreamId(member.decode("ascii"))
            await ConsumerOffsets(coordination).discard(stream_id, generation)
            await discard_stream(coordination, stream_id, generation)
            progress["_after_discarded"] = stream_id
        # What is restored already stays, so each page begins after the last one, or it would not end.
        last = await discard_keys(
            self._context, str(progress.get("_after_discarded_key", "")), generation
        )
        progress["_after_discarded_key"] = last or progress.get("_after_discarded_key", "")
        more = False
        if members or last:
            return True
        for queue in (DELETES_KEY, FAILING_DELETES_KEY, SNAPSHOTS_KEY, *KEY_QUEUES):
            dues = await coordination.due(queue, _FOREVER, _PAGE_COUNT)
            await coordination.settle(dues)
            more = more or bool(dues)
        mine = operation.operation_id.encode("ascii")
        for due in await coordination.due(OPERATIONS_KEY, _FOREVER, _PAGE_COUNT):
            if due.member != mine:
                await OperationStore(coordination).forget(due)
                more = True
        return more

    async def _restore_keys(self, progress: dict[str, Any], generation: int) -> None:
        restored = await restore_keys(self._context, progress.get("_after_key", ""), generation)
        _add(progress, {"keys": restored.keys, "unreadable_keys": restored.unreadable_keys})
        progress["_after_key"] = restored.after
        if not restored.after:
            progress["phase"] = "streams"

    async def _restore_some(self, progress: dict[str, Any], generation: int) -> None:
        for _ in range(self._stream_count):
            prefix = await self._next_prefix(progress.get("_after", ""))
            if prefix is None:
                progress["phase"] = "generation"
                return
            _add(progress, await self._restore(prefix, generation))
            await reach("manifest.rebuild.after-stream")
            # "0" is the byte after "/".
            progress["_after"] = str(prefix)[:-1] + "0"

    async def _next_prefix(self, after: str) -> _Prefix | None:
        async for facts in self._context.drive.list("", after):
            tenant, _, rest = facts.object_key.partition("/")
            try:
                return _Prefix(tenant, parse_stream_id(rest.partition("/")[0]))
            except InvalidRequest:
                # Not a stream's: the generation, and what is nobody's.
                continue
        return None

    async def _restore(self, prefix: _Prefix, generation: int) -> Mapping[str, Any]:
        """Bring back what is below one prefix; what there is to say of it."""
        found_registry = await find_registry(self._context.drive, str(prefix))
        if found_registry is None:
            log.error("objects of no known stream", prefix=str(prefix))
            return {"unknown": 1, "unknown_prefixes": [str(prefix)]}
        registry = found_registry.record
        if registry.state is StreamState.DELETING:
            await self._restore_tombstone(registry, generation)
            return {"deleted_streams": 1}
        rebuilt = await rebuild_stream(self._context, registry, generation)
        due_at = self._context.time.latest() + self._context.settings.manifest_upload_deadline_ms
        queued = [delete_later(object_key, due_at) for object_key in rebuilt.to_delete]
        also = Changes(queued=queued[:_PAGE_COUNT])
        found = await find_consumers(self._context.drive, registry)
        if found is not None:
            also |= restored(*found)
        if not await self._restore_active(rebuilt.record, also):
            return {"deleted_streams": 1}
        # A crash before these leaves objects that nobody names to garbage collection.
        await self._queue(rebuilt.record, queued[_PAGE_COUNT:])
        seen: dict[str, Any] = {"streams": 1, "adopted_fragments": rebuilt.fragment_count}
        if not rebuilt.readable:
            seen |= {"unreadable_streams": 1, "unreadable": [registry.name]}
        if found_registry.damaged:
            seen |= {"damaged_configurations": 1, "without_retention": [registry.name]}
        if rebuilt.damaged:
            seen |= {"damaged_streams": 1, "damaged": [registry.name]}
        return seen

    async def _restore_active(self, record: StreamRecord, also: Changes) -> bool:
        """Write a stream's record; False if its name is a younger stream's, so that it is deleted.

        A name is given away only after a deletion; the older stream's tombstone was lost.
        """
        coordination, streams = self._context.coordination, self._context.streams
        other = await restore_stream(coordination, record, also)
        if other is None:
            return True
        if other > record.stream_id:
            await self._restore_tombstone(_buried(record), record.generation)
            return False
        older = await streams.load(other)
        if older.epoch != unknown_epoch(record.generation):
            raise Unavailable("the stream has an owner already")
        await self._bury(older)
        if await restore_stream(coordination, record, also) is not None:
            raise Unavailable("the name keeps changing")
        return True

    async def _bury(self, record: StreamRecord) -> None:
        deletion = self._deletion(record)
        await self._context.streams.bury(
            record.stream_id, record.full_name, _buried, entered(deletion, deletion.created_at)
        )

    async def _restore_tombstone(self, registry: StreamRecord, generation: int) -> None:
        """A stream that was deleted stays so, and its sweep goes on."""
        record = registry
        if registry.generation != generation or registry.epoch != unknown_epoch(generation):
            record = record_before(registry, None, 0, generation)
        deletion = self._deletion(record)
        also = entered(deletion, deletion.created_at)
        await restore_stream(self._context.coordination, record, also)

    def _deletion(self, record: StreamRecord) -> Operation:
        # Readers of before the loss have the whole grace again.
        arguments = {"name": record.name, "deleted_at": self._context.time.latest()}
        return self._operations.new(
            DELETION, tenant=record.tenant, stream_id=record.stream_id, arguments=arguments
        )

    async def _queue(self, record: StreamRecord, queued: list[Due]) -> None:
        key = registry_key(record.stream_id, record.registry_version, record.tenant)
        for start in range(0, len(queued), _PAGE_COUNT):
            page = Changes(queued=queued[start : start + _PAGE_COUNT])
            await self._context.coordination.transact([key], lambda _, page=page: (page, None))  # type: ignore[misc]


def _buried(record: StreamRecord) -> StreamRecord:
    return replace(record, state=StreamState.DELETING, registry_version=record.registry_version + 1)


def _add(progress: dict[str, Any], seen: Mapping[str, Any]) -> None:
    for name, value in seen.items():
        if isinstance(value, list):
            progress[name] = [*progress.get(name, []), *value][:_NAMED_COUNT_MAX]
        else:
            progress[name] = progress.get(name, 0) + value


def _shown(progress: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: progress.get(name, 0) for name in _COUNTS}
    lists = {name: progress.get(name, []) for name in _LISTS}
    return {**counts, **lists}


def coordination_intact() -> Exists:
    return Exists(
        "coordination is the one that belongs to the bucket, or is newer",
        code=Code.COORDINATION_INTACT,
    )
