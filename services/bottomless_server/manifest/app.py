"""The manifest service, put together: reads like a list of its parts."""

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp

from bottomless.coordination.base import Coordination
from bottomless.drives.base import Drive
from bottomless.drives.probe import probe
from bottomless.stores.generation import check_generation
from bottomless.stores.streams import Streams
from bottomless_server.manifest.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.context import Context
from bottomless_server.manifest.deleter import Deleter
from bottomless_server.manifest.deletion import Deletions
from bottomless_server.manifest.internal_routes import internal_api
from bottomless_server.manifest.mutator import Mutators
from bottomless_server.manifest.operations import Operations
from bottomless_server.manifest.owners import Owners, PeerOwners
from bottomless_server.manifest.registry import Registry
from bottomless_server.manifest.retention_operations import register_retention
from bottomless_server.manifest.retention_timer import RetentionTimer
from bottomless_server.manifest.routes import public_api
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.manifest.takeover import register_takeover
from bottomless_server.runtime.peers import Peers


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
        self._snapshots = ConsumerSnapshots(context)
        self._retention = RetentionTimer(context, self._mutators)
        register_retention(self._operations, self._mutators)
        register_takeover(self._operations, self._mutators)
        self._tasks: list[asyncio.Task[None]] = []
        self.public: ASGIApp = public_api(
            context,
            self._registry,
            self._mutators,
            self._operations,
            self._deletions,
            self._snapshots,
        )
        self.internal: ASGIApp = internal_api(context, self._registry, self._mutators)

    async def start(self) -> None:
        """Refuse stores that do not belong together or lose writes, before serving from them.

        Raises:
            Unavailable, Corrupt: the start must not go on.
        """
        await self._context.coordination.check()
        await probe(self._context.drive)
        self._registry.generation = await check_generation(
            self._context.drive, self._context.coordination
        )
        self._context.streams.generation = self._registry.generation
        self._tasks = [
            asyncio.create_task(self._deleter.run(), name="manifest deleter"),
            asyncio.create_task(self._operations.run(), name="manifest operations"),
            asyncio.create_task(self._snapshots.run(), name="manifest consumer snapshots"),
            asyncio.create_task(self._retention.run(), name="manifest retention"),
        ]

    async def drain(self) -> None:
        """Publish what waits for its time; uploaders have stopped by now."""
        await self._mutators.flush()

    async def stop(self) -> None:
        """End all tasks. Drive and coordination belong to whoever opened them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._mutators.aclose()
        await self._context.owners.aclose()

    async def report(self) -> Mapping[str, Any]:
        await self._context.coordination.check()
        return {
            "status": "running",
            "generation": self._registry.generation,
            "deleted_count": self._deleter.deleted_count,
            "refused_delete_count": self._deleter.refused_count,
            "retention_paused_count": self._retention.paused_count,
        }


def create_service(
    settings: ManifestSettings,
    drive: Drive,
    coordination: Coordination,
    owners: Owners | None = None,
) -> ManifestService:
    """Put the service together; nothing is asked of any store before `start`."""
    return ManifestService(
        Context(
            settings=settings,
            drive=drive,
            coordination=coordination,
            streams=Streams(coordination),
            owners=owners or PeerOwners(Peers(name="ingest")),
        )
    )
