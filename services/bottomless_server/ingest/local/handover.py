"""Hand all streams over at a drain: have everything uploaded, so that others may own them.

What happens, and what is there after a crash that follows each step:

1. appends are refused, and those in flight answered   nothing has changed
   what lies here and is not open is opened            as opening.py says of each step
   commits that were cut off are finished              as staged/commits.py says of each step
2. the feed asks for an upload of all that is here     the same: the uploader only cuts early
3. all of it is published                              streams are dirty, and this node's
4. each stream is closed: one EXEC that finds           clean: any node may claim it once this
   published next = local next clears `dirty` and       node's lease is gone, and begins with
   writes down what is known of producers               what is known of producers
5. the lease is given up                                it may do so at once

What cannot be opened, or be uploaded in time, stays dirty, and waits here for this node's return. So does a
stream with a commit that is open and cannot be finished: only this disk has its rest.
Steps 4 and 5 are the stop (streams.py, node/owner.py); tails are served until then.
"""

import asyncio
from typing import Final

import structlog

from bottomless_server.ingest.local.appender_context import HasBegun
from bottomless_server.ingest.local.feed import FOLLOWED_SECONDS, CommitFeed
from bottomless_server.ingest.local.streams import OwnedStreams

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 0.02
FOLLOWER_SECONDS: Final = FOLLOWED_SECONDS
"""An uploader that was just started, or hears of this node only now, is waited for so long. It asks
every second which nodes there are."""


async def await_upload(streams: OwnedStreams, feed: CommitFeed, has_begun: HasBegun) -> None:
    """Return when object storage holds everything, or when no uploader follows and none came within
    `FOLLOWER_SECONDS`; it may be cancelled."""
    bound = [a.stream_id for a in streams.opened() if has_begun(a.stream_id, a.tracking)]
    if bound:
        log.warning("streams stay here: commits of staged batches are not finished", streams=bound)
    if unopened := streams.unopened():
        log.warning("streams stay here: they could not be opened", streams=unopened)
    feed.hurry()
    now = asyncio.get_running_loop().time
    until = now() + FOLLOWER_SECONDS
    while left := await _unpublished(streams):
        if not feed.followed and now() >= until:
            log.warning("streams stay here: nobody uploads them", streams=left)
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _unpublished(streams: OwnedStreams) -> int:
    """How many open streams are not published whole, also of those whose log failed meanwhile."""
    left = _count_unpublished(streams)
    if not left and streams.unopened():
        await streams.open_all()
        left = _count_unpublished(streams)
    return left


def _count_unpublished(streams: OwnedStreams) -> int:
    return sum(a.log.committed_next > a.published_next for a in streams.opened())
