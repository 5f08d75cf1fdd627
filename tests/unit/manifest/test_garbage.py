"""Garbage collection: orphans go, nothing that is needed does, whoever publishes meanwhile."""

from dataclasses import replace
from typing import Any

import pytest
from support.guards import remove
from support.manifest import STREAM, Fault, ManifestHarness, a_record
from support.object_keys import consumers_key, fragment_key, group_key, registry_key, root_key

from bottomless.formats.checks import crc32c
from bottomless.formats.stream_record import encode_registry
from bottomless.model.names import TENANT_DEFAULT, StreamId, Uid
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import abandon, intend
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.removal.garbage import GC, gc_arguments, register_gc
from bottomless_server.manifest.removal.garbage_timer import GarbageTimer
from bottomless_server.manifest.removal.orphans import orphans_of
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.stores.consumers import ConsumerOffsets, SnapshotPointer
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.streams import DELETES_KEY, delete_later

HOUR = 3_600_000
STRAY = Uid("f" * 32)
OTHER = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12")


async def put(harness: ManifestHarness, object_key: str, data: bytes = b"something") -> str:
    await harness.drive.put(object_key, [data], crc32c(data))
    return object_key


async def grown(harness: ManifestHarness, count: int) -> Committer:
    """A stream of `count` fragments of ten records, published in two goes, objects and all."""
    committer = await harness.open()
    for part in (range(count // 2), range(count // 2, count)):
        fragments = await harness.register(committer, *((n * 10, n * 10 + 10) for n in part))
        for fragment in fragments:
            await put(harness, fragment_key(STREAM, fragment.first_offset, fragment.uid))
        await committer.flush()
    await put(harness, registry_key(STREAM, 1))
    return committer


async def collect(
    harness: ManifestHarness,
    *,
    dry_run: bool = False,
    minimum_age_ms: int = 0,
    stream_id: StreamId | None = None,
    page_count: int = 7,
) -> dict[str, Any]:
    operations = Operations(harness.context)
    register_gc(operations, page_count)
    arguments = gc_arguments(
        dry_run=dry_run,
        minimum_age_ms=minimum_age_ms,
        tenant=None if stream_id is None else TENANT_DEFAULT,
        stream_id=stream_id,
    )
    begun = await operations.begin(GC, tenant=TENANT_DEFAULT, arguments=arguments)
    await operations.make_pass()
    await operations.settled()
    found = await operations.find(begun.operation_id)
    assert found.state == "succeeded", found
    assert found.result is not None
    return dict(found.result)


async def keys(harness: ManifestHarness) -> list[str]:
    return [facts.object_key async for facts in harness.drive.list()]


async def sweep(harness: ManifestHarness) -> Deleter:
    """Delete all that is due now."""
    deleter = Deleter(harness.context)
    while await deleter.make_pass():
        pass
    return deleter


def strays() -> dict[str, str]:
    """One orphan of each kind, within the offsets of a stream."""
    return {
        "fragment": fragment_key(STREAM, 50, STRAY),
        "group": group_key(STREAM, 0, STRAY, 1),
        "root": root_key(STREAM, 0, 1, 1, STRAY),
    }


async def test_planted_orphans_go_and_everything_live_stays() -> None:
    harness = ManifestHarness()
    await grown(harness, 20)
    live = await keys(harness)
    for key in strays().values():
        await put(harness, key)

    report = await collect(harness)
    deleter = await sweep(harness)

    assert await keys(harness) == live
    assert {kind: one["objects"] for kind, one in report["orphans"].items() if one["objects"]} == {
        "fragment": 1,
        "group": 1,
        "root": 1,
    }
    assert (report["orphan_count"], report["queued"], report["orphan_bytes"]) == (3, 3, 27)
    assert (report["streams"], report["objects"]) == (1, len(live) + 3)
    assert sorted(report["examples"]) == sorted(strays().values())
    assert (deleter.deleted_count, deleter.refused_count) == (3, 0)
    assert len(await harness.leaves()) == 20
    assert (await collect(harness))["orphan_count"] == 0


async def test_a_dry_run_reports_and_changes_nothing() -> None:
    harness = ManifestHarness()
    await grown(harness, 8)
    for key in strays().values():
        await put(harness, key)
    before, record = await keys(harness), await harness.record()

    report = await collect(harness, dry_run=True)
    await sweep(harness)

    assert (report["orphan_count"], report["queued"]) == (3, 0)
    assert await keys(harness) == before
    assert await harness.record() == record


async def test_what_is_young_by_the_stores_clock_is_left_alone() -> None:
    harness = ManifestHarness()
    await grown(harness, 4)
    harness.clock.now += HOUR
    await put(harness, fragment_key(STREAM, 0, STRAY))

    assert (await collect(harness, minimum_age_ms=HOUR))["orphan_count"] == 0
    harness.clock.now += HOUR
    harness.drive.clock_skew_ms = -1
    assert (await collect(harness, minimum_age_ms=HOUR))["orphan_count"] == 0
    harness.drive.clock_skew_ms = 0
    assert (await collect(harness, minimum_age_ms=HOUR))["orphan_count"] == 1


async def test_intents_and_quarantine_and_what_is_queued_are_no_orphans() -> None:
    harness = ManifestHarness()
    committer = await grown(harness, 4)
    intended, given_up = await intend(harness.context, committer, "s1", [40, 40])
    for uid in (intended, given_up):
        await put(harness, fragment_key(STREAM, 40, uid))
    await abandon(harness.context, committer, "s1", [given_up])
    queued = await put(harness, group_key(STREAM, 0, STRAY, 1))
    later = harness.clock.now + HOUR
    harness.coordination.write(Changes(queued=[delete_later(queued, later)]))

    report = await collect(harness)

    assert report["orphan_count"] == 0
    assert await harness.coordination.due_at(DELETES_KEY, [queued.encode()]) == [later]


async def test_a_group_cut_in_part_stays_and_what_the_queue_covers_waits_its_time() -> None:
    """The children below the floor are in the queue by the name of the group above them only."""
    harness = ManifestHarness(manifest_delete_grace_ms=HOUR, manifest_root_grace_ms=0)
    committer = await grown(harness, 40)
    assert int(committer.keeper.root.entries["height"][0]) > 2
    await trim(harness.context, committer, 55, allow_empty=False)
    await sweep(harness)
    before = await keys(harness)
    orphan = await put(harness, fragment_key(STREAM, 60, STRAY))

    report = await collect(harness)
    await sweep(harness)

    assert (report["orphan_count"], report["examples"]) == (1, [orphan])
    assert await keys(harness) == before
    harness.clock.now += HOUR
    await sweep(harness)
    assert len([key for key in await keys(harness) if "/data/" in key]) == 35

    # Now that nothing is queued below the floor any more, what lies there is an orphan.
    lost = await put(harness, fragment_key(STREAM, 20, STRAY))
    after = await keys(harness)
    report = await collect(harness)
    assert (report["orphan_count"], report["examples"]) == (1, [lost])
    deleter = await sweep(harness)
    assert await keys(harness) == [key for key in after if key != lost]
    assert deleter.refused_count == 0
    assert len(await harness.leaves()) == 35


async def test_a_second_cut_of_the_same_group_is_covered_too() -> None:
    """Groups between the root's entry and the fragments begin below the second range."""
    harness = ManifestHarness(manifest_delete_grace_ms=HOUR, manifest_root_grace_ms=0)
    committer = await grown(harness, 40)
    await trim(harness.context, committer, 50, allow_empty=False)
    harness.clock.now += HOUR
    await sweep(harness)
    await trim(harness.context, committer, 80, allow_empty=False)
    await sweep(harness)
    before = await keys(harness)

    assert (await collect(harness))["orphan_count"] == 0
    await sweep(harness)
    assert await keys(harness) == before


async def waiting_publish(harness: ManifestHarness) -> Committer:
    """Groups and a root are put, and the EXEC that names them is on its way."""
    await check_generation(harness.drive, harness.coordination)
    committer = await grown(harness, 4)
    fragments = await harness.register(committer, *((n * 10, n * 10 + 10) for n in range(4, 8)))
    for fragment in fragments:
        await put(harness, fragment_key(STREAM, fragment.first_offset, fragment.uid))
    harness.coordination.faults = [Fault.LOST_LATE, Fault.UNAVAILABLE]
    await committer.flush()
    assert (await harness.record()).published_next == 40
    return committer


async def test_what_is_published_between_the_looks_is_not_handed_over() -> None:
    """M45: the EXEC arrives after the first look found its groups and its root unnamed."""
    harness = ManifestHarness()
    await waiting_publish(harness)
    arrived: list[int] = []

    async def arrive() -> None:
        arrived.append(harness.coordination.arrive())

    harness.coordination.after_due_at = arrive
    report = await collect(harness, page_count=1_000)
    deleter = await sweep(harness)

    assert arrived == [1]
    assert report["refused"] >= 2
    assert deleter.refused_count == 0
    assert len(await harness.leaves()) == 8
    assert (await harness.record()).published_next == 80


async def test_without_the_second_look_live_objects_are_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guard removed: only the deleter's own look is left."""

    async def no_second_look(_: object, __: StreamRecord, found: list[Any], ___: int) -> list[Any]:
        return found

    remove(monkeypatch, "the second look of a collection", no_second_look)
    harness = ManifestHarness()
    await waiting_publish(harness)

    async def arrive() -> None:
        harness.coordination.arrive()

    harness.coordination.after_due_at = arrive
    await collect(harness, page_count=1_000)

    assert (await sweep(harness)).refused_count >= 2


async def test_a_publish_that_arrives_after_the_collection_fails_and_is_made_anew() -> None:
    """M45: its groups are gone by then, so it must not become the manifest."""
    harness = ManifestHarness()
    committer = await waiting_publish(harness)
    report = await collect(harness)
    assert report["queued"] >= 2
    deleter = await sweep(harness)
    assert deleter.deleted_count == report["queued"]

    assert harness.coordination.arrive() == 0
    harness.clock.now += HOUR
    await committer.wake()
    await committer.flush()

    assert (await harness.record()).published_next == 80
    assert len(await harness.leaves()) == 8
    assert (await sweep(harness)).refused_count == 0


async def test_without_the_bump_a_late_publish_names_what_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guard removed."""

    remove(monkeypatch, "the second look of a collection", orphans_of)
    harness = ManifestHarness()
    await waiting_publish(harness)
    await collect(harness)
    await sweep(harness)

    assert harness.coordination.arrive() == 1
    with pytest.raises(Exception, match=r"missing|no object"):
        await harness.leaves()


async def test_registry_objects_and_snapshots_older_than_the_newest_go() -> None:
    harness = ManifestHarness()
    await grown(harness, 2)
    await harness.streams.update(STREAM, lambda record: replace(record, registry_version=3))
    await put(harness, registry_key(STREAM, 2))
    snapshots = [await put(harness, consumers_key(STREAM, n, Uid(f"{n:032x}"))) for n in (1, 2, 3)]
    assert (await collect(harness))["orphan_count"] == 0, "the newest registry object is not there"

    await put(harness, registry_key(STREAM, 3))
    pointer = SnapshotPointer(2, Uid(f"{2:032x}"))
    offsets = ConsumerOffsets(harness.coordination)
    assert (await offsets.reserve(STREAM, 2)).version == 2
    assert await offsets.point(STREAM, None, pointer, None)
    await collect(harness)
    await sweep(harness)

    left = await keys(harness)
    assert [key for key in left if "consumers" in key] == snapshots[1:]
    assert [key for key in left if "stream." in key] == [registry_key(STREAM, 3)]


async def test_what_nobody_knows_is_reported_and_never_deleted() -> None:
    harness = ManifestHarness()
    await grown(harness, 2)
    unknown = [
        await put(harness, f"default/{STREAM}/producers/0.bin"),
        await put(harness, "something/else"),
        await put(harness, f"default/{OTHER}/data/{0:020d}.{STRAY}.fragment"),
    ]
    await put(harness, "_system/generation.json")
    before = await keys(harness)

    report = await collect(harness)
    await sweep(harness)

    assert await keys(harness) == before
    assert set(unknown) <= set(before)
    assert report["unknown"] == {"objects": 2, "bytes": 18}
    assert report["unknown_prefixes"] == [{"prefix": f"default/{OTHER}/", "objects": 1, "bytes": 9}]
    assert report["orphan_count"] == 0


def sealed(state: StreamState, version: int) -> bytes:
    return encode_registry(a_record(stream_id=OTHER, state=state, registry_version=version))


async def test_what_a_deleted_stream_left_goes_and_its_tombstone_last() -> None:
    harness = ManifestHarness()
    await grown(harness, 2)
    live = await keys(harness)
    active, deleting = StreamState.ACTIVE, StreamState.DELETING
    await put(harness, registry_key(OTHER, 1), sealed(active, 1))
    tombstone = await put(harness, registry_key(OTHER, 2), sealed(deleting, 2))
    for n in range(20):
        await put(harness, fragment_key(OTHER, n, STRAY))

    report = await collect(harness)
    assert report["orphan_count"] == 21
    await sweep(harness)
    assert await keys(harness) == sorted([*live, tombstone])

    assert (await collect(harness))["orphan_count"] == 1
    await sweep(harness)
    assert await keys(harness) == live


async def test_a_stream_without_a_record_that_was_not_deleted_is_never_touched() -> None:
    harness = ManifestHarness()
    await put(harness, registry_key(OTHER, 1), sealed(StreamState.DELETING, 1))
    await put(harness, registry_key(OTHER, 2), sealed(StreamState.ACTIVE, 2))
    before = await keys(harness)

    report = await collect(harness)
    await sweep(harness)

    assert (report["orphan_count"], report["unknown_prefix_count"]) == (0, 1)
    assert await keys(harness) == before


async def test_a_record_that_went_back_is_noticed_and_nothing_of_it_deleted() -> None:
    harness = ManifestHarness()
    committer = await grown(harness, 4)
    old = await harness.coordination.get(f"bottomless:stream:{STREAM}")
    for n in (4, 5, 6):
        await harness.register(committer, (n * 10, n * 10 + 10))
        await committer.flush()
    harness.coordination.write(Changes({f"bottomless:stream:{STREAM}": old}))
    before = await keys(harness)

    report = await collect(harness)

    assert report["skipped"] == [{"stream_id": STREAM, "code": "coordination-regressed"}]
    assert (report["orphan_count"], await keys(harness)) == (0, before)


async def test_of_a_damaged_stream_nothing_is_deleted_and_the_others_are_collected() -> None:
    harness = ManifestHarness()
    await grown(harness, 20)
    groups = [key for key in await keys(harness) if ".g" in key]
    await harness.drive.delete([groups[-1]])
    await put(harness, fragment_key(STREAM, 0, STRAY))
    later = StreamId(STREAM[:-1] + "f")
    await harness.streams.create(a_record(stream_id=later, name="others"))
    orphan = await put(harness, fragment_key(later, 0, STRAY))

    report = await collect(harness, page_count=1_000)
    await sweep(harness)

    assert report["skipped"] == [{"stream_id": STREAM, "code": "data-missing"}]
    assert report["examples"] == [orphan]
    assert harness.drive.has(fragment_key(STREAM, 0, STRAY))


async def test_one_stream_may_be_asked_for() -> None:
    harness = ManifestHarness()
    await grown(harness, 2)
    await harness.streams.create(a_record(stream_id=OTHER, name="others"))
    other = await put(harness, fragment_key(OTHER, 0, STRAY))
    mine = await put(harness, fragment_key(STREAM, 0, STRAY))

    report = await collect(harness, stream_id=STREAM)
    await sweep(harness)

    assert (report["streams"], report["examples"]) == (1, [mine])
    assert harness.drive.has(other)


async def test_a_queue_too_long_to_look_at_keeps_what_is_below_the_floor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = ManifestHarness(manifest_root_grace_ms=0, manifest_delete_grace_ms=0)
    committer = await grown(harness, 8)
    await trim(harness.context, committer, 40, allow_empty=False)
    await sweep(harness)
    await put(harness, fragment_key(STREAM, 0, STRAY))
    harness.coordination.write(Changes(queued=[Due(DELETES_KEY, b"x", 10**12)]))
    monkeypatch.setattr("bottomless_server.manifest.removal.orphans.QUEUE_COUNT_MAX", 1)

    assert (await collect(harness))["orphan_count"] == 0


async def test_a_collection_is_begun_when_it_is_due_and_once() -> None:
    harness = ManifestHarness(manifest_gc_interval_ms=HOUR)
    operations = Operations(harness.context)
    register_gc(operations)
    timers = [GarbageTimer(harness.context, operations) for _ in range(2)]

    assert [await timer.look() for timer in timers] == [False, False]
    harness.clock.now += HOUR
    assert [await timer.look() for timer in timers] == [True, False]
    harness.clock.now += HOUR - 1
    assert [await timer.look() for timer in timers] == [False, False]


async def test_no_collection_is_begun_where_the_setting_says_none() -> None:
    harness = ManifestHarness(manifest_gc_interval_ms=0)
    await GarbageTimer(harness.context, Operations(harness.context)).run()
    assert await harness.coordination.due("bottomless:gc", 10**15, 1) == []


async def test_a_collection_goes_on_after_coordination_was_away() -> None:
    harness = ManifestHarness()
    await grown(harness, 8)
    await put(harness, fragment_key(STREAM, 0, STRAY))
    operations = Operations(harness.context)
    register_gc(operations, 3)
    begun = await operations.begin(
        GC,
        tenant=TENANT_DEFAULT,
        arguments=gc_arguments(dry_run=False, minimum_age_ms=0, tenant=None),
    )
    harness.coordination.faults = [Fault.NONE, Fault.UNAVAILABLE]
    await operations.make_pass()
    await operations.settled()
    found = await operations.find(begun.operation_id)
    while found.state != "succeeded":
        harness.clock.now += 60_000
        await operations.make_pass()
        await operations.settled()
        found = await operations.find(begun.operation_id)

    assert found.result is not None
    assert found.result["orphan_count"] == 1
    await sweep(harness)
    assert not harness.drive.has(fragment_key(STREAM, 0, STRAY))
