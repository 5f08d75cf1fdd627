"""The port of ingest for partitions of super streams that this node owns.

Parts of requests take the way of any append: they wait in the line of their stream, and are durable
with its next round. Steps that change something are written by the same task.

On the record's path: after front/super_produce.py or front/part_routes.py, before appender.py.
"""

from collections.abc import Callable

from bottomless.model.names import StreamId
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.producers.super_steps import answer_to_step, changes, entries_of
from bottomless_server.ingest.records.intake import Append
from bottomless_server.protocol.parts import StepAsked, StepSaid


class OwnedPartitions:
    """The `Partitions` of this node."""

    def __init__(self, streams: OwnedStreams, require_space: Callable[[], None]) -> None:
        """`require_space` refuses what would be written where the disk takes no more."""
        self._streams = streams
        self._require_space = require_space

    async def get(self, stream_id: StreamId) -> "OwnedPartition":
        """A partition, under a claim that was good just now.

        Raises:
            StoreError: as `OwnedStreams.get`.
        """
        return OwnedPartition(await self._streams.get(stream_id), self._require_space)


class OwnedPartition:
    """The `PartitionPort` of one stream that this node owns."""

    def __init__(self, local: LocalAppender, require_space: Callable[[], None]) -> None:
        self._local = local
        self._require_space = require_space

    async def append_part(self, append: Append) -> Appended:
        self._require_space()
        return await self._local.append(append)

    async def do_step(self, asked: StepAsked) -> StepSaid:
        local = self._local
        if changes(asked):
            self._require_space()
            await local.change(
                lambda tracking, now, places: entries_of(tracking, asked, now, places)
            )
        # What is known is that of the owner only as long as this is one.
        local.claim.require()
        return answer_to_step(local.tracking, asked, local.log.next_offset)

    async def fence_layouts(self, layout: int) -> None:
        await self._local.fence_layouts(layout)
