"""Clients of a load test: what they make of each kind of answer, over a network that is told."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import httpx
import pytest

from bench.loadtest import clients as clients_module
from bench.loadtest.clients import Clients, Producer
from bench.loadtest.ledger import ProducerLedger
from bench.loadtest.routing import Policy, Router
from bench.loadtest.scenarios import SCENARIOS
from bench.loadtest.tallies import Bounds, Counts

SCENARIO = replace(SCENARIOS["tiny"], records=2, loop="closed", clients=1, seconds=0.2)
NODES = ("ingest-1", "ingest-2")
Answer = Callable[[str, httpx.Request], Awaitable[httpx.Response] | httpx.Response]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "AGAIN_SECONDS", 0.001)


class Network(httpx.AsyncBaseTransport):
    """Nodes that store appends, unless something else is planned for one of them."""

    def __init__(self) -> None:
        self.planned: dict[str, list[Answer]] = {node: [] for node in NODES}
        """What each node does with its next appends."""
        self.away: set[str] = set()
        self.stored: dict[str, int] = {}
        """First offsets, by producer and number."""
        self.next_offset = 0
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        node = request.url.host
        if node in self.away:
            raise httpx.ConnectError("no")
        if request.url.path == "/readyz":
            return httpx.Response(200)
        self.asked.append(node)
        if self.planned[node]:
            answer = self.planned[node].pop(0)(node, request)
            return answer if isinstance(answer, httpx.Response) else await answer
        return self.store(request)

    def store(self, request: httpx.Request) -> httpx.Response:
        count = len(json.loads(request.content)["records"])
        key = f"{request.headers['producer-id']} {request.headers['producer-seq']}"
        if key in self.stored:
            said = {"count": 0, "duplicates": count, "first_offset": self.stored[key]}
            return httpx.Response(200, json=said, headers={"idempotent-replayed": "true"})
        self.stored[key] = self.next_offset
        self.next_offset += count
        said = {"count": count, "duplicates": 0, "first_offset": self.stored[key]}
        return httpx.Response(200, json=said)


def made(network: Network) -> Clients:
    producer = Producer("orders", ProducerLedger(0, 10))
    router = Router({"orders": NODES}, Policy.ROUND_ROBIN)
    urls = {node: f"http://{node}" for node in NODES}
    return Clients(SCENARIO, urls, router, [producer], network)


async def one_append(clients: Clients) -> ProducerLedger:
    producer = clients.producers[0]
    async with asyncio.timeout(60):
        await clients.append(producer, asyncio.get_running_loop().time())
    return producer.ledger


def bounds(clients: Clients, node: str, life: int = -1) -> Bounds:
    return clients.lives[node][life].bounds


def problem(status: int, code: str, outcome: str) -> Answer:
    said = {"code": code, "outcome": outcome}
    return lambda *_: httpx.Response(status, json=said)


async def test_what_is_stored_is_known_of_the_ledger_and_of_the_node() -> None:
    network = Network()
    clients = made(network)
    ledger = await one_append(clients)
    assert (ledger.acknowledged, ledger.next_offset, ledger.unknown) == (2, 2, 0)
    low, high = bounds(clients, "ingest-1")
    assert low == high == Counts(1, 2, low.bytes, 0)
    assert clients.measures.nodes == {"ingest-1": 1}
    assert clients.measures.late.count == clients.measures.latency.count == 1
    assert clients.measures.late.max_ms <= clients.measures.latency.max_ms
    await clients.aclose()


async def test_an_answer_that_is_lost_is_asked_for_at_the_next_node_of_the_set() -> None:
    network = Network()

    def lose(_: str, request: httpx.Request) -> httpx.Response:
        network.store(request)
        raise httpx.ReadError("gone")

    network.planned["ingest-1"] = [lose]
    clients = made(network)
    ledger = await one_append(clients)
    assert (ledger.acknowledged, network.next_offset) == (2, 2)
    assert (clients.measures.repeats, clients.measures.appends) == (1, 1)
    low, high = bounds(clients, "ingest-1")
    assert (low, high.records, high.duplicates) == (Counts(), 2, 2)
    assert bounds(clients, "ingest-2") == Bounds(Counts(duplicates=2), Counts(duplicates=2))
    assert clients.measures.attempts == {"unknown: ReadError": 1}
    await clients.aclose()


async def test_a_node_that_is_away_is_left_out_until_it_is_ready() -> None:
    network = Network()
    network.away = {"ingest-1"}
    clients = made(network)
    for _ in range(3):
        await one_append(clients)
    assert network.asked == ["ingest-2"] * 3
    assert bounds(clients, "ingest-1") == Bounds(Counts(), Counts())
    [line] = clients.remaps
    assert (line["before"], line["after"]) == (NODES, ("ingest-2",))

    network.away = set()
    async with asyncio.timeout(60):
        while clients.router.away:
            await asyncio.sleep(0)
    for _ in range(2):
        await one_append(clients)
    assert set(network.asked[-2:]) == set(NODES)
    assert clients.measures.remaps == 2
    await clients.aclose()


async def test_appends_wait_while_the_whole_set_is_away() -> None:
    network = Network()
    network.away = set(NODES)
    clients = made(network)
    waiting = asyncio.create_task(one_append(clients))
    while len(clients.router.away) < 2:
        await asyncio.sleep(0)
    network.away = set()
    assert (await waiting).acknowledged == 2
    await clients.aclose()


async def test_what_is_refused_with_nothing_stored_leaves_no_doubt() -> None:
    network = Network()
    network.planned["ingest-1"] = [problem(503, "overloaded", "none")]
    clients = made(network)
    assert (await one_append(clients)).acknowledged == 2
    assert bounds(clients, "ingest-1") == Bounds(Counts(), Counts())
    assert clients.measures.attempts == {"refused: overloaded": 1}
    assert not clients.faults
    await clients.aclose()


async def test_what_is_answered_with_an_unknown_outcome_leaves_doubt() -> None:
    network = Network()
    network.planned["ingest-1"] = [problem(504, "commit-timeout", "unknown")]
    clients = made(network)
    assert (await one_append(clients)).acknowledged == 2
    low, high = bounds(clients, "ingest-1")
    assert (low.records, high.records) == (0, 2)
    await clients.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        problem(409, "producer-sequence-gap", "none"),
        lambda *_: httpx.Response(200, json={"count": 1, "duplicates": 0, "first_offset": 0}),
        lambda *_: httpx.Response(200, json={"count": 0, "duplicates": 2, "first_offset": None}),
    ],
    ids=["gap", "too few", "no offset"],
)
async def test_an_answer_that_may_never_be_is_a_fault_and_ends_the_producer(answer: Answer) -> None:
    network = Network()
    network.planned["ingest-1"] = [answer]
    clients = made(network)
    ledger = await one_append(clients)
    assert ledger.acknowledged == 0
    assert len(clients.faults) == 1
    await one_append(clients)
    assert len(network.asked) == 1
    await clients.aclose()


async def test_an_append_over_a_restart_is_doubtful_for_both_lives() -> None:
    network = Network()
    clients = made(network)

    def over_a_restart(node: str, request: httpx.Request) -> httpx.Response:
        clients.begin_life(node)
        return network.store(request)

    network.planned["ingest-1"] = [over_a_restart]
    assert (await one_append(clients)).acknowledged == 2
    for life in (0, 1):
        low, high = bounds(clients, "ingest-1", life)
        assert (low.records, high.records) == (0, 2)
    await clients.aclose()


async def test_what_is_given_up_stays_unknown() -> None:
    network = Network()

    async def never(*_: object) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    network.planned["ingest-1"] = [never]
    clients = made(network)
    clients.begin(clients.producers[0], 0.0)
    while not network.asked:
        await asyncio.sleep(0)
    await clients.settle(0.01)
    ledger = clients.producers[0].ledger
    assert (ledger.sent, ledger.acknowledged, ledger.unknown) == (2, 0, 2)
    low, high = bounds(clients, "ingest-1")
    assert (low.records, high.records) == (0, 2)
    await clients.aclose()


async def test_no_more_appends_are_under_way_than_there_is_room_for() -> None:
    network = Network()
    let_go, most = asyncio.Event(), 0

    async def later(_: str, request: httpx.Request) -> httpx.Response:
        nonlocal most
        most = max(most, sum(clients.router.under_way.values()))
        await let_go.wait()
        return network.store(request)

    for node in NODES:
        network.planned[node] = [later] * 9
    scenario = replace(SCENARIO, under_way_max=2)
    producers = [Producer("orders", ProducerLedger(number, 10)) for number in range(6)]
    router = Router({"orders": NODES}, Policy.ROUND_ROBIN)
    urls = {node: f"http://{node}" for node in NODES}
    clients = Clients(scenario, urls, router, producers, network)
    for producer in producers:
        clients.begin(producer, 0.0)
    while len(network.asked) < 2:
        await asyncio.sleep(0)
    let_go.set()
    await clients.settle(60)
    assert most == 2
    assert [producer.ledger.unknown for producer in producers] == [0] * 6
    await clients.aclose()


@pytest.mark.parametrize("loop", ["open", "closed"])
async def test_a_load_ends_with_everything_known(loop: str) -> None:
    network = Network()
    clients = made(network)
    clients.scenario = replace(SCENARIO, loop=loop, appends_per_second=200)
    await clients.load(asyncio.get_running_loop().time())
    await clients.settle(60)
    ledger = clients.producers[0].ledger
    assert ledger.unknown == 0
    assert ledger.acknowledged == network.next_offset == clients.measures.records > 0
    assert clients.waiting_count == 0
    await clients.aclose()


async def test_an_open_loop_leaves_out_what_has_no_room_to_wait() -> None:
    network = Network()
    network.away = set(NODES)
    clients = made(network)
    clients.scenario = replace(SCENARIO, loop="open", appends_per_second=1_000, waiting_max=3)
    await clients.load(asyncio.get_running_loop().time())
    assert clients.waiting_count <= 3
    assert clients.measures.left_out > 0
    network.away = set()
    await clients.settle(60)
    assert clients.producers[0].ledger.unknown == 0
    await clients.aclose()
