"""The registry of super streams: all of one at once, and nobody hears of it before the bucket has it."""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest
from support.guards import remove
from support.manifest import Crash, Fault, ManifestHarness

from bottomless.errors import Code, Exists, InvalidRequest, NotFound, Overloaded, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import super_key as super_object_key
from bottomless.formats.stream_record import decode_registry
from bottomless.formats.super_record import decode_super_object
from bottomless.model.config import StreamConfig, parse_config
from bottomless.model.limits import PARTITION_COUNT_MAX
from bottomless.model.names import TENANT_DEFAULT, FullName, StreamName
from bottomless.model.routing import Strategy
from bottomless.model.stream import PartitionOf, StreamState
from bottomless.model.super_stream import SuperRecord
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.registry.super_asked import AskedSuper, parse_super_config
from bottomless_server.stores.streams import GENERATION_KEY, names_key, stream_key

NAME = FullName(TENANT_DEFAULT, StreamName("events"))
THREE = AskedSuper(StreamConfig(), 3)
WEEK = parse_config({"retention": {"max_age": "7D"}})


def named(index: int) -> FullName:
    """The name of a partition."""
    return FullName(TENANT_DEFAULT, StreamName(f"events-{index}"))


def a_harness(**settings: object) -> ManifestHarness:
    made = ManifestHarness(**settings)
    made.coordination.write(Changes({GENERATION_KEY: b'{"generation":0,"bucket":true}'}))
    made.streams.generation = 0
    return made


@pytest.fixture
def harness() -> ManifestHarness:
    return a_harness()


async def super_objects(harness: ManifestHarness) -> list[SuperRecord]:
    """The super objects that are in the bucket."""
    keys = [facts.object_key async for facts in harness.drive.list("default/")]
    return [
        decode_super_object(bytes(await harness.drive.get(key))) for key in keys if "/super." in key
    ]


async def names(harness: ManifestHarness) -> list[str]:
    found = await harness.streams.names(TENANT_DEFAULT, StreamState.ACTIVE, b"", 2_000)
    return [one.name for one in found]


async def refused(asked: Awaitable[Any]) -> Exists:
    with pytest.raises(Exists) as caught:
        await asked
    return caught.value


async def test_a_super_stream_has_its_partitions_and_all_of_it_is_in_the_bucket(
    harness: ManifestHarness,
) -> None:
    registry = Registry(harness.context)
    record, created = await registry.supers.declare(NAME, THREE._replace(config=WEEK))

    assert (created, record.strategy, record.initial_count) == (True, Strategy.HASH, 3)
    assert [one.name for one in record.partitions] == ["events-0", "events-1", "events-2"]
    assert await super_objects(harness) == [record]
    for place in record.partitions:
        stream = await registry.find(named(place.index))
        assert stream.stream_id == place.stream_id
        assert stream.partition_of == PartitionOf(record.super_id, place.index)
        assert stream.config == WEEK
        key = f"default/{place.stream_id}/stream.0000000001.json"
        assert decode_registry(bytes(await harness.drive.get(key))).partition_of is not None
    assert await names(harness) == ["events-0", "events-1", "events-2"]


async def test_the_same_again_finds_the_same_and_another_is_told_how_it_differs(
    harness: ManifestHarness,
) -> None:
    supers = Registry(harness.context).supers
    record, _ = await supers.declare(NAME, THREE)
    assert await supers.declare(NAME, THREE) == (record, False)

    for asked, differences in (
        (THREE._replace(partition_count=4), ["/partitions"]),
        (THREE._replace(config=WEEK), ["/retention/max_age"]),
        (AskedSuper(StreamConfig(), 3, ("a", "b", "c")), ["/binding_keys"]),
    ):
        error = await refused(supers.declare(NAME, asked))
        assert error.facts["differences"] == differences


async def test_partitions_by_keys_have_the_keys_in_their_order(harness: ManifestHarness) -> None:
    supers = Registry(harness.context).supers
    record, _ = await supers.declare(NAME, AskedSuper(StreamConfig(), 2, ("emea", "")))
    assert record.strategy is Strategy.KEY
    assert [one.binding_key for one in record.partitions] == ["emea", ""]


@pytest.mark.parametrize("count", [1, PARTITION_COUNT_MAX])
async def test_as_many_partitions_as_may_be_are_made_at_once(count: int) -> None:
    """P3."""
    harness = a_harness(manifest_tenant_stream_count_max=count)
    record, _ = await Registry(harness.context).supers.declare(
        NAME, THREE._replace(partition_count=count)
    )
    assert len(record.partitions) == len(await names(harness)) == count


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"partitions": 0},
        {"partitions": PARTITION_COUNT_MAX + 1},
        {"partitions": True},
        {"partitions": "3"},
        {"partitions": 3, "binding_keys": ["a"]},
        {"binding_keys": []},
        {"binding_keys": ["a", "a"]},
        {"binding_keys": [1]},
        {"binding_keys": ["ä" * 128]},
        {"partitions": 3, "profile": "leaderless"},
        {"partitions": 3, "unknown": 1},
    ],
)
def test_what_may_not_be_asked_for_is_refused(body: Any) -> None:
    """P3."""
    with pytest.raises(InvalidRequest) as caught:
        parse_super_config(body)
    assert caught.value.code is Code.VALIDATION_FAILED


async def test_a_name_has_room_for_the_numbers_of_partitions(harness: ManifestHarness) -> None:
    supers = Registry(harness.context).supers
    await supers.declare(FullName(TENANT_DEFAULT, StreamName("e" * 120)), THREE)
    with pytest.raises(InvalidRequest) as caught:
        await supers.declare(FullName(TENANT_DEFAULT, StreamName("e" * 121)), THREE)
    assert caught.value.code is Code.BAD_NAME


async def test_where_one_name_is_taken_nothing_is_made(harness: ManifestHarness) -> None:
    """P4."""
    registry = Registry(harness.context)
    await registry.declare(named(1), StreamConfig())
    error = await refused(registry.supers.declare(NAME, THREE))
    assert error.facts == {"taken_partitions": [1]}
    assert await names(harness) == ["events-1"]
    with pytest.raises(NotFound):
        await registry.supers.find(NAME)


async def test_streams_and_super_streams_have_their_names_of_one_space(
    harness: ManifestHarness,
) -> None:
    registry = Registry(harness.context)
    other = FullName(TENANT_DEFAULT, StreamName("orders"))
    await registry.declare(other, StreamConfig())
    assert (await refused(registry.supers.declare(other, THREE))).facts == {}

    record, _ = await registry.supers.declare(NAME, THREE)
    assert (await refused(registry.declare(NAME, StreamConfig()))).facts == {
        "super_id": record.super_id
    }
    with pytest.raises(NotFound):
        await registry.find(NAME)
    with pytest.raises(NotFound):
        await registry.supers.find(other)
    assert await registry.find_many([NAME, other, named(0)]) == {
        other: (await registry.find(other)).stream_id,
        named(0): record.partitions[0].stream_id,
    }


async def test_all_partitions_have_room_or_none_has() -> None:
    harness = a_harness(manifest_tenant_stream_count_max=4)
    registry = Registry(harness.context)
    for name in ("a", "b"):
        await registry.declare(FullName(TENANT_DEFAULT, StreamName(name)), StreamConfig())
    with pytest.raises(Overloaded) as caught:
        await registry.supers.declare(NAME, THREE)
    assert caught.value.code is Code.QUOTA_EXCEEDED
    assert await names(harness) == ["a", "b"]
    await registry.supers.declare(NAME, THREE._replace(partition_count=2))
    assert await harness.coordination.member_count(names_key(StreamState.ACTIVE, "default")) == 4


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_LATE])
async def test_a_creation_whose_reply_was_lost_is_done_once(
    harness: ManifestHarness, fault: Fault
) -> None:
    registry = Registry(harness.context)
    harness.coordination.faults = [fault]
    record, created = await registry.supers.declare(NAME, THREE)
    assert created
    assert harness.coordination.arrive() == 0
    assert await registry.supers.find(NAME) == record
    assert await names(harness) == ["events-0", "events-1", "events-2"]


async def count_changes(harness: ManifestHarness) -> int:
    """How many times a creation could be cut off."""
    harness.fuse.left = 1_000
    await Registry(harness.context).supers.declare(NAME, THREE)
    assert harness.fuse.left is not None
    return 1_000 - harness.fuse.left


async def test_wherever_a_creation_is_cut_off_a_name_shows_all_of_it_or_nothing() -> None:
    """Whoever asks for a name after the crash finds nothing, or makes sure of the bucket first."""
    found_count = 0
    changes = await count_changes(a_harness())
    for place in range(changes):
        for asked in (NAME, named(2)):
            harness = a_harness()
            harness.fuse.left = place
            with pytest.raises(Crash):
                await Registry(harness.context).supers.declare(NAME, THREE)
            later = Registry(harness.context)
            find = later.supers.find if asked == NAME else later.find
            try:
                await find(asked)
            except NotFound:
                assert await super_objects(harness) == []
                assert await names(harness) == []
            else:
                found_count += 1
                [record] = await super_objects(harness)
                objects = [facts.object_key async for facts in harness.drive.list("default/")]
                assert sum("/stream." in key for key in objects) == 3
                assert await later.supers.declare(NAME, THREE) == (record, False)
    assert found_count > changes


async def cut_off_before_its_object() -> ManifestHarness:
    """A creation that has done its EXEC, and no more."""
    harness = a_harness()
    harness.drive.failing = True
    with pytest.raises(Unavailable) as caught:
        await Registry(harness.context).supers.declare(NAME, THREE)
    assert caught.value.outcome == "committed"
    return harness


async def test_no_name_resolves_before_the_super_object_is_there() -> None:
    harness = await cut_off_before_its_object()
    later = Registry(harness.context)
    for find in (lambda: later.supers.find(NAME), lambda: later.find(named(1))):
        with pytest.raises(Unavailable):
            await find()
    with pytest.raises(Unavailable):
        await later.declare(named(1), StreamConfig())
    assert await later.find_many([named(1)]) == {}

    harness.drive.failing = False
    found = await later.find(named(1))
    [record] = await super_objects(harness)
    assert found.stream_id == record.partitions[1].stream_id
    # What is known to be there is not asked for again, and does not need the store.
    harness.drive.failing = True
    assert await later.find_many([named(1)]) == {named(1): found.stream_id}


async def test_without_the_guard_a_name_resolves_that_no_rebuild_would_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await cut_off_before_its_object()

    async def found_at_once(*_: object) -> None:
        pass

    remove(monkeypatch, "the super object before its name resolves", found_at_once)
    assert await Registry(harness.context).find(named(1))
    assert await super_objects(harness) == []


async def changed_as_coordination_was_lost(harness: ManifestHarness) -> SuperRecord:
    """A super stream whose next object is to be put, though a partition has no record any more."""
    registry = Registry(harness.context)
    record, _ = await registry.supers.declare(NAME, THREE)
    harness.coordination.write(Changes({stream_key(record.partitions[2].stream_id): None}))

    def next_version(current: SuperRecord) -> SuperRecord:
        return replace(current, registry_version=current.registry_version + 1)

    return await registry.supers.supers.update(record.super_id, next_version)


async def test_no_super_object_names_partitions_whose_records_are_gone(
    harness: ManifestHarness,
) -> None:
    """Seeds 103 and 107 with replicas: coordination was lost right after the EXEC of a growth, so no object
    of the new partition was put, and then the super object named it: after the rebuild it was nowhere."""
    record = await changed_as_coordination_was_lost(harness)
    with pytest.raises(Unavailable):
        await Registry(harness.context).supers.objects.ensure(record)
    assert [one.registry_version for one in await super_objects(harness)] == [1]


async def test_without_the_guard_a_super_object_names_what_no_rebuild_finds(
    harness: ManifestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await changed_as_coordination_was_lost(harness)
    remove(monkeypatch, "all partitions before the super object", lambda *_: None)
    await Registry(harness.context).supers.objects.ensure(record)
    assert [one.registry_version for one in await super_objects(harness)] == [1, 2]


async def test_an_object_that_says_something_else_is_overtaken(harness: ManifestHarness) -> None:
    record, _ = await Registry(harness.context).supers.declare(NAME, THREE)
    key = super_object_key(record.super_id, 1, "default")
    await harness.drive.delete([key])
    await harness.drive.put(key, [b"another"], crc32c(b"another"))
    found = await Registry(harness.context).supers.find(NAME)
    assert found.super_id == record.super_id
    newest = await harness.drive.get(super_object_key(record.super_id, 2, "default"))
    assert decode_super_object(bytes(newest)).registry_version == 2
