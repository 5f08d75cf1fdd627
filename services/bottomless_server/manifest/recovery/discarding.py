"""Discard what an older coordination still says: the first part of a rebuild.

A page at a time of streams with the offsets of their consumers, their consumer groups and their
tails, then of API keys, then of homes of queues, then of instances of writers of WAL objects, then of
queues of work and operations. The delete queue of a drive that this process does not know stays: of
what is in it the deleter asks the restored record before it deletes.
After a crash at any moment less is left, and the same step goes on. What was restored already for
the generation of the rebuild stays: an operation that is entered anew may begin over what the one
before it has restored. So each page begins after the last one.

Every transaction is tied to the step (`stores/rebuild_step.py`): who wakes up here beside a
coordination that serves, or that restores already, takes nothing out of it.
"""

from typing import Any, Final

from bottomless.model.names import StreamId, SuperId
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.keys.key_rebuild import QUEUES as KEY_QUEUES
from bottomless_server.manifest.keys.key_rebuild import discard_keys
from bottomless_server.stores.consumers import SNAPSHOTS_KEY, ConsumerOffsets
from bottomless_server.stores.forgetting import unless_restored, unless_super_restored
from bottomless_server.stores.groups import CHECKS_KEY, ConsumerGroups
from bottomless_server.stores.operations import OPERATIONS_KEY, operation_key
from bottomless_server.stores.queue_homes import QueueHomes
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_streams import discard_stream
from bottomless_server.stores.restored_supers import discard_super
from bottomless_server.stores.restored_tails import discard_instances, discard_tail
from bottomless_server.stores.streams import STREAMS_KEY, deletes_key, failing_deletes_key
from bottomless_server.stores.supers import SUPERS_KEY
from bottomless_server.stores.tail_keys import SILENT_KEY

_PAGE_COUNT: Final = 500
_FOREVER: Final = 2**52
_QUEUES: Final = (
    SNAPSHOTS_KEY,
    CHECKS_KEY,
    SILENT_KEY,
    *KEY_QUEUES,
    OPERATIONS_KEY,
)


async def discard_some(context: Context, step: RebuildStep, progress: dict[str, Any]) -> bool:
    """Forget one page, and note in `progress` where the next one begins; whether there may be more.

    Raises:
        Unavailable: the step is not what goes on; or not now.
    """
    coordination = context.coordination
    after = str(progress.get("_after_discarded", "")).encode("ascii")
    members = await coordination.members(STREAMS_KEY, after, _PAGE_COUNT)
    for member in members:
        stream_id = StreamId(member.decode("ascii"))
        unless = unless_restored(stream_id, step)
        await ConsumerOffsets(coordination).forget(stream_id, unless)
        await ConsumerGroups(coordination).forget(stream_id, unless)
        # Before the record, which leads to it.
        await discard_tail(coordination, stream_id, step)
        await discard_stream(coordination, stream_id, step)
        progress["_after_discarded"] = stream_id
    after_super = str(progress.get("_after_discarded_super", "")).encode("ascii")
    supers = await coordination.members(SUPERS_KEY, after_super, _PAGE_COUNT)
    for member in supers:
        super_id = SuperId(member.decode("ascii"))
        await ConsumerGroups(coordination).forget(super_id, unless_super_restored(super_id, step))
        await discard_super(coordination, super_id, step)
        progress["_after_discarded_super"] = super_id
    after_key = str(progress.get("_after_discarded_key", ""))
    last = await discard_keys(context, after_key, step)
    progress["_after_discarded_key"] = last or after_key
    if members or supers or last:
        return True
    after_home = str(progress.get("_after_discarded_home", ""))
    homes = QueueHomes(coordination, context.streams)
    if last_home := await homes.discard(after_home, step):
        progress["_after_discarded_home"] = last_home
        return True
    after_instance = str(progress.get("_after_discarded_instance", "")).encode("ascii")
    if last_instance := await discard_instances(coordination, after_instance, step):
        progress["_after_discarded_instance"] = last_instance.decode("ascii")
        return True
    more = False
    numbers = context.drives.numbers
    deletes = [key(number) for number in numbers for key in (deletes_key, failing_deletes_key)]
    for queue in (*deletes, *_QUEUES):
        more = await _discard_due(context, step, queue) or more
    return more


async def _discard_due(context: Context, step: RebuildStep, queue: str) -> bool:
    """Empty a queue, by a page; of operations, forget all but the rebuild itself."""
    mine = step.operation.operation_id.encode("ascii")
    found = await context.coordination.due(queue, _FOREVER, _PAGE_COUNT)
    dues = [due for due in found if queue != OPERATIONS_KEY or due.member != mine]
    values: dict[str, bytes | None] = {}
    if queue == OPERATIONS_KEY:
        values = {operation_key(due.member.decode("ascii")): None for due in dues}
    if dues:
        await step.write(context.coordination, Changes(values, settled=dues))
    return bool(dues)
