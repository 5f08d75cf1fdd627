"""What a rebuild does of WAL objects, beside what it does stream by stream.

Nothing commits to leaderless streams while coordination does not have the bucket's generation, and nodes
that live still put their notes. So the objects are looked at a while after the rebuild has begun
(`wal_scan.py`). What was found is in the memory of one process: another one that goes on looks again.
When all streams have their roots, the instances get records again, all settled and with nothing held:
then the vacuum may delete their objects, and not before. An instance with an object in doubt is kept
for a week, so that an operator can look at it; all of them are, where a stream did not come back whole.
"""

from collections.abc import Mapping
from typing import Any, Final

import structlog

from bottomless.drives.base import Drive
from bottomless.formats.keys import WAL_PREFIX
from bottomless.formats.stream_record import LEADERLESS
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.decided import KnownName, NewKnown
from bottomless_server.leaderless.instance import WalInstance
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.recovery.wal_scan import FoundInstance, FoundWal, scan_wal
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_streams import restore_stream
from bottomless_server.stores.restored_tails import restore, restore_instance

log = structlog.get_logger(__name__)

_KEEP_MS: Final = 7 * 86_400_000
"""How long objects in doubt stay."""
_NAMED_COUNT_MAX: Final = 100
"""Objects that a result names; it counts all of them."""
_NOTHING: Final = FoundWal()


class RebuiltWal:
    """The WAL objects of one bucket, as this process has seen them for one rebuild."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._found: tuple[int, FoundWal] | None = None
        """The generation of the rebuild, and what was found for it."""
        self._waits: tuple[int, int] | None = None
        """The generation, and until when of the time that passes (ms) it waits for notes."""

    async def due_at(self, step: RebuildStep) -> int:
        """When they may be looked at (ms since 1970 by this clock); 0 for at once.

        The wait begins at the first look of this process and goes by the time that passes: by the wall
        clock under which the rebuild was asked for, it might last for days, or be over before a node
        that lives has put its notes. Another process that goes on waits once more.

        Raises:
            DriveUnavailable, DriveRefused
        """
        if not self._served or not await _is_any(self._context.drive):
            return 0
        wait_ms = self._context.settings.manifest_rebuild_wal_wait_ms
        passed = self._context.elapsed()
        if self._waits is None or self._waits[0] != step.generation:
            self._waits = step.generation, passed + wait_ms
        left = self._waits[1] - passed
        return self._context.clock() + left if left > 0 else 0

    async def look(self, step: RebuildStep) -> None:
        """Look at them, also if an attempt of before did: notes may have come since.

        Raises:
            DriveUnavailable, DriveRefused
        """
        self._found = None
        await self.found(step)

    async def found(self, step: RebuildStep) -> FoundWal:
        """What they say; looked at once in each process.

        Raises:
            DriveUnavailable, DriveRefused
        """
        if not self._served:
            return _NOTHING
        if self._found is None or self._found[0] != step.generation:
            read_count = self._context.settings.manifest_rebuild_wal_reads
            found = await scan_wal(self._context.drive, step.generation - 1, read_count)
            log.info(
                "looked at WAL objects",
                instances=len(found.instances),
                streams=len(found.noted),
                in_doubt=len(found.in_doubt),
            )
            self._found = step.generation, found
        return self._found[1]

    async def restore_instances(self, step: RebuildStep, *, whole: bool) -> Mapping[str, Any]:
        """Enter all instances that have objects; what there is to say of them.

        `whole` tells whether every stream was brought back as it was.

        Raises:
            Unavailable: the step is not what goes on; or not now.
            DriveUnavailable, DriveRefused
        """
        found = await self.found(step)
        for instance, seen in found.instances.items():
            # By the latest of all clocks: an operator has at least a week.
            kept = may_be_missed(seen, whole=whole)
            keep_until = self._context.time.latest() + _KEEP_MS if kept else 0
            record = WalInstance(
                url=None,
                generation=step.generation,
                reserved=seen.sequences.stop,
                settled=seen.sequences.stop,
                deleted=seen.sequences.start,
                keep_until=keep_until,
            )
            await restore_instance(self._context.coordination, instance, record, step)
        said: dict[str, Any] = {}
        if found.in_doubt:
            doubts = [one._asdict() for one in found.in_doubt[:_NAMED_COUNT_MAX]]
            said |= {"in_doubt_count": len(found.in_doubt), "in_doubt": doubts}
        if found.unreadable:
            said |= {"unreadable_wal": found.unreadable[:_NAMED_COUNT_MAX]}
        self._found = None
        return said

    @property
    def _served(self) -> bool:
        return LEADERLESS in self._context.served


@guard("WAL objects of what did not come back whole, after a rebuild")
def may_be_missed(seen: FoundInstance, *, whole: bool) -> bool:
    """Whether somebody may want to look at the objects of an instance: what they hold may be nowhere
    else."""
    return seen.in_doubt or not whole


async def _is_any(drive: Drive) -> bool:
    async for _ in drive.list(WAL_PREFIX):
        return True
    return False


async def restore_record(
    context: Context,
    record: StreamRecord,
    known: Mapping[KnownName, NewKnown],
    also: Changes,
    step: RebuildStep,
) -> StreamId | None:
    """Write a record, with the tail of a stream that has one and what it knows of producers, and
    `also`; repeatable.

    Returns another stream that has the name of one that is active: nothing was written.

    Raises:
        Unavailable: the step is not what goes on, so streams may be in use.
    """
    if not record.config.leaderless:
        return await restore_stream(context.coordination, record, also, step)
    return await restore(
        context.coordination, record, known, also, step, last_timestamp=record.last_timestamp
    )
