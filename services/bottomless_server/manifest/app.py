"""The manifest service, put together: reads like a list of its parts."""

import asyncio
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import structlog
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp

from bottomless.drives.base import Drive
from bottomless.errors import StoreError
from bottomless.formats.stream_record import LEADERLESS, SERVED, TIERS
from bottomless_server.coordination.base import Coordination
from bottomless_server.drives.probe import probe
from bottomless_server.drives.table import DriveTable
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.metrics import manifest_metrics, stored_metrics
from bottomless_server.manifest.common.owners import Owners, PeerOwners
from bottomless_server.manifest.consumers.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.consumers.group_changes import GroupChanges
from bottomless_server.manifest.consumers.group_checks import GroupChecks
from bottomless_server.manifest.consumers.group_watch import GroupWatch
from bottomless_server.manifest.front.internal_routes import internal_api
from bottomless_server.manifest.front.routes import public_api
from bottomless_server.manifest.keys.key_upkeep import KeyUpkeep
from bottomless_server.manifest.keys.keys import Keys
from bottomless_server.manifest.keys.root_key import RootKey
from bottomless_server.manifest.leaderless.upkeep import LeaderlessUpkeep
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.tier_timer import TierTimer
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.far_times import FarTimes
from bottomless_server.manifest.recovery.home_operations import register_home_operations
from bottomless_server.manifest.recovery.rebuild import KIND as REBUILD
from bottomless_server.manifest.recovery.rebuild import Rebuild
from bottomless_server.manifest.recovery.regression import Regression
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.removal.garbage import register_gc
from bottomless_server.manifest.removal.garbage_timer import GarbageTimer
from bottomless_server.manifest.removal.retention_operations import register_retention
from bottomless_server.manifest.removal.retention_timer import RetentionTimer
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.manifest.streams.deletion import Deletions
from bottomless_server.manifest.streams.node_moves import NodeMoves
from bottomless_server.manifest.streams.replica_members import register_member_changes
from bottomless_server.manifest.streams.replicas import register_owner_changes
from bottomless_server.manifest.streams.super_deletion import SuperDeletions
from bottomless_server.manifest.streams.super_growth import SuperGrowth
from bottomless_server.manifest.streams.verify import register_verify
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.peers.internal_secret import secret_to_send
from bottomless_server.runtime.peers.peers import Peers
from bottomless_server.stores.streams import Streams

log = structlog.get_logger(__name__)

_FORGET_SECONDS: Final = 5.0
"""How long is waited for work on what was lost to end."""


class ManifestService:
    """Owns the registry of streams and what object storage holds of each."""

    name = "manifest"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._registry = Registry(context)
        self._mutators = Mutators(context)
        self._deleter = Deleter(context)
        self._operations = Operations(context)
        self._deletions = Deletions(context, self._registry, self._mutators, self._operations)
        self._super_deletions = SuperDeletions(
            context, self._registry, self._deletions, self._operations
        )
        self._snapshots = ConsumerSnapshots(context)
        self._group_watch = GroupWatch(context.coordination, context.counts.groups)
        groups = GroupChanges(context, self._group_watch.tell)
        self._group_checks = GroupChecks(context, groups)
        self._growth = SuperGrowth(
            context, self._registry, self._operations, self._deletions, groups.replan
        )
        keys = Keys(context)
        self._key_upkeep = KeyUpkeep(context, keys)
        self._root_key = RootKey(context.settings.root_key_file)
        self._retention = RetentionTimer(context, self._mutators)
        register_retention(self._operations, self._mutators)
        self._tiers = TierTimer(context, self._mutators)
        self._garbage = GarbageTimer(context, self._operations)
        self._far_times = FarTimes(context)
        self._leaderless = LeaderlessUpkeep(context)
        register_home_operations(self._operations, self._mutators, self._registry)
        register_owner_changes(self._operations, self._registry)
        register_member_changes(self._operations, self._registry)
        NodeMoves(context, self._operations)
        register_gc(self._operations)
        register_verify(self._operations)
        self._regression = Regression(context, self._take_up)
        self._rebuild = Rebuild(context, self._operations, self._regression.look_again)
        self._tasks: list[asyncio.Task[None]] = []
        self._lasting: list[asyncio.Task[None]] = []
        """Tasks that go on while coordination is not to be believed."""
        public = public_api(
            context,
            self._registry,
            self._mutators,
            self._operations,
            self._deletions,
            self._growth,
            self._super_deletions,
            self._snapshots,
            self._rebuild,
            keys,
            groups,
            self._group_watch,
        )
        self.public: ASGIApp = self._regression.around(public)
        internal = internal_api(context, self._registry, self._mutators, keys, self._root_key)
        self.internal: ASGIApp = self._regression.around(internal)

    async def start(self) -> None:
        """Refuse stores that do not belong together or lose writes, before serving from them.

        Raises:
            Unavailable, Corrupt, CannotStart: the start must not go on.
        """
        self._root_key.check()
        if self._context.settings.root_key_file is not None and not self._context.settings.identity:
            # Else whoever set it would believe that somebody is asked for it.
            raise CannotStart("BOTTOMLESS_ROOT_KEY_FILE is set, and BOTTOMLESS_IDENTITY is not")
        await self._context.coordination.check()
        await probe(self._context.drive)
        await self._regression.look()
        # Before anything can be deleted: a clock that is set later is compared with this one.
        await self._context.time.look()
        await self._take_up()
        self._lasting = [
            asyncio.create_task(self._operations.run(), name="manifest operations"),
            asyncio.create_task(self._regression.watch(), name="manifest generation"),
        ]

    async def _take_up(self) -> None:
        """Begin to work on what coordination says, or stop all that does."""
        self._registry.generation = self._regression.generation
        # Before anything waits: what an older coordination wants done is not begun any more.
        self._operations.only = REBUILD if self._regression.regressed else None
        # What was known is of another generation, or will be.
        forgetting = asyncio.create_task(self._mutators.forget(), name="manifest forgets")
        self._ending = asyncio.create_task(end_tasks(*self._tasks), name="manifest ends tasks")
        await asyncio.wait({self._ending, forgetting}, timeout=_FORGET_SECONDS)
        if stuck := [task for task in (*self._tasks, forgetting) if not task.done()]:
            # What they still write is refused: versions and generations are others by now.
            log.critical("work does not end", tasks=sorted(task.get_name() for task in stuck))
        self._tasks = []
        self._snapshots.forget()
        if self._regression.regressed:
            return
        self._tasks = [
            asyncio.create_task(self._deleter.run(), name="manifest deleter"),
            asyncio.create_task(self._snapshots.run(), name="manifest consumer snapshots"),
            asyncio.create_task(self._key_upkeep.run(), name="manifest keys"),
            asyncio.create_task(self._retention.run(), name="manifest retention"),
            asyncio.create_task(self._garbage.run(), name="manifest garbage"),
            asyncio.create_task(self._far_times.run(), name="manifest far times"),
            asyncio.create_task(self._group_checks.run(), name="manifest consumer groups"),
            asyncio.create_task(self._group_watch.run(), name="manifest group watch"),
        ]
        if TIERS in self._context.served and len(self._context.drives.numbers) > 1:
            # With one drive there is nowhere to go.
            tiers = asyncio.create_task(self._tiers.run(), name="manifest tiers")
            self._tasks.append(tiers)
        if LEADERLESS in self._context.served:
            upkeep = asyncio.create_task(self._leaderless.run(), name="manifest leaderless")
            self._tasks.append(upkeep)

    async def drain(self) -> None:
        """Publish what waits for its time; uploaders have stopped by now. Nobody waits any more."""
        self._group_watch.end()
        await self._mutators.flush()

    async def stop(self) -> None:
        """End all tasks. Drive and coordination belong to whoever opened them."""
        tasks = [*self._lasting, *self._tasks]
        await end_tasks(*tasks)
        await self._mutators.aclose()
        await self._context.owners.aclose()

    def not_ready(self) -> StoreError | None:
        """Why this service serves nothing, if it does not."""
        return self._regression.problem()

    def metrics(self) -> Iterable[Metric]:
        context = self._context
        yield from manifest_metrics(
            context.counts,
            paused_count=self._retention.paused_count,
            unreadable_count=self._retention.unreadable_count,
            move_count=self._tiers.move_count,
            damaged_count=len(context.damaged_sources),
            failing_tier_count=self._tiers.failing_count,
            clock_doubted=context.time.doubt is not None,
            regressed=self._regression.regressed,
            growth_ms=context.counts.growths.oldest_ms(context.clock(), context.elapsed()),
        )
        prices = context.settings.prices
        yield from stored_metrics(context.counts.stored, prices, now=context.clock())

    async def report(self) -> Mapping[str, Any]:
        await self._context.coordination.check()
        return {
            "status": "regressed" if self._regression.regressed else "running",
            "generation": self._registry.generation,
            "deleted_count": self._deleter.deleted_count,
            "refused_delete_count": self._deleter.refused_count,
            "retention_paused_count": self._retention.paused_count,
            "clock_doubt": self._context.time.doubt,
        }


def create_service(
    settings: ManifestSettings,
    drive: Drive,
    coordination: Coordination,
    owners: Owners | None = None,
    served: AbstractSet[str] = SERVED,
    table: DriveTable | None = None,
) -> ManifestService:
    """Put the service together; nothing is asked of any store before `start`.

    `served` are the features of streams that it serves. `table` has the drives of fragments; without
    it all of them are on `drive`.
    """
    return ManifestService(
        Context(
            settings=settings,
            drive=drive,
            coordination=coordination,
            streams=Streams(coordination, served),
            clock_directory=settings.data_dir,
            owners=owners or PeerOwners(Peers(name="ingest", secret=secret_to_send(settings))),
            table=table,
        )
    )
