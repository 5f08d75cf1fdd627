"""Give the queues of a tenant their home: the first one, or another in a takeover.

Three steps make a node the home of a term, in this order:

1. One EXEC: the record names the node under the next term, and says that the bucket does not. In a
   takeover it is made on condition that the lease of the node that loses the queues is gone.
2. The object of that term, put if absent.
3. One EXEC: the record says that the bucket does. Only from here on does the node serve queues.

After a crash that follows step 1 or 2 whoever asks next does the rest. If coordination is lost after
step 1 the bucket knows only the home before: nobody was served under the new term, so nothing is
missed. After step 2 a rebuild enters the new home, as an operator wanted it.
An object that says something else of a term was put by somebody of before a loss of coordination: the
same node then gets the next term.

The record is never younger than the bucket, but an older copy of coordination has one that is: so a
node that has served queues before looks here before it serves them again. docs/decisions/0099.
"""

from typing import Final

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt, Unavailable
from bottomless.formats.checks import corrupt, crc32c
from bottomless.formats.keys import parse_queue_home_key, queue_home_key, queue_home_prefix
from bottomless.formats.queue_home import HomeObject, decode_home_object, encode_home_object
from bottomless.guards import guard
from bottomless.model.queue_home import QueueHome
from bottomless_server.core.regressed import coordination_outdated
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.queue_homes.core.home_decision import (
    HomeAsked,
    decide_home,
    home_changed,
    in_a_later_term,
    noted,
)
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.queue_homes import QueueHomes

log = structlog.get_logger(__name__)

_ATTEMPT_COUNT: Final = 8


class Homes:
    """Settles which node has the queues of which tenant."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.records = QueueHomes(context.coordination, context.streams)

    async def settle(self, tenant: str, asked: HomeAsked) -> QueueHome:
        """The home of a tenant's queues, after a node asked to be it; the bucket says so too.

        Raises:
            NotFound: there is nothing to take over.
            Fenced: `home-live`.
            Unavailable: the outcome says whether it may be so now; the same again is right.
            Corrupt: what the bucket says of the tenant cannot be read.
        """
        last = await newest_home(self._context, tenant)
        generation = self._context.streams.generation or 0

        def decide(before: QueueHome | None, home_held: bool) -> QueueHome:
            if before is not None:
                require_not_older(before, last)
            return decide_home(
                tenant, before, asked, last=last, home_held=home_held, generation=generation
            )

        return await self._note(await self.records.change(tenant, decide, asked.expect_home))

    async def _note(self, home: QueueHome) -> QueueHome:
        for _ in range(_ATTEMPT_COUNT):
            if home.noted:
                return home
            await reach("manifest.queue-home.after-exec")
            try:
                await put_home(self._context, home)
            except Corrupt:
                log.warning("another home has this term", tenant=home.tenant, term=home.term)
                home = await self._change(home, in_later_term=True)
                continue
            await reach("manifest.queue-home.after-object")
            home = await self._change(home, in_later_term=False)
        raise home_changed()

    async def _change(self, home: QueueHome, *, in_later_term: bool) -> QueueHome:
        becomes = in_a_later_term if in_later_term else noted
        return await self.records.change(home.tenant, lambda before, _: becomes(before, home))


@guard("the look at newer homes of queues")
def require_not_older(record: QueueHome, last: HomeObject | None) -> None:
    """Refuse to go on from a record that is older than the bucket.

    Raises:
        Unavailable: `coordination-regressed`.
    """
    if last is not None and last.term > record.term:
        log.critical("the home of queues is older than the bucket", tenant=record.tenant)
        raise coordination_outdated(
            "the coordination store is an older copy: the bucket shows a later home of these queues"
        )


async def put_home(context: Context, home: QueueHome) -> None:
    """Put the object of a home, if it is not there.

    Raises:
        Corrupt: the object of this term is there, and says something else.
        DriveUnavailable, DriveRefused, DriveFull, DriveAmbiguous: the same again is right.
    """
    data = encode_home_object(HomeObject(home.tenant, home.term, home.node_id))
    await put_object(
        context.drive,
        queue_home_key(home.tenant, home.term),
        [data],
        crc32c(data),
        deadline_seconds=context.settings.manifest_put_seconds,
    )


async def newest_home(context: Context, tenant: str) -> HomeObject | None:
    """The newest home of a tenant of which the bucket knows; None where it knows of none.

    Raises:
        Corrupt: it cannot be read. Nobody is taken for the home instead.
    """
    listing = context.drive.list(queue_home_prefix(tenant))
    terms = [
        place.term
        async for facts in listing
        if (place := parse_queue_home_key(facts.object_key)) and place.tenant == tenant
    ]
    return await read_home(context, tenant, max(terms)) if terms else None


async def read_home(context: Context, tenant: str, term: int) -> HomeObject:
    """The object of one home.

    Raises:
        Corrupt: it cannot be read, or is not what its key says.
        Unavailable: not now.
    """
    try:
        said = decode_home_object(bytes(await context.drive.get(queue_home_key(tenant, term))))
    except ObjectMissing as error:
        raise Unavailable("the object of a home of queues was removed meanwhile") from error
    if (said.tenant, said.term) != (tenant, term):
        raise corrupt("queue home object", "it is not what its key says")
    return said
