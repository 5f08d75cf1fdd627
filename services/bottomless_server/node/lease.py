"""The lease of this node.

The node holds one lease for all its streams and renews it often. It believes in it only until
lease minus margin after the *start* of the last successful renewal, by its own monotonic clock,
while coordination keeps it for lease plus margin: so an owner that was cut off, or paused, has
stopped before anybody else may begin.

Whether the lease lapsed is told by evidence and not by the clock alone (`core/belief.py`): it was
taken anew, its answer came too late, or an answer before it never came. A node that slept renews
before it acts.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Outcome, StoreError
from bottomless.guards import guard
from bottomless.model.names import NodeId
from bottomless_server.coordination.base import (
    Coordination,
    CoordinationUnavailable,
    CoordinationUnknown,
    Hold,
)
from bottomless_server.core.regressed import REBUILD, coordination_lost
from bottomless_server.node.core import ownership
from bottomless_server.node.core.belief import Belief, Moment, is_lapse
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.pulse import wait_for
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.freed_names import NamesShown, shown_names
from bottomless_server.stores.generation import GENERATION_FIRST
from bottomless_server.stores.ingest_nodes import IngestNode, announce, withdraw
from bottomless_server.stores.node_facts import NodeFacts
from bottomless_server.stores.streams import node_key

log = structlog.get_logger(__name__)

_SILENT_SECONDS: Final = 3.0
"""A question that fails so late has waited for coordination. One that fails at once, as on a connection
that is refused, is asked again with the next renewal."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where time comes from. `monotonic` and `boot` are in seconds, `wall` in ms since 1970."""

    wall: Callable[[], int]
    monotonic: Callable[[], float]
    boot: Callable[[], float]
    """The time of a clock that also goes on while the machine is suspended, in seconds."""

    def elapsed(self) -> int:
        """Monotonic time in ms."""
        return int(self.monotonic() * 1000)

    def since_boot(self) -> int:
        """Time in ms, with that in which the machine was suspended."""
        return int(self.boot() * 1000)

    def beginning(self) -> Moment:
        """Now, for a belief that begins."""
        return Moment(monotonic=self.monotonic(), boot=self.boot())

    def now(self) -> Moment:
        """Now, for a belief that is looked at."""
        boot = self.boot()
        return Moment(monotonic=self.monotonic(), boot=boot)


def _boot_seconds() -> float:
    """Time since boot, with that in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


REAL_CLOCKS: Final = Clocks(
    wall=lambda: time.time_ns() // 1_000_000,
    monotonic=time.monotonic,
    # Only Linux tells both; elsewhere the answer to a renewal has to tell of a sleep.
    boot=_boot_seconds if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic,
)


class LeaseBounds(NamedTuple):
    """The times of a lease: the settings of the same names."""

    lease_ms: int
    margin_ms: int
    renew_ms: int


async def _no_room() -> bool:
    return False


def _id_alone(node_id: NodeId) -> bytes:
    # The node's id and not the process's: the directory is locked, so if this lease is held
    # already, this node held it before it was killed.
    return node_id.encode("ascii")


Heard = Callable[[NamesShown, int, Moment], None]
"""Told what coordination showed of names when the lease was renewed, how often it had been connected
to by then, and since when that is so at least: the moment before it was asked."""


class NodeLease:
    """Whether this node may act as the owner of anything."""

    def __init__(
        self,
        coordination: Coordination,
        directory: DataDirectory,
        url: str,
        clocks: Clocks,
        bounds: LeaseBounds,
        heard: Heard,
        *,
        lease_key: Callable[[NodeId], str] = node_key,
        lease_value: Callable[[NodeId], bytes] = _id_alone,
        make_room: Callable[[], Awaitable[bool]] = _no_room,
        announced: bool = True,
        facts: NodeFacts | None = None,
        owned: str = ownership.STREAM,
    ) -> None:
        """The lease of the node whose `directory` it is; `url` is where others reach it.

        `lease_key` and `lease_value` make the key of the lease of a node and what it holds. Where it
        is held with another value `make_room` may give it up for whoever has ended, and says whether
        it did. One that is `announced` enters itself among the ingest nodes, with its `facts`. Errors
        call what the node owns `owned`.
        """
        self._lease_value = lease_value
        self._make_room = make_room
        self._owned = owned
        self._heard = heard
        self._lease_key = lease_key
        self._announced = announced
        self._facts = facts
        self._coordination = coordination
        self._directory = directory
        self._url = url
        self._clocks = clocks
        self._bounds = bounds
        self._belief: Belief | None = None
        self._fenced = False
        self._unheard = False
        """Whether a renewal had no answer since the last one that had."""
        self._slept = asyncio.Event()
        """Set while this node has slept and has not renewed its lease since."""
        self._renewing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._announced_term: int | None = None
        self.term = 0
        """Grows with every lapse, and with every rebuild of coordination."""
        self.generation: int | None = None
        """The last that coordination showed; None before there was one."""
        self.regressed = False
        """Whether coordination shows less than that: nothing it says is to be believed."""
        self._losses_seen = 0
        """Renewals in a row that found it so."""

    @property
    def node(self) -> IngestNode:
        """The node that holds this lease, known once its directory was opened."""
        return IngestNode(self._directory.node_id, self._url)

    @property
    def lease_ms(self) -> int:
        """How long it lasts, in ms, unless it is renewed."""
        return self._bounds.lease_ms

    def _key_and_value(self) -> tuple[str, bytes]:
        node_id = self._directory.node_id
        return self._lease_key(node_id), self._lease_value(node_id)

    def fence(self) -> None:
        """Believe in this lease no more, and renew it no more: it runs out. There is no way back."""
        self._fenced = True
        self._belief = None

    def is_live(self) -> bool:
        """Whether this node may believe in its lease now."""
        if self._fenced:
            return False
        belief, now = self._belief, self._clocks.now()
        if belief is not None and belief.slept(now):
            log.warning("this node slept; its lease is renewed before it acts")
            self._belief = None
            self._slept.set()
        return self._belief is not None and self._belief.holds(now)

    async def settle(self) -> None:
        """Where this node slept, renew before going on; else return at once."""
        self.is_live()
        if self._slept.is_set():
            async with self._renewing:
                # Others may have waited for the same renewal.
                if self._slept.is_set():
                    await self._renew()

    @guard("the lease of a node")
    def require(self, outcome: Outcome = Outcome.NONE) -> None:
        """Refuse to act without a live lease.

        Raises:
            Unavailable: `not-owner`: the lease may have run out; `coordination-regressed`.
        """
        if self.regressed and outcome is Outcome.NONE:
            raise coordination_lost()
        if not self.is_live():
            raise ownership.not_owner(outcome=outcome, owned=self._owned)

    async def start(self) -> None:
        """Take the lease, if coordination answers, and go on renewing it."""
        await self.renew()
        renew_seconds = self._bounds.renew_ms / 1000
        keeping = endless("node-lease", self._keep, pause_seconds_max=renew_seconds)
        self._task = asyncio.create_task(keeping, name="node-lease")

    async def stop(self) -> None:
        """Give the lease up: nothing may be served any more."""
        if self._task is not None:
            await end_tasks(self._task)
            if not self._task.cancelled():
                # A bug that ended it is told.
                self._task.result()
        self._belief = None
        if self._announced:
            with suppress(StoreError):
                await withdraw(self._coordination, self.node.node_id)
        with suppress(StoreError):
            await self._coordination.release(*self._key_and_value())

    async def give_up(self) -> None:
        """Give the lease up at once, for a process that is about to end without anything else.

        A renewal that is under way comes first, or the lease might be taken after it was given up. The
        node stays in the index, as one that was killed does: streams still name it, and an operator who
        looks for it finds it away and can have it emptied.
        """
        self.fence()
        async with self._renewing:
            with suppress(StoreError):
                await self._coordination.release(*self._key_and_value())

    async def _keep(self) -> float:
        await wait_for(self._slept, self._bounds.renew_ms / 1000)
        await self.renew()
        return 0

    async def renew(self) -> None:
        """Renew the lease now; what goes wrong is logged, and shows when it runs out."""
        async with self._renewing:
            await self._renew()

    async def _renew(self) -> None:
        try:
            await self._ask()
        finally:
            # Also where nobody answered: the next renewal comes in its time, and until then
            # nothing is believed. A sleep meanwhile is seen by the belief that it brings.
            self._slept.clear()

    async def _ask(self) -> None:
        if self._fenced:
            return
        ttl_ms = self._bounds.lease_ms + self._bounds.margin_ms
        try:
            async with asyncio.timeout(self._bounds.lease_ms / 1000):
                begun, shown = await self._shown()
                if self._note_loss(shown.generation) or self._fenced:
                    return
                hold = await self._coordination.hold(*self._key_and_value(), ttl_ms)
                if hold is Hold.REFUSED and await self._make_room():
                    hold = await self._coordination.hold(*self._key_and_value(), ttl_ms)
        except (StoreError, TimeoutError) as error:
            self._unheard |= isinstance(error, (CoordinationUnknown, TimeoutError))
            log.warning("the lease was not renewed", error=str(error))
            return
        if hold is Hold.REFUSED:
            log.error("the lease of this node is held with another value")
            return
        self._take(begun, hold, shown.generation)
        self._heard(shown, self._coordination.connected_count, begun)
        if self._announced and self._announced_term != self.term and not self._fenced:
            await self._announce()

    async def _shown(self) -> tuple[Moment, NamesShown]:
        """What coordination shows, and the moment before it was asked.

        Where it says nothing it is asked again at once, for as long as a renewal may take: the next one
        could come after the end of what is believed, though coordination goes on before that.

        Raises:
            CoordinationUnavailable, Corrupt
        """
        while True:
            begun = self._clocks.beginning()
            try:
                return begun, await shown_names(self._coordination)
            except CoordinationUnavailable:
                if self._clocks.monotonic() - begun.monotonic < _SILENT_SECONDS or self._fenced:
                    raise

    def _take(self, begun: Moment, hold: Hold, shown: int | None) -> None:
        """Believe from `begun` on; after a lapse every claim has to be confirmed."""
        taken, unheard = hold is Hold.TAKEN, self._unheard
        lapsed = is_lapse(self._belief, self._clocks.now(), taken=taken, unheard=unheard)
        # Of a new deployment this node may have asked before manifest created the generation. What
        # it claimed since was of the first one already: nothing was rebuilt.
        rebuilt = (shown or GENERATION_FIRST) != (self.generation or GENERATION_FIRST)
        if lapsed or rebuilt:
            self.term += 1
        self.generation, self._unheard = shown, False
        self._belief = Belief(begun, (self._bounds.lease_ms - self._bounds.margin_ms) / 1000)

    async def _announce(self) -> None:
        """Say where this node is: once in a term, since a lapse may mean that all was lost."""
        term = self.term
        try:
            await announce(self._coordination, self.node, self._facts)
        except StoreError as error:
            log.warning("this node is not announced; tried again", error=str(error))
            return
        self._announced_term = term

    def _note_loss(self, shown: int | None) -> bool:
        """Take up what coordination shows of its generation; a lower one, or none, is a loss."""
        self.regressed = ownership.went_back(self.generation, shown)
        if not self.regressed:
            self._losses_seen = 0
        else:
            self._losses_seen += 1
            # Not at each renewal, which comes every few seconds: the 1st, 2nd, 4th, 8th and so on.
            if self._losses_seen.bit_count() == 1:
                log.critical(
                    "coordination was lost or went back; nothing is accepted until it is rebuilt",
                    command=REBUILD,
                    renewals=self._losses_seen,
                )
            # Whatever was claimed is confirmed before it is used again.
            self._belief = None
        return self.regressed
