"""What one process does for all leaderless streams from time to time.

It is one process at a time, under a lease that is for efficiency alone: two of them beside each other
change nothing but the number of requests. After a crash another one goes on when the lease has run out.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from bottomless.errors import StoreError
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.held_lease import held_lease
from bottomless_server.manifest.common.metrics import WalCounts
from bottomless_server.manifest.leaderless.forgetting import Forgetting
from bottomless_server.manifest.leaderless.vacuum import Vacuum
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)

LEASE_KEY: Final = "bottomless:wal-vacuum"
LEASE_MS_MIN: Final = 2_000


class LeaderlessUpkeep:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._vacuum = Vacuum(context)
        self._forgetting = Forgetting(context)
        # Of this run and not of the node: an earlier run of it may still be working.
        self._holder = context.new_uid().encode("ascii")

    async def run(self) -> None:
        """Make passes for ever."""
        await endless("manifest-leaderless", self._pass_once)

    async def _pass_once(self) -> float:
        # A task of its own: who loses the lease is cancelled, and this goes on.
        making = asyncio.create_task(self.make_pass(), name="manifest leaderless pass")
        try:
            await asyncio.wait([making])
            if making.cancelled():
                log.warning("the lease was lost", lease=LEASE_KEY)
            else:
                making.result()
        except StoreError as error:
            log.warning("leaderless streams were not looked after", error=str(error))
        finally:
            await end_tasks(making)
        return self._context.settings.manifest_wal_vacuum_ms / 1000

    async def make_pass(self) -> bool:
        """Do all of it once; whether this process is the one that does it.

        Raises:
            CoordinationUnavailable, CoordinationUnknown: the lease cannot be taken now.
        """
        context = self._context
        await self._vacuum.meet_run()
        ttl_ms = max(LEASE_MS_MIN, 2 * context.settings.manifest_wal_vacuum_ms)
        async with held_lease(context.coordination, LEASE_KEY, self._holder, ttl_ms) as held:
            if not held:
                # Another process counts them: whoever takes the largest number finds one that is of now.
                context.counts.wal = WalCounts()
            if held:
                await _tried("WAL objects were not looked at", self._vacuum.make_pass)
                await _tried("no name was forgotten", self._forgetting.look)
            return bool(held)


async def _tried(what: str, work: Callable[[], Awaitable[object]]) -> None:
    try:
        await work()
    except StoreError as error:
        log.warning(what, error=str(error))
