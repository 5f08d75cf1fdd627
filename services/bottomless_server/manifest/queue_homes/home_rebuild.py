"""Bring homes of queues back from the bucket, after coordination was lost: a part of a rebuild.

Of each tenant the newest object counts: its node has the messages, and nobody else becomes the home
by a loss. The object of the next term is put, then the record is written, which names no url: the
node says where it is when it finds itself named. After a crash between the two the same again finds
that object, and puts another one after it, of the same node. So does an object that was on its way
when coordination was lost: it finds its key taken, or was the newest.
"""

from typing import Final, NamedTuple

import structlog

from bottomless.errors import Corrupt, Unavailable
from bottomless.formats.keys import QUEUE_HOMES_PREFIX, parse_queue_home_key
from bottomless.model.names import NodeId
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.queue_homes.core.home_decision import brought_back
from bottomless_server.manifest.queue_homes.homes import newest_home, put_home
from bottomless_server.manifest.queue_homes.starts import newest_start
from bottomless_server.stores.queue_homes import QueueHomes, queue_node_key
from bottomless_server.stores.queue_starts import Holder, lease_value
from bottomless_server.stores.rebuild_step import RebuildStep

log = structlog.get_logger(__name__)

_AT_ONCE: Final = 16
"""Tenants whose home one step brings back: each is some requests to the store."""

_LEASE_MS: Final = 60_000
"""No node believes in its lease for longer (queues/operator_settings.py has the bounds), and one that is alive
renews it meanwhile."""


class RestoredHomes(NamedTuple):
    """The homes that one step brought back, and those that it could not."""

    after: str
    """The last tenant that was looked at; empty where there was none any more."""
    homes: int
    unreadable_homes: int


async def restore_homes(context: Context, after: str, step: RebuildStep) -> RestoredHomes:
    """Bring back the homes of some tenants, those after one in their order.

    Raises:
        DriveUnavailable, DriveRefused, DriveAmbiguous: the same again is right.
        Unavailable: the step is not what goes on.
    """
    page = await _page(context, after)
    done = [await _restore(context, tenant, step) for tenant in page]
    return RestoredHomes(page[-1] if page else "", done.count(True), done.count(False))


async def _restore(context: Context, tenant: str, step: RebuildStep) -> bool:
    """Bring back one home; False if it cannot be read, and then nobody becomes the home."""
    try:
        last = await newest_home(context, tenant)
    except Corrupt:
        log.exception("the home of queues cannot be read", tenant=tenant)
        return False
    assert last is not None, "the listing named it"
    await step.check(context.coordination)
    home = brought_back(last, step.generation)
    try:
        await put_home(context, home)
    except Corrupt as error:
        # Whether this is still what goes on is asked before another term is taken.
        raise Unavailable("a home of queues was put at this moment") from error
    # The node may believe in its lease for a while, of which this coordination knows nothing: until
    # then nobody takes its queues over, and no copy of its directory is let in.
    await context.coordination.hold(
        queue_node_key(home.node_id), await _lease_of(context, home.node_id), _LEASE_MS
    )
    await QueueHomes(context.coordination, context.streams).restore(home._replace(noted=True), step)
    return True


async def _lease_of(context: Context, node_id: NodeId) -> bytes:
    """The value of the lease that the newest start of a node holds, if it lives."""
    try:
        start = await newest_start(context, node_id)
    except Corrupt:
        log.exception("the newest start of a node of queues cannot be read", node_id=node_id)
        start = None
    if start is None:
        return node_id.encode("ascii")
    return lease_value(node_id, Holder(start.token, start.lock))


async def _page(context: Context, after: str) -> list[str]:
    """The tenants after one that have objects, in the order of their names."""
    found: set[str] = set()
    async for facts in context.drive.list(QUEUE_HOMES_PREFIX):
        place = parse_queue_home_key(facts.object_key)
        if place is not None and place.tenant > after:
            found.add(place.tenant)
    return sorted(found)[:_AT_ONCE]
