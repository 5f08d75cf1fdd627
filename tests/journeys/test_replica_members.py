"""Nodes come to hold a stream, go and are emptied, by requests: RP8; and a takeover that is refused: RP11.

On a machine that stands still a stream has another owner now and then, so none is believed to stay one.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from support.replicated import NODES, ReplicatedStream, ThreeServers, three_servers
from support.waiting import until

from bottomless import Client
from bottomless.errors import Fenced


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeServers]:
    settings = {"BOTTOMLESS_DRAIN_SECONDS": "5"}
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
        gone = until(lambda: removed(client, stream), what="a node that is let go")
        left = stream.others(gone)
        stream.until_held_by(*left)
        assert client.describe("members")["replication"]["replicas"] == 2
        emptied = left[0] if stream.owner == left[1] else left[1]
        node = nodes.node_id(emptied)
        assert node is not None
        assert done(client, client.evacuate_node(node))["left"] == 0
        stream.until_held_by(*stream.others(emptied))
        stream.appended("first", "4", producer="p", sequence=3)
        assert stream.values("first") == ["0", "2", "3", "4"]
        done(client, client.rebalance_nodes())
    # It may be chosen again once it was stopped.
    assert nodes[emptied].stop() == 0
    nodes.start()


def removed(client: Client, stream: ReplicatedStream) -> str | None:
    """Which node is let go that is not the owner; None if it has become that, and so is refused."""
    name = stream.others(stream.owner)[1]
    node = stream.nodes.node_id(name)
    assert node is not None
    try:
        begun = client.remove_replica(stream.name, node)
    except Fenced:
        return None
    assert done(client, begun)["replicas"] == 2
    return name


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


def test_a_takeover_of_replicas_names_a_node_only_if_nobody_has_everything(
    nodes: ThreeServers,
) -> None:
    """RP11, refused: nobody gives up what a node has that lives."""
    stream = ReplicatedStream(nodes, "taken")
    stream.appended("first", "0", producer="p", sequence=0)
    stream.until_in_sync(*NODES)
    owner = stream.owner
    b, c = stream.others(owner)
    path = "/v1/admin/streams/taken/takeover"

    def refusal() -> str:
        """Why nobody may take it over from whoever owns it."""
        home = stream.record().home
        body = {"accept_loss": True, "expect_home": home, "node": nodes.node_id(c)}
        with nodes[c].client() as client:
            answer = client.post(path, json=body)
        assert answer.status_code in (409, 503), answer.text
        return str(answer.json()["code"])

    until(lambda: refusal() == "home-live", what="a refusal, since the owner lives")
    nodes[owner].kill()
    until(lambda: nodes.is_away(owner), what="the end of a lease")
    # Another one has everything, and may own it by now.
    until(lambda: refusal() in ("home-live", "in-sync-live"), what="a refusal, since others live")
    nodes.start()
    stream.require_same(*NODES)
    assert stream.values(b) == ["0"]
