"""Bring streams back in a rebuild, each from what lies below its prefix in the bucket.

Of a stream a root of the next generation is put (`rebuild_stream.py`) and a registry object
(`rebuilt_registry.py`), then one EXEC writes the record, its names and indexes, the offsets of its
consumers, and what is to be deleted. After a crash before it the root is an object which nobody
names: the step puts another one, and the stray goes into the delete queue with it. After a crash that
follows the EXEC the stream is written once more.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from bottomless.errors import Unavailable
from bottomless.formats.keys import stream_prefix
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, StreamState, unknown_epoch
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.leaderless.tail import first_epoch
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.bucket_streams import StreamPrefix
from bottomless_server.manifest.recovery.rebuild_stream import (
    RebuiltStream,
    find_consumers,
    rebuild_stream,
)
from bottomless_server.manifest.recovery.rebuilt_registry import (
    find_registry,
    put_object_of,
    put_registry,
    replaced_by,
)
from bottomless_server.manifest.recovery.rebuilt_supers import RebuiltSupers
from bottomless_server.manifest.recovery.rebuilt_tombstones import Tombstones, buried
from bottomless_server.manifest.recovery.rebuilt_wal import RebuiltWal, restore_record
from bottomless_server.manifest.tree.core.rebuild_decision import first_version, record_before
from bottomless_server.stores.consumers import restored, versions_of
from bottomless_server.stores.name_values import super_in
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.streams import delete_later

log = structlog.get_logger(__name__)

_PAGE_COUNT: Final = 500
"""Objects to be deleted that one EXEC enters."""


class RebuiltStreams:
    """Brings back streams and super streams, each as the bucket knows it."""

    def __init__(self, context: Context, operations: Operations, wal: RebuiltWal) -> None:
        self._context = context
        self._wal = wal
        self._tombstones = Tombstones(context, operations)
        self._supers = RebuiltSupers(context, operations, self._tombstones)

    async def restore(self, prefix: StreamPrefix, step: RebuildStep) -> Mapping[str, Any]:
        """Bring back what is below one prefix; what there is to say of it."""
        context = self._context
        found_registry = await find_registry(
            context.drive, str(prefix), step.generation, context.served
        )
        if found_registry is None:
            of_super = await self._supers.restore_below(prefix, step)
            if of_super is not None:
                return of_super
            log.error("objects of no known stream", prefix=str(prefix))
            return {"unknown": 1, "unknown_prefixes": [str(prefix)]}
        registry = found_registry.record
        registry = await self._supers.of_its_super(registry, step.generation)
        # Its number is the attempt's: nobody else has it, and later ones are above.
        mine = await put_registry(self._context, registry, found_registry, step)
        if registry.state is StreamState.DELETING:
            await self._tombstones.restore(record_before(mine, None, step.generation), step)
            return {"deleted_streams": 1}
        rebuilt = await rebuild_stream(self._context, mine, step, await self._wal.found(step))
        record = replace(rebuilt.record, version=first_version(step.generation))
        due_at = self._context.time.latest() + self._context.settings.manifest_upload_deadline_ms
        whole = rebuilt.readable and not rebuilt.damaged
        replaced = replaced_by(record, found_registry) if whole else ()
        queued = [
            *(delete_later(one, due_at) for one in (*replaced, *rebuilt.to_delete)),
            *(delete_later(one.object_key, due_at, one.drive) for one in rebuilt.strays),
        ]
        also = Changes(queued=queued[:_PAGE_COUNT])
        found = await find_consumers(self._context.drive, registry)
        if found is not None:
            also |= restored(*found)
        also |= versions_of(registry.stream_id, step.generation)
        rebuilt = rebuilt._replace(record=record)
        deleted = await self._restore_active(rebuilt, registry.generation, also, step)
        if deleted == record.stream_id:
            return {"deleted_streams": 1}
        # A crash before these leaves objects that nobody names to garbage collection.
        await _queue(context, step, queued[_PAGE_COUNT:])
        seen: dict[str, Any] = {"streams": 1, "adopted_fragments": rebuilt.fragment_count}
        if deleted is not None:
            seen |= {"streams": 0, "deleted_streams": 1}
        if not rebuilt.readable:
            seen |= {"unreadable_streams": 1, "unreadable": [registry.name]}
        if found_registry.damaged:
            seen |= {"damaged_configurations": 1, "without_retention": [registry.name]}
        if rebuilt.damaged:
            seen |= {"damaged_streams": 1, "damaged": [registry.name]}
        return seen

    async def _restore_active(
        self, rebuilt: RebuiltStream, registered: int, also: Changes, step: RebuildStep
    ) -> StreamId | None:
        """Write a stream's record; returns which of two streams of one name is deleted, if one is.

        A name is given away only after a deletion. So the older one was deleted and its tombstone
        was lost, or its creation was overtaken by a rebuild and nobody was told of it. `registered`
        is the generation that its registry object showed: the ids tell only what clocks said.
        """
        streams, record, known = self._context.streams, rebuilt.record, rebuilt.known
        other = await restore_record(self._context, record, known, also, step)
        if other is None:
            return None
        if (holder := super_in(other.encode("ascii"))) is not None:
            rank = registered, record.stream_id
            if not await self._supers.gives_way(holder, record.tenant, rank, step):
                return await self._bury(record, step)
            if await restore_record(self._context, record, known, also, step) is not None:
                raise Unavailable("the name keeps changing")
            return None
        theirs = await find_registry(
            self._context.drive,
            stream_prefix(other, record.tenant),
            step.generation,
            self._context.served,
        )
        if theirs is None or (theirs.record.generation, other) > (registered, record.stream_id):
            return await self._bury(record, step)
        older = await streams.load(other)
        first = first_epoch if older.config.leaderless else unknown_epoch
        if older.epoch != first(record.generation):
            raise Unavailable("the stream has an owner already")
        # Before it is so in coordination: else the next rebuild would have to decide it once more,
        # with less to go by.
        await put_object_of(self._context, buried(older))
        await self._tombstones.bury(older, step)
        if await restore_record(self._context, record, known, also, step) is not None:
            raise Unavailable("the name keeps changing")
        return other

    async def _bury(self, record: StreamRecord, step: RebuildStep) -> StreamId:
        tombstone = buried(record)
        await put_object_of(self._context, tombstone)
        await self._tombstones.restore(tombstone, step)
        return record.stream_id


async def _queue(context: Context, step: RebuildStep, queued: list[Due]) -> None:
    for start in range(0, len(queued), _PAGE_COUNT):
        page = Changes(queued=queued[start : start + _PAGE_COUNT])
        await step.write(context.coordination, page)
