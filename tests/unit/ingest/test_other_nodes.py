"""An owner with its appender and its log, and two nodes that follow it over HTTP.

Its record with members lies in a store of its own, so that a test says who they are. The clock of the
owner stands still, so a node is silent for too long when a test says so.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from support.asgi import on_tcp
from support.guards import remove
from support.waiting import eventually

from bottomless.errors import Outcome, Unavailable
from bottomless.formats.stream_record import encode_record
from bottomless.model.chunk import ChunkPlace
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Changes
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.ingest.log.segments import SegmentLog, Unsynced
from bottomless_server.ingest.replicas import joins
from bottomless_server.ingest.replicas.other_nodes import OtherNodes
from bottomless_server.ingest.replicas.owner_context import OwnerContext
from bottomless_server.ingest.replicas.senders import Senders
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.core.replica_waits import WaitBounds
from bottomless_server.node.core.sends import Event, Memory, News
from bottomless_server.node.owner import Claim
from bottomless_server.node.replica_records import Owned, ReplicaRecords
from bottomless_server.protocol.replica import Place
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.shared_hops import SharedHops
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.stores.streams import Streams, stream_key
from unit.ingest.harness import STREAM, IngestHarness, no_space, problem
from unit.ingest.replica_logs import AtOnce, at_call, nothing
from unit.ingest.served_nodes import ServedNode

B, C, D = NodeId("b" * 32), NodeId("c" * 32), NodeId("d" * 32)
BOUNDS: Final = WaitBounds(wait_ms=50, commit_ms=200, join_ms=100)


class Gate:
    """The way to a follower, which is silent while it is shut."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.open = asyncio.Event()
        self.open.set()

    async def post(
        self,
        path: str,
        parts: Sequence[bytes | memoryview],
        content_type: str,
        timeout_seconds: float,
    ) -> bytes:
        await self.open.wait()
        answer = await self._peer.post(path, parts, content_type, timeout_seconds)
        # What was on its way when it was shut is no word of a node that is silent.
        await self.open.wait()
        return answer


class Records(ReplicaRecords):
    """Records whose replies are lost when a test says so."""

    lost = lost_members = lost_additions = 0
    pause: asyncio.Event | None = None
    """An eviction is done, and is answered when this is set."""
    no_settling = False
    no_admissions = False
    asked = 0
    settled = 0

    async def admit(self, owned: Owned, node: NodeId) -> StreamRecord:
        if self.no_admissions:
            self.asked += 1
            raise Unavailable("lost on its way", outcome=Outcome.UNKNOWN)
        return await super().admit(owned, node)

    async def set_members(self, owned: Owned, members: Collection[NodeId]) -> StreamRecord:
        record = await super().set_members(owned, members)
        if self.lost_members:
            self.lost_members -= 1
            raise Unavailable("lost on its way", outcome=Outcome.UNKNOWN)
        return record

    async def add_member(self, owned: Owned, node: NodeId) -> StreamRecord:
        record = await super().add_member(owned, node)
        if self.lost_additions:
            self.lost_additions -= 1
            raise Unavailable("lost on its way", outcome=Outcome.UNKNOWN)
        return record

    async def settle(self, owned: Owned) -> StreamRecord:
        if self.no_settling:
            raise Unavailable("not now", outcome=Outcome.NONE)
        self.settled += 1
        return await super().settle(owned)

    async def evict(self, owned: Owned, node: NodeId) -> StreamRecord:
        record = await super().evict(owned, node)
        if self.pause is not None:
            await self.pause.wait()
        if self.lost:
            self.lost -= 1
            raise Unavailable("lost on its way", outcome=Outcome.UNKNOWN)
        return record


class Three:
    """The owner, and B and C."""

    def __init__(self, path: Path) -> None:
        self.harness = IngestHarness(path, replicate=self.replicate)
        self.nodes: dict[NodeId, ServedNode] = {}
        self.gates: dict[NodeId, Gate] = {}
        self.senders = Senders(Memory(2**20), asyncio.get_running_loop().time)
        self.store = MemoryCoordination(lambda: self.harness.time.wall)
        self.streams = Streams(self.store)
        self.records: Records
        self.others: OtherNodes
        self.first: tuple[NodeId, ...] = (B, C)
        """Members beside the owner when it claims the stream."""
        self.note: Callable[[StreamId], Awaitable[None]] | None = None
        self.free: tuple[NodeId, ...] = ()
        """Nodes that can be chosen later."""

    def replicate(self, record: StreamRecord, claim: Claim, local: SegmentLog) -> OtherNodes:
        mine = NodeId(str(record.home))
        record = replace(
            record,
            config=StreamConfig(replication=ReplicationConfig(replicas=3)),
            members=(mine, *self.first) if self.first else (),
            in_sync=(mine,) if self.first else (),
        )
        self.store.write(Changes({stream_key(STREAM): encode_record(record)}))
        self.records = Records(self.streams, mine)
        context = OwnerContext(
            mine=mine,
            records=self.records,
            senders=self.senders,
            files=self.harness.files,
            hops=SharedHops(AtOnce(), 1),
            clocks=self.harness.time.clocks(),
            bounds=BOUNDS,
            choose=self.choose,
            note=self.note,
        )
        self.others = OtherNodes(context, record, claim, local)
        return self.others

    async def choose(self, record: StreamRecord, kept: Collection[NodeId]) -> tuple[NodeId, ...]:
        free = [node for node in self.free if node not in kept]
        return tuple(free[: record.config.replication.replicas - len(kept)])

    async def ask_for(self, replicas: int) -> None:
        """A PATCH, and the owner has looked."""
        config = StreamConfig(replication=ReplicationConfig(replicas=replicas))
        await self.streams.update(STREAM, partial(replace, config=config))
        assert self.harness.appender.configure(config)

    async def until_alone(self) -> None:
        """Return when the record says nothing of other nodes."""
        async with asyncio.timeout(240):
            while (await self.streams.load(STREAM)).members:
                await asyncio.sleep(0.002)

    async def in_sync(self) -> set[NodeId]:
        """The others that the record counts on."""
        record = await self.streams.load(STREAM)
        return set(record.in_sync) - {NodeId(str(record.home))}

    async def until_in_sync(self, *nodes: NodeId) -> None:
        async with asyncio.timeout(240):
            while await self.in_sync() != set(nodes):
                await asyncio.sleep(0.002)

    def shut(self, *nodes: NodeId) -> None:
        for node in nodes:
            self.gates[node].open.clear()

    def let(self, *nodes: NodeId) -> None:
        for node in nodes:
            self.gates[node].open.set()

    def segments(self, node: NodeId) -> dict[str, bytes]:
        files = self.nodes[node].node.files()
        return {name: data for name, data in files.items() if name.endswith(".segment")}

    def owned(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.harness.segments()}

    def has_all(self, node: NodeId) -> bool:
        """Whether the owner has heard that a node has all that is synced here."""
        sender = self.senders.of(node)
        assert sender is not None
        return sender.end_of(STREAM) == Place(*self.harness.appender.log.synced_place())

    async def written(self, value: str, synced_next: int) -> asyncio.Task[Any]:
        """An append whose round is synced here."""
        task = asyncio.create_task(self.harness.append(value))
        await eventually(lambda: self.harness.appender.log.synced_next == synced_next)
        return task

    async def refused(self, task: asyncio.Task[Any]) -> Any:
        """Let time go on until an append that waits after a claim is answered. Its time counts from when
        it begins to wait, which is a while after the stream is found to be open."""
        async with asyncio.timeout(240):
            while not task.done():
                await self.harness.advance(BOUNDS.commit_ms)
                await asyncio.sleep(0.002)
        return await task

    async def all_in_sync(self) -> None:
        """An append, and everybody has it."""
        assert (await self.harness.append("a")).status_code == 200
        await self.until_in_sync(B, C)


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    made = Three(tmp_path / "ingest")
    async with AsyncExitStack() as stack:
        for node in (B, C):
            made.nodes[node] = served = ServedNode()
            port = await stack.enter_async_context(on_tcp(served))
            url = f"http://127.0.0.1:{port}"
            made.gates[node] = Gate(await stack.enter_async_context(Peer(url, name="ingest")))
            made.senders.reach(node, made.gates[node])
        await (await made.harness.declare()).start()
        yield made
        made.let(B, C)
        await made.harness.aclose()
        await made.senders.stop()
        for served in made.nodes.values():
            await served.node.aclose()


async def test_what_is_acknowledged_lies_on_every_node_in_sync(three: Three) -> None:
    for number in range(6):
        answer = await three.harness.append(str(number), "x" * 100 * number)
        assert answer.status_code == 200
        in_sync = await three.in_sync()
        assert in_sync
        for node in in_sync:
            assert three.segments(node) == three.owned()
    await three.until_in_sync(B, C)
    assert three.segments(B) == three.segments(C) == three.owned()


async def test_a_node_whose_disk_takes_nothing_is_let_go_at_once(three: Three) -> None:
    """The clock of the owner stands still: nobody is silent for too long."""
    await three.all_in_sync()

    def full() -> None:
        raise no_space()

    three.nodes[B].node.disk.before = at_call(0, full)
    assert (await three.harness.append("b")).status_code == 200
    assert await three.in_sync() == {C}
    assert three.harness.appender.failing == (B,)
    three.nodes[B].node.disk.before = nothing
    assert (await three.harness.append("c")).status_code == 200
    await eventually(lambda: three.has_all(B))
    assert not three.others.failing


async def test_the_first_append_to_a_stream_waits_for_the_first_node(three: Three) -> None:
    three.shut(B, C)
    task = asyncio.create_task(three.harness.append("a"))
    await eventually(lambda: three.harness.service.under_way.count == 1)
    assert three.harness.segments() == []
    assert not task.done()
    three.let(C)
    assert (await task).status_code == 200
    assert await three.in_sync() == {C}
    assert three.segments(C) == three.owned()


async def test_a_stream_that_was_opened_long_before_its_first_append_takes_it(
    three: Three,
) -> None:
    await three.harness.service.streams.get(STREAM)
    await three.harness.advance(2 * BOUNDS.commit_ms)
    assert (await three.harness.append("a")).status_code == 200


async def test_too_few_nodes_take_no_append_after_a_while(three: Three) -> None:
    three.shut(B, C)
    task = asyncio.create_task(three.harness.append("a"))
    await eventually(lambda: three.harness.service.streams.find(STREAM))
    for refused in (await three.refused(task), await three.harness.append("b")):
        assert (refused.status_code, refused.json()["outcome"]) == (503, "none")
    assert three.harness.segments() == []


async def test_without_its_floor_a_round_is_acknowledged_by_one_node_alone(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(_: object) -> None: ...

    remove(monkeypatch, "enough nodes in sync before a round is written", at_once)
    three.shut(B, C)
    assert (await three.harness.append("a")).status_code == 200
    assert await three.in_sync() == set()


async def test_a_silent_node_is_evicted_and_admitted_when_it_is_back(three: Three) -> None:
    await three.all_in_sync()
    three.shut(C)
    task = await three.written("b", 2)
    await eventually(lambda: three.has_all(B))
    assert not task.done()
    assert await three.harness.values() == [b"a"]

    await three.harness.advance(BOUNDS.wait_ms)
    assert (await task).status_code == 200
    assert await three.in_sync() == {B}
    assert three.segments(B) == three.owned()
    assert three.segments(C) != three.owned()

    three.let(C)
    await eventually(lambda: three.has_all(C))
    assert await three.in_sync() == {B}
    await three.harness.advance(BOUNDS.join_ms)
    await three.until_in_sync(B, C)
    assert three.segments(C) == three.owned()


async def test_without_its_eviction_a_node_is_counted_on_that_lacks_a_record(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_written(_: object, __: object, node: NodeId) -> StreamRecord:
        record = await three.streams.load(STREAM)
        return replace(record, in_sync=tuple(one for one in record.in_sync if one != node))

    remove(monkeypatch, "an eviction before a round goes on", not_written)
    await three.all_in_sync()
    three.shut(C)
    task = await three.written("b", 2)
    await eventually(lambda: three.has_all(B))
    await three.harness.advance(BOUNDS.wait_ms)
    assert (await task).status_code == 200
    assert C in await three.in_sync()
    assert three.segments(C) != three.owned()


async def test_without_waiting_for_the_set_an_answer_tells_of_what_nobody_else_has(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three.all_in_sync()
    remove(monkeypatch, "waiting for all that are in sync", lambda *_: True)
    three.shut(B, C)
    assert (await three.harness.append("b")).status_code == 200
    assert await three.in_sync() == {B, C}
    assert three.segments(B) != three.owned() != three.segments(C)


async def test_an_eviction_whose_reply_is_lost_is_asked_for_again(three: Three) -> None:
    await three.all_in_sync()
    three.shut(C)
    three.records.lost = 2
    task = await three.written("b", 2)
    await eventually(lambda: three.has_all(B))
    await three.harness.advance(BOUNDS.wait_ms)
    assert (await task).status_code == 200
    assert three.records.lost == 0
    assert await three.in_sync() == {B}


async def test_a_node_that_may_be_in_sync_or_not_is_settled_before_a_round_waits_on(
    three: Three,
) -> None:
    await three.all_in_sync()
    three.shut(C)
    task = await three.written("b", 2)
    await eventually(lambda: three.has_all(B))
    await three.harness.advance(BOUNDS.wait_ms)
    assert (await task).status_code == 200

    three.records.no_admissions = True
    three.let(C)
    await eventually(lambda: three.has_all(C))
    await three.harness.advance(BOUNDS.join_ms)
    await eventually(lambda: three.records.asked)
    # C was started anew: it would be admitted only after a while, and B may not be let go.
    three.others.hear(C, Event(News.UNKNOWN, STREAM))
    three.shut(B)
    task = await three.written("c", 3)
    await eventually(lambda: three.has_all(C))
    await three.harness.advance(BOUNDS.wait_ms)
    await eventually(lambda: three.records.settled)
    assert not task.done()
    assert await three.in_sync() == {B}

    three.let(B)
    assert (await task).status_code == 200
    three.records.no_admissions = False
    await three.harness.advance(2 * BOUNDS.join_ms)
    await three.until_in_sync(B, C)


async def test_with_two_silent_nodes_a_round_is_held_and_shown_later(three: Three) -> None:
    await three.all_in_sync()
    three.shut(B, C)
    task = await three.written("b", 2)
    await three.harness.advance(BOUNDS.commit_ms)
    answer = await task
    assert problem(answer) == (504, "commit-timeout")
    assert answer.json()["outcome"] == "unknown"
    refused = await three.harness.append("c")
    assert (refused.status_code, refused.json()["outcome"]) == (503, "none")
    assert await three.harness.values() == [b"a"]
    # One may go, and no more: two disks have to have what is shown.
    await three.until_in_sync(C)

    three.let(B, C)
    await eventually(lambda: three.harness.appender.log.committed_next == 2)
    assert await three.harness.values() == [b"a", b"b"]
    await eventually(lambda: three.has_all(B) and three.has_all(C))
    await three.harness.advance(BOUNDS.join_ms)
    await three.until_in_sync(B, C)
    assert (await three.harness.append("c")).json()["first_offset"] == 2
    assert three.segments(B) == three.segments(C) == three.owned()


async def test_a_stream_that_lies_here_alone_is_held_by_others_as_soon_as_there_are_any(
    three: Three,
) -> None:
    three.first, three.free = (), (B, C)
    assert (await three.harness.append("a")).status_code == 200
    await three.until_in_sync(B, C)
    assert three.segments(B) == three.segments(C) == three.owned()


async def test_too_few_members_are_looked_for_again_and_take_no_append_until_then(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "LOOK_SECONDS", 0.01)
    three.first = ()
    task = asyncio.create_task(three.harness.append("a"))
    await eventually(lambda: three.harness.service.streams.find(STREAM))
    assert problem(await three.refused(task)) == (503, "not-enough-replicas")
    three.free = (C,)
    await three.until_in_sync(C)
    async with asyncio.timeout(240):
        # The record says so a moment before the owner has heard.
        while (await three.harness.append("a")).status_code != 200:
            pass


async def test_fewer_nodes_hold_a_stream_that_is_to_be_on_fewer_and_more_that_is_to_be_on_more(
    three: Three,
) -> None:
    await three.all_in_sync()
    await three.ask_for(1)
    await three.until_alone()
    assert await three.in_sync() == set()
    before = three.segments(B)
    assert (await three.harness.append("b")).status_code == 200
    assert three.segments(B) == before == three.segments(C)

    three.free = (B, C)
    await three.ask_for(3)
    await three.until_in_sync(B, C)
    assert three.segments(B) == three.segments(C) == three.owned()


async def test_members_whose_change_had_no_reply_are_changed_again(three: Three) -> None:
    await three.all_in_sync()
    three.records.lost_members = 1
    await three.ask_for(1)
    await three.until_alone()
    assert three.records.lost_members == 0
    assert (await three.harness.append("b")).status_code == 200


async def test_who_came_by_a_change_without_a_reply_is_asked_to_follow(three: Three) -> None:
    """The record is seen first by an EXEC that was for something else."""
    three.first = (B,)
    assert (await three.harness.append("a")).status_code == 200
    await three.until_in_sync(B)
    three.records.lost_additions, three.records.no_settling = 1, True
    with pytest.raises(Unavailable):
        await three.others.add(C)
    three.records.no_settling = False
    await three.others.add(B)
    await three.until_in_sync(B, C)
    assert three.segments(C) == three.owned()


async def test_nothing_is_in_doubt_because_no_node_could_be_chosen(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.first = (B,)

    async def nobody_knows(*_: object) -> tuple[NodeId, ...]:
        raise Unavailable("coordination does not answer", outcome=Outcome.NONE)

    monkeypatch.setattr(three, "choose", nobody_knows)
    assert (await three.harness.append("a")).status_code == 200
    await three.until_in_sync(B)
    assert (await three.harness.append("b")).status_code == 200
    assert three.records.settled == 0


async def added_while_others_are_chosen(
    three: Three, monkeypatch: pytest.MonkeyPatch, *, replied: bool = True
) -> set[NodeId]:
    """The members after an operator has taken `C` in, and `D` was chosen before that for the same place."""
    asked, answered, choose = asyncio.Event(), asyncio.Event(), three.choose

    async def slow(record: StreamRecord, kept: Collection[NodeId]) -> tuple[NodeId, ...]:
        if three.free:
            asked.set()
            await answered.wait()
        return await choose(record, kept)

    monkeypatch.setattr(joins, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(three, "choose", slow)
    three.first = (B,)
    assert (await three.harness.append("a")).status_code == 200
    await three.until_in_sync(B)
    three.free = (D,)
    await asked.wait()
    three.records.lost_additions = 0 if replied else 1
    with nullcontext() if replied else pytest.raises(Unavailable):
        await three.others.add(C)
    set_members, decided = three.records.set_members, asyncio.Event()

    async def watched(owned: Owned, members: Collection[NodeId]) -> StreamRecord:
        record = await set_members(owned, members)
        decided.set()
        return record

    monkeypatch.setattr(three.records, "set_members", watched)
    answered.set()
    waits = [asyncio.create_task(one) for one in (three.until_in_sync(B, C), decided.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    await end_tasks(*waits)
    record = await three.streams.load(STREAM)
    return set(record.members) - {NodeId(str(record.home))}


@pytest.mark.parametrize("replied", [True, False])
async def test_who_came_on_the_word_of_an_operator_stays_though_another_was_chosen(
    three: Three, replied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await added_while_others_are_chosen(three, monkeypatch, replied=replied)
    assert found == {B, C}


async def test_without_a_look_at_the_members_who_came_by_an_operator_goes_for_who_was_chosen(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "members that nobody has changed while others were chosen", lambda *_: True)
    assert await added_while_others_are_chosen(three, monkeypatch) == {B, D}


async def test_what_is_closed_is_not_begun_anew_by_an_operator(three: Three) -> None:
    await three.all_in_sync()
    others = three.others
    await three.harness.service.streams.close(STREAM)
    with pytest.raises(Unavailable):
        await others.add(C)
    with pytest.raises(Unavailable):
        others.replace(B)


async def test_the_bucket_hears_of_other_members_as_soon_as_it_can(three: Three) -> None:
    noted: list[tuple[NodeId, ...]] = []

    async def note(_: StreamId) -> None:
        noted.append((await three.streams.load(STREAM)).members)
        if len(noted) == 1:
            raise Unavailable("not now")

    three.note = note
    three.first = (B,)
    assert (await three.harness.append("a")).status_code == 200
    await three.until_in_sync(B)
    assert noted == []
    await three.others.add(C)
    async with asyncio.timeout(240):
        while len(noted) < 2:
            await asyncio.sleep(0.002)
    assert all(C in members for members in noted)


async def test_a_node_that_is_a_member_again_is_counted_by_what_it_says_since(three: Three) -> None:
    await three.all_in_sync()
    await three.ask_for(1)
    await three.until_alone()
    three.shut(B)
    three.free = (B, C)
    await three.ask_for(3)
    async with asyncio.timeout(240):
        while C not in await three.in_sync():
            await asyncio.sleep(0.002)
    assert await three.in_sync() == {C}
    three.let(B)
    await three.until_in_sync(B, C)
    assert three.segments(B) == three.owned()


async def test_a_round_that_is_held_hears_at_once_that_somebody_else_owns_the_stream(
    three: Three,
) -> None:
    await three.all_in_sync()
    three.shut(B, C)
    task = await three.written("b", 2)
    await three.harness.advance(BOUNDS.commit_ms)
    assert problem(await task) == (504, "commit-timeout")
    await three.until_in_sync(C)
    held = three.harness.appender
    # It is found out beside the round, when a member is to go.
    config = StreamConfig(replication=ReplicationConfig(replicas=2))
    await three.streams.update(STREAM, lambda one: replace(one, config=config, epoch=one.epoch + 1))
    assert held.configure(config)
    await eventually(lambda: held.stopped is not None)
    assert held.claim.fenced


async def test_a_stop_waits_for_no_node_that_has_more_than_its_owner(three: Three) -> None:
    await three.all_in_sync()
    three.shut(B, C)
    task = await three.written("b", 2)
    three.others.hear(B, Event(News.DIVERGED, STREAM))
    # The clock stands still, so nobody is late.
    await three.harness.appender.close(not_owner(), leave=False)
    assert (await task).json()["outcome"] == "unknown"


async def test_an_eviction_whose_reply_is_lost_counts_when_another_one_tells_of_it(
    three: Three,
) -> None:
    await three.all_in_sync()
    three.shut(C)
    three.records.lost = 1
    task = await three.written("b", 2)
    await eventually(lambda: three.has_all(B))
    await three.harness.advance(BOUNDS.wait_ms)
    assert (await task).status_code == 200
    three.let(C)
    await eventually(lambda: three.has_all(C))
    # Not before it has had everything for a while.
    assert (await three.harness.append("c")).status_code == 200
    assert await three.in_sync() == {B}
    await three.harness.advance(BOUNDS.join_ms)
    await three.until_in_sync(B, C)


async def evicting(three: Three) -> asyncio.Task[Any]:
    """A round that C lacks: its eviction is done, and the answer is on its way."""
    await three.all_in_sync()
    three.shut(C)
    three.records.pause = pause = asyncio.Event()
    task = await three.written("b", 2)
    await eventually(lambda: three.has_all(B))
    await three.harness.advance(BOUNDS.wait_ms)
    await three.until_in_sync(B)
    assert not pause.is_set()
    return task


async def test_who_says_while_it_is_let_go_that_it_has_more_is_taken_back_before_a_round_is_shown(
    three: Three,
) -> None:
    task = await evicting(three)
    three.others.hear(C, Event(News.DIVERGED, STREAM))
    assert not three.others.ahead
    assert three.records.pause is not None
    three.records.pause.set()
    await three.until_in_sync(B, C)
    await eventually(lambda: three.others.ahead == {C})
    assert not task.done()
    assert await three.harness.values() == [b"a"]
    three.others.hear(C, Event(News.HAS, STREAM, Place(*three.harness.appender.log.synced_place())))
    assert (await task).status_code == 200


async def test_who_had_more_and_was_removed_on_the_word_of_an_operator_holds_nothing_up(
    three: Three,
) -> None:
    task = await evicting(three)
    three.others.hear(C, Event(News.DIVERGED, STREAM))
    three.records.no_admissions = True
    assert three.records.pause is not None
    three.records.pause.set()
    await eventually(lambda: three.records.asked)
    await three.others.remove(C)
    assert (await task).status_code == 200
    assert three.others.ahead == set()


async def append_after_a_failed_write(three: Three) -> None:
    await three.all_in_sync()
    three.harness.files.faults["pwritev"].append(no_space())
    assert problem(await three.harness.append("b")) == (503, "storage-full")
    assert (await three.harness.append("c")).status_code == 200


async def test_what_could_not_be_written_here_is_sent_to_nobody(three: Three) -> None:
    await append_after_a_failed_write(three)
    assert three.segments(B) == three.segments(C) == three.owned()


async def test_sent_before_it_is_written_a_round_stays_on_others_in_the_place_of_another(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent_first(jobs: Any) -> list[tuple[Any, Unsynced | Exception]]:
        return [(job, written_after(job)) for job in jobs]

    def written_after(job: Any) -> Unsynced | Exception:
        if job.log.segments:
            (chunk,), segment = job.sealed.chunks, job.log.segments[-1]
            place = ChunkPlace(
                chunk.first_offset,
                chunk.timestamp,
                segment.size,
                chunk.epoch,
                chunk.size,
                chunk.record_count,
            )
            end, sealed = segment.size + chunk.size, job.sealed
            early = Unsynced(
                segment, [place], end, sealed.next_offset, sealed.timestamp, chunk.buffers
            )
            job.answer.get_loop().call_soon_threadsafe(job.send, early)
        try:
            written: Unsynced = job.log.write(job.sealed, job.epoch, job.elapsed, job.state)
        except Unavailable as error:
            return error
        if not job.log.segments:
            job.answer.get_loop().call_soon_threadsafe(job.send, written)
        return written

    remove(monkeypatch, "sending after the write", sent_first)
    await append_after_a_failed_write(three)
    assert await three.in_sync() == {B, C}
    assert three.segments(B) != three.owned() != three.segments(C)
