"""Scenarios of deposed and competing writers, and of tall trees: M13, M14, M16, M20, M21, M47."""

from dataclasses import replace

import pytest
from support.guards import remove
from support.manifest import NODE, STREAM, GapRange, ManifestHarness
from support.object_keys import fragment_key

from bottomless.errors import Fenced
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import EntryKind
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.manifest.common.lookup import path_to
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.mutators.takeover import take_over
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import Why
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.streams import DELETES_KEY

HOUR = 3_600_000


async def claim(harness: ManifestHarness, first_offset: int) -> StreamRecord:
    """Another node owns the stream from here on; no version changes by that."""

    def decide(record: StreamRecord) -> StreamRecord:
        epoch = record.epoch + 1
        starts = (*record.epochs, EpochStart(epoch, first_offset))
        reserved_next = max(record.reserved_next, first_offset + 1_000)
        return replace(record, epoch=epoch, epochs=starts, reserved_next=reserved_next)

    return await harness.streams.update(STREAM, decide)


async def waiting(
    harness: ManifestHarness, committer: Committer, first_offset: int
) -> FragmentInfo:
    """A fragment with its object, registered and not published yet."""
    (uid,) = await intend(harness.context, committer, "s1", [first_offset])
    fragment = await harness.put_fragment(uid, first_offset)
    assert await committer.register("s1", [fragment]) == ()
    return fragment


async def delete_all_that_is_due(harness: ManifestHarness) -> None:
    harness.clock.now += 10 * HOUR
    while await Deleter(harness.context).make_pass():
        pass


async def test_a_writer_of_a_lower_epoch_loses_the_conflict_and_deletes_nothing_alive() -> None:
    """M13."""
    harness = ManifestHarness()
    await check_generation(harness.drive, harness.coordination)
    old = await harness.open()
    first = await waiting(harness, old, 0)
    await old.flush()
    doomed = await waiting(harness, old, 10)
    await claim(harness, 10)
    new = await Committer.open(harness.context, STREAM)
    await begin(harness.context, new, "s2")
    (uid,) = await intend(harness.context, new, "s2", [10])
    second = await harness.put_fragment(uid, 10, epoch=2)
    assert await new.register("s2", [second]) == ()
    await new.flush()

    await old.flush()

    assert isinstance(old.outcome(doomed.uid), Why)
    assert not [key for kind, key in harness.drive.calls if kind == "delete"]
    with pytest.raises(Fenced):
        await intend(harness.context, old, "s1", [20])
    await delete_all_that_is_due(harness)
    assert await harness.leaves() == [first, second]
    for leaf in (first, second):
        assert harness.drive.has(fragment_key(STREAM, leaf.first_offset, leaf.uid))
    assert not harness.drive.has(fragment_key(STREAM, 10, doomed.uid))


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_deposed_writer_with_the_current_revision_is_rejected_by_its_epoch(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M14."""
    harness = ManifestHarness()
    paused = await harness.open()
    await harness.register(paused, (0, 10))
    await paused.flush()
    (late,) = await harness.register(paused, (10, 20))
    record = await claim(harness, 10)
    assert record.version == paused.record.version, "only the epoch tells"
    if not guarded:
        remove(monkeypatch, "the epoch in the EXEC of a publish", lambda *_: True)

    await paused.flush()

    published = (await harness.record()).published_next
    # Without the guard the dead epoch's records get in: so it is the guard that keeps them out.
    assert (published, paused.outcome(late.uid) is Why.FENCED) == (
        (10, True) if guarded else (20, False)
    )


async def test_a_tail_that_was_lost_with_its_epoch_never_gets_in_and_its_offsets_stay_used() -> (
    None
):
    """M16."""
    harness = ManifestHarness()
    before = await harness.open(home=NODE, reserved_next=1_000)
    first = await waiting(harness, before, 0)
    await before.flush()
    (uid,) = await intend(harness.context, before, "s1", [20])
    tail = await harness.put_fragment(uid, 20)
    # The owner said that these are committed: it is the epoch that keeps them out.
    harness.owners.committed[STREAM] = 30

    await take_over(harness.context, await Committer.open(harness.context, STREAM), NODE, 1)
    after = await Committer.open(harness.context, STREAM)
    refused = await after.register("s1", [tail])
    await begin(harness.context, after, "s2")
    record = await claim(harness, 1_000)
    (uid,) = await intend(harness.context, after, "s2", [1_000])
    fresh = await harness.put_fragment(uid, 1_000, epoch=record.epoch)
    assert await after.register("s2", [fresh]) == ()
    await after.flush()

    assert refused == (tail.uid,)
    assert await harness.entries() == [first, GapRange(10, 1_000), fresh]
    assert fresh.epoch > first.epoch
    await delete_all_that_is_due(harness)
    assert not harness.drive.has(fragment_key(STREAM, 20, tail.uid))


async def filled(harness: ManifestHarness, count: int) -> Committer:
    """As many fragments of one record each, published in runs."""
    committer = await harness.open()
    for start in range(0, count, 128):
        stop = min(start + 128, count)
        await harness.register(committer, *((n, n + 1) for n in range(start, stop)))
        await committer.flush()
    return committer


@pytest.mark.parametrize(
    ("count", "fanout", "height"), [(1_025, 32, 1), (1_025, 16, 2), (2_049, 16, 2), (2_049, 8, 3)]
)
async def test_a_tall_tree_is_in_shape_and_found_in_no_more_requests_than_its_height(
    count: int, fanout: int, height: int
) -> None:
    """M47."""
    harness = ManifestHarness(manifest_fanout=fanout)
    committer = await filled(harness, count)

    leaves = await harness.leaves()
    assert [leaf.first_offset for leaf in leaves] == list(range(count))
    root = committer.keeper.root
    heights = [int(entry["height"]) for entry in root.entries]
    assert heights == sorted(heights, reverse=True), "older is higher"
    assert max(heights) == height
    assert max(heights.count(one) for one in heights) < 2 * fanout
    for offset in (0, 1, fanout - 1, fanout, fanout**2 - 1, count // 2, count - 1):
        path = await path_to(harness.drive, "default", root, min(offset, count - 1))
        assert path[-1]["first_offset"] == min(offset, count - 1)
        assert path[-1]["kind"] == EntryKind.FRAGMENT
        # One request for each group on the way, and none for the root, which is there.
        assert len(path) - 1 <= height


async def names_in(harness: ManifestHarness, suffix: str) -> set[str]:
    return {facts.object_key async for facts in harness.drive.list() if suffix in facts.object_key}


async def test_a_cut_keeps_the_group_that_it_goes_through_and_takes_those_below_whole() -> None:
    """M20, M21: of every height, and nothing else goes."""
    harness = ManifestHarness()
    committer = await harness.open()
    for start in range(0, 640, 80):
        uids = await intend(harness.context, committer, "s1", range(start, start + 80, 10))
        await committer.register(
            "s1", [await harness.put_fragment(uid, start + 10 * n) for n, uid in enumerate(uids)]
        )
        await committer.flush()
    await delete_all_that_is_due(harness)
    fragments, groups = await names_in(harness, ".fragment"), await names_in(harness, ".g")
    heights = {int(entry["height"]) for entry in committer.keeper.root.entries}
    assert max(heights) >= 4

    await trim(harness.context, committer, 10, allow_empty=False)
    await delete_all_that_is_due(harness)

    assert len(await names_in(harness, ".fragment")) == len(fragments) - 1
    assert await names_in(harness, ".g") == groups, "all of them still hold something"

    floor = int(committer.keeper.root.entries[1]["first_offset"])
    live = {leaf.uid for leaf in await harness.leaves() if leaf.first_offset >= floor}
    await trim(harness.context, committer, floor, allow_empty=False)
    await delete_all_that_is_due(harness)

    left = await names_in(harness, ".fragment")
    assert len(left) == len(live)
    assert all(any(uid in key for uid in live) for key in left)
    record, root = await load_root(harness.context, await harness.record())
    assert (root.first_offset, record.published_next) == (floor, 640)
    assert [leaf.uid for leaf in await harness.leaves()] == sorted(
        live, key=lambda uid: next(key for key in left if uid in key)
    )
    gone = groups - await names_in(harness, ".g")
    assert gone
    assert all(int(key.rpartition("/")[2].partition(".")[0]) < floor for key in gone)
    assert await harness.coordination.due(DELETES_KEY, 10**15, 10) == []
