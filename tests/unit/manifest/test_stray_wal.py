"""WAL objects that land after their deletion, and those of instances that nobody knows: garbage."""

from typing import Any

import pytest
from support.guards import remove
from support.leaderless import (
    OTHER_INSTANCE,
    WalWriter,
    a_leaderless_harness,
    a_leaderless_stream,
    publish_all,
)
from support.manifest import SERVES_NONE, STREAM, ManifestHarness
from support.rebuilding import put
from unit.manifest.test_garbage import collect

from bottomless.errors import Unavailable
from bottomless.formats.keys import StagedPlanKey, staged_key, staged_plan_key, wal_key
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.leaderless.vacuum import Vacuum
from bottomless_server.manifest.removal import orphans
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.removal.stray_wal import delete_stray_wal, stray_wal
from bottomless_server.stores import wal

DAY = 86_400_000


async def with_late_puts() -> tuple[ManifestHarness, WalWriter]:
    """An instance of which two objects are gone, and one is needed; the put of the first lands once
    more, and so does one of an instance that is forgotten."""
    harness = await a_leaderless_harness()
    await a_leaderless_stream(harness)
    writer, other = WalWriter(harness), WalWriter(harness, OTHER_INSTANCE)
    for one in (writer, other):
        await one.begin()
        await one.flush(STREAM)
    await writer.flush(STREAM)
    await publish_all(harness)
    kept = bytes(await harness.drive.get(wal_key(writer.instance, 0)))
    theirs = bytes(await harness.drive.get(wal_key(other.instance, 0)))
    await other.lapse()
    for one in (writer, other):
        await one.release()
    await Vacuum(harness.context).make_pass()
    await writer.flush(STREAM)
    await put(harness, wal_key(writer.instance, 0), kept)
    await put(harness, wal_key(other.instance, 0), theirs)
    assert other.record() is None
    assert await writer.objects() == [0, 2]
    return harness, writer


async def test_they_are_collected_and_what_is_needed_stays() -> None:
    """L29."""
    harness, writer = await with_late_puts()

    seen = await collect(harness, dry_run=True)
    assert seen["orphans"]["wal"]["objects"] == 2
    assert await writer.objects() == [0, 2]

    assert (await collect(harness))["orphans"]["wal"]["objects"] == 2
    assert await writer.objects() == [2]
    assert not harness.drive.has(wal_key(OTHER_INSTANCE, 0))
    assert "wal" not in (await collect(harness))["orphans"]


async def test_young_ones_are_left_alone() -> None:
    harness, writer = await with_late_puts()
    assert "wal" not in (await collect(harness, minimum_age_ms=DAY))["orphans"]
    assert await writer.objects() == [0, 2]


async def test_a_release_that_serves_no_such_streams_leaves_them_alone() -> None:
    harness = ManifestHarness(SERVES_NONE)
    await put(harness, wal_key(Uid("a" * 32), 0), b"of a later release")

    assert "wal" not in (await collect(harness))["orphans"]
    assert harness.drive.has(wal_key(Uid("a" * 32), 0))


async def test_without_a_look_at_what_is_deleted_what_is_needed_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(
        monkeypatch,
        "what is deleted of an instance, before a WAL object counts as garbage",
        lambda *_: True,
    )
    harness, writer = await with_late_puts()
    await collect(harness)
    assert await writer.objects() == []


async def test_of_an_instance_that_cannot_be_read_all_stay() -> None:
    harness, writer = await with_late_puts()
    harness.coordination.write(Changes({wal.instance_key(writer.instance): b"damaged"}))

    await collect(harness)
    assert await writer.objects() == [0, 2]


async def test_of_a_store_that_was_emptied_nothing_goes() -> None:
    """It knows no instance: all of them would be forgotten ones."""
    harness, writer = await with_late_puts()
    listed = [facts async for facts in harness.drive.list("_system/wal/")]
    harness.coordination.lose()

    with pytest.raises(Unavailable):
        await stray_wal(harness.context, listed)
    assert await writer.objects() == [0, 2]


async def test_of_an_older_copy_nothing_goes() -> None:
    """It has the generation of the bucket, and does not know an instance that began since."""
    harness = await a_leaderless_harness()
    await a_leaderless_stream(harness)
    copy = harness.coordination.copy()
    writer = WalWriter(harness)
    await writer.begin()
    for _ in range(2):
        await writer.flush(STREAM)
    harness.coordination.put_back(copy)
    listed = [facts async for facts in harness.drive.list("_system/wal/")]

    found = await stray_wal(harness.context, listed)
    assert found == listed
    with pytest.raises(Unavailable):
        await delete_stray_wal(harness.context, found)
    assert await writer.objects() == [0, 1]


async def test_one_that_does_not_go_is_left_for_the_next() -> None:
    harness, writer = await with_late_puts()
    key = wal_key(writer.instance, 0)
    listed = [facts async for facts in harness.drive.list("_system/wal/")]
    harness.drive.stubborn = {key}
    with pytest.raises(Unavailable):
        await delete_stray_wal(harness.context, await stray_wal(harness.context, listed))

    harness.drive.stubborn = set()
    await collect(harness)
    assert await writer.objects() == [2]


async def test_an_old_staged_batch_goes_and_a_young_one_stays() -> None:
    harness = await a_leaderless_harness()
    record = await a_leaderless_stream(harness)
    key = staged_key(STREAM, Uid("7" * 32), record.tenant)
    await put(harness, key, b"a batch")

    assert "staged" not in (await collect(harness, minimum_age_ms=DAY))["orphans"]
    result = await collect(harness)
    assert result["orphans"]["staged"] == {"objects": 1, "bytes": 7}
    await Deleter(harness.context).make_pass()
    assert not harness.drive.has(key)


async def a_plan_and_its_batch() -> tuple[ManifestHarness, str, str]:
    harness = await a_leaderless_harness()
    record = await a_leaderless_stream(harness)
    batch = staged_key(STREAM, Uid("7" * 32), record.tenant)
    plan = staged_plan_key(STREAM, StagedPlanKey(3, 0, "a" * 32), record.tenant)
    await put(harness, batch, b"a batch")
    await put(harness, plan, b"a plan")
    return harness, plan, batch


async def test_the_rest_of_a_commit_stays_for_as_long_as_its_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, plan, batch = await a_plan_and_its_batch()
    assert "staged" not in (await collect(harness))["orphans"]

    monkeypatch.setattr(orphans, "STAGED_PLAN_KEEP_MS", 0)
    assert (await collect(harness))["orphans"]["staged"] == {"objects": 2, "bytes": 13}
    await Deleter(harness.context).make_pass()
    assert not harness.drive.has(plan)
    assert not harness.drive.has(batch)


async def test_without_that_the_rest_of_a_commit_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def all_of_it(*asked: Any) -> Any:
        return asked[2]

    remove(monkeypatch, "the rest of a begun commit, kept for as long as its plan", all_of_it)
    harness, _, batch = await a_plan_and_its_batch()
    await collect(harness)
    await Deleter(harness.context).make_pass()
    assert not harness.drive.has(batch)
