"""Homes of queues over every coordination store: many nodes that want one tenant's queues at once."""

import asyncio

import pytest
from support.manifest import ManifestHarness

from bottomless.errors import Code, Fenced, Unavailable
from bottomless.formats.keys import queue_home_key
from bottomless.formats.queue_home import decode_home_object
from bottomless.model.names import NodeId
from bottomless.model.queue_home import QueueHome
from bottomless_server.manifest.queue_homes.core.home_decision import HomeAsked
from bottomless_server.manifest.queue_homes.homes import Homes
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.queue_homes import QueueHomes, queue_node_key
from bottomless_server.stores.streams import Streams
from contracts.conftest import Shared

NODES = [NodeId(letter * 32) for letter in "abcdef"]


@pytest.fixture
async def harness(shared: Shared) -> ManifestHarness:
    """A manifest service on the coordination store that is tested, and a bucket in memory."""
    harness = ManifestHarness()
    streams = Streams(shared.coordination)
    for name, part in (("coordination", shared.coordination), ("streams", streams)):
        object.__setattr__(harness.context, name, part)
    streams.generation = await check_generation(harness.drive, shared.coordination)
    return harness


async def ask(
    harness: ManifestHarness, node: NodeId, expect_home: NodeId | None = None
) -> QueueHome:
    return await Homes(harness.context).settle("acme", HomeAsked(node, node[0], expect_home))


async def home_in_the_bucket(harness: ManifestHarness, term: int) -> NodeId:
    data = await harness.drive.get(queue_home_key("acme", term))
    return decode_home_object(bytes(data)).node_id


async def test_of_many_nodes_that_found_at_once_one_is_the_home_and_all_hear_of_it(
    harness: ManifestHarness,
) -> None:
    homes = await asyncio.gather(*(ask(harness, node) for node in NODES))
    assert {(home.term, home.node_id) for home in homes} == {(1, homes[0].node_id)}
    assert all(home.noted for home in homes)
    assert await home_in_the_bucket(harness, 1) == homes[0].node_id


async def test_of_many_takeovers_at_once_one_succeeds_and_each_term_has_one_home(
    harness: ManifestHarness,
) -> None:
    first, *others = NODES
    await ask(harness, first)

    results = await asyncio.gather(
        *(ask(harness, node, first) for node in others), return_exceptions=True
    )

    won = [one for one in results if isinstance(one, QueueHome)]
    refused = [one for one in results if not isinstance(one, QueueHome)]
    assert [home.term for home in won] == [2]
    assert all(isinstance(one, Fenced | Unavailable) for one in refused)
    home = await QueueHomes(harness.context.coordination, harness.context.streams).find("acme")
    assert home == won[0]
    assert await home_in_the_bucket(harness, 2) == home.node_id


async def test_a_home_whose_lease_is_held_loses_nothing(harness: ManifestHarness) -> None:
    first, other = NODES[:2]
    await ask(harness, first)
    key = queue_node_key(first)
    await harness.context.coordination.hold(key, first.encode(), 60_000)

    with pytest.raises(Fenced) as refused:
        await ask(harness, other, first)
    assert refused.value.code is Code.HOME_LIVE

    await harness.context.coordination.release(key, first.encode())
    assert (await ask(harness, other, first)).node_id == other


async def test_a_home_that_takes_its_lease_during_a_takeover_keeps_its_queues_or_hears_of_it(
    harness: ManifestHarness,
) -> None:
    """Whatever comes first: who holds the lease and is named then is not taken over."""
    first, other = NODES[:2]
    await ask(harness, first)

    async def come_back() -> QueueHome:
        await harness.context.coordination.hold(queue_node_key(first), first.encode(), 60_000)
        return await ask(harness, first)

    taken, back = await asyncio.gather(
        ask(harness, other, first), come_back(), return_exceptions=True
    )

    home = await QueueHomes(harness.context.coordination, harness.context.streams).find("acme")
    assert home is not None
    if isinstance(taken, QueueHome):
        assert home.node_id == other
        assert isinstance(back, QueueHome)
        assert back.node_id == other
    else:
        assert isinstance(taken, Fenced)
        assert home.node_id == first
