"""Evaluate the retention of every stream from time to time, also of those that nobody writes.

The index of all streams is walked, so that nothing has to be remembered: a restart forgets
no stream, and a PATCH is seen by the next walk. One process walks, under a lease; where it
dies, another one goes on after the lease. So fragments go at most one interval (and the
length of a walk) after they may, and that lateness is documented.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from bottomless.errors import StoreError
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.tree.core.retention_decision import RetentionDecision, limits_of
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.streams import STREAMS_KEY

log = structlog.get_logger(__name__)

LEASE_KEY: Final = "bottomless:retention-lease"
_PAGE_COUNT: Final = 256
"""Streams looked at together; of those few have something to do."""
_EVALUATING_COUNT_MAX: Final = 8


class RetentionTimer:
    def __init__(self, context: Context, mutators: Mutators) -> None:
        self._context = context
        self._mutators = mutators
        self._evaluating = asyncio.Semaphore(_EVALUATING_COUNT_MAX)
        # Of this run and not of the node: an earlier run of it may still be walking.
        self._holder = context.new_uid().encode("ascii")
        self.paused_count = 0
        """Streams of the last walk whose age retention pauses because clocks disagree: an alarm."""

        self.unreadable_count = 0
        """Streams of the last walk whose record this release cannot read: an alarm."""
        self._unreadable = 0

    async def run(self) -> None:
        """Walk for ever."""
        # Deleting less is no harm: after a bug the next walk begins anew.
        await endless("manifest-retention", self._walk_once)

    async def _walk_once(self) -> float:
        try:
            await self.walk()
        except StoreError as error:
            log.warning("the walk of retention failed", error=str(error))
        return self._context.settings.manifest_retention_interval_ms / 1000

    async def walk(self) -> int:
        """Evaluate every stream that has a limit; how many there were, 0 if another walks.

        Raises:
            Unavailable
        """
        after, evaluated, paused = b"", 0, 0
        self._unreadable = 0
        while await self._hold():
            members = await self._context.coordination.members(STREAMS_KEY, after, _PAGE_COUNT)
            if not members:
                break
            after = members[-1]
            limited = await self._limited(
                [StreamId(member.decode("ascii", "replace")) for member in members]
            )
            decisions = await asyncio.gather(*(self._evaluate(record) for record in limited))
            evaluated += len(limited)
            paused += sum(decision.age_paused for decision in decisions if decision is not None)
        self.paused_count = paused
        self.unreadable_count = self._unreadable
        return evaluated

    async def _hold(self) -> bool:
        # Longer than from one walk to the next, so that the walk stays with one process.
        ttl_ms = 2 * self._context.settings.manifest_retention_interval_ms + 10_000
        return bool(await self._context.coordination.hold(LEASE_KEY, self._holder, ttl_ms))

    async def _limited(self, stream_ids: Sequence[StreamId]) -> list[StreamRecord]:
        default = self._context.settings.retention_default()
        loaded = await self._context.streams.load_many(stream_ids)
        self._unreadable += len(loaded.unreadable)
        for stream_id, error in loaded.unreadable.items():
            log.error(
                "the record of a stream cannot be read", stream_id=stream_id, error=str(error)
            )
        return [
            record
            for record in loaded.records
            if record.state is StreamState.ACTIVE
            and record.root is not None
            and limits_of(record.config.retention, default) != (None, None)
        ]

    async def _evaluate(self, record: StreamRecord) -> RetentionDecision | None:
        async with self._evaluating:
            try:
                return await self._mutators.of(record.stream_id).evaluate()
            except StoreError as error:
                log.warning(
                    "retention was not evaluated", stream_id=record.stream_id, error=str(error)
                )
                return None
            except Exception:
                # A bug that one stream brings to light ends the walk for no other.
                log.exception("retention met a bug", stream_id=record.stream_id)
                return None
