"""Rebuild coordination from the bucket alone, after it was lost or went back.

Allowed only while coordination does not have the bucket's generation: the service is then
`regressed` and serves nothing else (`regression.py`). In this order, as an operation:

1. Every stream's registry object is looked at (`bucket_streams.py`). If a later release has put
   one, the operation fails, and nothing was changed: a later release may rebuild at once. Then what
   an older coordination store still says is discarded: records, names, consumers' offsets, API
   keys, queues. A crash here leaves less of it; the same step goes on.
2. API keys come back, some at a time (`keys/key_rebuild.py`), then homes of queues, where the bucket
   has any (`queue_homes/home_rebuild.py`).
3. The streams come back one by one (`rebuilt_streams.py`). After a crash each of the step that was
   under way is brought back once more. A stream that needs a drive which is away waits
   (`waiting_streams.py`), and the others go on.
4. Where leaderless streams are served, what WAL objects say was looked at before, and instances of
   their writers are entered now (`rebuilt_wal.py`).
5. The bucket's generation is raised, then coordination's. After a crash between the two both
   still differ, and nobody can tell whose generation that of the bucket is: the operation fails,
   and a rebuild that is asked for anew begins with it. Every stream has a root of it by then.

Before the last EXEC nothing is served and no stream can be claimed, since its record is of a
generation that coordination does not show; so all of it may be done again from the beginning,
as often as it takes.

One rule keeps attempts apart: *nothing of a generation counts before bucket and coordination
agree on it.* A rebuild to N
- reads only what is below N, in the bucket, and gives versions and numbers that begin anew in N,
  whatever a process of before the loss puts there meanwhile;
- writes into coordination only while that does not have the bucket's generation, and the
  operation is there as the step found it; and puts nothing into the bucket that it decided from
  a listing of later than that (`stores/rebuild_step.py`);
- goes on only while the bucket shows N - 1.

So who was paused for longer than its lease of the operation, and wakes up beside the next process
or after it, writes nothing, and at most leaves a root or an object of a key that is not above
what counts. Where Valkey's own data comes back instead, all of N is passed over, and garbage
collection takes the roots away. Where the data of a Valkey comes back in which a rebuild to N was
under way, and N came without it, that operation fails at its next step.

There is one operation for each generation, since its id is made of it: of two that ask at once
both are told the same one. It lives in coordination: lost once more, it is asked for once more.
One that failed is taken up anew from the beginning when it is asked for.

Two releases may run side by side, and either may do a step. One that meets what only the later one
can read, or a phase that it does not know, does nothing and is left to others.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog

from bottomless.drives.base import DriveRefused, DriveUnavailable
from bottomless.errors import Code, Corrupt, Exists, NotFound, NotServed, Unavailable
from bottomless.formats.stream_record import LEADERLESS
from bottomless.guards import guard
from bottomless_server.coordination.base import Due, Values
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.keys.key_rebuild import restore_keys
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done, Failed
from bottomless_server.manifest.queue_homes.home_rebuild import restore_homes
from bottomless_server.manifest.recovery.bucket_streams import (
    StreamPrefix,
    look_at_some,
    next_prefix,
)
from bottomless_server.manifest.recovery.discarding import discard_some
from bottomless_server.manifest.recovery.rebuilt_streams import RebuiltStreams
from bottomless_server.manifest.recovery.rebuilt_wal import RebuiltWal
from bottomless_server.manifest.recovery.waiting_streams import (
    LOOK_AGAIN_MS,
    put_off,
    waiting,
    waits_for,
)
from bottomless_server.manifest.recovery.waiting_streams import restored as restored_now
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.generation import (
    held_generation,
    is_regressed,
    raise_generation,
    stored_generation,
)
from bottomless_server.stores.operations import (
    OPERATIONS_KEY,
    Operation,
    OperationStore,
    new_operation,
)
from bottomless_server.stores.rebuild_step import RebuildStep, is_intact
from bottomless_server.stores.streams import GENERATION_KEY

log = structlog.get_logger(__name__)

KIND: Final = "rebuild"

_STREAM_COUNT: Final = 16
"""Streams of one step."""
_PAGE_COUNT: Final = 500
_NAMED_COUNT_MAX: Final = 100
"""Streams that a result names; it counts all of them."""
_FOREVER: Final = 2**52
_LAST_PHASE: Final = "generation"
_COUNTS: Final = (
    "keys",
    "unreadable_keys",
    "queue_homes",
    "unreadable_queue_homes",
    "streams",
    "deleted_streams",
    "super_streams",
    "deleted_super_streams",
    "unreadable_super_streams",
    "adopted_fragments",
    "unreadable_streams",
    "damaged_streams",
    "damaged_configurations",
    "unknown",
)
_NOT_WHOLE: Final = (
    "unreadable_streams",
    "damaged_streams",
    "unreadable_super_streams",
    "unknown",
)
_LISTS: Final = ("unreadable", "damaged", "without_retention", "unknown_prefixes")


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
        self._wal = RebuiltWal(context)
        self._streams = RebuiltStreams(context, operations, self._wal)
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
        generation = stored + 1
        for due in await context.coordination.due(OPERATIONS_KEY, _FOREVER, _PAGE_COUNT):
            operation = await self._found(due)
            if operation is not None and _goes_on(operation, generation):
                return operation
        operation = new_operation(
            f"{generation:032x}",
            KIND,
            context.clock(),
            tenant=tenant,
            arguments={"generation": generation},
        )

        def require(found: Values) -> None:
            if is_intact(found[GENERATION_KEY], stored):
                raise coordination_intact()

        store = OperationStore(context.coordination)
        operation = await store.enter_once(operation, [GENERATION_KEY], require)
        log.critical("coordination is rebuilt from the bucket", generation=generation)
        self._operations.wake()
        return operation

    async def _found(self, due: Due) -> Operation | None:
        try:
            return await self._operations.find(due.member.decode("ascii"))
        except (NotFound, Corrupt):
            # What cannot be read is forgotten with everything else.
            return None

    async def step(self, context: Context, operation: Operation) -> Again | Done | Failed:
        """One step of a rebuild that has begun."""
        step = RebuildStep(int(operation.arguments["generation"]), operation)
        progress: dict[str, Any] = {"phase": "discarding", **operation.progress}
        stored = await stored_generation(context.drive)
        if stored is None:
            raise Unavailable("the bucket shows no generation")
        if not is_where_it_began(step, stored):
            return await self._ended(step, stored, progress)
        match progress["phase"]:
            case "discarding":
                # No phase of its own: the release before would take it for the last one.
                try:
                    more = await look_at_some(context.drive, context.served, progress)
                except NotServed as error:
                    return Failed(error)
                if not more and not await discard_some(context, step, progress):
                    progress["phase"] = "keys"
            case "keys":
                await self._restore_keys(progress, step)
            case "queue-homes":
                await self._restore_homes(progress, step)
            case "wal":
                if due_at := await self._wal.due_at(step):
                    return Again(progress, due_at)
                await self._wal.look(step)
                progress["phase"] = "streams"
            case "streams":
                return await self._restore_some(progress, step)
            case "instances":
                whole = not any(progress.get(name) for name in _NOT_WHOLE)
                progress["_wal"] = await self._wal.restore_instances(step, whole=whole)
                progress["phase"] = _LAST_PHASE
            case "generation":
                await reach("manifest.rebuild.before-generation")
                await raise_generation(context.drive, context.coordination, step)
                await reach("manifest.rebuild.after-generation")
                return _done(step, progress)
            case _:
                raise NotServed("the rebuild is in a phase that this release does not know")
        return Again(progress)

    async def _ended(
        self, step: RebuildStep, stored: int, progress: dict[str, Any]
    ) -> Done | Failed:
        """What became of a rebuild whose generation the bucket shows, or a later one."""
        held = await held_generation(self._context.coordination)
        if progress["phase"] == _LAST_PHASE and held == stored == step.generation:
            # Only its end was not noted.
            return _done(step, progress)
        return Failed(
            Unavailable(
                "the bucket has the generation of this rebuild, or a later one; ask for another rebuild",
                code=Code.COORDINATION_REGRESSED,
                retryable=False,
            )
        )

    async def _restore_keys(self, progress: dict[str, Any], step: RebuildStep) -> None:
        restored = await restore_keys(self._context, progress.get("_after_key", ""), step)
        _add(progress, {"keys": restored.keys, "unreadable_keys": restored.unreadable_keys})
        progress["_after_key"] = restored.after
        if not restored.after:
            await self._restore_homes(progress, step)

    async def _restore_homes(self, progress: dict[str, Any], step: RebuildStep) -> None:
        restored = await restore_homes(self._context, progress.get("_after_home", ""), step)
        seen = {
            "queue_homes": restored.homes,
            "unreadable_queue_homes": restored.unreadable_homes,
        }
        _add(progress, seen)
        progress["_after_home"] = restored.after
        # No phase of its own where there is nothing to look at: an older release knows none.
        if restored.after:
            progress["phase"] = "queue-homes"
        else:
            leaderless = LEADERLESS in self._context.served
            progress["phase"] = "wal" if leaderless else "streams"

    async def _restore_some(self, progress: dict[str, Any], step: RebuildStep) -> Again:
        for _ in range(self._stream_count):
            prefix = await next_prefix(self._context.drive, progress.get("_after", ""))
            if prefix is None:
                return await self._restore_waiting(progress, step)
            await self._restore_now(prefix, progress, step)
            progress["_after"] = prefix.end
        return Again(progress)

    async def _restore_waiting(self, progress: dict[str, Any], step: RebuildStep) -> Again:
        """Try once more what had to wait; after the last one the phase ends."""
        before = waiting(progress)[: self._stream_count]
        for prefix in before:
            await self._restore_now(prefix, progress, step)
        after = waiting(progress)
        if before and set(before) <= set(after):
            return Again(progress, self._context.clock() + LOOK_AGAIN_MS, waits_for(progress))
        if not after:
            leaderless = LEADERLESS in self._context.served
            progress["phase"] = "instances" if leaderless else _LAST_PHASE
        return Again(progress)

    async def _restore_now(
        self, prefix: StreamPrefix, progress: dict[str, Any], step: RebuildStep
    ) -> None:
        """Restore a stream, or note that it has to wait for a store."""
        try:
            seen = await self._streams.restore(prefix, step)
        except (DriveUnavailable, DriveRefused) as error:
            # Where drive 0 does not answer, none of them can be restored.
            await stored_generation(self._context.drive)
            log.warning("a stream waits", prefix=str(prefix), error=str(error))
            put_off(progress, prefix, error)
            return
        await reach("manifest.rebuild.after-stream")
        restored_now(progress, prefix)
        _add(progress, seen)


def _goes_on(operation: Operation, generation: int) -> bool:
    """Whether it is a rebuild to a generation that is not finished; the release before gave its
    operations other ids."""
    mine = operation.kind == KIND and operation.arguments.get("generation") == generation
    return mine and not operation.finished


@guard("the bucket's generation, at each step of a rebuild")
def is_where_it_began(step: RebuildStep, stored: int) -> bool:
    """Whether the bucket has the generation that this rebuild began with."""
    return stored == step.generation - 1


def _done(step: RebuildStep, progress: Mapping[str, Any]) -> Done:
    log.critical("coordination is rebuilt", generation=step.generation)
    return Done({"generation": step.generation, **_shown(progress)})


def _add(progress: dict[str, Any], seen: Mapping[str, Any]) -> None:
    for name, value in seen.items():
        if isinstance(value, list):
            progress[name] = [*progress.get(name, []), *value][:_NAMED_COUNT_MAX]
        else:
            progress[name] = progress.get(name, 0) + value


def _shown(progress: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: progress.get(name, 0) for name in _COUNTS}
    lists = {name: progress.get(name, []) for name in _LISTS}
    return {**counts, **lists, **progress.get("_wal", {})}


def coordination_intact() -> Exists:
    return Exists(
        "coordination is the one that belongs to the bucket, or is newer",
        code=Code.COORDINATION_INTACT,
    )
