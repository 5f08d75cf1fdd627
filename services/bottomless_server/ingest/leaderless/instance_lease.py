"""The lease of one instance of a writer: it says that its writer lives.

Without it the vacuum settles the instance, and later takes its record away. So a record that is gone
proves something only to a writer that held its lease without a break from the begin until now. That
is told as of the lease of a node (node/core/belief.py): by the writer's own clocks, and by whether it
was renewed or taken anew. What is in doubt counts as a break, and then the writer begins anew.
"""

from bottomless.model.names import Uid
from bottomless_server.coordination.base import Coordination, CoordinationUnknown, Hold
from bottomless_server.node.core.belief import Belief, Moment, is_lapse
from bottomless_server.node.lease import Clocks, LeaseBounds
from bottomless_server.stores.wal import hold_live


class InstanceLease:
    """The lease of one instance, which `begun` takes up when the instance is begun."""

    def __init__(
        self, coordination: Coordination, instance: Uid, clocks: Clocks, bounds: LeaseBounds
    ) -> None:
        self._coordination = coordination
        self._instance = instance
        self._clocks = clocks
        self._bounds = bounds
        self._belief: Belief | None = None
        self._unheard = False
        """Whether a renewal had no answer since the last one that had."""

    @property
    def ttl_ms(self) -> int:
        """How long coordination keeps it: longer than the writer believes in it."""
        return self._bounds.lease_ms + self._bounds.margin_ms

    def begun(self, since: Moment) -> None:
        """Note that the instance was begun under its lease, which was taken after `since`."""
        self._belief = self._believed(since)

    def is_held(self) -> bool:
        """Tell whether the lease was held without a break from the begin until now."""
        if self._belief is not None and not self._belief.holds(self._clocks.now()):
            # For good: what was renewed later says nothing of the time in between.
            self._belief = None
        return self._belief is not None

    async def renew(self) -> None:
        """Renew it.

        Raises:
            CoordinationUnavailable, CoordinationUnknown
        """
        begun = self._clocks.beginning()
        try:
            hold = await hold_live(self._coordination, self._instance, self.ttl_ms)
        except CoordinationUnknown:
            self._unheard = True
            raise
        unheard, self._unheard = self._unheard, False
        # A renewal without an answer may have been the one that took it anew, unless the lease was
        # held all the time anyhow: then both were renewals.
        unheard = unheard and not self.is_held()
        taken = hold is not Hold.RENEWED
        if is_lapse(self._belief, self._clocks.now(), taken=taken, unheard=unheard):
            self._belief = None
        else:
            self._belief = self._believed(begun)

    def _believed(self, since: Moment) -> Belief:
        return Belief(since, (self._bounds.lease_ms - self._bounds.margin_ms) / 1000)
