"""The nodes of a stream as an operator sees them, and a change of its owner."""

import asyncio
from typing import Any

import httpx
import pytest
from support.manifest import NODE, OWNER, STREAM, ManifestHarness, a_record
from unit.manifest.test_manifest_api import Service, running

from bottomless.errors import Code, Fenced
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless_server.coordination.base import Changes
from bottomless_server.node.core import in_sync
from bottomless_server.protocol.held import HeldThere
from bottomless_server.protocol.members import MemberChange
from bottomless_server.stores.ingest_nodes import (
    IngestNode,
    announce,
    known_nodes,
    mark_emptied,
    note_left_on,
)
from bottomless_server.stores.node_facts import NodeFacts, encode_facts, facts_key
from bottomless_server.stores.streams import node_key

B, C, D, E = (NodeId(letter * 32) for letter in "bcde")
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
        (NODE, HeldThere(True, 1, 70, (C,), (C, D))),
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
    # One without a lease is away, which is all that is to be said of it.
    assert [one["stalled"] for one in told["nodes"]] == [False, False, True, False]


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


async def test_a_stream_that_no_node_holds_is_given_to_nobody_and_that_is_what_is_said() -> None:
    harness = await a_harness(home=None, owner_url=None, dirty=False)
    async with running(harness) as service:
        refused = await service.public.post("/v1/admin/streams/orders/owner", json={"node": B})
    assert (refused.status_code, refused.json()["code"]) == (503, "not-owner")
    assert harness.owners.given == []


async def an_operation(service: Service, answer: httpx.Response) -> dict[str, Any]:
    """What became of an operation."""
    assert answer.status_code == 202, answer.text
    path = answer.headers["location"]

    async def is_finished() -> bool:
        told = (await service.public.get(path)).json()
        return told["state"] in ("succeeded", "failed")

    async with asyncio.timeout(240):
        while not await is_finished():
            await asyncio.sleep(0.01)
    told: dict[str, Any] = (await service.public.get(path)).json()
    return told


def following(harness: ManifestHarness) -> None:
    """Have the owner do what it is asked to, and who comes have everything at once."""

    async def change(what: MemberChange, node: NodeId) -> None:
        decide = in_sync.with_member if what == "add" else in_sync.without_member
        await harness.streams.update(STREAM, lambda record: decide(record, NODE, 1, node))
        if what == "add":
            admit = in_sync.admit
            await harness.streams.update(STREAM, lambda record: admit(record, NODE, 1, node))

    harness.owners.on_change = change


async def test_a_node_is_taken_in_and_let_go_and_a_rebuild_knows_the_number() -> None:
    harness = await a_harness()
    facts = encode_facts(NodeFacts("unix:///e.sock", "", "0.1.0"))
    harness.coordination.write(Changes({node_key(E): b"x", facts_key(E): facts}))
    following(harness)
    async with running(harness) as service:
        added = await service.public.put(f"/v1/streams/orders/replicas/{E}")
        told = await an_operation(service, added)
        assert (told["state"], told["result"]) == ("succeeded", {"node": E, "replicas": 5})
        again = await service.public.put(f"/v1/streams/orders/replicas/{E}")
        assert (await an_operation(service, again))["state"] == "succeeded"
        removed = await service.public.delete(f"/v1/streams/orders/replicas/{E}")
        told = await an_operation(service, removed)
        assert told["result"] == {"node": E, "replicas": 4}
        described = (await service.public.get("/v1/streams/orders")).json()
        assert described["replication"]["replicas"] == 4
    assert harness.owners.changed == [("add", E), ("remove", E)]
    record = await harness.record()
    assert await harness.context.registry_objects.ensure(record) == record


async def test_a_node_that_was_emptied_is_so_no_more_once_it_is_to_hold_a_stream() -> None:
    harness = await a_harness()
    harness.coordination.write(Changes({node_key(E): b"x"}))
    facts = NodeFacts("unix:///e.sock", "", "0.1.0")
    await announce(harness.coordination, IngestNode(E, "unix:///e.sock"), facts)
    await mark_emptied(harness.coordination, E)
    await note_left_on(harness.coordination, E, 0)
    said: list[str] = []

    async def refuse(what: MemberChange, node: NodeId) -> None:
        del what
        known = await known_nodes(harness.coordination)
        said.extend(one.state for one in known if one.node_id == node)
        raise Fenced("as it happens", code=Code.NOT_IN_SYNC)

    harness.owners.on_change = refuse
    async with running(harness) as service:
        await an_operation(service, await service.public.put(f"/v1/streams/orders/replicas/{E}"))
    assert said == ["emptying"]


@pytest.mark.parametrize(
    ("changes", "method", "node", "refused"),
    [
        ({}, "PUT", E, (409, "not-in-sync")),
        ({}, "DELETE", NODE, (409, "home-live")),
        ({"home": None, "owner_url": None, "dirty": False}, "PUT", B, (503, "not-owner")),
        ({"home": None, "owner_url": None, "dirty": False}, "DELETE", B, (503, "not-owner")),
        (
            {"members": (NODE, *(NodeId(f"{n}" * 32) for n in range(8)))},
            "PUT",
            E,
            (422, "validation-failed"),
        ),
    ],
)
async def test_what_cannot_be_done_to_the_nodes_of_a_stream_is_refused_at_once(
    changes: dict[str, Any], method: str, node: NodeId, refused: tuple[int, str]
) -> None:
    if "members" in changes:
        changes = {**changes, "in_sync": (NODE,)}
    harness = await a_harness(**changes)
    async with running(harness) as service:
        path = f"/v1/streams/orders/replicas/{node}"
        answer = await service.public.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == refused
    assert harness.owners.changed == []


async def test_what_its_owner_refuses_fails_and_is_not_tried_again() -> None:
    harness = await a_harness()

    async def refuse(what: MemberChange, node: NodeId) -> None:
        del what, node
        raise Fenced("too few would be left", code=Code.NOT_IN_SYNC)

    harness.owners.on_change = refuse
    async with running(harness) as service:
        told = await an_operation(
            service, await service.public.delete(f"/v1/streams/orders/replicas/{B}")
        )
    assert (told["state"], told["error"]["code"]) == ("failed", "not-in-sync")
    assert harness.owners.changed == [("remove", B)]


async def test_the_owner_is_asked_to_give_a_stream_away() -> None:
    harness = await a_harness()
    async with running(harness) as service:
        path = "/v1/admin/streams/orders/owner"
        told = await an_operation(service, await service.public.post(path, json={"node": B}))
        assert told["result"]["home"] == B
        assert told["result"]["pause_ms"] >= 0
        again = await an_operation(service, await service.public.post(path, json={"node": NODE}))
        assert again["result"] == {"home": NODE, "pause_ms": None}
    assert (await harness.streams.load(STREAM)).owner_url == OWNER
    assert harness.owners.given == [(STREAM, B)]
