"""A vacuum settles nobody in a store that may be an older copy of itself, until those who live were heard."""

import pytest
from support.guards import remove
from support.leaderless import WalWriter, a_leaderless_harness
from support.manifest import STREAM, ManifestHarness
from unit.manifest.test_rebuild_wal import a_stream, a_writer

from bottomless_server.manifest.leaderless.upkeep import LeaderlessUpkeep
from bottomless_server.manifest.leaderless.vacuum import Vacuum

WAIT_MS = 31_000


def is_settled(writer: WalWriter) -> bool:
    record = writer.record()
    assert record is not None
    return record.settled == record.reserved


async def a_run_with_one_that_is_dead() -> tuple[ManifestHarness, WalWriter]:
    """Another run of the store has begun, and a writer that put something is not there any more."""
    harness = await a_leaderless_harness(manifest_rebuild_wal_wait_ms=WAIT_MS)
    await a_stream(harness)
    writer = await a_writer(harness)
    await writer.flush(STREAM)
    harness.coordination.start_anew()
    await writer.lapse()
    return harness, writer


@pytest.mark.parametrize("guarded", [True, False])
async def test_without_its_guard_what_was_acknowledged_is_deleted_before_its_note_comes(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        remove(
            monkeypatch,
            "writers that are heard in a new run before they are settled",
            lambda *_: False,
        )
    harness = await a_leaderless_harness(manifest_rebuild_wal_wait_ms=WAIT_MS)
    await a_stream(harness)
    writer = await a_writer(harness)
    upkeep = LeaderlessUpkeep(harness.context)
    await upkeep.make_pass()
    older = harness.coordination.copy()
    await writer.flush(STREAM, count=5)
    # Its lease has run out in the copy, and it has not come back to renew it.
    harness.clock.now += 20_000
    harness.coordination.put_back(older)

    await upkeep.make_pass()

    assert await writer.objects() == ([0] if guarded else [])


async def test_whoever_is_dead_is_settled_when_that_time_is_over() -> None:
    harness = await a_leaderless_harness(manifest_rebuild_wal_wait_ms=WAIT_MS)
    await a_stream(harness)
    writer = await a_writer(harness)
    upkeep = LeaderlessUpkeep(harness.context)
    await upkeep.make_pass()
    await writer.flush(STREAM)
    harness.coordination.start_anew()
    await writer.lapse()
    for passed_ms in (0, WAIT_MS - 1):
        harness.clock.now += passed_ms
        await upkeep.make_pass()
        assert not is_settled(writer)

    harness.clock.now += 1
    await upkeep.make_pass()
    assert is_settled(writer)


async def test_the_first_run_that_a_process_meets_is_as_old_as_the_store_says() -> None:
    """A manifest process that begins just after an older copy was put back knows no run before."""
    harness, writer = await a_run_with_one_that_is_dead()
    begun = LeaderlessUpkeep(harness.context)
    await begun.make_pass()
    assert not is_settled(writer)

    harness.clock.now += WAIT_MS
    await begun.make_pass()
    assert is_settled(writer)


async def test_a_store_that_has_run_for_long_is_believed_at_once() -> None:
    harness, writer = await a_run_with_one_that_is_dead()
    harness.clock.now += WAIT_MS
    await LeaderlessUpkeep(harness.context).make_pass()
    assert is_settled(writer)


async def test_a_process_that_has_just_begun_deletes_nothing_that_was_acknowledged() -> None:
    harness = await a_leaderless_harness(manifest_rebuild_wal_wait_ms=WAIT_MS)
    await a_stream(harness)
    writer = await a_writer(harness)
    await LeaderlessUpkeep(harness.context).make_pass()
    older = harness.coordination.copy()
    await writer.flush(STREAM, count=5)
    harness.clock.now += 20_000
    harness.coordination.put_back(older)

    await LeaderlessUpkeep(harness.context).make_pass()

    assert await writer.objects() == [0]


@pytest.mark.parametrize("guarded", [True, False])
async def test_an_older_copy_that_comes_in_the_middle_of_a_pass_is_met_before_anybody_is_settled(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass deletes for many seconds, and a process may stand still: the run that it met may be over."""
    if not guarded:
        remove(monkeypatch, "the run of the store in which a writer is settled", lambda *_: None)
    harness = await a_leaderless_harness(manifest_rebuild_wal_wait_ms=WAIT_MS)
    await a_stream(harness)
    writer = await a_writer(harness)
    vacuum = Vacuum(harness.context)
    await vacuum.meet_run()
    older = harness.coordination.copy()
    await writer.flush(STREAM, count=5)
    harness.clock.now += 20_000
    harness.coordination.put_back(older)

    await vacuum.make_pass()

    assert await writer.objects() == ([0] if guarded else [])


async def test_another_connection_to_the_same_run_keeps_nobody_from_being_settled() -> None:
    harness = await a_leaderless_harness(manifest_rebuild_wal_wait_ms=WAIT_MS)
    await a_stream(harness)
    writer = await a_writer(harness)
    await writer.flush(STREAM)
    await writer.lapse()
    vacuum = Vacuum(harness.context)
    await vacuum.meet_run()
    harness.coordination.connected_count += 1

    await vacuum.make_pass()

    assert is_settled(writer)
