"""Take out of the tail of a leaderless stream what is part of its manifest.

It follows a publish, and is done again when an uploader begins a session: so what a process left that
died between the two goes at the next touch of the stream. Until then readers find the same records
twice, in the tail and in the manifest, and who compacts begins where the manifest ends.
"""

import structlog

from bottomless.errors import StoreError
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores import tails

log = structlog.get_logger(__name__)


async def prune_published(context: Context, record: StreamRecord) -> bool:
    """Take out all entries below the end of the manifest; whether none is left.

    It goes by what the record says in each EXEC, and not by what it said here.
    """
    assert record.config.leaderless
    try:
        while True:
            done = await tails.prune(context.coordination, record.stream_id, record.generation)
            if done is not None and done.gone:
                await reach("manifest.prune.after-exec")
                context.counts.prunes += 1
                context.counts.pruned_entries += len(done.gone)
            if done is None or len(done.gone) < tails.PRUNE_COUNT_MAX:
                return True
    except StoreError as error:
        log.warning("a tail was not pruned", stream_id=record.stream_id, error=str(error))
        return False
