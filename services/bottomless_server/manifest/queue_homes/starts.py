"""Let starts of nodes of queues in: one copy of a data directory is the newest, and serves.

Steps of a start, in this order; the node does those of its own disk (queues/starts.py):

1. The node holds its lease, whose value names this start. It asks here whether its directory is the
   newest, and hears the token of the newest start, once the bucket has its object: a start that died
   between 3 and 4 has none, and 2 is about to forget the token of the one before it.
2. On its disk, durably: the token of the newest start, and its own.
3. One EXEC: the record names this start under the next number, and says that the bucket does not.
4. The object of that number, put if absent. 5. One EXEC: the record says that the bucket has it.
6. Objects of earlier starts are deleted. The node serves from here on.

After a crash in 1 or 2 the newest start is the one before, in coordination and, from the end of 1 on, in
the bucket; the directory has its token. After 3 it is this one, and the directory has its token too: so
the next start is let in each time, under a number of its own. If coordination is lost after 3 the bucket
knows only the start before, which the directory knows too, and nothing was served since. After 4 a rebuild finds this one. A crash in 6 leaves objects
that mean nothing, until the next start. docs/decisions/0118.
"""

from collections.abc import AsyncIterator
from typing import Final

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt, Unavailable
from bottomless.formats.checks import corrupt, crc32c
from bottomless.formats.keys import parse_queue_start_key, queue_start_key, queue_start_prefix
from bottomless.formats.queue_start import (
    StartRecord,
    decode_start_object,
    encode_start_object,
)
from bottomless.guards import guard
from bottomless.model.names import NodeId
from bottomless.model.queue_start import QueueStart
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.queue_homes.core.home_decision import home_changed
from bottomless_server.manifest.queue_homes.core.start_decision import (
    StartAsked,
    decide_start,
    newest_of,
    noted,
    require_newest,
    under_a_later_number,
)
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.queue_starts import QueueStarts

log = structlog.get_logger(__name__)

_ATTEMPT_COUNT: Final = 8


class Starts:
    """Settles which start of a node of queues is the newest."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._records = QueueStarts(context.coordination, context.streams)

    async def look(self, asked: StartAsked) -> QueueStart | None:
        """The newest start of a node, if one may follow it that asks so; None before the first one. The
        bucket knows it, too, when this returns.

        Raises:
            Fenced: the directory is older than that.
            Unavailable: the same again is right.
            Corrupt: what is known of it cannot be read.
        """
        last = await newest_start(self._context, asked.start.node_id)
        newest = newest_of(await self._records.find(asked.start.node_id), last)
        if newest is None:
            return None
        if newest.start.token != asked.start.token:
            require_newest(newest.start, asked)
            if not newest.noted:
                await self._put_for(newest.start)
        return newest.start

    async def settle(self, asked: StartAsked) -> QueueStart:
        """Enter a start as the newest of its node; the bucket says so, too, when this returns.

        Raises:
            Fenced: the directory is older than the newest start.
            Unavailable: `not-owner`: the lease of the node names another start, or none; others: the
                same again is right.
            Corrupt: what is known of the newest start cannot be read.
        """
        last = await newest_start(self._context, asked.start.node_id)
        record = await self._records.change(
            asked.start, lambda before: decide_start(before, asked, last=last)
        )
        for _ in range(_ATTEMPT_COUNT):
            if record.start.token != asked.start.token:
                break
            if record.noted:
                await self._forget_earlier(record.start)
                return record.start
            record = await self._noted(record)
        raise home_changed()

    async def _noted(self, record: StartRecord) -> StartRecord:
        await reach("manifest.queue-start.after-exec")
        try:
            await self._put(record.start)
        except Corrupt:
            log.warning("another start has this number", node_id=record.start.node_id)
            return await self._records.change(
                record.start, lambda before: under_a_later_number(before, record)
            )
        await reach("manifest.queue-start.after-object")
        return await self._records.change(record.start, lambda before: noted(before, record))

    @guard("the object of the newest start before the next one")
    async def _put_for(self, start: QueueStart) -> None:
        """Put the object of a start that died before it had one."""
        try:
            await self._put(start)
        except Corrupt:
            # It was put by a process of before a loss of coordination; the next number is free.
            log.warning("another start has this number", node_id=start.node_id)

    async def _put(self, start: QueueStart) -> None:
        data = encode_start_object(start)
        await put_object(
            self._context.drive,
            queue_start_key(start.node_id, start.number),
            [data],
            crc32c(data),
            deadline_seconds=self._context.settings.manifest_put_seconds,
        )

    async def _forget_earlier(self, start: QueueStart) -> None:
        earlier = [
            object_key
            async for object_key, number in _objects(self._context, start.node_id)
            if number < start.number
        ]
        if earlier:
            await self._context.drive.delete(earlier)


async def newest_start(context: Context, node_id: NodeId) -> QueueStart | None:
    """The newest start of a node of which the bucket knows; None where it knows of none.

    Raises:
        Corrupt: it cannot be read.
        Unavailable: not now.
    """
    found = [(number, object_key) async for object_key, number in _objects(context, node_id)]
    if not found:
        return None
    number, object_key = max(found)
    try:
        start = decode_start_object(bytes(await context.drive.get(object_key)))
    except ObjectMissing as error:
        raise Unavailable("the object of a start was removed meanwhile") from error
    if (start.node_id, start.number) != (node_id, number):
        raise corrupt("queue start object", "it is not what its key says")
    return start


async def _objects(context: Context, node_id: NodeId) -> AsyncIterator[tuple[str, int]]:
    async for facts in context.drive.list(queue_start_prefix(node_id)):
        place = parse_queue_start_key(facts.object_key)
        if place is not None:
            yield facts.object_key, place.number
