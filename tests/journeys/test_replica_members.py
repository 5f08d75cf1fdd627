"""Nodes come to hold a stream, go, are replaced and emptied, by requests: RP8; and RP11.

In `./dev soak`; in every run `unit/ingest/test_replica_members.py` and `test_forced_takeover.py` there.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from support.replicated import NODES, ReplicatedStream, ThreeServers, three_servers
from support.waiting import until

from bottomless import Client
from bottomless.model.names import NodeId


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeServers]:
    settings = {"BOTTOMLESS_INGEST_REPLICA_REPLACE_MS": "4000", "BOTTOMLESS_DRAIN_SECONDS": "5"}
    with three_servers(tmp_path_factory.mktemp("members"), settings) as running:
        yield running
        running.start()


def client_of(nodes: ThreeServers, name: str) -> Client:
    return Client(nodes[name].url, retry_seconds=240)


def done(client: Client, begun: dict[str, Any]) -> dict[str, Any]:
    """The result of an operation."""
    ended = client.wait_for_operation(begun["operation_id"], timeout_seconds=240)
    assert ended["state"] == "succeeded", ended
    result: dict[str, Any] = ended["result"]
    return result


def until_held_by(stream: ReplicatedStream, *names: str) -> None:
    """Wait until exactly these hold it, and have everything."""
    until(
        lambda: stream.members() == stream.in_sync() == set(names),
        what=f"{names} to hold it, and nobody else",
    )


def test_nodes_of_replicas_are_added_removed_and_emptied_by_requests(nodes: ThreeServers) -> None:
    """RP8."""
    stream = ReplicatedStream(nodes, "members", {"replicas": 1})
    stream.appended("first", "0", producer="p", sequence=0)
    owner = stream.owner
    second, third = stream.others(owner)
    with client_of(nodes, owner) as client:
        for number, name in enumerate((second, third), 2):
            node = nodes.node_id(name)
            assert node is not None
            told = done(client, client.add_replica("members", node))
            assert told == {"node": node, "replicas": number}
            stream.appended("first", str(number), producer="p", sequence=number - 1)
        stream.require_same(*NODES)

        def shown() -> bool:
            told = client.replicas("members")["nodes"]
            return [one["role"] for one in told] == ["owner", "in-sync", "in-sync"] and all(
                (one["next_offset"], one["lag"], one["failing"]) == (3, 0, False) for one in told
            )

        until(shown, what="all nodes to show where their logs end")
        listed = client.list_nodes()
        assert {one["node"] for one in listed} == {nodes.node_id(name) for name in NODES}
        gone = nodes.node_id(third)
        assert gone is not None
        assert done(client, client.remove_replica("members", gone))["replicas"] == 2
        until_held_by(stream, owner, second)
        assert client.describe("members")["replication"]["replicas"] == 2
        emptied = nodes.node_id(second)
        assert emptied is not None
        assert done(client, client.evacuate_node(emptied))["left"] == 0
        until_held_by(stream, owner, third)
        stream.appended("first", "4", producer="p", sequence=3)
        assert stream.values("first") == ["0", "2", "3", "4"]
        done(client, client.rebalance_nodes())
    # It may be chosen again once it was stopped.
    assert nodes[second].stop() == 0
    nodes.start()


def test_replicas_become_three_and_one_again_by_a_patch_under_appends(nodes: ThreeServers) -> None:
    """RP8: 1 to 3 to 1."""
    stream = ReplicatedStream(nodes, "patched", {"replicas": 1})
    stream.appended("first", "0", producer="p", sequence=0)
    with client_of(nodes, "second") as client:
        client.update_stream("patched", {"replication": {"replicas": 3}})
        # The owner looks when something comes.
        stream.appended("second", "1", producer="p", sequence=1)
        stream.until_in_sync(*NODES)
        stream.require_same(*NODES)
        client.update_stream("patched", {"replication": {"replicas": 1}})
        stream.appended("third", "2", producer="p", sequence=2)
        until(lambda: len(stream.members()) <= 1, what="one node alone to hold it")
    assert stream.values("first") == ["0", "1", "2"]


def test_a_node_of_replicas_that_is_gone_is_replaced(nodes: ThreeServers) -> None:
    """RP8."""
    stream = ReplicatedStream(nodes, "replaced", {"replicas": 2})
    stream.appended("first", "0", producer="p", sequence=0)
    until(lambda: len(stream.in_sync()) == 2, what="two in sync")
    owner = stream.owner
    (other,) = stream.in_sync() - {owner}
    (free,) = set(NODES) - {owner, other}
    nodes[other].kill()
    until_held_by(stream, owner, free)
    stream.appended(owner, "1", producer="p", sequence=1)
    nodes.start()
    stream.require_same(owner, free)
    assert stream.values("first") == ["0", "1"]


def test_a_takeover_of_replicas_names_a_node_only_if_nobody_has_everything(
    nodes: ThreeServers,
) -> None:
    """RP11, refused: nobody gives up what a node has that lives."""
    stream = ReplicatedStream(nodes, "taken")
    stream.appended("first", "0", producer="p", sequence=0)
    stream.until_in_sync(*NODES)
    owner = stream.owner
    home = nodes.node_id(owner)
    assert home is not None
    b, c = stream.others(owner)
    path = "/v1/admin/streams/taken/takeover"
    body = {"accept_loss": True, "expect_home": home, "node": nodes.node_id(c)}
    with nodes[c].client() as client:
        assert client.post(path, json=body).json()["code"] == "home-live"
        nodes[owner].kill()
        until(lambda: nodes.is_away(owner), what="the end of a lease")
        refused = client.post(path, json=body).json()["code"]
        # Another one has everything, and may own it by now.
        assert refused in ("home-live", "in-sync-live")
    nodes.start()
    stream.require_same(*NODES)
    assert stream.values(b) == ["0"]


def test_what_is_left_of_replicas_is_taken_over_by_a_node_or_given_up_when_all_others_are_lost(
    nodes: ThreeServers,
) -> None:
    """RP11, accepted: with a node its log goes on where it ends; without one there is a gap."""
    kept, given_up = ReplicatedStream(nodes, "kept"), ReplicatedStream(nodes, "given-up")
    for stream in (kept, given_up):
        stream.appended("first", "0", "1", producer="p", sequence=0)
        stream.until_in_sync(*NODES)
    # It has what came before, and is not in sync. All others are gone for good.
    nodes["third"].kill()
    for stream in (kept, given_up):
        stream.appended("first", "lost", producer="p", sequence=2)
    homes = {stream: stream.record().home for stream in (kept, given_up)}
    lost = [nodes.node_id(name) for name in ("first", "second")]
    left = nodes.node_id("third")
    assert set(homes.values()) <= set(lost)
    nodes.lose("first")
    nodes.lose("second")
    nodes["third"].start()
    until(lambda: not any(nodes.is_live(node) for node in lost), what="the end of all leases")
    assert taken_over(nodes, "kept", homes[kept], left).get("gap") is None
    gap = taken_over(nodes, "given-up", homes[given_up])["gap"]
    nodes.start()
    # Others come in place of the lost, and with them appends go on.
    kept.appended("first", "new", producer="q", sequence=0)
    assert kept.values("third") == ["0", "1", "new"]
    kept.until_in_sync(*NODES)
    kept.require_same(*NODES)
    given_up.appended("first", "new", producer="q", sequence=0)
    assert gap["first_offset"] == 0
    assert given_up.values("third", gap["next_offset"]) == ["new"]


def taken_over(
    nodes: ThreeServers, stream: str, home: NodeId | None, node: NodeId | None = None
) -> dict[str, Any]:
    """The result of a takeover at the third node, asked for again where that one had just no lease."""
    body = {"accept_loss": True, "expect_home": home, **({"node": node} if node else {})}

    def accepted() -> dict[str, Any] | None:
        with nodes["third"].client() as client:
            answer = client.post(f"/v1/admin/streams/{stream}/takeover", json=body)
        if not answer.is_success:
            assert answer.status_code == 503 or answer.json()["code"] == "not-in-sync", answer.text
            return None
        with client_of(nodes, "third") as waiting:
            begun = answer.json()["operation_id"]
            ended = waiting.wait_for_operation(begun, timeout_seconds=240)
        return ended["result"] if ended["state"] == "succeeded" else None

    return until(accepted, what=f"a takeover of {stream}")
