"""Which consumers would lose records to retention, and how many."""

from typing import Any

from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.removal.retention import records_lost
from bottomless_server.manifest.tree.core.retention_decision import RetentionDecision
from bottomless_server.stores.consumers import ConsumerOffsets


async def affected_consumers(
    context: Context, record: StreamRecord, decision: RetentionDecision
) -> list[dict[str, Any]]:
    """Consumers whose stored offset is below the floor to be, with what lies between.

    Only records that are there now count: what an earlier cut removed is lost already.
    """
    if decision.cut.floor == decision.root.first_offset:
        return []
    affected = []
    for stored in await ConsumerOffsets(context.coordination).all(record.stream_id):
        lost = await records_lost(context, record.tenant, decision, stored.next_offset)
        if lost:
            affected.append(
                {
                    "consumer": stored.consumer,
                    "next_offset": stored.next_offset,
                    "would_lose_records": lost,
                }
            )
    return affected
