"""API keys over every coordination store: pages, and many who change one key at once."""

import asyncio

import pytest
from support.api_keys import DAY_MS, HOUR_MS, create, is_good, nobody_checks
from support.manifest import ManifestHarness
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
async def harness(shared: Shared) -> ManifestHarness:
    """A manifest service on the coordination store that is tested, and a bucket in memory."""
    harness = ManifestHarness()
    streams = Streams(shared.coordination)
    for name, part in (("coordination", shared.coordination), ("streams", streams)):
        object.__setattr__(harness.context, name, part)
    streams.generation = await check_generation(harness.drive, shared.coordination)
    return harness


async def test_pages_of_keys_are_in_the_order_of_their_creation(harness: ManifestHarness) -> None:
    keys = Keys(harness.context)
    made = []
    for _ in range(7):
        made.append((await create(keys)).key)
        harness.clock.now += 1
    await create(keys, tenant="globex")

    listed, after = [], ""
    while page := await keys.records.page("acme", after, 3):
        listed += [record.key for record in page]
        after = listed[-1].key_id

    assert listed == made
    assert await keys.records.count("acme") == 7
    assert len(await keys.records.ids()) == 8


async def test_of_many_who_rotate_one_key_everybody_has_a_good_secret_or_an_error(
    harness: ManifestHarness,
) -> None:
    keys = Keys(harness.context)
    key_id = (await create(keys)).key.key_id

    results = await asyncio.gather(
        *(Keys(harness.context).rotate(key_id, HOUR_MS, nobody_checks) for _ in range(3)),
        return_exceptions=True,
    )

    shown = [one for one in results if not isinstance(one, BaseException)]
    assert shown
    assert all(isinstance(one, Unavailable) for one in results if one not in shown)
    assert (await keys.records.find(key_id)).key in [one.key for one in shown]
    for one in shown:
        assert await is_good(harness, one.credential)


async def test_a_revocation_among_rotations_is_the_last_word(harness: ManifestHarness) -> None:
    keys = Keys(harness.context)
    issued = await create(keys)
    key_id = issued.key.key_id

    results = await asyncio.gather(
        *(Keys(harness.context).rotate(key_id, HOUR_MS, nobody_checks) for _ in range(3)),
        Keys(harness.context).revoke(key_id, nobody_checks),
        Keys(harness.context).revoke(key_id, nobody_checks),
        return_exceptions=True,
    )

    for one in results:
        assert not isinstance(one, BaseException) or isinstance(one, Exists | Unavailable), one
    record = await keys.records.find(key_id)
    assert record.key.revoked_at is not None
    assert record.durable
    assert not record.key.good_secrets(harness.clock())


async def test_a_key_that_is_forgotten_leaves_nothing(harness: ManifestHarness) -> None:
    keys = Keys(harness.context)
    issued = await create(keys)
    await keys.revoke(issued.key.key_id, nobody_checks)
    harness.clock.now += 8 * DAY_MS

    await KeyUpkeep(harness.context, keys).make_pass()

    with pytest.raises(NotFound):
        await keys.records.find(issued.key.key_id)
    assert await keys.records.ids() == []
    assert await keys.records.count("acme") == 0
    assert [one async for one in harness.drive.list(API_KEYS_PREFIX)] == []


async def test_a_rebuild_discards_all_and_never_in_a_generation_that_is_served(
    harness: ManifestHarness,
) -> None:
    keys = Keys(harness.context)
    for _ in range(3):
        await create(keys)

    step = await a_step(harness.context.coordination, 1)
    with pytest.raises(Unavailable):
        await discard_keys(harness.context, "", step)
    assert await keys.records.count("acme") == 3
    harness.streams.generation = None
    gone = Changes({GENERATION_KEY: None})
    await harness.context.coordination.transact([GENERATION_KEY], lambda _: (gone, None))
    after = ""
    while after := await discard_keys(harness.context, after, step):
        pass
    assert await keys.records.ids() == []
    assert await keys.records.count("acme") == 0
