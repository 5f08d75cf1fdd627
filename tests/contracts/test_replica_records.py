"""The transactions of streams with replicas, over every coordination store, and several at once."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import pytest
from support.guards import remove

from bottomless.errors import Fenced, NotServed, Unavailable
from bottomless.formats.stream_record import REPLICAS, SERVED, encode_record
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId, StreamId, StreamName
from bottomless.model.stream import NOBODY, StreamRecord, StreamState
from bottomless_server.coordination.base import Coordination
from bottomless_server.node.core import in_sync
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.core.ownership import LocalView, OwnedElsewhere
from bottomless_server.node.lease import NodeLease
from bottomless_server.node.owner import Owner
from bottomless_server.node.placement import Placement
from bottomless_server.node.replica_records import (
    Owned,
    ReplicaRecords,
    Target,
    take_over,
    watching,
)
from bottomless_server.stores.ingest_nodes import IngestNode, announce
from bottomless_server.stores.node_facts import NodeFacts
from bottomless_server.stores.streams import Streams, node_key, producers_key, stream_key
from contracts.conftest import Shared

STREAM = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
A, B, C, D = (NodeId(letter * 32) for letter in "abcd")
EMPTY = LocalView(0, empty=True)
HAS_ALL = LocalView(10, empty=False, epoch=1)
MINE = Owned(STREAM, 1)
"""The stream as node A owns it first."""
LEASE_MS = 3_600_000


class Held:
    """The lease of a node as that node sees it."""

    term = 1
    generation = None

    def __init__(self, node: NodeId) -> None:
        self.node = IngestNode(node, url_of(node))
        self.node_id = node

    def require(self) -> None: ...


class OneNode(ReplicaRecords):
    """All transactions of one node, with its claims."""

    def __init__(self, streams: Streams, node: NodeId, coordination: Coordination) -> None:
        super().__init__(streams, node)
        self._noted = 0
        placement = Placement(coordination, lambda: float(self._noted))
        self._owner = Owner(coordination, cast("NodeLease", Held(node)), self._note, placement)

    async def claim(
        self, stream_id: StreamId, local: LocalView, seen: StreamRecord | None = None
    ) -> StreamRecord:
        # A later moment for each claim, so that nodes are asked for anew.
        self._noted += 1_000
        record, _ = await self._owner.claim(stream_id, local, seen)
        return record

    async def _note(self, _: StreamId) -> None: ...


class Nodes:
    """Four nodes and a stream, of which two nodes of three have to have everything."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.streams = Streams(shared.coordination)
        self.a, self.b, self.c, self.d = (
            OneNode(self.streams, node, shared.coordination) for node in (A, B, C, D)
        )

    async def lives(self, *nodes: NodeId) -> None:
        for node in nodes:
            url = url_of(node)
            facts = NodeFacts(url, "near", "0.1.0")
            await announce(self.shared.coordination, IngestNode(node, url), facts)
            assert await self.shared.coordination.hold(node_key(node), node.encode(), LEASE_MS)

    async def dies(self, node: NodeId) -> None:
        await self.shared.coordination.release(node_key(node), node.encode())

    def write(self, record: StreamRecord) -> None:
        """What somebody else writes, in the middle of whatever is going on."""
        self.shared.interfere(stream_key(STREAM), encode_record(record))

    async def record(self) -> StreamRecord:
        return await self.streams.load(STREAM)


def url_of(node: NodeId) -> str:
    return f"http://{node[0]}:9000"


def target(node: NodeId) -> Target:
    return Target(node, url_of(node))


@pytest.fixture
async def nodes(shared: Shared) -> Nodes:
    """A owns the stream, and A, B and C have all of it; all four live."""
    nodes = Nodes(shared)
    wanted = StreamConfig(replication=ReplicationConfig(replicas=3))
    await nodes.streams.create(
        StreamRecord(STREAM, StreamName("orders"), "default", StreamState.ACTIVE, 0, wanted)
    )
    await nodes.lives(A, B, C)
    await nodes.a.claim(STREAM, EMPTY)
    await nodes.lives(D)
    await nodes.a.admit(MINE, B)
    await nodes.a.reserve(MINE, 10)
    await nodes.a.admit(MINE, C)
    return nodes


async def refusal_of(changing: Awaitable[object]) -> Refusal:
    with pytest.raises(Refused) as refused:
        await changing
    return refused.value.refusal


async def test_a_node_in_sync_goes_on_when_the_lease_of_the_owner_is_over(nodes: Nodes) -> None:
    for one in (nodes.b, nodes.c):
        with pytest.raises(OwnedElsewhere):
            await one.claim(STREAM, HAS_ALL)
    await nodes.dies(A)
    with pytest.raises(Unavailable):
        await nodes.d.claim(STREAM, HAS_ALL)

    claimed = await nodes.b.claim(STREAM, HAS_ALL)

    assert claimed == await nodes.record()
    assert (claimed.home, claimed.owner_url, claimed.epoch) == (B, url_of(B), 2)
    assert (claimed.members, claimed.in_sync) == ((A, B, C), (A, B, C))
    for changing in changes_of(nodes):
        with pytest.raises(Fenced):
            await changing


def changes_of(nodes: Nodes) -> Sequence[Awaitable[object]]:
    """Everything that an owner may want, asked for by A."""
    return (
        nodes.a.admit(MINE, C),
        nodes.a.evict(MINE, C),
        nodes.a.set_members(MINE, [A, B, C, D]),
        nodes.a.reserve(MINE, 2_000_000),
        nodes.a.leave(MINE, 10, None),
        nodes.a.transfer(MINE, target(C)),
        nodes.a.step_down(MINE, [target(C)]),
    )


async def test_an_admission_that_is_late_fails_once_its_owner_has_settled_it(nodes: Nodes) -> None:
    """To settle is to write the record as it is: whoever watched it before has to begin anew."""
    await nodes.a.evict(MINE, C)
    before = await nodes.record()
    assert await nodes.a.settle(MINE) == before == await nodes.record()
    seen = list[StreamRecord]()

    def late(record: StreamRecord) -> StreamRecord:
        seen.append(record)
        if len(seen) == 1:
            nodes.write(in_sync.settled(record, A, 1))
            return in_sync.admit(record, A, 1, C)
        # Nobody waits for it any more.
        raise Unavailable("its caller has given up")

    with pytest.raises(Unavailable):
        await nodes.streams.update(STREAM, late)
    assert await nodes.record() == before
    await nodes.a.transfer(MINE, target(B))
    assert await refusal_of(nodes.a.settle(MINE)) is Refusal.NOT_HOME


async def test_of_all_who_claim_at_once_one_becomes_the_owner(nodes: Nodes) -> None:
    await nodes.dies(A)
    claims = (one.claim(STREAM, HAS_ALL) for one in (nodes.b, nodes.c))
    results = await asyncio.gather(*claims, return_exceptions=True)

    [won] = [one for one in results if isinstance(one, StreamRecord)]
    [lost] = [one for one in results if not isinstance(one, StreamRecord)]
    assert isinstance(lost, OwnedElsewhere)
    assert await nodes.record() == won
    assert won.epoch == 2


async def test_a_claim_whose_reply_was_lost_is_followed_by_a_higher_epoch(nodes: Nodes) -> None:
    await nodes.dies(A)
    await nodes.b.claim(STREAM, HAS_ALL)
    again = await nodes.b.claim(STREAM, HAS_ALL)
    assert (again.home, again.epoch) == (B, 3)


async def test_who_is_evicted_while_it_claims_owns_the_stream_or_is_out(nodes: Nodes) -> None:
    await nodes.dies(A)
    await asyncio.gather(
        nodes.a.evict(MINE, B), nodes.b.claim(STREAM, HAS_ALL), return_exceptions=True
    )
    record = await nodes.record()
    assert (record.home, record.in_sync) in ((A, (A, C)), (B, (A, B, C)))


async def evicted_at_once(nodes: Nodes) -> list[object]:
    evictions = (nodes.a.evict(MINE, node) for node in (B, C))
    return await asyncio.gather(*evictions, return_exceptions=True)


async def test_evictions_at_once_leave_as_many_as_were_asked_for(nodes: Nodes) -> None:
    results = await evicted_at_once(nodes)
    [refused] = [one for one in results if isinstance(one, Refused)]
    assert refused.refusal is Refusal.AT_THE_FLOOR
    assert len((await nodes.record()).in_sync) == 2


async def test_without_the_floor_one_disk_is_left(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the floor of the in-sync set", lambda _: True)
    await evicted_at_once(nodes)
    assert (await nodes.record()).in_sync == (A,)


async def test_after_a_transfer_the_old_owner_changes_nothing(nodes: Nodes) -> None:
    given = await nodes.a.transfer(MINE, target(B))
    assert (given.home, given.owner_url, given.epoch) == (B, url_of(B), 1)
    for changing in changes_of(nodes):
        assert await refusal_of(changing) is Refusal.NOT_HOME
    assert await nodes.record() == given
    assert (await nodes.b.claim(STREAM, HAS_ALL)).epoch == 2


async def test_without_the_home_in_its_transactions_it_evicts_the_new_owner(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the home in the EXECs of an owner with replicas", lambda *_: True)
    await nodes.a.transfer(MINE, target(B))
    # A record that says so is refused where it is written, whatever let it pass.
    with pytest.raises(AssertionError):
        await nodes.a.evict(MINE, B)


async def test_a_stream_is_given_to_a_node_in_sync_that_lives(nodes: Nodes) -> None:
    await nodes.dies(B)
    assert await refusal_of(nodes.a.transfer(MINE, target(B))) is Refusal.NOT_LIVE
    await nodes.a.evict(MINE, C)
    assert await refusal_of(nodes.a.transfer(MINE, target(C))) is Refusal.NOT_IN_SYNC
    others = [target(D), target(C), target(B)]
    assert await refusal_of(nodes.a.step_down(MINE, others)) is Refusal.NOT_LIVE
    assert (await nodes.record()).home == A

    await nodes.lives(B)
    assert (await nodes.a.step_down(MINE, others)).home == B


async def test_who_goes_is_out_of_sync_and_who_comes_is_not_in_it(nodes: Nodes) -> None:
    assert await refusal_of(nodes.a.set_members(MINE, [A, B, D])) is Refusal.IN_SYNC
    await nodes.a.evict(MINE, C)
    record = await nodes.a.set_members(MINE, [A, B, D])
    assert (record.members, record.in_sync) == ((A, B, D), (A, B))
    assert await refusal_of(nodes.a.admit(MINE, C)) is Refusal.NOT_A_MEMBER
    assert (await nodes.a.admit(MINE, D)).in_sync == (A, B, D)


async def test_a_stream_that_is_left_clean_is_anybodys_with_what_is_known_of_producers(
    nodes: Nodes,
) -> None:
    with pytest.raises(Unavailable):
        await nodes.a.leave(MINE, 10, b"known")
    await nodes.streams.update(STREAM, lambda record: replace(record, published_next=10))
    assert not (await nodes.a.leave(MINE, 10, b"known")).dirty
    assert await nodes.shared.coordination.get(producers_key(STREAM)) == b"known"

    await nodes.dies(A)
    claimed = await nodes.d.claim(STREAM, EMPTY)
    assert (claimed.home, claimed.members, claimed.in_sync) == (D, (D, B, C), (D,))


async def test_a_claim_chooses_anew_when_another_number_of_nodes_is_asked_for_meanwhile(
    nodes: Nodes,
) -> None:
    await nodes.streams.update(STREAM, lambda record: replace(record, published_next=10))
    left = await nodes.a.leave(MINE, 10, None)
    for replicas in (4, 3):
        before = await nodes.record()
        wanted = StreamConfig(replication=ReplicationConfig(replicas=replicas))
        await nodes.streams.update(STREAM, partial(replace, config=wanted))
        claimed = await nodes.a.claim(STREAM, HAS_ALL, before)
        assert len(claimed.members) == replicas
    assert left.home == claimed.home == A


Fence = Callable[[StreamRecord], StreamRecord]


def fenced(record: StreamRecord) -> StreamRecord:
    """What a takeover makes of a record where there are no replicas."""
    return replace(record, epoch=record.epoch + 1, home=NOBODY, owner_url=None)


def fenced_while(happens: Callable[[], object]) -> Fence:
    """The same, while something happens between the look at the record and the EXEC; once."""
    still = [happens]

    def fence(record: StreamRecord) -> StreamRecord:
        if still:
            still.pop()()
        return fenced(record)

    return fence


async def all_die(nodes: Nodes) -> None:
    for node in (A, B, C):
        await nodes.dies(node)


async def test_a_takeover_waits_for_the_leases_of_all_in_sync(nodes: Nodes) -> None:
    await nodes.dies(A)
    assert await refusal_of(take_over(nodes.streams, STREAM, fenced)) is Refusal.IN_SYNC_LIVE
    await all_die(nodes)

    record = await take_over(nodes.streams, STREAM, fenced)
    assert (record.home, record.in_sync, record.epoch) == (NOBODY, (), 2)
    for one in (nodes.a, nodes.b):
        with pytest.raises(Unavailable):
            await one.claim(STREAM, HAS_ALL)


async def test_a_member_that_is_named_goes_on_with_what_it_has(nodes: Nodes) -> None:
    await all_die(nodes)
    record = await take_over(nodes.streams, STREAM, fenced, B)
    assert (record.home, record.in_sync) == (B, (B,))
    assert (await nodes.b.claim(STREAM, HAS_ALL)).epoch == 3


async def test_a_lease_that_is_taken_meanwhile_ends_a_takeover(nodes: Nodes) -> None:
    await all_die(nodes)
    back = fenced_while(lambda: nodes.shared.interfere(node_key(C), C.encode()))
    assert await refusal_of(take_over(nodes.streams, STREAM, back)) is Refusal.IN_SYNC_LIVE


async def one_lives_that_is_counted_meanwhile(nodes: Nodes) -> Awaitable[object]:
    """The takeover looked at a record in which D was not; D lives."""
    await all_die(nodes)
    record = await nodes.record()
    newer = replace(record, members=(A, B, C, D), in_sync=(A, D))
    fence = fenced_while(lambda: nodes.write(newer))
    return take_over(nodes.streams, STREAM, fence)


async def test_a_takeover_asks_of_all_that_are_in_sync_when_it_decides(nodes: Nodes) -> None:
    taking = await one_lives_that_is_counted_meanwhile(nodes)
    assert await refusal_of(taking) is Refusal.IN_SYNC_LIVE


async def test_without_watching_all_leases_it_gives_up_one_that_lives(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "the leases of all that are named, watched with the record"
    remove(monkeypatch, name, lambda *_: True)
    await (await one_lives_that_is_counted_meanwhile(nodes))
    assert (await nodes.record()).home == NOBODY


async def test_a_record_that_names_others_each_time_is_left_as_it_is(nodes: Nodes) -> None:
    before = await nodes.record()
    names = iter([NodeId(f"{number:032x}")] for number in range(100))

    def decide(record: StreamRecord, live: Collection[NodeId]) -> StreamRecord:
        raise AssertionError("nobody may decide by these")

    with pytest.raises(Unavailable):
        await watching(nodes.streams, STREAM, lambda _: next(names), decide)
    assert await nodes.record() == before


async def test_services_that_do_not_serve_replicas_leave_such_a_record_as_it_is(
    nodes: Nodes,
) -> None:
    before = await nodes.shared.coordination.get(stream_key(STREAM))
    streams = Streams(nodes.shared.coordination, SERVED - {REPLICAS})
    with pytest.raises(NotServed, match="feature replicas"):
        await streams.load(STREAM)
    with pytest.raises(NotServed, match="feature replicas"):
        await streams.update(STREAM, fenced)
    assert await nodes.shared.coordination.get(stream_key(STREAM)) == before
