"""A rebuild brings super streams back whole, and deletes what nobody was ever told of."""

import orjson
import pytest
from support.guards import remove
from support.manifest import Crash, ManifestHarness
from support.object_keys import registry_key
from support.rebuilding import agree, put, rebuild
from unit.manifest.test_super_deletion import Deleting, is_gone, nothing_is_left
from unit.manifest.test_super_growth import Growing
from unit.manifest.test_super_registry import NAME, THREE, WEEK, named, super_objects

from bottomless.errors import Code, NotFound, NotServed, Outcome, StoreError, Unavailable
from bottomless.formats.keys import super_key
from bottomless.formats.super_record import encode_super_object
from bottomless.model.config import StreamConfig
from bottomless.model.names import Reference, SuperId
from bottomless.model.stream import StreamState
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.coordination.base import Changes
from bottomless_server.core.consumer_group import Strategy
from bottomless_server.manifest.consumers.core.groups import new_group
from bottomless_server.manifest.recovery.bucket_streams import look_at_some
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.stores.groups import ConsumerGroups
from bottomless_server.stores.streams import GENERATION_KEY, freeing
from bottomless_server.stores.supers import SUPERS_KEY, Supers, super_names_key
from bottomless_server.stores.supers import super_key as super_record_key


async def a_harness(generation: int = 1) -> ManifestHarness:
    harness = ManifestHarness()
    await agree(harness, generation)
    return harness


def a_registry(harness: ManifestHarness) -> Registry:
    """That of a process which started in the generation that there is."""
    registry = Registry(harness.context)
    registry.generation = harness.streams.generation or 0
    return registry


async def declared(harness: ManifestHarness) -> SuperRecord:
    record, _ = await a_registry(harness).supers.declare(NAME, THREE)
    return record


async def test_a_super_stream_comes_back_with_its_partitions_and_layouts() -> None:
    harness = await a_harness()
    before = await declared(harness)
    harness.coordination.lose()
    result = await rebuild(harness)

    assert (result["super_streams"], result["streams"], result["unknown"]) == (1, 3, 0)
    registry = a_registry(harness)
    record = await registry.supers.find(NAME)
    assert (record.partitions, record.layouts) == (before.partitions, before.layouts)
    assert record.generation == 2
    for place in record.partitions:
        stream = await registry.find(named(place.index))
        assert (stream.stream_id, stream.partition_of is not None) == (place.stream_id, True)
    assert [one.name for one in await registry.supers.supers.names("default", b"", 10)] == [
        "events"
    ]
    assert (await registry.supers.declare(NAME, THREE)).created is False
    # And once more, from what this rebuild has put.
    harness.coordination.lose()
    assert (await rebuild(harness))["super_streams"] == 1


async def test_wherever_a_creation_was_cut_off_a_rebuild_has_all_of_it_or_nothing() -> None:
    outcomes = set()
    for place in range(10):
        harness = await a_harness()
        harness.fuse.left = place
        with pytest.raises(Crash):
            await declared(harness)
        harness.fuse.left = None
        harness.coordination.lose()
        result = await rebuild(harness)
        there = result["super_streams"]
        outcomes.add(there)
        for index in range(3):
            assert await is_gone(harness, named(index)) is not there
        if not there:
            # Their names are free, and who takes them gets other streams.
            assert (await a_registry(harness).supers.declare(NAME, THREE)).created
    assert outcomes == {0, 1}


async def left_by_a_creation() -> ManifestHarness:
    """Registry objects of partitions, without a super object."""
    harness = await a_harness()
    record = await declared(harness)
    await harness.drive.delete([super_key(record.super_id, 1, "default")])
    harness.coordination.lose()
    return harness


async def test_without_the_guard_partitions_come_back_that_nobody_was_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await left_by_a_creation()
    assert (await rebuild(harness))["deleted_streams"] == 3
    assert await is_gone(harness, named(0))

    harness = await left_by_a_creation()
    remove(monkeypatch, "the super object that names a partition, in a rebuild", lambda *_: True)
    with pytest.raises(AssertionError):
        await rebuild(harness)


async def put_late(harness: ManifestHarness) -> SuperRecord:
    """A process that stood still since before the rebuild puts a super object."""
    record = await declared(harness)
    key = super_key(record.super_id, 1, "default")
    await harness.drive.delete([key])
    harness.coordination.lose()
    await rebuild(harness)
    await put(harness, key, encode_super_object(record))
    harness.coordination.lose()
    return record


async def test_without_the_guard_a_late_super_object_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await a_harness()
    await put_late(harness)
    assert (await rebuild(harness))["super_streams"] == 0
    assert await harness.coordination.member_count(SUPERS_KEY) == 0

    harness = await a_harness()
    await put_late(harness)
    guard = "super objects of the bucket's generation alone"
    remove(monkeypatch, guard, lambda record, generation: record.generation < generation)
    assert (await rebuild(harness))["super_streams"] == 1


async def put_after_its_deletion() -> ManifestHarness:
    """A put of the super object that nobody had an answer to arrives when all else is gone."""
    harness = await a_harness()
    record = await declared(harness)
    deleting = Deleting(harness)
    deleting.registry.generation = 1
    await deleting.begin()
    await deleting.finish()
    await nothing_is_left(harness)
    await deleting.aclose()
    await put(harness, super_key(record.super_id, 1, "default"), encode_super_object(record))
    harness.coordination.lose()
    return harness


async def test_without_the_guard_a_super_stream_comes_back_that_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await put_after_its_deletion()
    assert (await rebuild(harness))["super_streams"] == 0
    assert (await a_registry(harness).supers.declare(NAME, THREE)).created

    async def left(*_: object) -> bool:
        return True

    harness = await put_after_its_deletion()
    remove(monkeypatch, "a super stream of which something is left, in a rebuild", left)
    assert (await rebuild(harness))["super_streams"] == 1


async def test_a_deletion_goes_on_after_a_rebuild() -> None:
    harness = await a_harness()
    await declared(harness)
    deleting = Deleting(harness)
    deleting.registry.generation = 1
    await deleting.begin()
    await deleting.aclose()
    harness.coordination.lose()
    result = await rebuild(harness)
    assert (result["deleted_super_streams"], result["deleted_streams"]) == (1, 3)
    assert await is_gone(harness, NAME)
    later = Deleting(harness)
    await later.finish()
    await nothing_is_left(harness)
    await later.aclose()


async def test_a_change_that_was_cut_off_is_undone_in_all_partitions_or_done_in_all() -> None:
    harness = await a_harness()
    await declared(harness)
    harness.fuse.left = 7
    with pytest.raises(Crash):
        await a_registry(harness).supers.update(NAME, lambda _: WEEK)
    harness.fuse.left = None
    configs = [
        (await harness.streams.load(await harness.streams.find(named(i)))).config for i in (0, 1, 2)
    ]
    assert WEEK in configs
    harness.coordination.lose()
    await rebuild(harness)
    registry = a_registry(harness)
    record = await registry.supers.find(NAME)
    for index in range(3):
        assert (await registry.find(named(index))).config == record.config == StreamConfig()


async def test_of_a_super_stream_that_cannot_be_read_the_partitions_stay_as_streams() -> None:
    harness = await a_harness()
    record = await declared(harness)
    key = super_key(record.super_id, 1, "default")
    await harness.drive.delete([key])
    await put(harness, key, b"damaged")
    harness.coordination.lose()
    result = await rebuild(harness)
    assert (result["unreadable_super_streams"], result["streams"]) == (1, 3)
    for place in record.partitions:
        found = await a_registry(harness).find(named(place.index))
        assert (found.stream_id, found.partition_of) == (place.stream_id, None)


async def test_a_super_object_of_a_later_release_lets_no_rebuild_begin() -> None:
    harness = await a_harness()
    record = await declared(harness)
    key = super_key(record.super_id, 1, "default")
    data = orjson.loads(await harness.drive.get(key))
    await harness.drive.delete([key])
    await put(harness, key, orjson.dumps({**data, "format": 99}))
    with pytest.raises(NotServed):
        await look_at_some(harness.drive, harness.streams.served, {})


@pytest.mark.parametrize("super_first", [True, False])
async def test_of_a_stream_and_a_super_stream_of_one_name_the_younger_stays(
    super_first: bool,
) -> None:
    """The older was deleted, and the process that knew it stood still before it could say so."""
    harness = await a_harness()
    registry = a_registry(harness)

    async def as_super() -> None:
        await registry.supers.declare(NAME, THREE)

    async def as_stream() -> None:
        await registry.declare(NAME, StreamConfig())

    first, second = (as_super, as_stream) if super_first else (as_stream, as_super)
    await first()
    harness.coordination.write(freeing(NAME))
    harness.clock.now += 5_000
    await second()
    harness.coordination.lose()
    await rebuild(harness)
    found = a_registry(harness)
    if super_first:
        assert (await found.find(NAME)).state is StreamState.ACTIVE
        with pytest.raises(NotFound):
            await found.supers.find(NAME)
        [super_id] = await harness.coordination.members(SUPERS_KEY, b"", 10)
        stored = await Supers(harness.coordination, harness.streams).load(
            SuperId(super_id.decode())
        )
        assert stored.state is SuperState.DELETING
        assert (await super_objects(harness))[-1].state is SuperState.DELETING
    else:
        assert (await found.supers.find(NAME)).state is SuperState.ACTIVE
        with pytest.raises(NotFound):
            await found.find(NAME)
    # Once more, from what the first has said.
    harness.coordination.lose()
    await rebuild(harness)
    kept = a_registry(harness)
    assert await (kept.find(NAME) if super_first else kept.supers.find(NAME))


async def test_what_an_older_coordination_says_of_super_streams_is_discarded() -> None:
    harness = await a_harness()
    record = await declared(harness)
    for place in record.partitions:
        await harness.drive.delete([registry_key(place.stream_id, 1)])
    await harness.drive.delete([super_key(record.super_id, 1, "default")])
    groups = ConsumerGroups(harness.coordination)
    group = new_group(record.super_id, Reference("g"), Strategy.STICKY, 1, 0)
    await groups.change(record.super_id, group.name, lambda *_: group)
    assert (await groups.listed(record.super_id)).names == ["g"]

    # It has lost its generation alone, as an old copy of it may.
    harness.coordination.write(Changes({GENERATION_KEY: None}))
    await rebuild(harness)
    assert (await groups.listed(record.super_id)).names == []
    assert await harness.coordination.get(super_record_key(record.super_id)) is None
    for index in (SUPERS_KEY, super_names_key("default")):
        assert await harness.coordination.member_count(index) == 0
    assert (await a_registry(harness).supers.declare(NAME, THREE)).created


async def without_a_partition() -> ManifestHarness:
    """A rebuild found no registry object of one partition any more."""
    harness = await a_harness()
    record = await declared(harness)
    lost = record.partitions[1].stream_id
    assert not await harness.drive.delete([registry_key(lost, 1)])
    harness.coordination.lose()
    await rebuild(harness)
    return harness


async def test_a_super_stream_of_which_a_partition_is_lost_is_used_as_before_and_not_changed() -> (
    None
):
    harness = await without_a_partition()
    before = await a_registry(harness).supers.find(NAME)

    with pytest.raises(Unavailable) as refused:
        await a_registry(harness).supers.update(NAME, lambda _: WEEK)

    assert refused.value.outcome is Outcome.NONE
    assert await a_registry(harness).supers.find(NAME) == before


async def test_a_super_stream_of_which_a_partition_is_lost_does_not_begin_to_grow() -> None:
    harness = await without_a_partition()
    process = Growing(harness)
    process.registry.generation = harness.streams.generation or 0
    before = await process.find()

    with pytest.raises(Unavailable) as refused:
        await process.grow()

    assert refused.value.outcome is Outcome.NONE
    assert await a_registry(harness).supers.find(NAME) == before


async def test_a_super_stream_of_which_a_partition_is_lost_can_be_deleted() -> None:
    harness = await without_a_partition()
    process = Deleting(harness)
    process.registry.generation = harness.streams.generation or 0

    await process.begin()
    await process.finish()

    assert await is_gone(harness, NAME)


async def overtaken(what: str) -> tuple[ManifestHarness, SuperRecord, StoreError]:
    """How one is answered who changes a super stream, or lets it grow, where a rebuild that does not find a
    partition any more comes between the look at the partitions and the EXEC; and the record of before."""
    harness = await a_harness()
    before = await declared(harness)
    process = Growing(harness)
    process.registry.generation = 1
    supers = process.registry.supers
    look = supers.require_readable

    async def look_and_be_late(record: SuperRecord) -> None:
        await look(record)
        assert not await harness.drive.delete([registry_key(record.partitions[1].stream_id, 1)])
        harness.coordination.lose()
        await rebuild(harness)
        process.registry.generation = harness.streams.generation or 0

    supers.require_readable = look_and_be_late  # type: ignore[method-assign]
    changing = process.grow() if what == "growth" else supers.update(NAME, lambda _: WEEK)
    with pytest.raises(StoreError) as refused:
        await changing
    await process.aclose()
    return harness, before, refused.value


OVERTAKEN = pytest.mark.parametrize("what", ["change", "growth"])


@OVERTAKEN
async def test_what_a_rebuild_overtakes_changes_no_super_stream_that_lacks_a_partition(
    what: str,
) -> None:
    harness, before, refused = await overtaken(what)
    assert (refused.code, refused.outcome) == (Code.COORDINATION_UNAVAILABLE, Outcome.NONE)
    found = await a_registry(harness).supers.find(NAME)
    assert (found.state, found.config) == (SuperState.ACTIVE, before.config)
    assert found.layouts == before.layouts


@OVERTAKEN
async def test_without_the_guard_nobody_finds_a_super_stream_that_a_late_change_has_met(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(
        monkeypatch,
        "the generation in which the partitions of a super stream were looked at",
        lambda *_: None,
    )
    harness, _, _ = await overtaken(what)
    if what == "change":
        with pytest.raises(Unavailable):
            await a_registry(harness).supers.find(NAME)
    else:
        assert (await a_registry(harness).supers.find(NAME)).state is SuperState.GROWING
