"""The owner of a stream with replicas is cut off from those that follow it, from coordination, or from
both, each way: RP5. Or one that follows is slow: RP6.

A way that is cut is a connection on which nothing comes through any more, in one direction of calls
and not in the other; where answers are lost, what was asked arrives. By links between processes, which
need no rights (`support/node_ways.py`); chaos cuts machines off by network namespaces.

How long the others take is printed, and no verdict: what is checked is that all of it is there, once.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import pytest
from support.links import Trouble
from support.node_ways import start_apart, way
from support.replicated import NODES, ReplicatedStream, ThreeServers, producing, three_servers
from support.waiting import until

OUT, IN, COORDINATION = "what it asks the others", "what they ask it", "what it asks coordination"
LOST, HALF, REFUSED = Trouble.BLACK_HOLE, Trouble.LOSE_ANSWERS, Trouble.REFUSE

Cut = Mapping[str, Trouble]

GIVEN_AWAY: Final[Mapping[str, Cut]] = {
    "coordination refuses": {COORDINATION: REFUSED},
    "coordination": {COORDINATION: LOST},
    "answers of coordination": {COORDINATION: HALF},
    "to followers": {OUT: LOST},
    "answers of followers": {OUT: HALF},
    "followers": {OUT: LOST, IN: LOST},
    "everybody": {OUT: LOST, IN: LOST, COORDINATION: LOST},
    "to everybody": {OUT: LOST, COORDINATION: LOST},
    "answers of everybody": {OUT: HALF, IN: LOST, COORDINATION: HALF},
}
"""After which another node goes on: the owner has no lease, or gives away what nobody confirms."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeServers]:
    settings = {"BOTTOMLESS_INGEST_REPLICA_STEP_DOWN_MS": "1000"}
    with three_servers(tmp_path_factory.mktemp("cuts"), settings, start_apart) as nodes:
        yield nodes


@pytest.fixture
def nodes(running: ThreeServers) -> Iterator[ThreeServers]:
    """All of them reach one another, before and afterwards."""
    yield running
    running.links.calm()


def cut(nodes: ThreeServers, owner: str, how: Cut) -> None:
    """Cut an owner off."""
    others = [name for name in NODES if name != owner]
    links = {
        OUT: [way(owner, name) for name in others],
        IN: [way(name, owner) for name in others],
        COORDINATION: [owner],
    }
    for what, trouble in how.items():
        for link in links[what]:
            nodes.links.disturb(link, trouble)


@pytest.mark.parametrize("name", GIVEN_AWAY)
def test_an_owner_of_replicas_that_is_cut_off_is_followed_by_another(
    nodes: ThreeServers, name: str
) -> None:
    """RP5."""
    stream = ReplicatedStream(nodes, name.replace(" ", "-"))
    with producing(stream) as at_work:
        owner = stream.owner
        cut(nodes, owner, GIVEN_AWAY[name])
        stream.until_owned(*stream.others(owner))
        at_work.wait_for_answers()
        nodes.links.calm()
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)


def test_an_owner_of_replicas_whom_the_others_do_not_reach_goes_on(nodes: ThreeServers) -> None:
    """RP5: it reaches them, so they have what it acknowledges, to whoever asks it and no other node."""
    stream = ReplicatedStream(nodes, "unreached")
    with producing(stream) as at_work:
        cut(nodes, stream.owner, {IN: LOST})
        at_work.wait_for_answers()
        nodes.links.calm()
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)


def test_replicas_take_appends_while_a_node_that_follows_them_is_slow(nodes: ThreeServers) -> None:
    """RP6: it is waited for, or evicted on a machine that stands still; nothing is lost of either."""
    stream = ReplicatedStream(nodes, "slow")
    with producing(stream) as at_work:
        owner = stream.owner
        nodes.links.disturb(way(owner, stream.others(owner)[0]), Trouble.DELAY)
        until(
            lambda: nodes.links.happened[Trouble.DELAY] or stream.owner != owner,
            what="something that comes late",
        )
        at_work.wait_for_answers()
        nodes.links.calm()
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)
