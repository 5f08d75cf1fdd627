"""The port of ingest for partitions of super streams that this node owns.

Parts of requests take the way of any append: they wait in the line of their stream, and are durable
with its next round. Steps that change something are written by the same task.

Before the first part in a term of its lease the owner reads the super record. It does so after its
claim: whoever lets the super stream grow later tells this owner, or waits until its lease is over; and
who did so before is in the record.

On the record's path: after front/super_produce.py or front/part_routes.py, before appender.py.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from bottomless.guards import guard
from bottomless.model.names import StreamId, SuperId
from bottomless.model.super_stream import SuperRecord
from bottomless_server.core.not_found import super_not_found
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.producers.super_requests import oldest_layout
from bottomless_server.ingest.producers.super_steps import (
    NEED_LAYOUT,
    answer_to_step,
    changes,
    entries_of,
)
from bottomless_server.ingest.records.intake import Append
from bottomless_server.protocol.parts import StepAsked, StepSaid


@guard("what is known of requests, shown once all in sync have it")
def is_known(awaits_found: bool) -> bool:
    """Whether what a log says of requests is that of the stream. Of one that was just claimed it may be
    more: what one node alone had, and the next owner would not know."""
    return not awaits_found


class OwnedPartitions:
    """The `Partitions` of this node."""

    def __init__(
        self,
        streams: OwnedStreams,
        require_space: Callable[[], None],
        load_super: Callable[[SuperId], Awaitable[SuperRecord]],
    ) -> None:
        """`require_space` refuses what would be written where the disk takes no more."""
        self._streams = streams
        self.require_space: Final = require_space
        self.load_super: Final = load_super

    async def get(self, stream_id: StreamId) -> "OwnedPartition":
        """A partition, under a claim that was good just now.

        Raises:
            StoreError: as `OwnedStreams.get`.
        """
        return OwnedPartition(self, await self._streams.get(stream_id))


class OwnedPartition:
    """The `PartitionPort` of one stream that this node owns."""

    def __init__(self, owned: OwnedPartitions, local: LocalAppender) -> None:
        self._owned = owned
        self._local = local

    async def append_part(self, append: Append) -> Appended:
        self._owned.require_space()
        if not self._local.knows_layout():
            await self._read_layout()
        return await self._local.append(append)

    async def do_step(self, asked: StepAsked) -> StepSaid:
        local = self._local
        if asked.step in NEED_LAYOUT and not local.knows_layout():
            await self._read_layout()
        if changes(asked):
            self._owned.require_space()
            await local.change(
                lambda tracking, now, places: entries_of(
                    tracking, asked, now, places, local.oldest_layout()
                )
            )
        elif asked.step == "highest" or not is_known(local.awaits_found):
            # A part of an older layout may be on its way into the log: first it is there or not. So may
            # be what a former owner of this log left, and others have not.
            await local.change(lambda *_: ())
        # What is known is that of the owner only as long as this is one.
        local.claim.require()
        return answer_to_step(
            local.tracking, asked, local.log.committed_next, local.oldest_layout()
        )

    async def fence_layouts(self, layout: int) -> None:
        await self._local.fence_layouts(layout)

    async def _read_layout(self) -> None:
        """Learn which parts may be taken.

        Raises:
            NotFound: the stream is no partition, or its super stream is not there.
            Unavailable: `coordination-unavailable`, outcome none.
        """
        local = self._local
        if local.partition_of is None:
            raise super_not_found()
        term = local.claim.term
        record = await self._owned.load_super(local.partition_of.super_id)
        # It may have been told of a growth while the record was read.
        local.layout = max(local.layout, oldest_layout(record))
        local.layout_term = term
