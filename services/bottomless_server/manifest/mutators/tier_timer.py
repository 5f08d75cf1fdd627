"""Evaluate the policy of every stream that has tiers from time to time, also of those that nobody writes.

The index of all streams is walked as retention walks it, and one process walks, under a lease of its
own: nothing is remembered, so a restart forgets no stream and a PATCH is seen by the next walk. What a
walk enters into records is carried out by uploaders (uploader/moves.py). After a crash in a walk what
it has entered is entered, and the next walk leaves those offsets alone.
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
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.streams import STREAMS_KEY

log = structlog.get_logger(__name__)

LEASE_KEY: Final = "bottomless:tier-lease"
_PAGE_COUNT: Final = 256
"""Streams looked at together; of those few have tiers."""
_EVALUATING_COUNT_MAX: Final = 4
"""Policies evaluated at a time: each may open groups of a large stream."""


class TierTimer:
    """The walk of one process; `run` it once."""

    def __init__(self, context: Context, mutators: Mutators) -> None:
        self._context = context
        self._mutators = mutators
        self._evaluating = asyncio.Semaphore(_EVALUATING_COUNT_MAX)
        # Of this run and not of the node: an earlier run of it may still be walking.
        self._holder = context.new_uid().encode("ascii")
        self.move_count = 0
        """Moves that stood in records at the last walk, with those that it entered."""
        self.failing_count = 0
        """Streams of the last walk whose policy could not be evaluated."""

    async def run(self) -> None:
        """Walk for ever."""
        await endless("manifest-tiers", self._walk_once)

    async def _walk_once(self) -> float:
        try:
            await self.walk()
        except StoreError as error:
            log.warning("the walk of tiers failed", error=str(error))
        return self._context.settings.manifest_tier_interval_ms / 1000

    async def walk(self) -> int:
        """Evaluate every stream that has tiers; how many there were, 0 if another process walks.

        Raises:
            Unavailable
        """
        after, evaluated, moves, failing = b"", 0, 0, 0
        while await self._hold():
            members = await self._context.coordination.members(STREAMS_KEY, after, _PAGE_COUNT)
            if not members:
                break
            after = members[-1]
            tiered = await self._tiered(
                [StreamId(member.decode("ascii", "replace")) for member in members]
            )
            entered = await asyncio.gather(*(self._evaluate(record) for record in tiered))
            evaluated += sum(bool(record.config.tiers) for record in tiered)
            moves += sum(len(record.moves) for record in tiered)
            moves += sum(count for count in entered if count is not None)
            failing += sum(count is None for count in entered)
        self.move_count, self.failing_count = moves, failing
        return evaluated

    async def _hold(self) -> bool:
        # Longer than from one walk to the next, so that the walk stays with one process.
        ttl_ms = 2 * self._context.settings.manifest_tier_interval_ms + 10_000
        return bool(await self._context.coordination.hold(LEASE_KEY, self._holder, ttl_ms))

    async def _tiered(self, stream_ids: Sequence[StreamId]) -> list[StreamRecord]:
        # What cannot be read has its alarm from the walk of retention.
        loaded = await self._context.streams.load_many(stream_ids)
        return [
            record
            for record in loaded.records
            if record.state is StreamState.ACTIVE and (record.config.tiers or record.moves)
        ]

    async def _evaluate(self, record: StreamRecord) -> int | None:
        """How many moves were entered; None where that could not be found out."""
        if not record.config.tiers or record.root is None:
            return 0
        async with self._evaluating:
            try:
                return len(await self._mutators.of(record.stream_id).evaluate_tiers())
            except StoreError as error:
                log.warning(
                    "the tiers of a stream were not evaluated",
                    stream_id=record.stream_id,
                    error=str(error),
                )
            except Exception:
                # A bug that one stream brings to light ends the walk for no other.
                log.exception("the tiers of a stream met a bug", stream_id=record.stream_id)
            return None
