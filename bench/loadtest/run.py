"""A run: streams are made, appended to while things go wrong, read to their ends, and compared."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

from bench.loadtest.clients import Clients, Producer
from bench.loadtest.histogram import Histogram
from bench.loadtest.ledger import ProducerLedger
from bench.loadtest.measures import Measures
from bench.loadtest.place import LoadTestError, RunDirectory
from bench.loadtest.reading import read_all
from bench.loadtest.reconcile import Evidence, Verdict, reconcile
from bench.loadtest.routing import Policy, Router, owners_of
from bench.loadtest.scenarios import Scenario
from bench.loadtest.services import Services
from bench.loadtest.summary import summary_of
from bench.loadtest.troubles import Lives

CREATE_AT_ONCE: Final = 8
CREATE_SECONDS: Final = 300.0
AGAIN_SECONDS: Final = 0.5
ROUTING: Final = "routing-manifest.json"
Say = Callable[[str], None]


async def precreate(run: RunDirectory) -> int:
    """Make all streams, and write down which nodes each belongs to; how many there are.

    Raises:
        LoadTestError: a stream cannot be made.
    """
    scenario, services = run.scenario(), Services(run)
    room = asyncio.Semaphore(CREATE_AT_ONCE)

    async def one(client: httpx.AsyncClient, stream: str) -> dict[str, Any]:
        async with room:
            made = await _create(client, stream, scenario)
        owners = owners_of(stream, scenario.node_names, scenario.owners)
        return {"stream_id": made["stream_id"], "owners": owners}

    async with httpx.AsyncClient(base_url=services.url("manifest"), timeout=60) as client:
        names = scenario.stream_names
        made = await asyncio.gather(*(one(client, stream) for stream in names))
    streams = dict(zip(names, made, strict=True))
    run.write(
        ROUTING,
        {
            "hash": "rendezvous",
            "policy": scenario.policy,
            "owners": scenario.owners,
            "streams": streams,
        },
    )
    return len(streams)


async def _create(client: httpx.AsyncClient, stream: str, scenario: Scenario) -> dict[str, Any]:
    deadline, said = time.monotonic() + CREATE_SECONDS, ""
    while time.monotonic() < deadline:
        try:
            answer = await client.put(f"/v1/streams/{stream}", json=scenario.config)
        except httpx.TransportError as error:
            said = repr(error)
        else:
            if answer.is_success:
                made: dict[str, Any] = answer.json()
                return made
            said = answer.text[:200]
            if answer.is_client_error:
                break
        await asyncio.sleep(AGAIN_SECONDS)
    raise LoadTestError(f"the stream {stream} cannot be created: {said}")


class Run:
    """One run on a stack that is up and has its streams."""

    def __init__(self, run: RunDirectory, say: Say) -> None:
        self._run = run
        self._say = say
        self._scenario = scenario = run.scenario()
        self._services = Services(run)
        streams = run.read(ROUTING)["streams"]
        owners = {stream: tuple(one["owners"]) for stream, one in streams.items()}
        numbers = range(len(owners) * scenario.producers)
        names = [stream for stream in owners for _ in range(scenario.producers)]
        self._producers = [
            Producer(stream, ProducerLedger(number, scenario.record_bytes))
            for number, stream in zip(numbers, names, strict=True)
        ]
        urls = {name: self._services.url(name) for name in scenario.node_names}
        router = Router(owners, Policy(scenario.policy))
        self._clients = Clients(scenario, urls, router, self._producers)
        self._lives = Lives(self._services, self._clients)
        self._all = Measures()
        self._cold = Histogram()
        self._phases: dict[str, float] = {}

    async def execute(self) -> Verdict:
        """All of it; what was found is in the directory.

        Raises:
            LoadTestError: it cannot go on, so nothing can be said.
        """
        try:
            await self._load()
            with self._phase("read"):
                evidence = await self._look()
        finally:
            await self._clients.aclose()
        verdict = reconcile(evidence)
        self._run.write("summary.json", self._summary(verdict))
        return verdict

    async def _load(self) -> None:
        loop, scenario = asyncio.get_running_loop(), self._scenario
        begun = loop.time()
        ticking = asyncio.create_task(self._tick(begun))
        troubles = [
            asyncio.create_task(self._lives.trouble(one, begun)) for one in scenario.troubles
        ]
        try:
            with self._phase("load"):
                self._say(f"load for {scenario.seconds} s")
                await self._clients.load(begun)
            with self._phase("settle"):
                await asyncio.gather(*troubles)
                await self._clients.settle(scenario.settle_seconds)
        finally:
            for task in (ticking, *troubles):
                task.cancel()
            await asyncio.gather(ticking, *troubles, return_exceptions=True)
        self._line(loop.time() - begun)
        await self._services.sample(loop.time() - begun)
        seconds = self._phases["load"]
        self._run.write("client-summary.json", self._all.told(seconds))
        self._run.write("events.json", self._lives.events)

    async def _look(self) -> Evidence:
        """Read everything, and compare counters at rest."""
        running = await self._lives.running()
        if self._scenario.cold_read and "reader" in running:
            self._say("cold read: the reader is started again")
            await self._lives.restart_reader()
        ledgers: dict[str, list[ProducerLedger]] = {}
        for producer in self._producers:
            ledgers.setdefault(producer.stream, []).append(producer.ledger)
        self._say(f"{len(ledgers)} streams are read to their ends")
        readings = await read_all(self._services.url("reader"), ledgers, self._cold)
        ingests = await self._lives.ingests()
        self._say("services come to rest")
        await self._lives.at_rest(
            *await self._lives.running(), seconds=self._scenario.settle_seconds
        )
        # What was counted is in the last lines too.
        await self._services.sample(sum(self._phases.values()))
        self._run.write("events.json", self._lives.events)
        faults = [*self._clients.faults, *dict.fromkeys(self._lives.faults)]
        return Evidence(readings, ingests, self._lives.stores, faults)

    async def _tick(self, begun: float) -> None:
        """A line about clients and the metrics of all services, each interval."""
        loop, interval, number = asyncio.get_running_loop(), self._scenario.interval_seconds, 1
        while True:
            await asyncio.sleep(max(begun + number * interval - loop.time(), 0))
            self._line(loop.time() - begun)
            try:
                await self._services.sample(loop.time() - begun)
            except LoadTestError as error:
                self._say(str(error))
            # Intervals that a busy machine has missed have no lines.
            number = max(number + 1, int((loop.time() - begun) / interval) + 1)

    def _line(self, at: float) -> None:
        """What clients saw since the last line."""
        measures, self._clients.measures = self._clients.measures, Measures()
        since = self._phases.get("lines", 0.0)
        under_way = sum(self._clients.router.under_way.values())
        told = measures.told(max(at - since, 1e-9))
        more = {
            "under_way": under_way,
            "waiting": self._clients.waiting_count,
            # Of this program since its begin: one that needs a core measures itself.
            "cpu_seconds": round(time.process_time(), 3),
        }
        away = sorted(self._clients.router.away)
        self._run.add_line(
            "client-30s.jsonl", {"at_seconds": round(at, 3), **told, **more, "away": away}
        )
        while self._clients.remaps:
            self._run.add_line("remap-events.jsonl", self._clients.remaps.popleft())
        self._phases["lines"] = at
        self._all.merge(measures)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self._phases[name] = time.monotonic() - begun

    def _summary(self, verdict: Verdict) -> dict[str, Any]:
        del self._phases["lines"]
        return summary_of(
            self._scenario,
            verdict,
            self._all,
            self._cold,
            phases=self._phases,
            events=self._lives.events,
            disturbed=self._lives.disturbed,
        )
