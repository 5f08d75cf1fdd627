"""A super stream gets more partitions only when nobody can store by the older layout any more."""

from contextlib import suppress
from dataclasses import replace

import pytest
from support.guards import guarded, remove
from support.manifest import NODE, OWNER, Crash, Fault, ManifestHarness
from support.rebuilding import agree, rebuild
from unit.manifest.test_super_deletion import Deleting, is_gone, nothing_is_left
from unit.manifest.test_super_registry import NAME, THREE, WEEK, a_harness, named, super_objects

from bottomless.errors import (
    Code,
    Corrupt,
    Exists,
    InvalidRequest,
    NotFound,
    Outcome,
    Overloaded,
    StoreError,
    Unavailable,
    WrongOffset,
)
from bottomless.model.config import StreamConfig
from bottomless.model.names import Reference, StreamId
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.coordination.base import Changes
from bottomless_server.core.consumer_group import Strategy
from bottomless_server.manifest.consumers.core.groups import new_group
from bottomless_server.manifest.consumers.group_changes import GroupChanges
from bottomless_server.manifest.registry.super_asked import AskedSuper
from bottomless_server.manifest.registry.super_description import super_etag
from bottomless_server.manifest.streams.super_growth import AskedGrowth, SuperGrowth, asked_growth
from bottomless_server.stores.operations import OPERATIONS_KEY, Operation
from bottomless_server.stores.streams import STREAMS_KEY, stream_key

FIVE = AskedGrowth(5, (), accept_rehash=True)
HEARD = "owners that have heard of a growth before it is done"
LEASE = f"bottomless:node:{NODE}"


class Growing(Deleting):
    """A manifest process, as far as it lets super streams grow."""

    def __init__(self, harness: ManifestHarness) -> None:
        super().__init__(harness)
        self.groups = GroupChanges(harness.context)
        self.growth = SuperGrowth(
            harness.context,
            self.registry,
            self.operations,
            self.deletions,
            self.groups.replan,
        )

    async def grow(
        self, asked: AskedGrowth = FIVE, if_match: str = "*"
    ) -> tuple[SuperRecord, Operation | None]:
        return await self.growth.begin(NAME, if_match, asked)

    async def find(self) -> SuperRecord:
        return await self.registry.supers.find(NAME)


async def a_growing(asked: AskedSuper = THREE, **settings: object) -> Growing:
    process = Growing(a_harness(**{"manifest_close_ms": 0, **settings}))
    await process.registry.supers.declare(NAME, asked)
    return process


async def own(harness: ManifestHarness, stream_id: StreamId) -> None:
    """Let a node own a stream, and be alive."""
    await harness.streams.update(
        stream_id, lambda one: replace(one, home=NODE, owner_url=OWNER, dirty=True, epoch=1)
    )
    await harness.coordination.hold(LEASE, b"alive", 2**40)


async def test_a_super_stream_that_grows_has_one_more_layout() -> None:
    process = await a_growing()
    harness, before = process.harness, await process.find()
    await own(harness, before.partitions[1].stream_id)
    after, operation = await process.grow(if_match=super_etag(before))

    assert operation is None
    assert harness.owners.fenced == [(before.partitions[1].stream_id, 2)]
    assert harness.owners.meant == [NODE]
    assert after.partitions[:3] == before.partitions
    assert [(one.version, one.count) for one in after.layouts] == [(1, 3), (2, 5)]
    assert (after.state, after.initial_count) == (SuperState.ACTIVE, 3)
    assert (await super_objects(harness))[-1] == after
    for place in after.partitions:
        assert (await process.registry.find(named(place.index))).stream_id == place.stream_id
    assert super_etag(after) != super_etag(before)
    assert await process.grow() == (after, None)
    with pytest.raises(WrongOffset):
        await process.grow(FIVE._replace(partition_count=6), super_etag(before))
    await process.finish()
    assert await process.find() == after


async def test_a_super_stream_by_keys_grows_by_keys() -> None:
    process = await a_growing(AskedSuper(StreamConfig(), 2, ("amer", "emea")))
    after, _ = await process.grow(AskedGrowth(3, ("amer", "emea", "apac"), accept_rehash=False))
    assert [one.binding_key for one in after.partitions] == ["amer", "emea", "apac"]
    for keys in (("emea", "amer", "apac"), ("amer",), ()):
        with pytest.raises(InvalidRequest):
            await process.grow(AskedGrowth(max(4, len(keys)), keys, accept_rehash=True))


@pytest.mark.parametrize(
    "asked",
    [
        AskedGrowth(2, (), accept_rehash=True),
        AskedGrowth(5, (), accept_rehash=False),
        AskedGrowth(4, ("a", "b", "c", "d"), accept_rehash=True),
    ],
)
async def test_what_cannot_grow_so_is_refused(asked: AskedGrowth) -> None:
    process = await a_growing()
    before = await process.find()
    with pytest.raises(InvalidRequest) as caught:
        await process.grow(asked)
    assert caught.value.code is Code.VALIDATION_FAILED
    assert await process.find() == before


async def test_a_repeat_after_a_further_growth_is_refused_with_how_many_there_are() -> None:
    process = await a_growing()
    four = FIVE._replace(partition_count=4)
    await process.grow(four)
    after, _ = await process.grow(FIVE)
    with pytest.raises(InvalidRequest) as caught:
        await process.grow(four)
    assert "never gets fewer partitions, and has 5" in str(caught.value)
    assert await process.find() == after
    assert await process.grow(FIVE) == (after, None)


@pytest.mark.parametrize(
    "patch",
    [
        {"partitions": 5, "labels": {}},
        {"partitions": 5, "binding_keys": ["a"]},
        {"accept_rehash": True},
        {"partitions": 5, "accept_rehash": 1},
        {"partitions": None},
    ],
)
def test_a_patch_grows_and_does_nothing_else(patch: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        asked_growth(patch)
    assert asked_growth({"labels": {}}) is None
    assert asked_growth({"partitions": 5, "accept_rehash": True}) == FIVE


async def test_a_growth_that_finds_a_name_taken_or_no_room_has_not_begun() -> None:
    process = await a_growing(manifest_tenant_stream_count_max=5)
    await process.registry.declare(named(4), StreamConfig())
    before = await process.find()
    with pytest.raises(Overloaded):
        await process.grow()
    await process.deletions.begin(named(4), None)
    await process.registry.declare(named(3), StreamConfig())
    with pytest.raises(Exists) as caught:
        await process.grow(FIVE._replace(partition_count=4))
    assert caught.value.facts == {"taken_partitions": [3]}
    assert await process.find() == before


async def test_a_growth_that_another_one_came_before_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same request, sent again by who had no answer, met the names that it had taken itself."""
    process = await a_growing()

    async def come_before() -> None:
        patch.undo()
        await process.grow()

    with monkeypatch.context() as patch:
        patch.setattr(process.operations, "make_room", come_before)
        with pytest.raises(Unavailable) as caught:
            await process.grow()
    assert caught.value.code is Code.SUPER_STREAM_GROWING
    after, operation = await process.grow()
    assert operation is None
    assert [one.count for one in after.layouts] == [3, 5]


async def test_an_owner_that_does_not_answer_is_waited_out() -> None:
    process = await a_growing()
    harness, before = process.harness, await process.find()
    await own(harness, before.partitions[2].stream_id)
    harness.owners.closing = False
    record, operation = await process.grow()

    assert operation is not None
    assert (record.state, len(record.partitions)) == (SuperState.GROWING, 3)
    # Nobody finds a partition that the super stream has not got yet; nobody else gets its name.
    assert await is_gone(harness, named(3))
    with pytest.raises(Exists):
        await process.registry.declare(named(3), StreamConfig())
    with pytest.raises(Unavailable) as caught:
        await process.grow(FIVE._replace(partition_count=6))
    assert caught.value.code is Code.SUPER_STREAM_GROWING
    # The configuration may change meanwhile.
    await process.registry.supers.update(NAME, lambda _: WEEK)

    async def a_pass() -> SuperState:
        harness.clock.now += 2_000
        await process.operations.make_pass()
        await process.operations.settled()
        return (await process.find()).state

    def growth_ms() -> int:
        return harness.context.counts.growths.oldest_ms(harness.clock(), harness.context.elapsed())

    assert await a_pass() is SuperState.GROWING
    assert growth_ms() > 0
    await harness.coordination.release(LEASE, b"alive")
    assert await a_pass() is SuperState.ACTIVE
    assert growth_ms() == 0
    assert [(await process.registry.find(named(i))).config for i in range(5)] == [WEEK] * 5
    assert (await process.operations.find(operation.operation_id)).finished


async def test_without_the_guard_a_super_stream_grows_beside_an_owner_that_has_not_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def believed(*_: object) -> bool:
        return True

    for is_guarded in (True, False):
        process = await a_growing()
        await own(process.harness, (await process.find()).partitions[2].stream_id)
        process.harness.owners.closing = False
        if not is_guarded:
            remove(monkeypatch, HEARD, believed)
        record, _ = await process.grow()
        assert record.state is (SuperState.GROWING if is_guarded else SuperState.ACTIVE)


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_LATE])
@pytest.mark.parametrize("first", [0, 1])
async def test_a_growth_whose_reply_was_lost_is_done_once(fault: Fault, first: int) -> None:
    process = await a_growing()
    process.harness.coordination.faults = [Fault.NONE] * first + [fault]
    after, operation = await process.grow()
    assert operation is None
    assert process.harness.coordination.arrive() == 0
    assert [one.count for one in after.layouts] == [3, 5]
    assert await process.harness.coordination.member_count(STREAMS_KEY) == 5
    assert await process.harness.coordination.member_count(OPERATIONS_KEY) == 1


async def test_wherever_a_growth_is_cut_off_it_ends_or_has_not_begun() -> None:
    process = await a_growing()
    process.harness.fuse.left = 1_000
    await process.grow()
    left = process.harness.fuse.left
    assert left is not None
    counts = set()
    for place in range(1_000 - left):
        first = await a_growing()
        harness = first.harness
        harness.fuse.left = place
        with pytest.raises((Crash, StoreError)):
            await first.grow()
        harness.fuse.left = None
        later = Growing(harness)
        await later.finish()
        record = await later.find()
        counts.add(len(record.partitions))
        assert record.state is SuperState.ACTIVE
        assert (await super_objects(harness))[-1] == record
        assert await harness.coordination.member_count(STREAMS_KEY) == len(record.partitions)
        for place_ in record.partitions:
            assert (await later.registry.find(named(place_.index))).stream_id == place_.stream_id
    assert counts == {3, 5}


async def test_groups_share_partitions_that_came_by_growth() -> None:
    process = await a_growing()
    scope = (await process.find()).super_id
    group = new_group(scope, Reference("g"), Strategy.STICKY, 1, 0)
    await process.groups.groups.change(scope, group.name, lambda *_: group)
    await process.grow()
    found = await process.groups.groups.find(scope, group.name)
    assert found is not None
    assert [one.number for one in found.partitions] == [0, 1, 2, 3, 4]


async def test_a_growth_goes_with_the_coordination_that_alone_knew_of_it() -> None:
    harness = ManifestHarness(manifest_close_ms=0)
    await agree(harness, 1)
    process = Growing(harness)
    process.registry.generation = 1
    before, _ = await process.registry.supers.declare(NAME, THREE)
    await own(harness, before.partitions[0].stream_id)
    harness.owners.closing = False
    await process.grow()
    harness.coordination.lose()
    await rebuild(harness)
    later = Growing(harness)
    later.registry.generation = 2
    record = await later.find()
    assert (record.state, record.layouts) == (SuperState.ACTIVE, before.layouts)
    assert await is_gone(harness, named(3))
    await later.registry.declare(named(3), StreamConfig())


async def damage(harness: ManifestHarness, stream_id: StreamId) -> bytes:
    """Make the record of a stream one that cannot be read; what it was."""
    value = await harness.coordination.get(stream_key(stream_id))
    assert value is not None
    harness.coordination.write(Changes({stream_key(stream_id): b"{"}))
    return value


async def test_a_growth_with_a_partition_that_cannot_be_read_has_not_begun() -> None:
    process = await a_growing()
    before = await process.find()
    await damage(process.harness, before.partitions[1].stream_id)
    with pytest.raises(Corrupt):
        await process.grow()
    assert await process.find() == before
    assert await process.harness.coordination.member_count(OPERATIONS_KEY) == 0


async def test_a_super_stream_whose_growth_does_not_end_is_deleted_with_what_it_was_to_get() -> (
    None
):
    process = await a_growing()
    harness, before = process.harness, await process.find()
    await own(harness, before.partitions[2].stream_id)
    harness.owners.closing = False
    await process.grow()
    value = await damage(harness, before.partitions[0].stream_id)

    with pytest.raises(Unavailable) as caught:
        await process.begin()
    assert caught.value.outcome is Outcome.COMMITTED
    harness.owners.closing = True
    await process.finish()
    for index in (3, 4):
        await process.registry.declare(named(index), StreamConfig())
    # Nobody can tell whose tail that one is.
    assert await harness.coordination.member_count(STREAMS_KEY) == 3
    harness.coordination.write(Changes({stream_key(before.partitions[0].stream_id): value}))
    for index in (3, 4):
        await process.deletions.begin(named(index), None)
    await process.finish()
    await nothing_is_left(harness)
    await process.aclose()


async def test_wherever_a_deletion_meets_a_growth_nothing_is_left() -> None:
    """Cut off in the request, or in what goes on after it."""
    for place in range(0, 60, 4):
        process = await a_growing()
        harness, before = process.harness, await process.find()
        await own(harness, before.partitions[2].stream_id)
        harness.owners.closing = False
        await process.grow()
        harness.owners.closing = True
        harness.fuse.left = place
        with suppress(Crash, StoreError):
            await process.begin()
        with suppress(Crash, StoreError):
            await process.operations.make_pass()
            await process.operations.settled()
        harness.fuse.left = None
        later = Growing(harness)
        with suppress(NotFound, StoreError):
            await later.begin()
        await later.finish()
        await nothing_is_left(harness)
        await process.aclose()
        await later.aclose()


async def test_who_slept_through_a_rebuild_ends_no_growth_of_the_next_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would name partitions that nobody entered, in place of those of the later growth."""
    harness = ManifestHarness(manifest_close_ms=0)
    await agree(harness, 1)
    process = Growing(harness)
    process.registry.generation = 1
    before, _ = await process.registry.supers.declare(NAME, THREE)
    later = Growing(harness)

    real = guarded(HEARD)

    async def asleep(growth: SuperGrowth, record: SuperRecord) -> bool:
        if growth is not process.growth:
            return bool(await real(growth, record))
        harness.coordination.lose()
        await rebuild(harness)
        later.registry.generation = 2
        await own(harness, record.partitions[0].stream_id)
        harness.owners.closing = False
        _, operation = await later.grow(FIVE._replace(partition_count=4))
        assert operation is not None
        return True

    remove(monkeypatch, HEARD, asleep)
    with pytest.raises(Unavailable) as caught:
        await process.grow()
    assert caught.value.outcome is Outcome.UNKNOWN
    record = await later.find()
    assert (record.state, record.partitions) == (SuperState.GROWING, before.partitions)

    harness.owners.closing = True
    await later.finish()
    record = await later.find()
    assert [one.count for one in record.layouts] == [3, 4]
    for place in record.partitions:
        assert (await later.registry.find(named(place.index))).stream_id == place.stream_id


async def test_what_has_grown_is_deleted_as_a_whole() -> None:
    process = await a_growing(manifest_close_ms=15_000)
    await process.grow()
    await process.begin()
    await process.finish()
    await nothing_is_left(process.harness)
    await process.aclose()
