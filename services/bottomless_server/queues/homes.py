"""The homes of tenants: whose queues are here, and where those of the others are.

Manifest decides it and keeps it (manifest/queue_homes/homes.py). This node asks there before it makes the
first queue of a tenant, and once in each term of its lease before it serves queues that it has; in
between it believes what it heard, for as long as it believes in its lease: a takeover needs the lease to
be gone, and coordination keeps it for longer than that.
"""

from collections.abc import Callable
from typing import Final

from cachetools import LRUCache, TTLCache

from bottomless.errors import NotFound, Outcome, Unavailable
from bottomless.guards import guard
from bottomless.model.names import NodeId
from bottomless_server.core.not_found import queue_not_found
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.core.restated import restated
from bottomless_server.node.core.ownership import OwnedElsewhere, not_owner
from bottomless_server.node.lease import NodeLease
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.queue_homes import (
    HomeSaid,
    decode_home_said,
    encode_home_asked,
    home_path,
)
from bottomless_server.queues.starts import NodeStart
from bottomless_server.runtime.base.single_flight import SingleFlight
from bottomless_server.stores.queue_homes import QueueHomes

OWNED: Final = "the queues of this tenant"
"""What errors call that which a node of queues owns."""
_COUNT_MAX: Final = 100_000
"""Tenants of which it is remembered where their queues are; forgetting one costs a question."""
_SECONDS: Final = 1.0
"""How long it is remembered that another node is a home."""


class TenantHomes:
    """The homes of tenants, as this node knows them."""

    def __init__(
        self,
        manifest: PeerPort,
        records: QueueHomes,
        lease: NodeLease,
        start: NodeStart,
        monotonic: Callable[[], float],
    ) -> None:
        self._manifest = manifest
        self._records = records
        self._lease = lease
        self._start = start
        self._mine: LRUCache[str, int] = LRUCache(_COUNT_MAX)
        """The term of the lease in which it was heard that a tenant's queues are here."""
        self._others: TTLCache[str, str] = TTLCache(_COUNT_MAX, _SECONDS, monotonic)
        self._asking: SingleFlight[tuple[str, int], HomeSaid] = SingleFlight()
        """What is asked, by the tenant and the term: an answer that was asked for in a term before may be
        of before a takeover."""

    async def require(self, tenant: str) -> None:
        """Return if the queues of a tenant are here.

        Raises:
            OwnedElsewhere: another node has to be asked.
            NotFound: `queue-not-found`: the tenant has no home, and so no queue.
            Unavailable: `not-owner`, `coordination-regressed` or another: nobody can be asked now.
        """
        await self._lease.settle()
        if self.is_here(tenant):
            return
        self._require_not_elsewhere(tenant)
        record = await self._records.find(tenant)
        if record is None:
            raise queue_not_found()
        if record.generation > (self._lease.generation or 0):
            # A rebuild has written it and is not finished.
            raise coordination_lost()
        if record.node_id == self._node_id:
            await self.found(tenant)
            return
        if not record.noted or record.url is None:
            raise not_owner(owned=OWNED)
        self._note_elsewhere(tenant, record.url)

    async def found(self, tenant: str) -> None:
        """Be the home of a tenant, if it has none or if it is here; the bucket says so then.

        Raises:
            OwnedElsewhere: it has another one.
            StoreError: what manifest answered.
        """
        await self._lease.settle()
        if self.is_here(tenant):
            return
        term = self._lease.term
        self._lease.require()
        await self._start.let_in(term)
        said = await self._asking.join((tenant, term), lambda: self._ask(tenant, None))
        if said.node_id != self._node_id:
            if said.url is None:
                raise not_owner(owned=OWNED)
            self._note_elsewhere(tenant, said.url)
        self._note_here(tenant, term)

    async def take_over(self, tenant: str, expect_home: NodeId) -> HomeSaid:
        """Be the home of a tenant in place of a node that will not come back.

        Raises:
            NotFound: the tenant has no queues.
            Fenced: `home-live`.
            StoreError: what manifest answered; the same again is safe.
        """
        await self._lease.settle()
        term = self._lease.term
        self._lease.require()
        await self._start.let_in(term)
        said = await self._ask(tenant, expect_home)
        self._others.pop(tenant, None)
        self._note_here(tenant, term)
        return said

    @guard("the home of a tenant's queues, confirmed in each term of the lease")
    def is_here(self, tenant: str) -> bool:
        """Whether the queues of a tenant are here, as far as this node can know without asking."""
        return self._lease.is_live() and self._mine.get(tenant) == self._lease.term

    @guard("the home of a tenant's queues, before an answer")
    def require_still(self, tenant: str) -> None:
        """Refuse to say that something was done of which another node may know nothing.

        Raises:
            Unavailable: `not-owner`, outcome unknown: it is on this disk, and the lease may have run out.
        """
        if not self.is_here(tenant):
            raise not_owner(outcome=Outcome.UNKNOWN, owned=OWNED)

    @guard("the home of a tenant's queues, at each send of what leaves them")
    async def require_to_send(self, tenant: str) -> None:
        """Return if messages that leave the queues of a tenant may be sent from here.

        Raises:
            Unavailable: `not-owner` or another: they stay here, and wait.
        """
        try:
            await self.require(tenant)
        except NotFound as error:
            # Coordination lacks the home, and messages are here: it was lost.
            raise not_owner(owned=OWNED) from error

    def forget_owner(self, url: str) -> None:
        """Look again where the queues are of which a node said that it has them no more."""
        for tenant, known in list(self._others.items()):
            if known == url:
                self._others.pop(tenant, None)

    async def aclose(self) -> None:
        """End what is being asked."""
        await self._asking.aclose()
        await self._start.aclose()
        await self._manifest.aclose()

    @property
    def _node_id(self) -> NodeId:
        return self._lease.node.node_id

    async def _ask(self, tenant: str, expect_home: NodeId | None) -> HomeSaid:
        node = self._lease.node
        body = encode_home_asked(node.node_id, node.url, expect_home)
        try:
            answer = await self._manifest.call("POST", home_path(tenant), body=body)
        except Unavailable as error:
            # Whatever manifest has done of it: of what was asked of this node nothing is done.
            raise restated(error, Outcome.NONE) from error
        return decode_home_said(answer.body)

    def _note_here(self, tenant: str, term: int) -> None:
        self._mine[tenant] = term
        if not self.is_here(tenant):
            # The lease lapsed while manifest was asked: it is confirmed with the next request.
            raise not_owner(owned=OWNED)

    def _note_elsewhere(self, tenant: str, url: str) -> None:
        self._others[tenant] = url
        raise OwnedElsewhere(url, OWNED)

    def _require_not_elsewhere(self, tenant: str) -> None:
        url = self._others.get(tenant)
        if url is not None:
            raise OwnedElsewhere(url, OWNED)
