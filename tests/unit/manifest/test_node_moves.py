"""The ingest nodes as an operator sees them, one that is emptied, and streams that are spread."""

from dataclasses import replace
from typing import Any, Final

import pytest
from support.manifest import NODE, STREAM, ManifestHarness, a_record
from unit.manifest.test_manifest_api import running
from unit.manifest.test_stream_replicas import an_operation

from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId, StreamId, StreamName, SuperId
from bottomless.model.stream import PartitionOf, StreamRecord
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done, Failed
from bottomless_server.manifest.streams.evacuation import (
    ALONE_AND_AWAY,
    CATCHING_UP,
    HEIR_GOES_ON,
    NAMED_COUNT_MAX,
    NO_NODE,
    NOBODY_HAS_IT,
    OWNER_AWAY,
    Move,
    end_pass,
    is_held_by,
    leaves,
    not_emptied,
    note_left,
    reason_of,
)
from bottomless_server.manifest.streams.node_moves import EVACUATE, NodeMoves, spreads
from bottomless_server.node.core.failover import heirs
from bottomless_server.node.core.placement import Candidate, chosen
from bottomless_server.node.placement import Placement
from bottomless_server.protocol.members import MemberChange
from bottomless_server.stores.ingest_nodes import (
    IngestNode,
    announce,
    forget,
    known_nodes,
    mark_emptied,
    note_addition,
    note_left_on,
    withdraw,
)
from bottomless_server.stores.node_facts import NodeFacts, emptied_key
from bottomless_server.stores.operations import new_operation
from bottomless_server.stores.streams import node_key

B, C, D = (NodeId(letter * 32) for letter in "bcd")
ALL: Final = (NODE, B, C, D)
PARTITION: Final = PartitionOf(SuperId(f"{STREAM[:-1]}9"), 0)
CONFIG: Final = StreamConfig(replication=ReplicationConfig(replicas=3))
LIVE: Final = [Candidate(node, "") for node in ALL]


def held(*members: NodeId, home: NodeId = NODE, **changes: object) -> StreamRecord:
    given = {"config": CONFIG, "home": home, "members": members, "in_sync": members}
    return a_record(**{**given, **changes})


def test_a_stream_is_given_away_or_another_node_takes_the_place() -> None:
    ours = held(NODE, B, C)
    first, second = heirs(ours)
    assert leaves(ours, NODE, {B, C}, ALL) == Move(True, first)
    assert leaves(ours, NODE, {second}, ALL) == Move(True, second)
    assert leaves(ours, NODE, {D}, ALL) == NOBODY_HAS_IT
    assert leaves(ours, NODE, {B, C}, {B, C}) == HEIR_GOES_ON
    assert leaves(ours, B, {NODE, C, D}, ALL) == Move(False, B)
    assert leaves(ours, B, {NODE, C}, {NODE, B, C}) == NO_NODE
    # Its owner is emptied too, and lives.
    assert leaves(ours, B, {C, D}, ALL) == Move(False, B)
    # Its owner is away: somebody goes on first.
    assert leaves(ours, B, {C, D}, {B, C, D}) == OWNER_AWAY
    assert is_held_by(ours, B)
    assert not is_held_by(replace(ours, dirty=False), B)
    assert not is_held_by(ours, D)


def test_a_stream_of_one_node_is_held_by_another_one_too_before_it_leaves() -> None:
    alone = held(members=(), in_sync=(), config=StreamConfig())
    assert leaves(alone, NODE, {B}, ALL) == Move(False, NODE)
    assert leaves(alone, NODE, set(), {NODE}) == NO_NODE
    assert leaves(alone, NODE, {B}, {B}) == ALONE_AND_AWAY
    joining = replace(alone, members=(NODE, B), in_sync=(NODE,))
    assert leaves(joining, NODE, {B}, ALL) == Move(False, NODE)
    assert leaves(replace(joining, in_sync=(NODE, B)), NODE, {B}, ALL) == Move(True, B)
    # The new owner lets the old one go, and needs no third node for it.
    given = replace(joining, home=B, in_sync=(NODE, B))
    assert leaves(given, NODE, {B}, ALL) == Move(False, NODE)


def test_the_first_pass_tells_at_once_what_is_left_and_later_ones_at_their_end() -> None:
    ours = held(NODE, B, C)
    progress: dict[str, Any] = {"held": 0, "left": 0}
    note_left(progress, ours, NO_NODE)
    note_left(progress, replace(ours, tenant="acme"), reason_of(Move(False, NODE)))
    assert (progress["held"], progress["left"]) == (2, 2)
    first, second = progress["remaining"]
    assert first == {"stream": ours.name, "why": NO_NODE}
    assert second == {"stream": f"acme/{ours.name}", "why": CATCHING_UP}
    progress = end_pass(progress)
    note_left(progress, ours, NO_NODE)
    assert (progress["held"], progress["left"]) == (2, 2)
    progress = end_pass(progress)
    assert (progress["held"], progress["left"]) == (2, 1)
    assert [one["stream"] for one in progress["remaining"]] == [ours.name]
    assert str(not_emptied(progress)).startswith("1 stream is still on the node")


def test_no_more_streams_are_named_than_people_read() -> None:
    progress: dict[str, Any] = {"held": 0, "left": 0}
    for _ in range(NAMED_COUNT_MAX + 5):
        note_left(progress, held(NODE, B), NO_NODE)
    assert progress["left"] == NAMED_COUNT_MAX + 5
    assert len(progress["remaining"]) == NAMED_COUNT_MAX


def test_streams_that_are_spread_step_by_step_come_to_rest() -> None:
    record, steps = held(NODE, B, C), 0
    while (move := spreads(record, LIVE)) is not None:
        steps += 1
        assert steps < 10
        if move.gives:
            record = replace(record, home=move.node)
        else:
            kept = [one for one in record.members if one != move.node]
            owner = Candidate(NodeId(str(record.home)), "")
            (comes, *_) = (
                one for one in chosen(STREAM, [owner], LIVE, 3) if one not in record.members
            )
            record = replace(record, members=(*kept, comes), in_sync=(*kept, comes))
    assert record.home == heirs(replace(record, home=None))[0]
    owner = Candidate(NodeId(str(record.home)), "")
    assert {*chosen(STREAM, [owner], LIVE, 2), record.home} == set(record.members)


def test_a_stream_stays_of_which_all_is_published_or_that_one_node_holds() -> None:
    assert spreads(replace(held(NODE, B, C), dirty=False), LIVE) is None
    assert spreads(held(members=(), in_sync=()), LIVE) is None
    assert spreads(held(NODE, B, C), [Candidate(B, "")]) is None


async def a_harness(*records: StreamRecord) -> ManifestHarness:
    """Four nodes, of which one is away, and these streams."""
    harness = ManifestHarness()
    for node in ALL:
        url = f"unix:///{node[0]}.sock"
        facts = NodeFacts(url, "east" if node == B else "", "0.1.0")
        await announce(harness.coordination, IngestNode(node, url), facts)
        if node != D:
            harness.coordination.write(Changes({node_key(node): b"x"}))
    for record in records:
        await harness.streams.create(record)
    return harness


async def test_nodes_are_listed_with_what_and_where_each_is() -> None:
    harness = await a_harness()
    await mark_emptied(harness.coordination, C)
    async with running(harness) as service:
        told = (await service.public.get("/v1/nodes")).json()["items"]
    assert {one["node"]: one["state"] for one in told} == {
        NODE: "live",
        B: "live",
        C: "emptying",
        D: "away",
    }
    of_b = next(one for one in told if one["node"] == B)
    assert (of_b["zone"], of_b["url"], of_b["left"]) == ("east", "unix:///b.sock", None)


async def test_a_node_says_how_much_is_left_while_it_is_emptied_and_is_emptied_at_the_end() -> None:
    harness = await a_harness()

    async def said(node: NodeId) -> tuple[str, int | None]:
        nodes = await known_nodes(harness.coordination)
        return next((one.state, one.left) for one in nodes if one.node_id == node)

    await mark_emptied(harness.coordination, C)
    assert await said(C) == ("emptying", None)
    await note_left_on(harness.coordination, C, 3)
    assert await said(C) == ("emptying", 3)
    await note_left_on(harness.coordination, C, 0)
    assert await said(C) == ("emptied", 0)
    # As a release before this one marked it.
    harness.coordination.write(Changes({emptied_key(C): b"1"}))
    assert await said(C) == ("emptying", None)
    # It was stopped, and is back: what its evacuation counts late marks it no more.
    await withdraw(harness.coordination, C)
    await announce(harness.coordination, IngestNode(C, "unix:///c"))
    await note_left_on(harness.coordination, C, 1)
    assert await said(C) == ("live", None)


@pytest.mark.parametrize("marked_anew", [False, True])
async def test_a_pass_in_which_a_node_was_added_to_a_stream_calls_it_not_emptied(
    marked_anew: bool,
) -> None:
    """The pass has gone by that stream, and counts it with the next one alone."""
    record = held(NODE, B)
    harness = await a_harness(record)
    await mark_emptied(harness.coordination, C)
    moves = NodeMoves(harness.context, Operations(harness.context))
    operation = new_operation("1" * 32, EVACUATE, 0, tenant="x", arguments={"node": C})

    async def step() -> Again | Done | Failed:
        nonlocal operation
        outcome = await moves.evacuate(harness.context, operation)
        if isinstance(outcome, Again):
            operation = replace(operation, progress=dict(outcome.progress))
        return outcome

    async def said() -> tuple[str, int | None]:
        nodes = await known_nodes(harness.coordination)
        return next((one.state, one.left) for one in nodes if one.node_id == C)

    assert isinstance(await step(), Again)
    await note_addition(harness.coordination, C)
    await harness.streams.update(
        record.stream_id, lambda one: replace(one, members=(*one.members, C))
    )
    if marked_anew:
        await mark_emptied(harness.coordination, C)
    # The end of the pass that counted nothing.
    assert isinstance(await step(), Again)
    assert await said() == ("emptying", None)

    assert isinstance(await step(), Again)
    assert isinstance(await step(), Again)
    assert await said() == ("emptying", 1)


async def test_a_node_that_is_emptied_is_chosen_for_nothing_until_it_stops() -> None:
    harness = await a_harness()
    coordination = harness.coordination
    record = held(NODE)

    async def choices() -> set[NodeId]:
        return set(await Placement(coordination, lambda: 0.0).choose(record, NODE))

    assert await choices() == {B, C}
    await mark_emptied(coordination, C)
    assert await choices() == {B}
    # It lives all the same: nobody has to take its place for that.
    assert await Placement(coordination, lambda: 0.0).living([B, C, D]) == {B, C}
    await withdraw(coordination, C)
    await announce(coordination, IngestNode(C, "unix:///c"), NodeFacts("unix:///c", "", "0.1.0"))
    assert {one.node_id for one in await known_nodes(coordination) if one.emptied} == set()
    assert await choices() == {B, C}


async def test_a_node_that_does_not_live_is_listed_no_more_once_it_is_emptied() -> None:
    harness = await a_harness(held(NODE, B, C))
    gone = NodeId("e" * 32)
    await announce(harness.coordination, IngestNode(gone, "unix:///e"), facts=None)
    async with running(harness) as service:
        begun = await service.public.post(f"/v1/admin/nodes/{gone}/evacuate", json={})
        assert (await an_operation(service, begun))["result"] == {"held": 0, "left": 0}
        nodes = {one["node"] for one in (await service.public.get("/v1/nodes")).json()["items"]}
    assert gone not in nodes
    assert {NODE, B, C} <= nodes
    # It is back: nobody has taken back that it is emptied.
    await announce(harness.coordination, IngestNode(gone, "unix:///e"))
    assert {one.node_id for one in await known_nodes(harness.coordination) if one.emptied} == {gone}


async def test_a_node_that_lives_is_not_forgotten() -> None:
    harness = await a_harness()
    before = await known_nodes(harness.coordination)
    for node in before:
        if node.live:
            await forget(harness.coordination, node.node_id)
    assert await known_nodes(harness.coordination) == before


@pytest.mark.parametrize("place", [None, PARTITION], ids=["a stream", "a partition"])
async def test_all_that_other_nodes_can_hold_leaves_a_node(place: PartitionOf | None) -> None:
    harness = await a_harness(held(NODE, B, C, partition_of=place))

    async def gone() -> None:
        await harness.streams.update(
            STREAM, lambda record: replace(record, home=B, members=(B, C), in_sync=(B, C))
        )

    harness.owners.on_transfer = gone
    async with running(harness) as service:
        begun = await service.public.post(f"/v1/admin/nodes/{NODE}/evacuate", json={})
        told = await an_operation(service, begun)
        assert told["state"] == "succeeded", told
        assert told["result"] == {"held": 1, "left": 0}
        nodes = (await service.public.get("/v1/nodes")).json()["items"]
        missing = await service.public.post(f"/v1/admin/nodes/{'e' * 32}/evacuate", json={})
    assert harness.owners.given == [(STREAM, heirs(held(NODE, B, C))[0])]
    assert {one["node"]: one["state"] for one in nodes}[NODE] == "emptied"
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")


async def test_a_member_is_replaced_and_a_stream_of_one_node_is_given_to_another() -> None:
    alone = replace(held(home=C), members=(), in_sync=(), config=StreamConfig())
    alone = replace(alone, partition_of=PARTITION)
    other = replace(alone, stream_id=StreamId(STREAM[:-1] + "2"), name=StreamName("other"))
    harness = await a_harness(held(NODE, B, C), other)

    async def change(what: MemberChange, node: NodeId) -> None:
        assert (what, node) == ("replace", C)
        for stream_id in (STREAM, other.stream_id):
            await harness.streams.update(
                stream_id,
                lambda record: replace(record, home=NODE, members=(NODE, B), in_sync=(NODE, B)),
            )

    harness.owners.on_change = change
    async with running(harness) as service:
        begun = await service.public.post(f"/v1/admin/nodes/{C}/evacuate", json={})
        told = await an_operation(service, begun)
    assert told["state"] == "succeeded", told
    assert told["result"] == {"held": 2, "left": 0}


@pytest.mark.parametrize("places", [0, 1])
async def test_streams_are_spread_by_one_step_each(places: int) -> None:
    record = held(NODE, B, C)
    owner = heirs(replace(record, home=None))[0]
    harness = await a_harness(replace(record, home=owner) if places else record)
    async with running(harness) as service:
        told = await an_operation(
            service, await service.public.post("/v1/admin/rebalance", json={})
        )
    assert told["state"] == "succeeded"
    wanted = 0 if places or owner == NODE else 1
    assert told["result"] == {"streams": 1, "moved": wanted, "replaced": 0}
