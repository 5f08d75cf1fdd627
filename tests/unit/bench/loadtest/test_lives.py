"""When the requests of a service are compared, and how a kill is sampled: over services that are told."""

from typing import Any

import pytest

from bench.loadtest import troubles
from bench.loadtest.place import LoadTestError
from bench.loadtest.reconcile import KINDS, REQUESTS
from bench.loadtest.scenarios import Kill
from bench.loadtest.stack import CONNECTIONS
from bench.loadtest.tallies import SERIES, Counts, Tally
from bench.loadtest.troubles import UNEQUAL_ROUNDS, Lives


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "REST_SECONDS", 0.0)


class Told:
    """One service, whose puts a test counts."""

    def __init__(self, counted: list[int], seen: list[int]) -> None:
        """What each look finds, one after the other; the last stays so."""
        self.counted = counted
        self.seen = seen
        self.appends = 0
        self.orders: list[str] = []
        self.control = self

    async def facts(self) -> dict[str, Any]:
        value = self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]
        one = {"life": 1, "seen": {"put": value}, "connections": 3, "state": "runs"}
        return {"ingest-1": one}

    async def metrics(self, _: str) -> dict[str, Any]:
        value = self.counted.pop(0) if len(self.counted) > 1 else self.counted[0]
        puts = [
            {"labels": {"operation": kind}, "value": value if kind == "put" else 0}
            for kind in KINDS
        ]
        appends = {series: {"samples": [{"value": self.appends}]} for series in SERIES.values()}
        return {REQUESTS: {"samples": puts}, **appends}

    async def ask(self, order: str, **_: object) -> dict[str, Any]:
        self.orders.append(order)
        return {"life": 1, "seen": {"put": 9}, "connections": 0}

    async def until_running(self, *_: str) -> None:
        self.orders.append("until running")


class Appending:
    """Clients that know of one node."""

    def __init__(self) -> None:
        self.lives = {"ingest-1": [Tally()]}

    def begin_life(self, node: str) -> None:
        self.lives[node].append(Tally())


def lives_of(told: Told) -> Lives:
    services: Any = told
    clients: Any = Appending()
    return Lives(services, clients)


async def test_a_service_at_rest_is_compared_exactly() -> None:
    lives = lives_of(Told([5], [5]))
    await lives.at_rest("ingest-1")
    [life] = lives.stores
    assert (life.counted["put"], life.seen_before, life.seen_after) == (5, {"put": 5}, {"put": 5})
    assert life.slack == 0


async def test_a_service_that_still_sends_is_looked_at_again() -> None:
    lives = lives_of(Told([5, 6, 7, 8, 8], [5, 6, 6, 7, 8]))
    await lives.at_rest("ingest-1")
    assert lives.stores[0].counted["put"] == lives.stores[0].seen_before["put"] == 8


async def test_a_request_that_is_on_its_way_for_long_is_waited_for() -> None:
    counted = [6]
    lives = lives_of(Told(counted, [5] * UNEQUAL_ROUNDS + [6]))
    await lives.at_rest("ingest-1")
    assert lives.stores[0].seen_after["put"] == 6


async def test_a_difference_that_stays_is_evidence() -> None:
    lives = lives_of(Told([6], [5]))
    await lives.at_rest("ingest-1")
    assert (lives.stores[0].counted["put"], lives.stores[0].seen_after["put"]) == (6, 5)


async def test_a_service_that_never_comes_to_rest_cannot_be_compared() -> None:
    lives = lives_of(Told(list(range(10_000)), [1]))
    with pytest.raises(LoadTestError, match="did not come to rest"):
        await lives.at_rest("ingest-1", seconds=-1)


async def test_a_node_is_sampled_with_appends_under_way_and_then_killed() -> None:
    told = Told([7], [6])
    told.appends = 1
    lives = lives_of(told)
    tally = lives.clients.lives["ingest-1"][0]
    tally.begin(1, 1)
    tally.stored(1, 1)
    tally.begin(1, 1)
    await lives.trouble(Kill(0, "ingest-1", 0), 0)
    tally.lost(1, 1)

    assert told.orders == ["until running", "kill", "start", "until running"]
    [store] = lives.stores
    assert (store.counted["put"], store.seen_before["put"], store.seen_after["put"]) == (7, 6, 9)
    assert store.slack == CONNECTIONS
    killed, alive = await lives.ingests()
    assert killed.counted == Counts(1, 1, 1, 1)
    assert killed.at_sample.low == Counts(1, 1, 1)
    assert killed.at_sample.high == Counts(2, 2, 2, 1)
    assert killed.records == (1, 2)
    assert alive.at_sample.low == alive.at_sample.high == Counts()
