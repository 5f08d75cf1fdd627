"""Publishing, with every answer that an EXEC can have."""

from dataclasses import replace

import pytest
from support.manifest import STREAM, Fault, ManifestHarness, a_fragment

from bottomless.errors import Code, Corrupt, NotFound, Unavailable
from bottomless.model.stream import EpochStart, StreamRecord, StreamState
from bottomless_server.manifest.mutators.sessions import begin
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import Why
from bottomless_server.manifest.tree.resolver import load_root, root_object_key
from bottomless_server.stores.streams import DELETES_KEY


async def queued(harness: ManifestHarness) -> dict[str, int]:
    dues = await harness.coordination.due(DELETES_KEY, 10**15, 1_000)
    return {due.member.decode(): due.due_at for due in dues}


async def test_a_published_fragment_is_in_the_record_and_in_the_tree() -> None:
    harness = ManifestHarness()
    committer = await harness.open()

    (fragment,) = await harness.register(committer, (0, 10))
    await committer.flush()

    record = await harness.record()
    assert (record.published_next, record.version, record.last_timestamp) == (10, 2, 10)
    assert record.intents == ()
    assert await harness.leaves() == [fragment]
    assert committer.outcome(fragment.uid) is True


async def test_objects_are_put_before_the_pointer_moves_groups_first() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    await harness.register(committer, *((n * 10, n * 10 + 10) for n in range(8)))
    before = len(harness.drive.calls)

    harness.coordination.faults = [Fault.UNAVAILABLE]
    await committer.flush()

    kinds = [key.rpartition(".")[2] for _, key in harness.drive.calls[before:]]
    assert kinds == ["g1", "g1", "g1", "manifest"]
    assert (await harness.record()).published_next == 0


async def test_the_old_root_is_queued_with_its_grace_in_the_same_exec() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    await harness.register(committer, (0, 10))
    await committer.flush()
    old = root_object_key(committer.record)
    assert old not in await queued(harness)

    await harness.register(committer, (10, 20))
    await committer.flush()

    assert (await queued(harness))[old] == harness.clock.now + 15 * 60_000


async def test_unavailable_changes_nothing_and_is_tried_again_with_the_same_root() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    (fragment,) = await harness.register(committer, (0, 10))
    first = root_object_key(committer.record)
    harness.coordination.faults = [Fault.UNAVAILABLE]
    await committer.flush()
    assert (await harness.record()).published_next == 0
    assert committer.outcome(fragment.uid) is False

    await committer.flush()

    assert await harness.leaves() == [fragment]
    assert len(harness.drive.calls) == 2
    assert set(await queued(harness)) == {first}


async def test_a_store_that_is_down_delays_the_publish() -> None:
    harness = ManifestHarness(manifest_put_seconds=0.05)
    committer = await harness.open()
    (fragment,) = await harness.register(committer, (0, 10))
    harness.drive.failing = True
    await committer.flush()
    assert (await harness.record()).published_next == 0
    assert committer.wake_at is not None
    assert committer.wake_at > harness.clock.now

    harness.drive.failing = False
    harness.clock.now = committer.wake_at
    await committer.wake()

    assert await harness.leaves() == [fragment]


async def test_a_lost_reply_of_a_publish_that_happened_is_success() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    (fragment,) = await harness.register(committer, (0, 10))
    harness.coordination.faults = [Fault.LOST_APPLIED]

    await committer.flush()

    assert committer.outcome(fragment.uid) is True
    record = await harness.record()
    assert (record.published_next, record.version) == (10, 3)
    assert len(harness.drive.calls) == 2


async def test_an_exec_that_arrives_after_the_bump_changes_nothing() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    (fragment,) = await harness.register(committer, (0, 10))
    harness.coordination.faults = [Fault.LOST_LATE]
    await committer.flush()
    assert (await harness.record()).published_next == 0
    assert committer.outcome(fragment.uid) is False

    assert harness.coordination.arrive() == 0
    stray = harness.drive.calls[1][1]
    await committer.flush()

    assert await harness.leaves() == [fragment]
    assert stray in await queued(harness)


async def test_without_the_bump_the_late_exec_would_have_landed() -> None:
    """The run with the guard removed: reading back alone would have decided wrongly."""
    harness = ManifestHarness()
    committer = await harness.open()
    await harness.register(committer, (0, 10))
    harness.coordination.faults = [Fault.LOST_LATE, Fault.UNAVAILABLE]
    await committer.flush()
    assert (await harness.record()).published_next == 0

    assert harness.coordination.arrive() == 1


async def test_until_a_lost_reply_is_decided_nothing_else_is_done() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    (fragment,) = await harness.register(committer, (0, 10))
    harness.coordination.faults = [Fault.LOST_LATE, Fault.UNAVAILABLE, Fault.UNAVAILABLE]
    await committer.flush()

    with pytest.raises(Unavailable):
        await committer.register("s1", [a_fragment(10, 20)])
    assert harness.coordination.arrive() == 1
    await committer.wake()

    assert committer.outcome(fragment.uid) is True
    assert await harness.leaves() == [fragment]


async def test_a_lost_reply_is_recognised_among_past_roots() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    (fragment,) = await harness.register(committer, (0, 10))
    harness.coordination.faults = [Fault.LOST_APPLIED, Fault.UNAVAILABLE]
    await committer.flush()
    other = await Committer.open(harness.context, STREAM)
    (theirs,) = await harness.register(other, (10, 20))
    await other.flush()

    await committer.wake()

    assert committer.outcome(fragment.uid) is True
    assert committer.record.published_next == 20
    assert await harness.leaves() == [fragment, theirs]


async def test_after_a_conflict_both_runs_are_in_the_manifest() -> None:
    harness = ManifestHarness()
    mine = await harness.open()
    theirs = await Committer.open(harness.context, STREAM)
    first, second = await harness.register(mine, (0, 10), (10, 20))
    await theirs.register("s1", [first])
    await theirs.flush()

    await mine.flush()
    await mine.flush()

    assert await harness.leaves() == [first, second]
    assert mine.outcome(first.uid) is True
    assert mine.outcome(second.uid) is True


async def test_the_loser_of_a_conflict_deletes_nothing_at_once() -> None:
    harness = ManifestHarness()
    mine = await harness.open()
    theirs = await Committer.open(harness.context, STREAM)
    first, second = await harness.register(mine, (0, 10), (10, 20))
    await theirs.register("s1", [first])
    await theirs.flush()
    await mine.flush()
    assert not [call for call in harness.drive.calls if call[0] == "delete"]

    loser = harness.drive.calls[2][1]
    await mine.flush()

    assert (await queued(harness))[loser] >= harness.clock.now + 15 * 60_000
    assert await harness.leaves() == [first, second]


async def test_a_newer_epoch_fences_what_its_owner_did_not_confirm() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    kept, refused = await harness.register(committer, (0, 10), (10, 20))

    def claim(record: StreamRecord) -> StreamRecord:
        return replace(record, epoch=2, epochs=(*record.epochs, EpochStart(2, 10)))

    await harness.streams.update(STREAM, claim)
    await committer.flush()
    await committer.flush()

    assert await harness.leaves() == [kept]
    assert committer.outcome(refused.uid) is Why.FENCED
    root = (await harness.record()).root
    assert root is not None
    assert root.epoch == 2


async def test_a_deleted_stream_stops_its_committer() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    await harness.register(committer, (0, 10))
    await harness.streams.update(STREAM, lambda r: replace(r, state=StreamState.DELETING))

    with pytest.raises(NotFound):
        await committer.flush()

    assert (await harness.record()).published_next == 0


async def test_registering_again_after_it_was_applied_is_success() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    fragments = await harness.register(committer, *((n * 10, n * 10 + 10) for n in range(9)))
    await committer.flush()
    again = await Committer.open(harness.context, STREAM)

    assert await again.register("s1", fragments) == ()

    assert all(again.outcome(fragment.uid) is True for fragment in fragments)
    assert (await harness.record()).version == 2


async def test_another_fragment_for_published_offsets_is_refused() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    await harness.register(committer, (0, 10))
    await committer.flush()

    other = (await harness.register(committer, (0, 10)))[0]

    assert committer.outcome(other.uid) is Why.TAKEN


async def test_a_fragment_of_an_old_epoch_is_refused() -> None:
    harness = ManifestHarness()
    committer = await harness.open(epoch=2, epochs=(EpochStart(1, 0), EpochStart(2, 5)))

    (fragment,) = await harness.register(committer, (0, 10))

    assert committer.outcome(fragment.uid) is Why.FENCED


async def test_an_old_session_cannot_register_any_more() -> None:
    harness = ManifestHarness()
    committer = await harness.open("old")
    await begin(harness.context, committer, "new")

    assert await committer.register("old", [a_fragment(0, 10)])

    assert committer.outcome(a_fragment(0, 10).uid) is Why.OLD_SESSION


async def test_a_missing_root_is_an_error_and_never_an_empty_stream() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    await harness.register(committer, (0, 10))
    await committer.flush()
    await harness.drive.delete([root_object_key(committer.record)])

    with pytest.raises(Corrupt) as caught:
        await Committer.open(harness.context, STREAM)

    assert caught.value.code is Code.DATA_MISSING


async def test_a_root_that_was_replaced_meanwhile_is_found_through_the_record() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    await harness.register(committer, (0, 10))
    await committer.flush()
    old = committer.record
    await harness.register(committer, (10, 20))
    await committer.flush()
    await harness.drive.delete([root_object_key(old)])

    record, root = await load_root(harness.context, old)

    assert (record.published_next, root.next_offset) == (20, 20)


async def test_a_record_that_went_back_is_refused() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    await harness.register(committer, (0, 10))
    await committer.flush()
    await harness.streams.update(
        STREAM, lambda r: replace(r, version=0, root=None, published_next=0)
    )

    with pytest.raises(Unavailable) as caught:
        await committer.refresh()

    assert caught.value.code is Code.COORDINATION_REGRESSED
