"""Begin a garbage collection of everything now and then.

When the next one is due stands in coordination, so that it does not depend on how often
processes start. One process begins it, under a lease; after a crash between the begin and
the note of the next time it is begun once more, which is harmless. While the clock is doubted none
is begun: it would only wait, and so would the one of each day after it.
"""

from typing import Final

import structlog

from bottomless.errors import StoreError
from bottomless.model.duration import parse_duration
from bottomless.model.names import TENANT_DEFAULT
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.removal.garbage import GC, gc_arguments
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.stored_sizes import load_stored

log = structlog.get_logger(__name__)

DUE_KEY: Final = "bottomless:gc"
LEASE_KEY: Final = "bottomless:gc-lease"
_ALL: Final = b"all"
_LOOK_SECONDS: Final = 60.0
_LEASE_MS: Final = 30_000


class GarbageTimer:
    def __init__(self, context: Context, operations: Operations) -> None:
        self._context = context
        self._operations = operations
        self._holder = context.new_uid().encode("ascii")

    async def run(self) -> None:
        """Look for ever whether one is due; at once to the end if there is to be none."""
        if self._context.settings.manifest_gc_interval_ms > 0:
            await endless("manifest-garbage-timer", self._look_once)

    async def _look_once(self) -> float:
        try:
            await self.look()
        except StoreError as error:
            log.warning("no garbage collection was begun", error=str(error))
        return min(self._context.settings.manifest_gc_interval_ms / 1000, _LOOK_SECONDS)

    async def look(self) -> bool:
        """Begin a collection if one is due; whether it did.

        Raises:
            Overloaded, Unavailable
        """
        context = self._context
        # Any process may have made the last one, and each shows what it found.
        context.counts.stored = await load_stored(context.coordination)
        (due_at,) = await context.coordination.due_at(DUE_KEY, [_ALL])
        now, doubt = await context.time.look()
        if doubt is not None or (due_at is not None and due_at > now):
            return False
        if not await context.coordination.hold(LEASE_KEY, self._holder, _LEASE_MS):
            return False
        if due_at is not None:
            # The start of an installation has nothing to collect yet.
            age_ms = parse_duration(context.settings.manifest_gc_minimum_age) * 1000
            age_ms = max(age_ms, context.settings.manifest_upload_deadline_ms)
            await self._operations.begin(
                GC,
                tenant=TENANT_DEFAULT,
                arguments=gc_arguments(dry_run=False, minimum_age_ms=age_ms, tenant=None),
            )
            context.counts.collections += 1
        following = Due(DUE_KEY, _ALL, now + context.settings.manifest_gc_interval_ms)
        await context.coordination.transact(
            [DUE_KEY + "-next"], lambda _: (Changes(queued=[following]), None)
        )
        return due_at is not None
