"""Which node is asked for its log before a stream is given away, and which one is waited for."""

import asyncio
from collections.abc import Sequence

import pytest

from bottomless.errors import Code, StoreError, Unavailable
from bottomless.model.names import NodeId, StreamId
from bottomless_server.ingest.replicas import asking as asking_module
from bottomless_server.ingest.replicas.asking import Asking
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.replica_records import Target
from unit.ingest.harness import STREAM

A, B, C = (NodeId(one * 32) for one in "abc")
TARGETS = tuple(Target(one, f"http://{one}") for one in (A, B, C))


class Nodes:
    """Nodes that answer at once, refuse, or say nothing until a test lets them."""

    def __init__(self) -> None:
        self.asked: list[NodeId] = []
        self.errors: dict[NodeId, StoreError] = {}
        self.stalled: dict[NodeId, asyncio.Event] = {}

    async def ask(self, node: NodeId, _: StreamId) -> None:
        self.asked.append(node)
        if node in self.stalled:
            await self.stalled[node].wait()
        if node in self.errors:
            raise self.errors[node]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setattr(asking_module, "NEXT_SECONDS", 0.01)
    return Nodes()


def refused(code: Code) -> StoreError:
    return Unavailable("it does not say", code=code)


async def first_of(
    asking: Asking, targets: Sequence[Target] = TARGETS, unfit: Sequence[NodeId] = ()
) -> list[NodeId]:
    async with asyncio.timeout(240):
        found = await asking.readable_first(STREAM, targets, {A, B, C}, unfit)
    return [one.node_id for one in found]


async def test_nobody_else_is_asked_where_the_first_node_answers(nodes: Nodes) -> None:
    assert await first_of(Asking(nodes.ask)) == [A, B, C]
    assert nodes.asked == [A]


async def test_a_node_that_says_nothing_is_not_waited_for_where_another_one_answers(
    nodes: Nodes,
) -> None:
    """With 16 streams at a time each would take all the time that a drain has."""
    nodes.stalled[A] = asyncio.Event()
    asking = Asking(nodes.ask)
    assert await first_of(asking) == [B, A, C]
    assert nodes.asked == [A, B]
    assert asking.slow == {A}
    # One that has many logs to read is asked for the next stream in its turn.
    nodes.stalled[A].set()
    nodes.stalled[B] = asyncio.Event()
    assert await first_of(asking, TARGETS[:1]) == [A]
    assert asking.slow == set()


async def test_a_node_that_answered_nothing_is_not_asked_again(nodes: Nodes) -> None:
    nodes.errors[A] = refused(Code.PEER_UNAVAILABLE)
    asking = Asking(nodes.ask)
    assert await first_of(asking, TARGETS[:1]) == [A]
    assert await first_of(asking, TARGETS[:1]) == [A]
    assert (nodes.asked, asking.silent) == ([A], {A})


async def test_a_node_that_answers_for_another_stream_is_not_silent(nodes: Nodes) -> None:
    """It reads one log after the other, and one of them is long."""
    nodes.stalled[A] = asyncio.Event()
    asking = Asking(nodes.ask)
    long = asyncio.create_task(first_of(asking, TARGETS[:1]))
    while not nodes.asked:
        await asyncio.sleep(0)
    stalled = nodes.stalled.pop(A)
    assert await first_of(asking, TARGETS[:1]) == [A]
    nodes.errors[A] = refused(Code.PEER_UNAVAILABLE)
    stalled.set()
    assert await long == [A]
    assert asking.silent == set()


async def test_one_whose_log_is_damaged_is_left_out_also_where_another_one_says_nothing(
    nodes: Nodes,
) -> None:
    nodes.stalled[A] = asyncio.Event()
    nodes.errors[B] = refused(Code.STORAGE_FAILED)
    assert await first_of(Asking(nodes.ask)) == [C, A]
    nodes.errors |= dict.fromkeys((A, B, C), refused(Code.STORAGE_FAILED))
    nodes.stalled.clear()
    with pytest.raises(Refused) as error:
        await first_of(Asking(nodes.ask))
    assert error.value.refusal is Refusal.NOT_IN_SYNC


async def test_one_whose_disk_took_nothing_is_asked_only_when_nobody_else_may_answer(
    nodes: Nodes,
) -> None:
    """It says at once what it holds, and would be given what it has to give away again."""
    nodes.stalled[A] = asyncio.Event()
    asking = asyncio.create_task(first_of(Asking(nodes.ask), TARGETS[:2], [B]))
    while not nodes.asked:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert nodes.asked == [A]
    nodes.errors[A] = refused(Code.PEER_UNAVAILABLE)
    nodes.stalled[A].set()
    assert await asking == [B, A]


async def test_a_question_that_is_broken_off_leaves_none_under_way(nodes: Nodes) -> None:
    nodes.stalled |= {A: asyncio.Event(), B: asyncio.Event(), C: asyncio.Event()}
    asking = asyncio.create_task(first_of(Asking(nodes.ask)))
    async with asyncio.timeout(240):
        while len(nodes.asked) < 3:
            await asyncio.sleep(0.001)
    before = len(asyncio.all_tasks())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(asyncio.all_tasks()) == before - 4
