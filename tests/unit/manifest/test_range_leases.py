"""Leases and condemned ranges: whoever comes first in the record is respected by the other."""

from dataclasses import replace

import pytest
from support.manifest import STREAM, ManifestHarness
from support.object_keys import fragment_key
from unit.manifest.test_deleter import keys
from unit.manifest.test_edits import HOUR

from bottomless.errors import Code, InvalidRequest, NotFound, OffsetGone, Overloaded
from bottomless.model.fragment import FragmentInfo
from bottomless.model.stream import LEASE_COUNT_MAX, Lease
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import intend
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.removal.range_leases import condemn, give_back, grant, renew
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.stores.streams import DELETES_KEY


async def stored(harness: ManifestHarness, count: int) -> tuple[Committer, list[FragmentInfo]]:
    """A stream of `count` fragments of ten records whose objects are there."""
    committer = await harness.open()
    uids = await intend(harness.context, committer, "s1", [n * 10 for n in range(count)])
    fragments = [await harness.put_fragment(uid, n * 10) for n, uid in enumerate(uids)]
    await committer.register("s1", fragments)
    await committer.flush()
    return committer, fragments


async def fragments_left(harness: ManifestHarness) -> list[int]:
    return [int(key.split("/data/")[1][:20]) for key in await keys(harness) if "/data/" in key]


async def hold(
    harness: ManifestHarness, first_offset: int, ms: int, lease_id: str = "ls_1"
) -> None:
    lease = Lease(lease_id, first_offset, 1_000, harness.clock.now + ms, "job")
    await grant(harness.streams, STREAM, lease, await harness.context.time.over())


async def test_trimmed_fragments_go_after_their_grace_and_groups_with_them() -> None:
    harness = ManifestHarness(manifest_delete_grace_ms=HOUR)
    committer, _ = await stored(harness, 9)
    await trim(harness.context, committer, 60, allow_empty=False)
    deleter = Deleter(harness.context)

    await deleter.make_pass()
    assert await fragments_left(harness) == [n * 10 for n in range(9)]
    harness.clock.now += HOUR
    while await deleter.make_pass():
        pass

    assert await fragments_left(harness) == [60, 70, 80]
    # The root and what it still names, no other node.
    named = {leaf.first_offset for leaf in await harness.leaves()}
    assert named == {60, 70, 80}
    assert (await harness.record()).condemned_next == 60
    assert deleter.refused_count == 0
    assert await harness.coordination.due(DELETES_KEY, 10**15, 10) == []


async def test_a_group_that_is_cut_in_part_stays_and_so_do_its_live_fragments() -> None:
    harness = ManifestHarness(manifest_delete_grace_ms=0, manifest_fanout=4)
    committer, fragments = await stored(harness, 8)
    deleter = Deleter(harness.context)

    for before, left in ((10, 7), (30, 5)):
        await trim(harness.context, committer, before, allow_empty=False)
        await deleter.make_pass()
        assert await fragments_left(harness) == [n * 10 for n in range(8 - left, 8)]
        assert await harness.leaves() == fragments[8 - left :]
    assert len([key for key in await keys(harness) if key.endswith(".g1")]) == 1
    await trim(harness.context, committer, 40, allow_empty=False)
    await deleter.make_pass()

    assert not [key for key in await keys(harness) if key.endswith(".g1")]
    assert deleter.refused_count == 0


async def test_a_lease_holds_what_is_at_or_above_its_start_until_it_runs_out() -> None:
    harness = ManifestHarness(manifest_delete_grace_ms=0, manifest_fanout=100)
    committer, _ = await stored(harness, 6)
    await hold(harness, 20, HOUR)
    await trim(harness.context, committer, 40, allow_empty=False)
    deleter = Deleter(harness.context)

    await deleter.make_pass()
    assert await fragments_left(harness) == [20, 30, 40, 50]
    assert (await harness.record()).condemned_next == 20
    harness.clock.now += HOUR
    await deleter.make_pass()

    assert await fragments_left(harness) == [40, 50]
    assert deleter.refused_count == 0


async def test_a_lease_that_is_given_back_holds_nothing_though_its_range_waits_for_its_time() -> (
    None
):
    harness = ManifestHarness(manifest_delete_grace_ms=0)
    await stored(harness, 6)
    await hold(harness, 0, HOUR)

    await give_back(harness.streams, STREAM, "ls_1", harness.clock())
    await give_back(harness.streams, STREAM, "ls_1", harness.clock())

    assert (await harness.record()).leases == ()


async def test_a_range_below_the_floor_can_be_leased_until_it_is_condemned() -> None:
    harness = ManifestHarness(manifest_delete_grace_ms=HOUR)
    committer, _ = await stored(harness, 6)
    await trim(harness.context, committer, 40, allow_empty=False)
    await hold(harness, 0, 1_000)
    harness.clock.now += HOUR
    await Deleter(harness.context).make_pass()

    with pytest.raises(OffsetGone) as caught:
        await hold(harness, 39, HOUR)

    assert caught.value.code is Code.RANGE_CONDEMNED
    assert caught.value.facts == {"first_offset": 40}
    await hold(harness, 40, HOUR)


async def test_a_renewed_lease_holds_on_and_one_that_ran_out_cannot_be_renewed() -> None:
    harness = ManifestHarness()
    await stored(harness, 1)
    await hold(harness, 0, 1_000)
    harness.clock.now += 999

    lease = await renew(harness.streams, STREAM, "ls_1", harness.clock() + 2_000, harness.clock())
    assert lease.expires_at == harness.clock.now + 2_000
    harness.clock.now += 2_000

    with pytest.raises(NotFound) as caught:
        await renew(harness.streams, STREAM, "ls_1", harness.clock() + 2_000, harness.clock())
    assert caught.value.code is Code.LEASE_NOT_FOUND


async def test_a_lease_begins_at_the_end_of_what_is_published_at_most() -> None:
    harness = ManifestHarness()
    await stored(harness, 1)
    await hold(harness, 10, 1_000)

    with pytest.raises(InvalidRequest):
        await hold(harness, 11, 1_000, "ls_2")


async def test_leases_are_bounded_and_those_that_ran_out_make_room() -> None:
    harness = ManifestHarness()
    await stored(harness, 1)
    for number in range(LEASE_COUNT_MAX):
        await hold(harness, 0, 1_000, f"ls_{number}")
    with pytest.raises(Overloaded) as refused:
        await hold(harness, 0, 1_000, "one more")
    assert refused.value.code is Code.QUOTA_EXCEEDED

    harness.clock.now += 1_000
    await hold(harness, 0, 1_000, "one more")

    assert [lease.lease_id for lease in (await harness.record()).leases] == ["one more"]


async def test_a_condemned_range_never_goes_back() -> None:
    harness = ManifestHarness()
    await stored(harness, 6)
    await condemn(harness.streams, STREAM, 40, harness.clock.now, harness.clock.now + HOUR)

    await condemn(harness.streams, STREAM, 10, harness.clock.now, harness.clock.now + HOUR)
    await harness.streams.update(STREAM, lambda record: replace(record, dirty=False))

    assert (await harness.record()).condemned_next == 40


async def test_an_object_that_fails_to_go_keeps_its_group_until_it_is_gone() -> None:
    harness = ManifestHarness(manifest_delete_grace_ms=0, manifest_fanout=4)
    committer, fragments = await stored(harness, 9)
    await trim(harness.context, committer, 40, allow_empty=False)
    stubborn = fragment_key(STREAM, 10, fragments[1].uid)
    harness.drive.stubborn = {stubborn}
    deleter = Deleter(harness.context)

    await deleter.make_pass()
    assert await fragments_left(harness) == [10, 40, 50, 60, 70, 80]
    assert [key for key in await keys(harness) if key.endswith(".g1")]
    harness.drive.stubborn = set()
    harness.clock.now += harness.context.settings.manifest_delete_interval_ms
    await deleter.make_pass()

    assert await fragments_left(harness) == [40, 50, 60, 70, 80]
    assert len([key for key in await keys(harness) if key.endswith(".g1")]) == 0
