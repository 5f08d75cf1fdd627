"""Three nodes that hold a stream, under strict producers, in all that may befall them: RP1, RP2, RP6, RP7
and RP9. Of cuts `test_replica_cuts.py` tells.

How long the others take is printed, and no verdict: what is checked is that all of it is there, once.
"""

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest
from support.lost_coordination import await_loss, flush, rebuild
from support.replicated import (
    NODES,
    BareProducer,
    Producing,
    ReplicatedStream,
    ThreeServers,
    producing,
    three_servers,
)
from support.waiting import until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeServers]:
    settings = {"BOTTOMLESS_INGEST_REPLICA_STEP_DOWN_MS": "1000", "BOTTOMLESS_DRAIN_SECONDS": "5"}
    with three_servers(tmp_path_factory.mktemp("replicas"), settings) as nodes:
        yield nodes


@pytest.fixture
def nodes(running: ThreeServers) -> Iterator[ThreeServers]:
    """All of them run, before and afterwards."""
    running.start()
    yield running
    running.links.calm()
    running.start()


def test_another_node_goes_on_with_replicas_when_their_owner_is_killed(nodes: ThreeServers) -> None:
    """RP1."""
    stream = ReplicatedStream(nodes, "killed")
    with producing(stream):
        owner = stream.owner
        nodes[owner].kill()
        stream.until_owned(*stream.others(owner))
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)


def test_nothing_of_replicas_is_lost_with_the_disk_of_their_owner(nodes: ThreeServers) -> None:
    """RP2."""
    stream = ReplicatedStream(nodes, "lost")
    with producing(stream):
        owner = stream.owner
        nodes.lose(owner)
        other = stream.until_owned(*stream.others(owner))
    assert stream.entries(other) == [], "nothing is given up, and nothing was uploaded"


Make = Callable[[str], AbstractContextManager[None]]
"""Makes a node ill for the length of a block."""


@contextmanager
def full(nodes: ThreeServers, name: str) -> Iterator[None]:
    """No file of a node grows any more; with the right to do so, as of the kernel."""
    pid = nodes[name].pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def test_appends_go_on_without_a_node_of_the_replicas_that_is_slow_or_full_or_damaged(
    nodes: ThreeServers,
) -> None:
    """RP6: it is evicted, has what it missed when it is well again, and is counted again."""
    stream = ReplicatedStream(nodes, "ill")
    with producing(stream) as at_work:
        for make in (nodes.paused, lambda name: full(nodes, name)):
            until(partial(is_let_go, stream, at_work, make), what="an eviction")
            stream.until_in_sync(*NODES)
        until(partial(is_damaged, stream), what="a damaged log of a node that follows")
        at_work.wait_for_answers()
        stream.until_in_sync(*NODES)
    stream.require_same(*NODES)


def is_let_go(stream: ReplicatedStream, at_work: Producing, make: Make) -> bool:
    """Whether a node that was made ill was evicted, and appends went on. On a machine that stands still
    it may own the stream by then, which is another story."""
    ill = stream.others(stream.owner)[0]
    with make(ill):
        until(lambda: ill not in stream.in_sync() or stream.owner == ill, what="an eviction")
        if stream.owner == ill:
            return False
        at_work.wait_for_answers()
        return True


def is_damaged(stream: ReplicatedStream) -> bool:
    """Whether a node began anew with a damaged log of a stream that another one owns."""
    nodes, ill = stream.nodes, stream.others(stream.owner)[0]
    nodes[ill].kill()
    is_other = stream.owner != ill
    if is_other:
        damage(stream, ill)
    nodes[ill].start()
    return is_other


def damage(stream: ReplicatedStream, name: str) -> None:
    """Flip a byte in the middle of what a node holds."""
    path = min(stream.log_dir(name).glob("*.segment"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def test_replicas_are_moved_and_drained_under_load(nodes: ThreeServers) -> None:
    """RP7: nobody meets an error but one that says to try again; and of what was refused nothing is stored."""
    stream = ReplicatedStream(nodes, "moved")
    with producing(stream) as at_work:
        bare = BareProducer(stream)
        for _ in range(2):
            owner = stream.owner
            stream.move(stream.others(owner)[0])
            at_work.wait_for_answers()
            stream.until_in_sync(*NODES)
        owner = stream.owner
        assert nodes[owner].stop() == 0
        stream.until_owned(*stream.others(owner))
        at_work.wait_for_answers()
        bare.stop()
        nodes[owner].start()
        stream.until_in_sync(*NODES)
    stream.require_same(*NODES)
    bare.require_true(stream.values("first"))
    print(f"refusals of a bare producer in two moves and a drain: {dict(bare.refusals)}")


def test_replicas_outlive_a_loss_of_coordination_and_then_the_disk_of_their_home(
    nodes: ThreeServers,
) -> None:
    """RP9."""
    stream = ReplicatedStream(nodes, "rebuilt")
    at_work = Producing(stream)
    at_work.wait_for_answers()
    at_work.stop()
    stream.until_in_sync(*NODES)
    flush(nodes.coordination_url)
    with nodes["first"].client() as client:
        await_loss(client)
        rebuild(client)
    stream.appended("first", "after the rebuild", producer="q", sequence=0)
    stream.until_in_sync(*NODES)
    home = stream.owner
    nodes.lose(home)
    other = stream.until_owned(*stream.others(home))
    stream.appended(other, "after the loss", producer="q", sequence=1)
    values = stream.values(other)
    assert values[-2:] == ["after the rebuild", "after the loss"]
    at_work.require_once(values[:-2])
    assert stream.entries(other) == []
