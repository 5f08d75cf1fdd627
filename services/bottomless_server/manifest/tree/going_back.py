"""Notice that the record of a stream is older than what the bucket shows of it.

A coordination store that comes back from a backup has the bucket's generation, as long as no
rebuild lies between the two. What gives it away is a root that is newer than any attempt to
publish can be by the record. So this is looked at before this process changes a stream for the
first time, before it says that another node is its home, and before its garbage is collected.

Nothing is changed here. A single root that is too new cannot be told from an attempt that was
cut off: a backup that is one publish old is noticed by the stream's home alone. Roots of another
generation than the record's say nothing: those of a later one are of a rebuild that did not end.
A record of an older generation than the one on which bucket and coordination agreed does not come
here: `stores/streams.py` believes none.
"""

import structlog

from bottomless.formats.keys import parse_root_key, root_prefix
from bottomless.guards import guard
from bottomless.model.stream import StreamRecord
from bottomless_server.core.regressed import coordination_outdated
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.tree.resolver import root_object_key

log = structlog.get_logger(__name__)


async def has_gone_back(context: Context, record: StreamRecord) -> bool:
    """Whether the bucket has a root that no attempt from the record as it is can have put.

    Raises:
        NotFound, Corrupt, Unavailable
    """
    # Keys are in the order of generation, epoch and version, of which none ever goes down.
    after = "" if record.root is None else root_object_key(record)
    newest = 0
    async for facts in context.drive.list(root_prefix(record.stream_id, record.tenant), after):
        key = parse_root_key(facts.object_key)
        if key is not None and key.generation == record.generation:
            newest = max(newest, key.version)
    if newest <= record.version + 1:
        return False
    # Read after the listing, or a publish in between would look like it.
    return newest > (await context.streams.load(record.stream_id)).version + 1


@guard("the look at newer roots")
async def require_not_gone_back(context: Context, record: StreamRecord) -> None:
    """Refuse to go on from a record that is older than the bucket.

    Raises:
        Unavailable: `coordination-regressed`, outcome none.
        NotFound, Corrupt
    """
    if await has_gone_back(context, record):
        log.critical("a stream's record is older than its roots", stream_id=record.stream_id)
        raise coordination_outdated(
            "the coordination store is an older copy: it shows less of this stream than the bucket"
        )
