"""When a stream is given away whose round too few nodes have."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bottomless.model.names import NodeId, StreamId
from bottomless_server.ingest.replicas.step_down import StepDown
from bottomless_server.ingest.replicas.transfers import fittest_first
from bottomless_server.node.core.giving_away import FAILED_MS, REST_MS
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.replica_records import Target
from unit.ingest.harness import STREAM


class Waiting:
    """One stream of a node, with a round that waits since the time 0; it notes when it is given away."""

    def __init__(self) -> None:
        self.now = 0
        self.given: list[StreamId] = []
        self.refuses = False

    def opened(self) -> Iterator[Any]:
        yield SimpleNamespace(stream_id=STREAM, waiting_since=0, ahead=())

    def failing(self, _: int) -> list[StreamId]:
        return []

    def owns(self, _: StreamId) -> bool:
        return True

    async def step_down(self, stream_id: StreamId) -> bool:
        if self.refuses:
            raise Refused(Refusal.NOT_LIVE)
        self.given.append(stream_id)
        return False

    def elapsed(self) -> int:
        return self.now


@pytest.mark.parametrize(("after_ms", "lease_ms"), [(5_000, 12_000), (60_000, 12_000)])
async def test_a_round_waits_for_its_time_and_for_the_leases_of_nodes_that_died_before_it(
    after_ms: int, lease_ms: int
) -> None:
    waiting = cast("Any", Waiting())
    looking = StepDown(waiting, waiting, waiting, after_ms=after_ms, lease_ms=lease_ms)
    waiting.now = max(after_ms, lease_ms) - 1
    await looking.look()
    assert waiting.given == []
    waiting.now += 1
    await looking.look()
    assert waiting.given == [STREAM]


async def test_what_could_not_be_given_away_is_tried_again_soon_and_what_was_later() -> None:
    waiting = cast("Any", Waiting())
    looking = StepDown(waiting, waiting, waiting, after_ms=5_000, lease_ms=5_000)
    waiting.now, waiting.refuses = 5_000, True
    await looking.look()
    waiting.refuses = False
    for waiting.now in range(6_000, 5_000 + FAILED_MS, 1_000):
        await looking.look()
        assert waiting.given == []
    waiting.now = 5_000 + FAILED_MS
    await looking.look()
    assert waiting.given == [STREAM]
    waiting.now += REST_MS - 1
    await looking.look()
    assert waiting.given == [STREAM]
    waiting.now += 1
    await looking.look()
    assert waiting.given == [STREAM, STREAM]


def order(ahead: str = "", failing: str = "") -> str:
    """The nodes a, b and c, as they are given a stream."""
    targets = [Target(NodeId(name * 32), f"http://{name}") for name in "abc"]
    seen = SimpleNamespace(
        ahead={NodeId(name * 32) for name in ahead}, failing={NodeId(name * 32) for name in failing}
    )
    return "".join(target.node_id[0] for target in fittest_first(targets, seen))


def test_a_node_that_has_more_is_given_the_stream_before_others() -> None:
    """Else two nodes that have less would give it to each other for ever."""
    assert order(ahead="c") == "cab"
    assert order() == "abc"


def test_a_node_whose_disk_fails_is_given_the_stream_after_all_others() -> None:
    assert order(failing="a") == "bca"
    assert order(failing="abc") == "abc"
    assert order(ahead="a", failing="ab") == "acb"
