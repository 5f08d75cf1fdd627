"""A reader's tail with nodes that follow the owner: who is asked, and whose word counts."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest
from support.guards import remove
from support.peers import SilentPeer
from unit.reader.harness import LocalChunk, a_chunk, a_text
from unit.reader.protocol import ORDERS, STREAM_ID

from bottomless.errors import Code, Fenced, StoreError, Unavailable
from bottomless.model.limits import MIB
from bottomless.model.names import NodeId
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import Params, PeerAnswer, PeerBytes
from bottomless_server.protocol.registry import NODES, NodeSaid, encode_nodes
from bottomless_server.protocol.tail import (
    CHUNKS,
    FOLLOWED_CHUNKS,
    Bounds,
    ChunkRun,
    encode_run,
    moved,
)
from bottomless_server.reader import follower_reads
from bottomless_server.reader.follower_reads import PAUSE_SECONDS, FollowerReads
from bottomless_server.reader.nodes import IngestNodes
from bottomless_server.reader.owned_tail import OwnedTail
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.reader.tail import TailAnswer

OWNER_URL: Final = "http://owner"
FOLLOWER: Final = NodeId("f" * 32)
FOLLOWER_URL: Final = "http://follower"
SIZE: Final = 300_000
"""Of a record: some of them are more than a mebibyte."""


def the_chunks(epoch: int, text: str) -> list[LocalChunk]:
    return [
        a_chunk(offset, [a_text(text.ljust(SIZE))], 1_000 + offset, epoch) for offset in range(10)
    ]


@dataclass
class Node(SilentPeer):
    """An ingest node, for the owner's questions and those to a follower."""

    path: str
    epoch: int
    chunks: list[LocalChunk]
    followers: tuple[NodeId, ...] = ()
    local_first: int = 0
    asked: list[int] = field(default_factory=list)
    failure: StoreError | None = None
    before: Callable[[], None] | None = None
    """Called before it answers."""
    hangs: asyncio.Event | None = None

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.epoch, self.local_first, len(self.chunks), 0, 1, None, 0)

    async def fetch(self, path: str, /, *, params: Params | None = None, **__: object) -> PeerBytes:
        if path != of_stream(self.path, STREAM_ID):
            raise Unavailable("this node does not own the stream now", code=Code.NOT_OWNER)
        assert params is not None
        offset = int(params["first_offset"])
        if offset < len(self.chunks):
            self.asked.append(offset)
        if self.before is not None:
            self.before()
        if self.hangs is not None:
            await self.hangs.wait()
        if self.failure is not None:
            raise self.failure
        if self.path == FOLLOWED_CHUNKS and int(params["epoch"]) != self.epoch:
            raise Fenced("this node does not follow the stream under that epoch")
        if offset < self.local_first:
            raise moved(self.bounds)
        data = self.chunks[offset].data if offset < len(self.chunks) else b""
        after = offset + bool(data)
        run = ChunkRun(self.bounds, offset, after, 0, data, None, self.followers)
        return PeerBytes(encode_run(run), data)


class Peers(SilentPeer):
    """The nodes by their urls, and a manifest that knows where they are."""

    def __init__(self) -> None:
        self.owner = Node(CHUNKS, 1, the_chunks(1, "a"), (FOLLOWER,))
        self.follower = Node(FOLLOWED_CHUNKS, 1, the_chunks(1, "a"))
        self.now = 0.0
        self.hangs: asyncio.Event | None = None
        """Whether the manifest service does not say where nodes are."""
        reads = FollowerReads(self, IngestNodes(self), lambda: self.now)
        self.tail = OwnedTail(self, self, IngestNodes(self), reads)
        self.stream = StreamFacts(STREAM_ID, ORDERS, 1, OWNER_URL)

    def at(self, url: str) -> Node:
        return {OWNER_URL: self.owner, FOLLOWER_URL: self.follower}[url]

    async def call(self, _: str, path: str, /, **__: object) -> PeerAnswer:
        assert path == NODES
        if self.hangs is not None:
            await self.hangs.wait()
        nodes = [NodeSaid("0" * 32, OWNER_URL), NodeSaid(FOLLOWER, FOLLOWER_URL)]
        return PeerAnswer(200, {}, encode_nodes(nodes))

    async def read(self, offset: int, wait_ms: int = 0) -> TailAnswer:
        return await self.tail.chunks(self.stream, offset, MIB, wait_ms)

    def taken_over(self) -> None:
        """Another node became the owner, by force, and has written something else since."""
        self.owner.epoch, self.owner.chunks = 2, the_chunks(2, "b")


@pytest.fixture
async def peers(monkeypatch: pytest.MonkeyPatch) -> Peers:
    """A tail of which the owner has said once who follows it."""
    # No verdict depends on how fast the machine is.
    monkeypatch.setattr(follower_reads, "ANSWER_SECONDS", 600.0)
    made = Peers()
    answer = await made.read(0)
    assert bytes(answer.data) == made.owner.chunks[0].data
    assert made.owner.asked == [0]
    made.owner.asked.clear()
    return made


async def test_far_below_the_end_a_follower_gives_the_bytes_and_the_owner_the_bounds(
    peers: Peers,
) -> None:
    peers.owner.chunks.append(a_chunk(10, [a_text("more")], 2_000, 1))
    answer = await peers.read(1)
    assert bytes(answer.data) == peers.owner.chunks[1].data
    assert (answer.first_offset, answer.next_offset) == (1, 2)
    # Of which the follower has not heard yet.
    assert answer.bounds == peers.owner.bounds != peers.follower.bounds
    assert (peers.owner.asked, peers.follower.asked) == ([], [1])


async def test_near_the_end_and_at_it_the_owner_is_asked(peers: Peers) -> None:
    for offset in (7, 8, 9, 10):
        answer = await peers.read(offset)
        assert answer.bounds == peers.owner.bounds
    assert (await peers.read(2, wait_ms=10)).data
    assert (await peers.tail.bounds(peers.stream)) == peers.owner.bounds
    assert peers.follower.asked == []


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("it does not answer", code=Code.PEER_UNAVAILABLE),
        Fenced("it follows another owner"),
        moved(Bounds(1, 5, 10, 5, 1, None, 0)),
    ],
)
async def test_where_a_follower_fails_the_owner_is_asked_and_the_follower_left_alone_for_a_while(
    peers: Peers, failure: StoreError
) -> None:
    peers.follower.failure = failure
    for offset in (1, 2):
        assert bytes((await peers.read(offset)).data) == peers.owner.chunks[offset].data
    assert (peers.owner.asked, peers.follower.asked) == ([1, 2], [1])
    peers.follower.failure = None
    peers.now += PAUSE_SECONDS
    await peers.read(3)
    assert peers.follower.asked == [1, 3]


async def test_a_follower_whose_disk_has_damaged_a_chunk_is_no_matter(peers: Peers) -> None:
    damaged = peers.follower.chunks[1]
    bad = damaged.data[:-9] + bytes([damaged.data[-9] ^ 1]) + damaged.data[-8:]
    peers.follower.chunks[1] = LocalChunk(1, 2, damaged.timestamp, bad)
    assert bytes((await peers.read(1)).data) == peers.owner.chunks[1].data


async def test_a_follower_that_has_less_is_no_end(peers: Peers) -> None:
    del peers.follower.chunks[3:]
    assert bytes((await peers.read(4)).data) == peers.owner.chunks[4].data


async def test_what_the_owner_has_freed_is_moved_whatever_a_follower_has(peers: Peers) -> None:
    peers.owner.local_first = 2
    answer = await peers.read(1)
    assert answer.moved
    assert answer.bounds == peers.owner.bounds


async def test_a_forced_takeover_meanwhile_makes_nothing_of_what_a_follower_answered(
    peers: Peers,
) -> None:
    peers.owner.before = peers.taken_over
    answer = await peers.read(1)
    assert answer.bounds.epoch == 2
    assert bytes(answer.data) == peers.owner.chunks[1].data != peers.follower.chunks[1].data
    # Which goes on under the epoch before, and is not asked under that any more.
    assert peers.follower.asked == [1]
    peers.now += PAUSE_SECONDS
    assert bytes((await peers.read(2)).data) == peers.owner.chunks[2].data


async def test_without_the_owner_s_word_a_reader_gets_what_was_never_of_the_stream(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the owner's word for what a follower answers", lambda *_: True)
    peers.owner.before = peers.taken_over
    assert bytes((await peers.read(1)).data) == peers.follower.chunks[1].data


async def test_a_follower_is_given_up_with_the_owner(peers: Peers) -> None:
    peers.follower.hangs = asyncio.Event()
    peers.owner.failure = Unavailable("it does not answer", code=Code.PEER_UNAVAILABLE)
    with pytest.raises(Unavailable):
        await peers.read(1)
    peers.owner.failure = None
    peers.follower.hangs.set()
    assert bytes((await peers.read(1)).data) == peers.owner.chunks[1].data


async def test_a_manifest_that_hangs_holds_up_no_read_of_the_owner(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_reads, "ANSWER_SECONDS", 0.01)
    peers.hangs = asyncio.Event()
    assert bytes((await peers.read(1)).data) == peers.owner.chunks[1].data
    assert peers.follower.asked == []
    peers.hangs.set()


async def test_a_node_that_is_not_alive_is_not_asked(peers: Peers) -> None:
    peers.owner.followers = (NodeId("e" * 32),)
    await peers.read(9)
    assert bytes((await peers.read(1)).data) == peers.owner.chunks[1].data
    assert peers.follower.asked == []


async def test_a_stream_that_has_no_replicas_any_more_is_its_owner_s_alone(peers: Peers) -> None:
    peers.owner.followers = ()
    await peers.read(9)
    await peers.read(1)
    assert (peers.owner.asked, peers.follower.asked) == ([9, 1], [])
