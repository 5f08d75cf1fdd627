"""A rebuild of a stream whose newest registry object is damaged.

Damage of registry objects was tested alone, with one object of each stream: a rebuild went by an
older one without a word, and deleted by a retention that had been raised since.
"""

from dataclasses import replace
from functools import partial

import pytest
from support.guards import remove
from support.leaderless import a_leaderless_harness, a_leaderless_stream, tail_of
from support.manifest import ManifestHarness
from support.rebuilding import put, put_registry, rebuild
from unit.manifest.test_deletion import NAME, DeletionHarness

from bottomless.model.config import StreamConfig, parse_config
from bottomless.model.stream import StreamRecord
from bottomless_server.leaderless.tail import TailState
from bottomless_server.manifest.tree.core.retention_decision import limits_of
from bottomless_server.stores.generation import check_generation

AGES = ("1D", "3650D")


def _to(config: StreamConfig, before: StreamRecord) -> StreamConfig:
    del before
    return config


async def a_harness_with_a_raised_retention() -> DeletionHarness:
    harness = DeletionHarness()
    manifest = harness.manifest
    manifest.streams.generation = await check_generation(manifest.drive, manifest.coordination)
    await harness.declare()
    for config in [parse_config({"retention": {"max_age": age}}) for age in AGES]:
        await harness.registry.update(NAME, partial(_to, config))
    return harness


async def damage_the_newest(manifest: ManifestHarness) -> None:
    listing = manifest.drive.list("default/")
    keys = [facts.object_key async for facts in listing if "/stream." in facts.object_key]
    await manifest.drive.delete([max(keys)])
    await put(manifest, max(keys), b"damaged")


async def test_nothing_goes_by_a_retention_that_may_be_an_older_one() -> None:
    harness = await a_harness_with_a_raised_retention()
    await damage_the_newest(harness.manifest)
    harness.manifest.coordination.lose()

    result = await rebuild(harness.manifest)

    record = await harness.manifest.streams.load(harness.stream_id)
    default = parse_config({"retention": {"max_age": "1D"}}).retention
    assert limits_of(record.config.retention, default) == (None, None)
    assert (result["damaged_configurations"], result["without_retention"]) == (1, [NAME.name])
    # Whoever gives it one is heard, and the bucket says so.
    await harness.registry.update(NAME, lambda _: parse_config({"retention": {"max_age": "7D"}}))
    harness.manifest.coordination.lose()
    assert (await rebuild(harness.manifest))["damaged_configurations"] == 0
    again = await harness.manifest.streams.load(harness.stream_id)
    assert again.config.retention.max_age == "7D"
    await harness.mutators.aclose()


@pytest.mark.parametrize("guarded", [True, False])
async def test_without_its_guard_a_fence_goes_with_the_object_that_said_it(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        remove(
            monkeypatch, "what a configuration that is lost may have said", lambda config: config
        )
    harness = await a_leaderless_harness()
    record = await a_leaderless_stream(harness)
    await put_registry(harness, record)
    fenced = record.config.model_copy(update={"fenced": True})
    newer = replace(record, config=fenced, registry_version=record.registry_version + 1)
    await put_registry(harness, newer)
    await damage_the_newest(harness)
    harness.coordination.lose()

    result = await rebuild(harness)

    assert result["damaged_configurations"] == 1
    assert (await tail_of(harness)).state is (TailState.FENCED if guarded else TailState.OPEN)


async def test_a_sound_one_is_believed() -> None:
    harness = await a_harness_with_a_raised_retention()
    harness.manifest.coordination.lose()

    assert (await rebuild(harness.manifest))["damaged_configurations"] == 0
    record = await harness.manifest.streams.load(harness.stream_id)
    assert record.config.retention.max_age == AGES[-1]
    await harness.mutators.aclose()


async def test_one_that_is_damaged_on_its_way_is_read_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await a_harness_with_a_raised_retention()
    drive = harness.manifest.drive
    get, damaged = drive.get, list[str]()

    async def flipping(object_key: str, start: int = 0, size: int | None = None) -> memoryview:
        data = bytearray(await get(object_key, start, size))
        if "/stream." in object_key and object_key not in damaged:
            damaged.append(object_key)
            data[20] ^= 1
        return memoryview(bytes(data))

    monkeypatch.setattr(drive, "get", flipping)
    harness.manifest.coordination.lose()
    result = await rebuild(harness.manifest)

    assert damaged
    assert (result["streams"], result["damaged_configurations"]) == (1, 0)
    record = await harness.manifest.streams.load(harness.stream_id)
    assert record.config.retention.max_age == AGES[-1]
    await harness.mutators.aclose()
