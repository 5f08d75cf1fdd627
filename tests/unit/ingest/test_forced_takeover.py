"""RP11 in small: an operator names a node that goes on with what it holds, once nobody else can."""

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.tree.core.takeovers import fence
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.replica_records import take_over
from bottomless_server.protocol.held import HELD, HeldThere, decode_held
from bottomless_server.protocol.paths import of_stream
from bottomless_server.stores.streams import node_key
from unit.ingest.harness import STREAM
from unit.ingest.replica_services import Node, ThreeServices


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[ThreeServices]:
    made = await ThreeServices(tmp_path).start()
    yield made
    await made.aclose()


async def held_by(node: Node) -> HeldThere:
    answer = await node.harness.internal.get(of_stream(HELD, STREAM))
    assert answer.status_code == 200, answer.text
    return decode_held(answer.json())


async def let_go(three: ThreeServices, node: Node) -> None:
    """Return when a node is not in sync any more, since nobody reaches it."""
    node.address.gone = True
    await three.append(three.nodes[0], "3")

    async def is_out() -> bool:
        return node.node_id not in (await three.record()).in_sync

    await three.until(is_out)


async def left_to(three: ThreeServices) -> tuple[Node, Node, Node]:
    """An owner and one in sync, both away, and a third one that lacks what they acknowledged last."""
    a, b, c = three.nodes
    for number in range(3):
        assert await three.append(a, str(number)) == number
    await three.until_all_in_sync()
    await let_go(three, c)
    # Nobody reaches it before it is the owner: the first one still runs, and would send what it lacks.
    await three.cut_off(a)
    await three.cut_off(b)
    return a, b, c


def taken_over(three: ThreeServices, node: Node) -> Awaitable[StreamRecord]:
    """Do as an operator who gives up the first node and names another one."""
    home = three.nodes[0].node_id

    def fenced(record: StreamRecord) -> StreamRecord:
        return fence(record, home, record.epoch, home_held=False)

    return take_over(three.first.streams, STREAM, fenced, node.node_id)


async def until_dead(three: ThreeServices, *nodes: Node) -> None:
    """Return when the leases of these nodes are gone."""

    async def are_dead() -> bool:
        keys = [node_key(node.node_id) for node in nodes]
        return not any(await three.first.coordination.get_many(keys))

    await three.until(are_dead)


async def test_a_takeover_names_a_node_only_after_all_that_have_everything_are_dead(
    three: ThreeServices,
) -> None:
    a, b, c = await left_to(three)
    with pytest.raises(Refused) as refused:
        await taken_over(three, c)
    assert refused.value.refusal is Refusal.IN_SYNC_LIVE
    await until_dead(three, a, b)
    # It lives, and lacks something: so it does not go on by itself.
    assert not c.harness.service.streams.owns(STREAM)
    assert await held_by(c) == HeldThere(False, 1, 3)

    await taken_over(three, c)
    await three.until_owned_by(c)
    c.address.gone = b.address.gone = False
    b.renews = True
    # The record at offset 3 was acknowledged, and is given up: its offset is given again.
    assert await three.append(c, "new") == 3
    assert await three.values(c) == [b"0", b"1", b"2", b"new"]
    a.address.gone, a.renews = False, True
    await three.until_all_in_sync()
    await three.until_same_files(a, b, c)


async def test_each_node_says_what_it_holds_also_of_a_log_that_is_not_open(
    three: ThreeServices,
) -> None:
    a, b, c = three.nodes
    assert await held_by(b) == HeldThere(False, 0, None)
    assert await three.append(a, "0") == 0
    await three.until_all_in_sync()
    assert await held_by(a) == HeldThere(True, 1, 1)
    assert await held_by(b) == HeldThere(False, 1, 1)
    await c.harness.service.replicas.following.let_go(STREAM)
    assert await held_by(c) == HeldThere(False, 1, 1)
    # To be asked is no word of the owner.
    heard = dict(c.harness.service.replicas.following.heard())
    assert heard.get(STREAM, 0) == 0
