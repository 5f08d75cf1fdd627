"""API keys over every coordination store: pages, and many who change one key at once."""

import asyncio

import pytest
from support.api_keys import DAY_MS, HOUR_MS, create, is_good, nobody_checks
from support.manifest import World
from support.rebuilding import a_step

from bottomless.errors import Exists, NotFound, Unavailable
from bottomless.formats.keys import API_KEYS_PREFIX
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.keys.key_rebuild import discard_keys
from bottomless_server.manifest.keys.key_upkeep import KeyUpkeep
from bottomless_server.manifest.keys.keys import Keys
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.streams import GENERATION_KEY, Streams
from contracts.conftest import Shared


@pytest.fixture
async def world(shared: Shared) -> World:
    """A manifest service on the coordination store that is tested, and a bucket in memory."""
    world = World()
    streams = Streams(shared.coordination)
    for name, part in (("coordination", shared.coordination), ("streams", streams)):
        object.__setattr__(world.context, name, part)
    streams.generation = await check_generation(world.drive, shared.coordination)
    return world


async def test_pages_of_keys_are_in_the_order_of_their_creation(world: World) -> None:
    keys = Keys(world.context)
    made = []
    for _ in range(7):
        made.append((await create(keys)).key)
        world.clock.now += 1
    await create(keys, tenant="globex")

    listed, after = [], ""
    while page := await keys.records.page("acme", after, 3):
        listed += [record.key for record in page]
        after = listed[-1].key_id

    assert listed == made
    assert await keys.records.count("acme") == 7
    assert len(await keys.records.ids()) == 8


async def test_of_many_who_rotate_one_key_everybody_has_a_good_secret_or_an_error(
    world: World,
) -> None:
    keys = Keys(world.context)
    key_id = (await create(keys)).key.key_id

    results = await asyncio.gather(
        *(Keys(world.context).rotate(key_id, HOUR_MS, nobody_checks) for _ in range(3)),
        return_exceptions=True,
    )

    shown = [one for one in results if not isinstance(one, BaseException)]
    assert shown
    assert all(isinstance(one, Unavailable) for one in results if one not in shown)
    assert (await keys.records.find(key_id)).key in [one.key for one in shown]
    for one in shown:
        assert await is_good(world, one.credential)


async def test_a_revocation_among_rotations_is_the_last_word(world: World) -> None:
    keys = Keys(world.context)
    issued = await create(keys)
    key_id = issued.key.key_id

    results = await asyncio.gather(
        *(Keys(world.context).rotate(key_id, HOUR_MS, nobody_checks) for _ in range(3)),
        Keys(world.context).revoke(key_id, nobody_checks),
        Keys(world.context).revoke(key_id, nobody_checks),
        return_exceptions=True,
    )

    for one in results:
        assert not isinstance(one, BaseException) or isinstance(one, Exists | Unavailable), one
    record = await keys.records.find(key_id)
    assert record.key.revoked_at is not None
    assert record.durable
    assert not record.key.good_secrets(world.clock())


async def test_a_key_that_is_forgotten_leaves_nothing(world: World) -> None:
    keys = Keys(world.context)
    issued = await create(keys)
    await keys.revoke(issued.key.key_id, nobody_checks)
    world.clock.now += 8 * DAY_MS

    await KeyUpkeep(world.context, keys).make_pass()

    with pytest.raises(NotFound):
        await keys.records.find(issued.key.key_id)
    assert await keys.records.ids() == []
    assert await keys.records.count("acme") == 0
    assert [one async for one in world.drive.list(API_KEYS_PREFIX)] == []


async def test_a_rebuild_discards_all_and_never_in_a_generation_that_is_served(
    world: World,
) -> None:
    keys = Keys(world.context)
    for _ in range(3):
        await create(keys)

    step = await a_step(world.context.coordination, 1)
    with pytest.raises(Unavailable):
        await discard_keys(world.context, "", step)
    assert await keys.records.count("acme") == 3
    world.streams.generation = None
    gone = Changes({GENERATION_KEY: None})
    await world.context.coordination.transact([GENERATION_KEY], lambda _: (gone, None))
    after = ""
    while after := await discard_keys(world.context, after, step):
        pass
    assert await keys.records.ids() == []
    assert await keys.records.count("acme") == 0
