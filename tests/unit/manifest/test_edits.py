"""Retention, trim and takeover as edits of a manifest: through the same EXEC as everything else."""

from dataclasses import replace
from typing import Any

import pytest
from support.manifest import NODE, STREAM, Fault, ManifestHarness
from unit.manifest.test_committer import queued

from bottomless.errors import Code, Fenced, InvalidRequest, Unavailable
from bottomless.model.config import parse_config
from bottomless.model.manifest import EntryKind, GapReason
from bottomless.model.names import NodeId
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.manifest.mutators.retention import evaluate, preview, records_lost, trim
from bottomless_server.manifest.mutators.takeover import take_over
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.delete_queue import parse_delete_target
from bottomless_server.stores.streams import node_key

HOUR = 3_600_000


async def tens(harness: ManifestHarness, count: int, **changes: Any) -> Committer:
    """A stream of `count` fragments of ten records; timestamps are offsets."""
    committer = await harness.open(**changes)
    await harness.register(committer, *((n * 10, n * 10 + 10) for n in range(count)))
    await committer.flush()
    return committer


async def configure(harness: ManifestHarness, committer: Committer, **retention: object) -> None:
    config = parse_config({"retention": retention})
    await harness.streams.update(STREAM, lambda record: replace(record, config=config))
    await committer.refresh()


async def test_trim_goes_to_the_start_of_the_fragment_that_holds_the_offset() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 5)

    assert await trim(harness.context, committer, 25, allow_empty=False) == 20

    assert [leaf.first_offset for leaf in await harness.leaves()] == [20, 30, 40]
    assert (await harness.record()).published_next == 50


async def test_trim_again_and_trim_of_nothing_publish_nothing() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 5)
    await trim(harness.context, committer, 25, allow_empty=False)
    version = committer.record.version

    for before in (0, 7, 20, 25):
        assert await trim(harness.context, committer, before, allow_empty=False) == 20

    assert committer.record.version == version


async def test_trim_above_what_is_published_is_refused() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 2)

    with pytest.raises(InvalidRequest) as caught:
        await trim(harness.context, committer, 21, allow_empty=True)

    assert caught.value.code is Code.OFFSET_BEYOND_END
    assert caught.value.facts == {"published_next": 20}


async def test_trim_of_everything_keeps_the_last_fragment_unless_the_stream_may_be_empty() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 7)

    assert await trim(harness.context, committer, 70, allow_empty=False) == 60
    assert await trim(harness.context, committer, 70, allow_empty=True) == 70

    assert await harness.leaves() == []
    record = await harness.record()
    assert (record.published_next, record.root is None) == (70, False)
    (after,) = await harness.register(committer, (70, 80))
    await committer.flush()
    assert await harness.leaves() == [after]
    assert committer.keeper.root.first_offset == 70


async def test_what_is_trimmed_waits_in_the_queue_with_its_range() -> None:
    harness = ManifestHarness(manifest_delete_grace_ms=HOUR, manifest_fanout=4)
    committer = await tens(harness, 9)

    await trim(harness.context, committer, 55, allow_empty=False)

    doomed = {
        parse_delete_target(member.encode()): due_at
        for member, due_at in (await queued(harness)).items()
    }
    ranges = {
        (one.height, one.range.first_offset, one.range.next_offset)
        for one in doomed
        if one is not None and one.range is not None
    }
    # A group that went whole and one fragment.
    assert ranges == {(1, 0, 40), (0, 40, 50)}
    assert {due_at for one, due_at in doomed.items() if one is not None and one.range} == {
        harness.clock.now + HOUR
    }


async def test_what_waits_at_the_end_is_published_with_the_trim() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 8)
    (waiting,) = await harness.register(committer, (80, 90))

    await trim(harness.context, committer, 30, allow_empty=False)

    leaves = await harness.leaves()
    assert (leaves[0].first_offset, leaves[-1]) == (30, waiting)
    assert committer.outcome(waiting.uid) is True


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_LATE])
async def test_a_trim_whose_reply_was_lost_is_confirmed_when_it_is_certain(fault: Fault) -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 5)
    harness.coordination.faults = [fault]

    assert await trim(harness.context, committer, 30, allow_empty=False) == 30

    assert harness.coordination.arrive() == 0
    assert [leaf.first_offset for leaf in await harness.leaves()] == [30, 40]


async def test_an_undecided_trim_says_so_and_is_found_by_the_next() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 5)
    harness.coordination.faults = [Fault.LOST_LATE, Fault.UNAVAILABLE, Fault.UNAVAILABLE]
    with pytest.raises(Unavailable):
        await trim(harness.context, committer, 30, allow_empty=False)
    harness.coordination.faults = []
    assert harness.coordination.arrive() == 1

    assert await trim(harness.context, committer, 30, allow_empty=False) == 30

    assert [leaf.first_offset for leaf in await harness.leaves()] == [30, 40]


async def test_a_trim_that_another_process_overtook_is_worked_out_anew() -> None:
    harness = ManifestHarness()
    mine = await tens(harness, 5)
    theirs = await Committer.open(harness.context, STREAM)
    (added,) = await harness.register(theirs, (50, 60))
    before = mine.record.version

    async def overtake() -> None:
        await theirs.flush()

    harness.drive.before_put = overtake
    assert await trim(harness.context, mine, 20, allow_empty=False) == 20

    leaves = await harness.leaves()
    assert (leaves[0].first_offset, leaves[-1]) == (20, added)
    assert mine.record.version == before + 2


async def test_preview_is_what_evaluate_does_and_changes_nothing() -> None:
    harness = ManifestHarness(manifest_fanout=4)
    committer = await tens(harness, 20)
    await configure(harness, committer, max_bytes=6_000)
    before = await harness.record()

    told = await preview(harness.context, committer, None)
    assert await harness.record() == before
    done = await evaluate(harness.context, committer)

    assert told.described() == done.described()
    leaves = await harness.leaves()
    assert leaves[0].first_offset == told.cut.floor
    assert sum(leaf.size for leaf in leaves) <= 6_000
    assert sum(leaf.size for leaf in leaves) + told.cut.floor - 10 + 1_000 > 6_000


async def test_retention_by_age_goes_by_the_newest_record_of_a_fragment() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 5)
    await configure(harness, committer, max_age="1s")
    harness.clock.now = 1_000 + 30

    decision = await evaluate(harness.context, committer)

    # The fragment that ends at 30 is exactly a second old, and not older.
    assert [leaf.first_offset for leaf in await harness.leaves()] == [20, 30, 40]
    assert decision.described()["reason"] == {"max_age": 2, "max_bytes": 0}


async def test_retention_by_age_pauses_while_the_clocks_disagree() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 5)
    await configure(harness, committer, max_age="1s", max_bytes=10**9)
    harness.drive.clock_skew_ms = 5 * 60_000 + 1
    assert (await evaluate(harness.context, committer)).age_paused
    assert len(await harness.leaves()) == 5

    harness.drive.clock_skew_ms = -5 * 60_000
    harness.clock.now += 60_000
    decision = await evaluate(harness.context, committer)

    assert (decision.age_paused, len(await harness.leaves())) == (False, 1)
    assert decision.described()["kept_because_last_fragment"] is True


async def test_the_servers_limits_hold_where_the_stream_has_none_and_unlimited_is_none() -> None:
    harness = ManifestHarness(manifest_retention_max_bytes=1)
    committer = await tens(harness, 5)
    await configure(harness, committer, max_bytes="unlimited")
    await evaluate(harness.context, committer)
    assert len(await harness.leaves()) == 5

    await configure(harness, committer)
    decision = await evaluate(harness.context, committer)

    assert len(await harness.leaves()) == 1
    assert decision.excess_bytes == 1_040 - 1


async def test_a_takeover_closes_the_end_with_a_gap_and_frees_the_stream() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, home=NODE, reserved_next=1_000)

    done = await take_over(harness.context, committer, NODE, 1)

    assert done["gap"] == {"first_offset": 30, "next_offset": 1_000, "reason": "takeover"}
    record = await harness.record()
    assert (record.epoch, record.home, record.dirty) == (2, None, False)
    assert (record.published_next, record.reserved_next) == (1_000, 1_000)
    assert record.epochs == (EpochStart(2, 1_000),)
    last = committer.keeper.root.entries[-1]
    assert (last["kind"], last["reason"]) == (EntryKind.GAP, GapReason.TAKEOVER)
    assert await take_over(harness.context, committer, NODE, 1) == done


async def test_what_the_lost_home_registered_and_was_not_published_is_refused_afterwards() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, home=NODE, reserved_next=1_000)
    (late,) = await harness.register(committer, (40, 50))

    await take_over(harness.context, committer, NODE, 1)

    assert committer.outcome(late.uid) is not True
    assert [leaf.first_offset for leaf in await harness.leaves()] == [0, 10, 20]


async def test_a_home_that_lives_loses_nothing() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, home=NODE)
    await harness.coordination.hold(node_key(NODE), b"x", 10_000)

    with pytest.raises(Fenced) as caught:
        await take_over(harness.context, committer, NODE, 1)

    assert caught.value.code is Code.HOME_LIVE
    assert (await harness.record()).home == NODE


async def test_a_home_that_comes_back_between_the_check_and_the_exec_loses_nothing() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, home=NODE)

    async def come_back() -> None:
        await harness.coordination.hold(node_key(NODE), b"x", 10_000)

    objects = harness.drive.copy()
    harness.coordination.before_transact = come_back
    with pytest.raises(Fenced):
        await take_over(harness.context, committer, NODE, 1)

    record = await harness.record()
    assert (record.home, record.epoch, record.published_next) == (NODE, 1, 30)
    assert harness.drive.copy() == objects, "a takeover that was refused left something"
    (after,) = await harness.register(committer, (30, 40))
    await committer.flush()
    assert (await harness.leaves())[-1] == after


async def test_the_gap_ends_behind_all_that_the_home_reserved_until_the_fence() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, home=NODE, reserved_next=1_000)

    async def reserve() -> None:
        def more(record: StreamRecord) -> StreamRecord:
            return replace(record, reserved_next=record.reserved_next + 1)

        await harness.streams.update(STREAM, more)

    harness.coordination.before_transact = reserve
    done = await take_over(harness.context, committer, NODE, 1)

    assert done["gap"]["next_offset"] == 1_001
    assert (await harness.record()).reserved_next == 1_001


async def test_another_home_than_the_one_named_loses_nothing() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, home=NODE)

    with pytest.raises(Fenced):
        await take_over(harness.context, committer, NodeId("f" * 32), 1)


async def test_a_clean_stream_is_freed_without_a_gap() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, home=NODE, dirty=False)

    assert (await take_over(harness.context, committer, NODE, 1))["gap"] is None

    record = await harness.record()
    assert (record.home, record.published_next) == (None, 30)


async def test_a_consumer_loses_only_records_that_are_there_and_gaps_are_none() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, home=NODE, reserved_next=1_000)
    await take_over(harness.context, committer, NODE, 1)
    await harness.streams.update(
        STREAM, lambda record: replace(record, home=NODE, dirty=True, reserved_next=2_000)
    )
    await harness.register(committer, (1_000, 1_010), (1_010, 1_020), epoch=2)
    await committer.flush()
    await trim(harness.context, committer, 10, allow_empty=False)
    await configure(harness, committer, max_bytes=1)

    decision = await preview(harness.context, committer, None)

    assert decision.cut.floor == 1_010
    lost = [
        await records_lost(harness.context, "default", decision, n)
        for n in (0, 10, 15, 30, 500, 1_004)
    ]
    assert lost == [30, 30, 25, 10, 10, 6]
    assert await records_lost(harness.context, "default", decision, 1_010) == 0
