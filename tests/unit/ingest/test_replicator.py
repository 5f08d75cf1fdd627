"""Senders and followers over loopback HTTP, while requests and answers are lost and nodes die."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import structlog
from support.asgi import on_tcp

from bottomless.errors import Code, Unavailable
from bottomless.model.names import StreamId
from bottomless_server.ingest.replicas import replicator
from bottomless_server.ingest.replicas.pieces import ask_after, read_piece
from bottomless_server.ingest.replicas.replicator import Replicator
from bottomless_server.node.core.sending import Sending
from bottomless_server.node.core.sends import Action, Event, Memory, Piece, Told
from bottomless_server.protocol.replica import ITEMS, Opening, Place
from bottomless_server.runtime.peers.peers import Peer
from unit.ingest.harness import STREAM
from unit.ingest.replica_logs import OwnerLog
from unit.ingest.served_nodes import NODE, ServedNode

SEEDS = range(int(os.environ.get("BOTTOMLESS_TEST_ROUNDS", "1")))
STEPS = 40
PATIENCE_SECONDS = 240
STREAMS = [StreamId(STREAM[:-1] + digit) for digit in "123"]


class Line:
    """The way to a follower, on which things are lost, late, or there twice."""

    def __init__(self, peer: Peer, chance: random.Random) -> None:
        self._peer = peer
        self._chance = chance
        self.loses = True
        self.lost_next = 0
        """So many requests are lost, whatever chance says."""
        self.sent = 0
        """Bodies with items."""

    async def post(
        self,
        path: str,
        parts: Sequence[bytes | memoryview],
        content_type: str,
        timeout_seconds: float,
    ) -> bytes:
        self.sent += path == ITEMS
        fate = self._chance.random() if self.loses else 1.0
        if fate < 0.1 or self.lost_next:
            self.lost_next = max(self.lost_next - 1, 0)
            raise lost()
        answer = await self._peer.post(path, parts, content_type, timeout_seconds)
        if fate < 0.2:
            raise lost()
        if fate < 0.3:
            return await self._peer.post(path, parts, content_type, timeout_seconds)
        return answer


def lost() -> Unavailable:
    return Unavailable("lost on its way", code=Code.PEER_UNAVAILABLE)


class LogSource:
    """An owner's log, as a sender asks for it."""

    def __init__(self, owner: OwnerLog) -> None:
        self.epoch = owner.epoch
        self._owner = owner

    def opening(self) -> Opening:
        return self._owner.opening

    async def read(self, end: Place | None) -> Piece | None:
        ask = ask_after(self._owner.log, end, self._owner.published_next, 700)
        return None if ask is None else read_piece(self._owner.disk, ask)


class Pair:
    """A follower, and who sends to it."""

    def __init__(self, served: ServedNode, line: Line, memory: Memory) -> None:
        self.served = served
        self.line = line
        self.heard = asyncio.Event()
        clock = asyncio.get_running_loop().time
        self.replicator = Replicator(line, memory, clock, self._hear, NODE)

    def _hear(self, _: Event) -> None:
        self.heard.set()

    async def have_all(self, streams: list[StreamId]) -> None:
        """Return when every log there ends where its owner's does."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(self.replicator.silent_since(one) is not None for one in streams):
                self.heard.clear()
                await self.heard.wait()


@asynccontextmanager
async def pairs(count: int, chance: random.Random) -> AsyncIterator[list[Pair]]:
    memory = Memory(5_000)
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            served = ServedNode()
            port = await stack.enter_async_context(on_tcp(served))
            peer = await stack.enter_async_context(Peer(f"http://127.0.0.1:{port}", name="ingest"))
            pair = Pair(served, Line(peer, chance), memory)
            pair.replicator.start()
            made.append(pair)
        try:
            yield made
        finally:
            for pair in made:
                await pair.replicator.stop()
                await pair.served.node.aclose()


def told_of(owner: OwnerLog) -> Told:
    return Told(owner.log.committed_next, owner.published_next, 1)


def follow(pair: Pair, owner: OwnerLog) -> None:
    place = owner.log.synced_place()
    end = Place(*place) if owner.log.segments else None
    pair.replicator.follow(owner.stream_id, LogSource(owner), end, told_of(owner))


def append(made: list[Pair], owner: OwnerLog, size: int) -> None:
    """A round, offered when it is written, and told of when it is committed."""
    end = Place(*owner.log.synced_place()) if owner.log.segments else None
    owner.append(size)
    piece = owner.piece(end, 10**6)
    assert piece is not None
    for pair in made:
        pair.replicator.offer(owner.stream_id, piece)
        pair.replicator.tell(owner.stream_id, told_of(owner))


def claim_again(made: list[Pair], owner: OwnerLog) -> None:
    """The owner's process ends, and the next one has the stream under the next epoch."""
    owner.log.close()
    owner.claim()
    for pair in made:
        follow(pair, owner)


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_logs_are_the_owners_byte_for_byte_whatever_was_lost_on_the_way(
    seed: int,
) -> None:
    chance = random.Random(seed)
    owners = [OwnerLog(stream_id) for stream_id in STREAMS]
    async with pairs(2, chance) as made:
        for owner in owners:
            for pair in made:
                follow(pair, owner)
        for _ in range(STEPS):
            owner = chance.choice(owners)
            append(made, owner, chance.choice((20, 600, 2_500)))
            if chance.random() < 0.1:
                chance.choice(made).served.die(chance)
            if chance.random() < 0.05:
                claim_again(made, owner)
            await asyncio.sleep(0)
        for pair in made:
            pair.line.loses = False
            await pair.have_all(STREAMS)
            for owner in owners:
                assert pair.served.node.files(owner.stream_id) == owner.files


async def test_a_node_that_stalls_gets_what_it_lacks_when_it_goes_on() -> None:
    owner = OwnerLog(STREAMS[0])
    async with pairs(1, random.Random(0)) as made:
        (pair,) = made
        pair.line.loses = False
        follow(pair, owner)
        append(made, owner, 600)
        await pair.have_all(STREAMS[:1])
        owned, pair.served.node.here.in_sync = owner.files, True
        assert pair.served.node.files(owner.stream_id) == owned
        pair.served.die(random.Random(1))
        pair.line.loses = True
        for _ in range(8):
            append(made, owner, 600)
        pair.line.loses = False
        await pair.have_all(STREAMS[:1])
        assert pair.served.node.files(owner.stream_id) == owner.files


async def test_a_sender_that_meets_a_bug_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would ask again what is to be done: rounds would wait for this node for ever."""
    bugs = iter([True, True])
    decide = Sending.next_actions

    def decided(self: Sending, now: float) -> list[Action]:
        assert not next(bugs, False), "a bug"
        return decide(self, now)

    monkeypatch.setattr(Sending, "next_actions", decided)
    monkeypatch.setattr(replicator, "BUG_SECONDS", 0.01)
    owner = OwnerLog(STREAMS[0])
    async with pairs(1, random.Random(0)) as made:
        (pair,) = made
        pair.line.loses = False
        follow(pair, owner)
        append(made, owner, 600)
        await pair.have_all(STREAMS[:1])
        assert next(bugs, None) is None
        assert pair.served.node.files(owner.stream_id) == owner.files


async def test_a_node_that_is_away_is_told_of_once_and_when_it_is_back() -> None:
    owner = OwnerLog(STREAMS[0])
    async with pairs(1, random.Random(0)) as made:
        (pair,) = made
        pair.line.loses, pair.line.lost_next = False, 3
        with structlog.testing.capture_logs() as logs:
            follow(pair, owner)
            append(made, owner, 600)
            await pair.have_all(STREAMS[:1])
    assert [(entry["event"], entry["node"]) for entry in logs] == [
        ("another node is not reached", NODE),
        ("another node is reached again", NODE),
    ]


async def test_streams_that_are_offered_in_one_turn_share_a_body() -> None:
    owners = [OwnerLog(stream_id) for stream_id in STREAMS]
    async with pairs(1, random.Random(0)) as made:
        (pair,) = made
        pair.line.loses = False
        for owner in owners:
            follow(pair, owner)
            append(made, owner, 100)
        await pair.have_all(STREAMS)
        pair.line.sent = 0
        for owner in owners:
            append(made, owner, 100)
        await pair.have_all(STREAMS)
        assert pair.line.sent == 1
        for owner in owners:
            assert pair.served.node.files(owner.stream_id) == owner.files
