"""A rebuild over an older store that has leaderless streams: nothing of their tails stays.

Every rebuild in the tests began over an empty store, or over one that had local streams alone.
"""

from support.manifest import ManifestHarness
from support.rebuilding import a_harness, agree, firsts, put, rebuild
from unit.stores.test_restored_tails import left
from unit.stores.test_tails import GENERATION, IDS, KEY, LOADER, TRACKED, Stores

from bottomless.formats.keys import generation_key
from bottomless_server.leaderless.decided import NewKnown
from bottomless_server.stores.streams import Streams


async def with_leaderless_streams(harness: ManifestHarness) -> Stores:
    stores = Stores()
    stores.coordination = harness.coordination
    stores.streams = Streams(harness.coordination, frozenset({"leaderless"}))
    stores.streams.generation = GENERATION
    await stores.open(count=3)
    known = {LOADER: NewKnown([TRACKED], 9_000), KEY: NewKnown([TRACKED], 8_000)}
    for _ in range(3):
        await stores.commit(0, 1, 2, known=known)
    return stores


async def test_nothing_of_a_tail_or_an_instance_is_left() -> None:
    harness = await a_harness(0, 10)
    await agree(harness, GENERATION)
    stores = await with_leaderless_streams(harness)
    assert len({key.split(":")[1] for key in left(stores)}) == 9
    await put(harness, generation_key(GENERATION + 1), b'{"generation":%d}' % (GENERATION + 1))

    result = await rebuild(harness)

    assert result["streams"] == 1
    assert left(stores) == []
    assert await firsts(harness) == [0, 10]
    for stream_id in IDS:
        assert harness.coordination.peek(f"bottomless:stream:{stream_id}") is None
