"""Streams that a rebuild finds to be deleted, or has to delete: they stay so, and their sweep goes on."""

from dataclasses import replace

from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Values
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.streams.deletion import KIND as DELETION
from bottomless_server.stores.operations import Operation, entered
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_streams import restore_stream
from bottomless_server.stores.tail_keys import tail_key
from bottomless_server.stores.tails import closing


class Tombstones:
    def __init__(self, context: Context, operations: Operations) -> None:
        self._context = context
        self._operations = operations

    async def restore(self, record: StreamRecord, step: RebuildStep) -> None:
        """Enter a stream that was deleted, with its deletion. A leaderless one gets no tail: nothing
        commits to a stream without one.
        """
        deletion = self._deletion(record)
        also = entered(deletion, deletion.created_at)
        await restore_stream(self._context.coordination, record, also, step)

    async def bury(self, record: StreamRecord, step: RebuildStep) -> None:
        """Delete a stream that this rebuild has restored, with its tail if it has one."""
        deletion = self._deletion(record)

        def require(found: Values) -> Changes | None:
            step.require(found)
            return closing(found, record.stream_id) if record.config.leaderless else None

        await self._context.streams.bury(
            record.stream_id,
            record.full_name,
            buried,
            entered(deletion, deletion.created_at),
            watched=(*step.watched, tail_key(record.stream_id)),
            require=require,
        )

    def _deletion(self, record: StreamRecord) -> Operation:
        # Readers of before the loss have the whole grace again.
        arguments = {"name": record.name, "deleted_at": self._context.time.latest()}
        return self._operations.new(
            DELETION, tenant=record.tenant, stream_id=record.stream_id, arguments=arguments
        )


def buried(record: StreamRecord) -> StreamRecord:
    """The tombstone of a stream."""
    return replace(record, state=StreamState.DELETING, registry_version=record.registry_version + 1)
