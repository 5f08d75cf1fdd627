"""The troubles of a run, each at its time, with the samples that make its counters comparable."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from bench.loadtest.clients import Clients
from bench.loadtest.place import LoadTestError, utc_now
from bench.loadtest.reconcile import IngestLife, StoreLife, requests_of
from bench.loadtest.scenarios import Kill, StoreTrouble
from bench.loadtest.services import Services
from bench.loadtest.stack import CONNECTIONS
from bench.loadtest.tallies import Bounds, Counts, Tally, counts_of

REST_SECONDS: Final = 1.0
"""Who has neither counted nor sent a request for so long is at rest."""
UNEQUAL_ROUNDS: Final = 20
"""So often in a row a service at rest is looked at before a difference is believed: on a busy machine
a request may be on its way for long."""


@dataclass
class _Killed:
    """An ingest node's life that is over; what clients know of it may still grow."""

    name: str
    counted: Counts
    at_sample: Bounds
    tally: Tally


@dataclass
class Lives:
    """What is found out about the life of each process."""

    services: Services
    clients: Clients
    events: list[dict[str, Any]] = field(default_factory=list)
    """What was done, when, in words."""
    faults: list[str] = field(default_factory=list)
    stores: list[StoreLife] = field(default_factory=list)
    disturbed: int = 0
    """Requests to the object store that troubles met."""
    _killed: list[_Killed] = field(default_factory=list)

    async def trouble(self, one: Kill | StoreTrouble, begun: float) -> None:
        """Do what is planned, when it is its time."""
        await asyncio.sleep(max(begun + one.at_seconds - asyncio.get_running_loop().time(), 0))
        if isinstance(one, Kill):
            await self._kill(one)
        else:
            await self._disturb(one)

    async def _kill(self, one: Kill) -> None:
        name = one.service
        # Its start may still be going on.
        await self.services.until_running(name)
        tally = self.clients.lives[name][-1] if name in self.clients.lives else None
        before = (await self.services.facts())[name]
        low = tally.bounds.low if tally else Counts()
        metrics = await self.services.metrics(name)
        high = tally.bounds.high if tally else Counts()
        end = await self.services.control.ask("kill", service=name)
        self._tell("kill", name, f"life {before['life']}")
        life = f"{name}, life {before['life']} (killed)"
        counted = requests_of(metrics)
        self.stores.append(StoreLife(life, counted, before["seen"], end["seen"], CONNECTIONS))
        if tally is not None:
            self._killed.append(_Killed(life, counts_of(metrics), Bounds(low, high), tally))
        if one.again_after_seconds is not None:
            await asyncio.sleep(one.again_after_seconds)
            await self._start(name)

    async def _start(self, name: str) -> None:
        if name in self.clients.lives:
            self.clients.begin_life(name)
        await self.services.control.ask("start", service=name)
        self._tell("start", name)
        await self.services.until_running(name)
        self._tell("ready", name)

    async def _disturb(self, one: StoreTrouble) -> None:
        rule = {"fault": one.fault, "method": one.method, "chance": one.chance}
        await self.services.control.ask("trouble", **rule)
        self._tell("store trouble", one.fault, f"{one.chance:.0%} of {one.method}")
        await asyncio.sleep(one.seconds)
        self.disturbed = (await self.services.control.ask("calm"))["done"]
        self._tell("calm", "store")

    async def restart_reader(self) -> None:
        """A reader that has nothing in memory; the one before is compared first."""
        await self.at_rest("reader")
        await self.services.control.ask("stop", service="reader")
        self._tell("stop", "reader", "for a cold read")
        await self._start("reader")

    async def at_rest(self, *names: str, seconds: float = 600) -> None:
        """Compare the requests of each of these services at a moment at which it has none under way."""
        deadline = asyncio.get_running_loop().time() + seconds
        self.stores += await asyncio.gather(*(self._at_rest(name, deadline) for name in names))

    async def _at_rest(self, name: str, deadline: float) -> StoreLife:
        before: Any = None
        unequal = 0
        while True:
            seen = (await self.services.facts())[name]
            counted = requests_of(await self.services.metrics(name))
            after = (await self.services.facts())[name]
            now = (seen["seen"], counted)
            life = StoreLife(
                f"{name}, life {seen['life']}", counted, seen["seen"], after["seen"], 0
            )
            if now == before and seen == after:
                equal = all(counted[kind] == seen["seen"].get(kind, 0) for kind in counted)
                unequal += not equal
                if equal or unequal >= UNEQUAL_ROUNDS:
                    return life
            elif asyncio.get_running_loop().time() > deadline:
                raise LoadTestError(f"{name} did not come to rest, so nothing can be compared")
            before = now
            await asyncio.sleep(REST_SECONDS)

    async def ingests(self) -> list[IngestLife]:
        """Every life of every ingest node, once no append is under way."""
        found = [
            IngestLife(one.name, one.counted, one.at_sample, one.tally.bounds)
            for one in self._killed
        ]
        facts = await self.services.facts()
        for name, tallies in self.clients.lives.items():
            if facts[name]["state"] == "runs":
                low = tallies[-1].bounds.low
                counted = counts_of(await self.services.metrics(name))
                bounds = Bounds(low, tallies[-1].bounds.high)
                life = f"{name}, life {facts[name]['life']}"
                found.append(IngestLife(life, counted, bounds, None))
        return found

    async def running(self) -> list[str]:
        """The services that run; one that has ended by itself is a fault."""
        facts = await self.services.facts()
        self.faults += [
            f"{name} ended by itself; its log says why"
            for name, one in facts.items()
            if one["state"] == "ended by itself"
        ]
        return [name for name, one in facts.items() if one["state"] == "runs"]

    def _tell(self, event: str, what: str, more: str = "") -> None:
        self.events.append({"utc": utc_now(), "event": event, "what": what, "more": more})
