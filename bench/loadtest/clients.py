"""Clients that append: each producer one append after the other, until it knows what became of it."""

import asyncio
import json
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from bench.loadtest.arrivals import arrivals
from bench.loadtest.ledger import ProducerLedger
from bench.loadtest.measures import Measures
from bench.loadtest.place import utc_now
from bench.loadtest.routing import Remap, Router
from bench.loadtest.scenarios import Scenario
from bench.loadtest.tallies import Tally

AGAIN_SECONDS: Final = 0.25
"""Between two attempts, and between two questions whether a node is back."""
REQUEST_SECONDS: Final = 120.0
"""Longer than the product waits for anything: who gives up earlier does not know the outcome."""
FINAL: Final = range(400, 500)
"""Answers that say that the request itself is wrong, but for `TRY_AGAIN`."""
TRY_AGAIN: Final = {408, 429}
FAULT_COUNT_MAX: Final = 20


@dataclass
class Producer:
    """One producer of one stream."""

    stream: str
    ledger: ProducerLedger
    waiting: deque[float] = field(default_factory=deque)
    """When each append that waits should have begun."""
    at_work: bool = False
    broken: bool = False
    """It was told something that may never be, and stops."""


class Clients:
    """All producers, and what they know."""

    def __init__(
        self,
        scenario: Scenario,
        urls: Mapping[str, str],
        router: Router,
        producers: list[Producer],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`urls` are those of the nodes, by name; `transport` stands for the network in tests."""
        self.scenario = scenario
        self.router = router
        self.producers = producers
        self.measures = Measures()
        """Since the last interval."""
        self.faults: list[str] = []
        self.remaps: deque[dict[str, Any]] = deque()
        """Lines about those that are not written yet."""
        self.lives: dict[str, list[Tally]] = {name: [Tally()] for name in urls}
        """Of each node, what is known of each of its lives."""
        self._urls = urls
        self._room = asyncio.Semaphore(scenario.under_way_max)
        self._joined = asyncio.Event()
        self._ending = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        """Of appends."""
        self._watchers: set[asyncio.Task[None]] = set()
        """Of nodes that are away."""
        self._waiting_count = 0
        self._http = httpx.AsyncClient(
            timeout=REQUEST_SECONDS,
            # An append never waits for a connection: whom it is sent to is decided just before.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=scenario.under_way_max
            ),
            transport=transport,
        )

    @property
    def waiting_count(self) -> int:
        return self._waiting_count

    def begin_life(self, node: str) -> None:
        """A node is about to be started again, with counters at 0."""
        self.lives[node].append(Tally())

    async def load(self, begun: float) -> None:
        """Append as the scenario says, until its time is over; not all answers are there by then."""
        if self.scenario.loop == "open":
            await self._open_loop(begun)
        else:
            await self._closed_loop(begun)

    async def settle(self, seconds: float) -> None:
        """Wait for the outcomes of what was sent, and give up after so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        self._ending.set()
        left = [*self._tasks, *self._watchers]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def aclose(self) -> None:
        await self.settle(0)
        await self._http.aclose()

    async def _open_loop(self, begun: float) -> None:
        scenario, loop = self.scenario, asyncio.get_running_loop()
        wanted = arrivals(
            scenario.appends_per_second, scenario.seconds, len(self.producers), scenario.seed
        )
        for arrival in wanted:
            left = begun + arrival.at - loop.time()
            if left > 0:
                await asyncio.sleep(left)
            if self._waiting_count >= scenario.waiting_max:
                self.measures.left_out += 1
                continue
            producer = self.producers[arrival.producer]
            producer.waiting.append(begun + arrival.at)
            self._waiting_count += 1
            if not producer.at_work:
                producer.at_work = True
                self._begin(self._work_off(producer), self._tasks)
        await asyncio.sleep(max(begun + scenario.seconds - loop.time(), 0))

    async def _work_off(self, producer: Producer) -> None:
        try:
            while producer.waiting and not self._ending.is_set():
                intended = producer.waiting.popleft()
                self._waiting_count -= 1
                await self.append(producer, intended)
        finally:
            producer.at_work = False

    async def _closed_loop(self, begun: float) -> None:
        clients = self.scenario.clients
        for client in range(clients):
            self._begin(self._one_client(self.producers[client::clients], begun), self._tasks)
        if self._tasks:
            left = begun + self.scenario.seconds - asyncio.get_running_loop().time()
            await asyncio.wait(self._tasks, timeout=max(left, 0))

    async def _one_client(self, producers: list[Producer], begun: float) -> None:
        loop, end = asyncio.get_running_loop(), begun + self.scenario.seconds
        while True:
            for producer in producers:
                if loop.time() >= end or self._ending.is_set():
                    return
                await self.append(producer, loop.time())
            if all(producer.broken for producer in producers):
                return

    def _begin(self, work: Coroutine[Any, Any, None], tasks: "set[asyncio.Task[None]]") -> None:
        def ended(task: "asyncio.Task[None]") -> None:
            tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._fault(f"a client fell over: {error!r}")

        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(ended)

    def begin(self, producer: Producer, intended: float) -> None:
        """Begin one append, which `settle` waits for."""
        self._begin(self.append(producer, intended), self._tasks)

    async def append(self, producer: Producer, intended: float) -> None:
        """Send one append until it is answered; unless that is given up, its outcome is known."""
        if producer.broken:
            return
        ledger = producer.ledger
        values = ledger.begin(self.scenario.records)
        first = ledger.acknowledged
        body = json.dumps({"records": [{"value": value} for value in values]}).encode()
        headers = {
            "content-type": "application/json",
            "producer-id": f"p{ledger.producer}",
            "producer-seq": str(first),
        }
        attempt = _Attempt(
            producer, f"/v1/streams/{producer.stream}/records", headers, body, values
        )
        while not self._ending.is_set():
            if not self.router.usable(producer.stream):
                self._joined.clear()
                await self._joined.wait()
                continue
            async with self._room:
                if not attempt.begun:
                    attempt.begun = True
                    late = asyncio.get_running_loop().time() - intended
                    self.measures.late.add(late * 1000)
                node, done = await self._try(attempt)
            if done:
                ms = (asyncio.get_running_loop().time() - intended) * 1000
                self.measures.acknowledged(node, len(values), len(body), ms)
            if done or producer.broken:
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _try(self, attempt: "_Attempt") -> tuple[str, bool]:
        """Send it to one of the owners; to whom, and whether it is acknowledged now."""
        node = self.router.choose(attempt.producer.stream)
        if node is None:
            # All of them have gone while there was no room.
            return "", False
        try:
            return node, await self._send(attempt, node)
        finally:
            self.router.end(node)

    async def _send(self, attempt: "_Attempt", node: str) -> bool:
        """Send it to a node once; whether it is acknowledged now."""
        life, tally = len(self.lives[node]), self.lives[node][-1]
        size = (len(attempt.values), len(attempt.body))
        tally.begin(*size)
        try:
            answer = await self._http.post(
                f"{self._urls[node]}{attempt.path}", content=attempt.body, headers=attempt.headers
            )
        except (httpx.ConnectError, httpx.ConnectTimeout):
            # Nobody has heard of it.
            tally.refused(*size)
            self.measures.attempts["refused: no connection"] += 1
            self._leave(node)
            return False
        except BaseException as error:
            self._lost(node, life, size)
            self.measures.attempts[f"unknown: {type(error).__name__}"] += 1
            if isinstance(error, httpx.TransportError):
                return False
            raise
        if answer.status_code != httpx.codes.OK:
            self._refused(attempt, node, life, answer)
            return False
        repeated = answer.headers.get("idempotent-replayed") == "true"
        if life != len(self.lives[node]):
            self._lost(node, life, size)
        elif repeated:
            tally.repeated(*size)
        else:
            tally.stored(*size)
        self.measures.repeats += repeated
        return self._take(attempt, answer.json())

    def _lost(self, node: str, life: int, size: tuple[int, int]) -> None:
        """Nobody knows whether that life of a node has counted it; or the one after it, where the
        node was started again meanwhile."""
        lives = self.lives[node]
        lives[life - 1].lost(*size)
        if life != len(lives):
            lives[-1].may_have(*size)

    def _take(self, attempt: "_Attempt", said: Mapping[str, Any]) -> bool:
        """Note what was acknowledged."""
        producer, count = attempt.producer, len(attempt.values)
        if said["count"] + said["duplicates"] != count or said["first_offset"] is None:
            self._break(producer, f"{count} records were answered with {dict(said)}")
            return False
        fault = producer.ledger.acknowledge(said["first_offset"], attempt.values)
        if fault is not None:
            self._break(producer, fault)
        return True

    def _refused(self, attempt: "_Attempt", node: str, life: int, answer: httpx.Response) -> None:
        try:
            problem = answer.json()
            code, outcome = problem["code"], problem.get("outcome", "unknown")
        except (ValueError, KeyError, TypeError):
            code, outcome = f"{answer.status_code}", "unknown"
        size = (len(attempt.values), len(attempt.body))
        if outcome == "none":
            self.lives[node][life - 1].refused(*size)
            self.measures.attempts[f"refused: {code}"] += 1
        else:
            self._lost(node, life, size)
            self.measures.attempts[f"unknown: {code}"] += 1
        if answer.status_code in FINAL and answer.status_code not in TRY_AGAIN:
            self._break(attempt.producer, f"{node} answered {answer.status_code} {code}")

    def _break(self, producer: Producer, what: str) -> None:
        producer.broken = True
        self._fault(f"{producer.stream}, producer {producer.ledger.producer}: {what}")

    def _fault(self, what: str) -> None:
        if len(self.faults) < FAULT_COUNT_MAX:
            self.faults.append(what)

    def _leave(self, node: str) -> None:
        if node not in self.router.away:
            self._note_remaps(self.router.leave(node))
            self._begin(self._await_return(node), self._watchers)

    async def _await_return(self, node: str) -> None:
        """Ask a node that is away whether it is ready, until it is."""
        while not self._ending.is_set():
            try:
                answer = await self._http.get(f"{self._urls[node]}/readyz", timeout=10)
            except httpx.TransportError:
                pass
            else:
                if answer.is_success:
                    self._note_remaps(self.router.join(node))
                    self._joined.set()
                    return
            await asyncio.sleep(AGAIN_SECONDS)

    def _note_remaps(self, remaps: Iterable[Remap]) -> None:
        for remap in remaps:
            self.measures.remaps += 1
            self.remaps.append({"utc": utc_now(), **remap._asdict()})


@dataclass
class _Attempt:
    """What is sent, again and again if need be."""

    producer: Producer
    path: str
    headers: Mapping[str, str]
    body: bytes
    values: list[str]
    begun: bool = False
