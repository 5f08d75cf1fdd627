"""The nodes of a stream as an operator sees them, and a change of its owner."""

import pytest
from support.manifest import NODE, OWNER, STREAM, ManifestHarness, a_record
from support.waiting import eventually
from unit.manifest.test_manifest_api import running

from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless_server.coordination.base import Changes
from bottomless_server.protocol.held import HeldThere
from bottomless_server.stores.node_facts import NodeFacts, encode_facts, facts_key
from bottomless_server.stores.streams import node_key

B, C, D = (NodeId(letter * 32) for letter in "bcd")
CONFIG = StreamConfig(replication=ReplicationConfig(replicas=4, min_in_sync=2))
LIVE = (NODE, B, C)


async def a_harness(**changes: object) -> ManifestHarness:
    harness = ManifestHarness()
    held = {"home": NODE, "members": (D, C, NODE, B), "in_sync": (NODE, B, D)}
    await harness.streams.create(a_record(**{"config": CONFIG, **held, **changes}))
    facts = encode_facts(NodeFacts("unix:///b.sock", "east", "0.1.0"))
    leases = {node_key(node): node.encode() for node in LIVE}
    harness.coordination.write(Changes({**leases, facts_key(B): facts}))
    return harness


async def test_the_nodes_of_a_stream_are_shown_with_what_each_is_to_it() -> None:
    async with running(await a_harness()) as service:
        told = (await service.public.get("/v1/streams/orders/replicas")).json()
    assert (told["replicas"], told["min_in_sync"], told["epoch"]) == (4, 2, 1)
    assert [(one["node"], one["role"], one["in_sync"]) for one in told["nodes"]] == [
        (NODE, "owner", True),
        (B, "in-sync", True),
        (C, "catching-up", False),
        (D, "away", True),
    ]
    assert [one["zone"] for one in told["nodes"]] == [None, "east", None, None]


async def test_each_node_that_lives_says_itself_what_it_holds() -> None:
    harness = await a_harness()
    for node, said in (
        (NODE, HeldThere(True, 1, 70, (C,))),
        (B, HeldThere(False, 1, 70)),
        (C, HeldThere(False, 1, 30)),
    ):
        url = f"unix:///{node[0]}.sock"
        harness.coordination.write(
            Changes({facts_key(node): encode_facts(NodeFacts(url, "", "0.1.0"))})
        )
        harness.owners.held_by[url] = said
    async with running(harness) as service:
        told = (await service.public.get("/v1/streams/orders/replicas")).json()
    shown = [(one["epoch"], one["next_offset"], one["lag"]) for one in told["nodes"]]
    assert shown == [(1, 70, 0), (1, 70, 0), (1, 30, 40), (None, None, None)]
    assert [one["failing"] for one in told["nodes"]] == [False, False, True, False]


async def test_a_stream_with_one_replica_is_held_by_its_home() -> None:
    harness = await a_harness(config=StreamConfig(), members=(), in_sync=())
    async with running(harness) as service:
        told = (await service.public.get("/v1/streams/orders/replicas")).json()
    assert told["replicas"] == 1
    assert [(one["node"], one["role"], one["in_sync"]) for one in told["nodes"]] == [
        (NODE, "owner", True)
    ]


@pytest.mark.parametrize("node", [C, D, NodeId("e" * 32)])
async def test_a_stream_is_given_to_nobody_who_lacks_something_or_does_not_live(
    node: NodeId,
) -> None:
    harness = await a_harness()
    async with running(harness) as service:
        refused = await service.public.post("/v1/admin/streams/orders/owner", json={"node": node})
    assert (refused.status_code, refused.json()["code"]) == (409, "not-in-sync")
    assert harness.owners.given == []


async def test_the_owner_is_asked_to_give_a_stream_away() -> None:
    harness = await a_harness()
    async with running(harness) as service:
        accepted = await service.public.post("/v1/admin/streams/orders/owner", json={"node": B})
        assert accepted.status_code == 202, accepted.text
        await eventually(lambda: harness.owners.given == [(STREAM, B)])
        again = await service.public.post("/v1/admin/streams/orders/owner", json={"node": NODE})
        assert again.status_code == 202, again.text
    assert (await harness.streams.load(STREAM)).owner_url == OWNER
    assert harness.owners.given == [(STREAM, B)]
