"""Garbage collection and verification know super objects."""

from dataclasses import replace
from typing import Any

import pytest
from support.guards import remove
from support.manifest import ManifestHarness
from support.rebuilding import put
from unit.manifest.test_garbage import collect
from unit.manifest.test_super_deletion import Deleting
from unit.manifest.test_super_registry import NAME, THREE, WEEK, a_harness, super_objects

from bottomless.formats.keys import super_key
from bottomless.formats.super_record import encode_super_object
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.streams.super_faults import super_faults
from bottomless_server.stores.supers import super_key as super_record_key


async def declared() -> tuple[ManifestHarness, SuperRecord]:
    harness = a_harness()
    record, _ = await Registry(harness.context).supers.declare(NAME, THREE)
    return harness, record


def orphans(found: dict[str, Any]) -> int:
    return int(found["orphans"].get("super", {"objects": 0})["objects"])


async def test_a_collection_leaves_the_objects_of_super_streams() -> None:
    harness, record = await declared()
    await Registry(harness.context).supers.update(NAME, lambda _: WEEK)
    found = await collect(harness)
    assert (orphans(found), found["unknown_prefix_count"], found["streams"]) == (0, 0, 3)
    assert len(await super_objects(harness)) == 2

    # What coordination does not know may be what it has lost.
    harness.coordination.write(Changes({super_record_key(record.super_id): None}))
    found = await collect(harness)
    assert (orphans(found), found["unknown_prefix_count"]) == (0, 1)
    assert len(await super_objects(harness)) == 2


async def test_what_is_put_late_of_a_deleted_super_stream_goes() -> None:
    harness, record = await declared()
    deleting = Deleting(harness)
    await deleting.begin()
    tombstone = (await super_objects(harness))[-1]
    await deleting.finish()
    await deleting.aclose()
    assert await super_objects(harness) == []
    assert tombstone.state is SuperState.DELETING
    for late in (record, tombstone):
        key = super_key(late.super_id, late.registry_version, "default")
        await put(harness, key, encode_super_object(late))

    assert orphans(await collect(harness, dry_run=True)) == 2
    assert len(await super_objects(harness)) == 2
    assert orphans(await collect(harness, minimum_age_ms=60_000)) == 0
    assert orphans(await collect(harness)) == 2
    assert await super_objects(harness) == []


async def deleted() -> tuple[ManifestHarness, SuperRecord]:
    """A super stream that was deleted, and of which nothing is left."""
    harness, record = await declared()
    deleting = Deleting(harness)
    await deleting.begin()
    await deleting.finish()
    await deleting.aclose()
    return harness, record


async def test_what_is_put_after_the_tombstone_is_gone_goes_too() -> None:
    harness, record = await deleted()
    key = super_key(record.super_id, record.registry_version, "default")
    await put(harness, key, encode_super_object(record))

    assert orphans(await collect(harness, minimum_age_ms=60_000)) == 0
    found = await collect(harness)
    assert (orphans(found), found["unknown_prefix_count"]) == (1, 0)
    assert await super_objects(harness) == []


async def test_without_the_guard_a_collection_takes_what_coordination_has_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def deleted_surely(*_: object) -> bool:
        return False

    harness, record = await declared()
    harness.coordination.write(Changes({super_record_key(record.super_id): None}))
    guard = "the partitions of a super stream that nobody knows, in a collection"
    remove(monkeypatch, guard, deleted_surely)
    assert orphans(await collect(harness)) == 1
    assert await super_objects(harness) == []


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_tombstone_of_before_a_rebuild_takes_nothing_that_the_rebuild_brought_back(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still over the rebuild has put it late, under a higher number: no rebuild
    believes it. Then coordination is lost once more, and is not rebuilt yet."""
    if not guarded:
        name = "the newest generation of super objects, in a collection"
        remove(monkeypatch, name, lambda records: len(records) - 1)
    harness, record = await declared()
    key = super_record_key(record.super_id)
    rebuilt = replace(record, generation=record.generation + 1, registry_version=2)
    late = replace(record, state=SuperState.DELETING, registry_version=3)
    for one in (rebuilt, late):
        at = super_key(one.super_id, one.registry_version, "default")
        await put(harness, at, encode_super_object(one))
    harness.coordination.write(Changes({key: None}))

    found = await collect(harness)

    assert (orphans(found), found["unknown_prefix_count"]) == ((0, 1) if guarded else (3, 0))
    assert (rebuilt in await super_objects(harness)) is guarded


@pytest.mark.parametrize(
    ("stored", "fault"), [(None, "super-missing"), (b"damaged", "super-corrupt")]
)
async def test_a_verification_misses_a_super_object(stored: bytes | None, fault: str) -> None:
    harness, record = await declared()
    partition = await harness.streams.load(record.partitions[1].stream_id)
    assert await super_faults(harness.context, partition) == []
    key = super_key(record.super_id, 1, "default")
    await harness.drive.delete([key])
    if stored is not None:
        await put(harness, key, stored)
    assert await super_faults(harness.context, partition) == [fault]


async def test_a_verification_finds_a_partition_that_its_super_object_does_not_name() -> None:
    harness, record = await declared()
    other, _ = await Registry(harness.context).supers.declare(NAME._replace(tenant="other"), THREE)
    partition = await harness.streams.load(record.partitions[1].stream_id)
    key = super_key(record.super_id, 1, "default")
    await harness.drive.delete([key])
    await put(harness, key, encode_super_object(other))
    assert await super_faults(harness.context, partition) == ["super-other"]
