"""Nodes of a stream that are gone for good: another one takes their place, RP8, or what they had is given
up on the word of an operator, RP11.
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
    # Soon, so that on a machine that stands still a node is replaced as well that lives: no verdict may
    # depend on which of two that is.
    settings = {"BOTTOMLESS_INGEST_REPLICA_REPLACE_MS": "4000", "BOTTOMLESS_DRAIN_SECONDS": "5"}
    with three_servers(tmp_path_factory.mktemp("gone"), settings) as running:
        yield running
        running.start()


def test_a_node_of_replicas_that_is_gone_is_replaced(nodes: ThreeServers) -> None:
    """RP8."""
    stream = ReplicatedStream(nodes, "replaced", {"replicas": 2})
    stream.appended("first", "0", producer="p", sequence=0)
    until(lambda: len(stream.in_sync()) == 2, what="two in sync")
    owner = stream.owner
    (other,) = stream.in_sync() - {owner}
    (free,) = set(NODES) - {owner, other}
    nodes[other].kill()
    stream.until_held_by(owner, free)
    stream.appended(owner, "1", producer="p", sequence=1)
    nodes.start()
    # It may have taken the place of one of them, on a machine that stands still.
    stream.require_same_of(2)
    assert stream.values("first") == ["0", "1"]


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
    lost = [nodes.node_id(name) for name in ("first", "second")]
    left = nodes.node_id("third")
    nodes.lose("first")
    nodes.lose("second")
    nodes["third"].start()
    until(lambda: not any(nodes.is_live(node) for node in lost), what="the end of all leases")
    assert taken_over(kept, left).get("gap") is None
    gap = taken_over(given_up)["gap"]
    nodes.start()
    # Others come in place of the lost, and with them appends go on.
    kept.appended("first", "new", producer="q", sequence=0)
    assert kept.values("third") == ["0", "1", "new"]
    kept.until_in_sync(*NODES)
    kept.require_same(*NODES)
    given_up.appended("first", "new", producer="q", sequence=0)
    assert gap["first_offset"] == 0
    assert given_up.values("third", gap["next_offset"]) == ["new"]


def taken_over(stream: ReplicatedStream, node: NodeId | None = None) -> dict[str, Any]:
    """The result of a takeover at the third node, asked for again where that one had just no lease."""
    nodes = stream.nodes

    def accepted() -> dict[str, Any] | None:
        home = stream.record().home
        body = {"accept_loss": True, "expect_home": home, **({"node": node} if node else {})}
        with nodes["third"].client() as client:
            answer = client.post(f"/v1/admin/streams/{stream.name}/takeover", json=body)
        if not answer.is_success:
            assert answer.status_code == 503 or answer.json()["code"] == "not-in-sync", answer.text
            return None
        with Client(nodes["third"].url, retry_seconds=240) as waiting:
            begun = answer.json()["operation_id"]
            ended = waiting.wait_for_operation(begun, timeout_seconds=240)
        return ended["result"] if ended["state"] == "succeeded" else None

    return until(accepted, what=f"a takeover of {stream.name}")
