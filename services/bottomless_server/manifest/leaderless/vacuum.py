"""Delete the WAL objects that nothing needs any more, settle writers that are dead, and put their notes.

Each pass looks at every instance, in the steps that `stores/wal.py`
tells, with what a crash after each of them leaves. Whatever is wrong with one instance, its objects
stay and the others go on.

Only objects that are listed are deleted, since most of what a dead writer had reserved was never put.
One whose put arrives after that is named by nothing, and garbage collection takes it.

In another run of the coordination store nobody is settled for a while. It may be an older copy that was
put back, in which no lease is held, and of what was acknowledged last only a note tells that is on its
way: its objects would seem to be needed by nobody. Another run may begin while a pass is under way, which
deletes for many seconds: so whoever is settled is settled over a connection that was there when the run
was asked for.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

import structlog

from bottomless.errors import Corrupt, StoreError, Unavailable
from bottomless.formats.keys import WAL_PREFIX, parse_wal_key, wal_key
from bottomless.guards import guard
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Coordination
from bottomless_server.leaderless.instance import WalInstance
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.metrics import WalCounts
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.runtime.base.task_groups import task_group
from bottomless_server.stores import wal
from bottomless_server.stores.notes_of_dead import note_for_dead
from bottomless_server.stores.wal_check import Unchecked

log = structlog.get_logger(__name__)

PAGE_COUNT: Final = 1_000
"""Objects of one instance that one pass deletes, one after the other."""
INSTANCES_AT_ONCE: Final = 16
"""Instances that a pass looks at at once: a DELETE takes some ten ms, and each writer puts some objects a
second. Of one instance objects go in order."""
_MEET_COUNT: Final = 4
"""How often the run is asked for again for one writer, since others open connections meanwhile. After
that the writer stays as it is until the next pass."""
_NEVER_MET: Final = -1
"""A count of connections before any run was met."""


class Vacuum:
    def __init__(self, context: Context, *, page_count: int = PAGE_COUNT) -> None:
        self._context = context
        self._page_count = page_count
        self._run_id: str | None = None
        self._settles_from = 0
        """When writers may be settled in the run of the store that was met last, by the time that
        passes (ms)."""
        self._connected = _NEVER_MET
        """The connections to the store that there were when its run was asked for."""
        self._noted: set[Uid] = set()
        """Dead instances of which nothing is left to note; those that are forgotten go."""

    async def meet_run(self) -> None:
        """Take up which run of the coordination store answers, in every process: whichever makes the
        next pass has to know how long that is there.

        Raises:
            CoordinationUnavailable
        """
        context = self._context
        # Before the run is asked for: of what is connected to later nothing is known.
        connected = context.coordination.connected_count
        run = await context.coordination.run()
        if self._run_id != run.run_id:
            # Of the first run that a process meets nobody but the store knows how long it is there.
            up_ms = run.up_ms if self._run_id is None else 0
            wait_ms = context.settings.manifest_rebuild_wal_wait_ms
            self._settles_from = context.elapsed() + wait_ms - up_ms
            self._run_id = run.run_id
        self._connected = connected

    async def make_pass(self) -> int:
        """Look at every instance once; how many objects were deleted.

        Raises:
            Unavailable: the instances are not told now.
        """
        context = self._context
        instances = await wal.load_instances(context.coordination)
        context.counts.wal = count_instances(instances.values())
        self._noted &= instances.keys()
        room, bugs = asyncio.Semaphore(INSTANCES_AT_ONCE), list[Exception]()

        async def reclaim(instance: Uid, record: WalInstance) -> int:
            async with room:
                try:
                    return await self._reclaimed(instance, record)
                except Exception as error:  # noqa: BLE001 raised when the others had their turn
                    bugs.append(error)
                    return 0

        async with task_group() as group:
            reclaims: list[asyncio.Task[int]] = []
            for instance, record in instances.items():
                if isinstance(record, Corrupt):
                    log.error("a WAL instance cannot be read", instance=instance, error=str(record))
                    continue
                reclaims.append(group.create_task(reclaim(instance, record)))
        if bugs:
            raise bugs[0]
        return sum(task.result() for task in reclaims)

    async def _reclaimed(self, instance: Uid, record: WalInstance) -> int:
        try:
            return await self._reclaim(instance, record)
        except StoreError as error:
            log.warning("WAL objects stay for now", instance=instance, error=str(error))
            return 0

    async def _reclaim(self, instance: Uid, record: WalInstance) -> int:
        context, generation = self._context, self._generation
        if not waits_for_writers(context.elapsed(), self._settles_from):
            settled = await self._settled(instance, generation)
            if settled is None:
                return 0
            record = settled
        if record.settled == record.reserved:
            await reach("manifest.vacuum.after-settle")
            if instance not in self._noted:
                await self._note(instance, record)
        found = await wal.deletable(context.drive, context.coordination, instance, generation)
        if not found.sequences:
            if record.deleted == record.reserved:
                # It was noted while the lease of its writer was still there.
                await wal.note_deleted(context.coordination, instance, generation, record.deleted)
            return 0
        if found.keep_until and await context.time.require() < found.keep_until:
            return 0
        there, end = await self._listed(instance, found.sequences)
        await wal.delete_objects(context.drive, instance, there)
        await reach("manifest.vacuum.after-delete")
        context.counts.deleted_wal_objects += len(there)
        await wal.note_deleted(context.coordination, instance, generation, end)
        await reach("manifest.vacuum.after-exec")
        return len(there)

    async def _settled(self, instance: Uid, generation: int) -> WalInstance | None:
        """The record of a writer, settled if that is dead. None if there is none, or if nobody may be
        settled in the run that answers now.

        Raises:
            Unavailable: `coordination-regressed`, or not now.
        """
        context = self._context
        for _ in range(_MEET_COUNT):
            require_run = partial(require_met, context.coordination, self._connected)
            try:
                return await wal.settle(context.coordination, instance, generation, require_run)
            except Unchecked:
                await self.meet_run()
            if waits_for_writers(context.elapsed(), self._settles_from):
                return None
        raise Unavailable("the coordination store is connected to anew all the time")

    async def _note(self, instance: Uid, record: WalInstance) -> None:
        """Note what a dead writer committed, where it could not; what cannot be read stays as it is."""
        context = self._context
        try:
            now = context.clock()
            await note_for_dead(context.drive, context.coordination, instance, record, now)
        except Corrupt:
            log.exception("commits of a dead writer are not noted", instance=instance)
        self._noted.add(instance)

    async def _listed(self, instance: Uid, sequences: range) -> tuple[list[int], int]:
        """The objects that are there, at most a page of them, and the end up to which that is all."""
        after = wal_key(instance, sequences.start - 1) if sequences.start else ""
        there: list[int] = []
        async for facts in self._context.drive.list(f"{WAL_PREFIX}{instance}/", after):
            key = parse_wal_key(facts.object_key)
            if key is None:
                continue
            if key.sequence >= sequences.stop:
                break
            there.append(key.sequence)
            if len(there) == self._page_count:
                return there, key.sequence + 1
        return there, sequences.stop

    @property
    def _generation(self) -> int:
        generation = self._context.streams.generation
        if generation is None:
            raise Unavailable("nobody has found out which generation coordination has to have")
        return generation


@guard("the run of the store in which a writer is settled")
def require_met(coordination: Coordination, connected: int) -> None:
    """Require that all connections to the store were there when its run was asked for; called once the
    values to go by were read, so that the connection they came over is counted.

    Raises:
        Unchecked
    """
    if coordination.connected_count != connected:
        raise Unchecked("the coordination store was connected to anew")


@guard("writers that are heard in a new run before they are settled")
def waits_for_writers(now: int, settles_from: int) -> bool:
    """Tell whether writers may still have to take up their leases again, or to put their notes."""
    return now < settles_from


def count_instances(records: Iterable[WalInstance | Corrupt]) -> WalCounts:
    """Count instances by what has become of them. One that cannot be read is counted as one of all."""
    found = list(records)
    known = [one for one in found if isinstance(one, WalInstance)]
    in_doubt = [one for one in known if one.keep_until]
    dead = [one for one in known if one.settled == one.reserved and not one.keep_until]
    return WalCounts(len(found), len(dead), len(in_doubt))
