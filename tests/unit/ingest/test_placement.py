"""Which nodes hold a stream beside its owner."""

from collections import Counter
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.node.core.placement import Candidate, chosen
from bottomless_server.node.placement import Placement
from bottomless_server.stores.ingest_nodes import IngestNode, announce
from bottomless_server.stores.node_facts import NodeFacts, facts_key
from bottomless_server.stores.streams import node_key
from unit.ingest.harness import STREAM

IDS: Final = [NodeId(f"{number:032x}") for number in range(12)]
MINE: Final = Candidate(IDS[0], "north")


def a_stream(number: int) -> StreamId:
    return StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:012x}")


@given(
    zones=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    count=st.integers(0, 9),
    number=st.integers(0, 99),
    data=st.data(),
)
def test_the_chosen_are_others_once_each_in_as_many_zones_as_there_are(
    zones: list[str], count: int, number: int, data: st.DataObject
) -> None:
    nodes = [Candidate(IDS[at], zone) for at, zone in enumerate(zones)]
    stream_id = a_stream(number)

    found = chosen(stream_id, nodes[:1], nodes, count)

    assert found == chosen(stream_id, nodes[:1], data.draw(st.permutations(nodes)), count)
    assert len(set(found)) == len(found) == min(count, len(nodes) - 1)
    assert nodes[0].node_id not in found
    zone_of = dict(nodes)
    reached = {zones[0], *(zone_of[node] for node in found)}
    assert len(reached) == min(len(set(zones)), 1 + count)


def test_streams_spread_over_nodes_and_few_change_their_place_when_one_goes() -> None:
    nodes = [Candidate(node, "") for node in IDS]
    before = {n: chosen(a_stream(n), nodes[:1], nodes, 2) for n in range(1_100)}
    counts = Counter(node for found in before.values() for node in found)
    assert len(counts) == 11
    assert max(counts.values()) < 2 * min(counts.values())

    gone = nodes[5]
    left = [one for one in nodes if one != gone]
    after = {n: chosen(a_stream(n), nodes[:1], left, 2) for n in before}
    changed = [n for n in before if before[n] != after[n]]
    assert changed == [n for n, found in before.items() if gone.node_id in found]


def test_who_holds_a_stream_already_is_not_chosen_again() -> None:
    nodes = [Candidate(node, "") for node in IDS[:4]]
    assert set(chosen(STREAM, nodes[:2], nodes, 9)) == {IDS[2], IDS[3]}


def a_record(replicas: int) -> StreamRecord:
    config = StreamConfig(replication=ReplicationConfig(replicas=replicas))
    return StreamRecord(STREAM, StreamName("orders"), "default", StreamState.ACTIVE, 0, config)


async def test_nodes_are_chosen_that_live_and_say_that_they_can_follow() -> None:
    coordination, now = MemoryCoordination(lambda: 0), 0.0
    placement = Placement(coordination, lambda: now)
    for node in IDS[:5]:
        await coordination.hold(node_key(node), node.encode(), 10_000)
        facts = NodeFacts("http://a:1", "", "0.1.0")
        # One is of an older release, and one of none.
        await announce(
            coordination, IngestNode(node, "http://a:1"), facts if node != IDS[3] else None
        )
    coordination.write(Changes({facts_key(IDS[4]): b"?"}))
    await coordination.release(node_key(IDS[2]), IDS[2].encode())
    assert await placement.choose(a_record(4), IDS[0]) == (IDS[1],)

    await coordination.hold(node_key(IDS[2]), IDS[2].encode(), 10_000)
    assert await placement.choose(a_record(4), IDS[0]) == (IDS[1],)
    now = 1.0
    assert set(await placement.choose(a_record(4), IDS[0])) == {IDS[1], IDS[2]}
    assert await placement.choose(a_record(4), IDS[0], kept=[IDS[1], IDS[9]]) == (IDS[2],)


async def test_of_a_stream_with_one_replica_nobody_is_asked() -> None:
    coordination = MemoryCoordination(lambda: 0)
    assert await Placement(coordination, lambda: 0.0).choose(a_record(1), IDS[0]) == ()
