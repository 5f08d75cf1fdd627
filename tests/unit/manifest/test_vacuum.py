"""WAL objects go when nothing needs them, in order, and whatever happens to the process that deletes."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from support.leaderless import (
    INSTANCE,
    OTHER_INSTANCE,
    WalWriter,
    a_leaderless_harness,
    a_leaderless_stream,
    publish_all,
)
from support.manifest import NEIGHBOUR, STREAM, Crash, Fault, ManifestHarness
from support.waiting import eventually
from unit.manifest.test_manifest_api import running

from bottomless.formats.keys import wal_key
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.instance import RESERVED_COUNT, Loss, encode_instance
from bottomless_server.leaderless.tail import TailEntry
from bottomless_server.manifest.common.metrics import WalCounts
from bottomless_server.manifest.leaderless import upkeep
from bottomless_server.manifest.leaderless.upkeep import LEASE_KEY, LeaderlessUpkeep
from bottomless_server.manifest.leaderless.vacuum import Vacuum
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.stores import wal
from bottomless_server.stores.tail_keys import entries_from


async def a_writer_of(harness: ManifestHarness, *flushes: tuple[StreamId, ...]) -> WalWriter:
    """Two streams, and a writer that has put and committed these flushes."""
    await a_leaderless_stream(harness)
    await a_leaderless_stream(harness, NEIGHBOUR, "neighbour")
    writer = WalWriter(harness)
    await writer.begin()
    for flush in flushes:
        await writer.flush(*flush)
    return writer


async def entries(harness: ManifestHarness) -> list[TailEntry]:
    both = [await entries_from(harness.coordination, one, 0) for one in (STREAM, NEIGHBOUR)]
    return [entry for found in both for entry in found]


async def nothing_needed_is_gone(harness: ManifestHarness) -> None:
    for entry in await entries(harness):
        assert harness.drive.has(wal_key(entry.instance, entry.sequence))


async def test_what_nothing_holds_goes_and_what_follows_stays() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,), (STREAM,))
    await publish_all(harness)
    await writer.flush(STREAM)
    await writer.release()

    assert await Vacuum(harness.context).make_pass() == 2

    assert await writer.objects() == [2]
    record = writer.record()
    assert record is not None
    assert (record.deleted, record.settled) == (2, 3)
    counts = harness.context.counts
    assert (counts.deleted_wal_objects, counts.prunes, counts.pruned_entries) == (2, 1, 2)
    assert counts.wal == (1, 0, 0)


async def test_what_is_published_and_not_released_stays() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,))
    await publish_all(harness)

    assert await Vacuum(harness.context).make_pass() == 0
    assert await writer.objects() == [0]


async def test_an_object_shared_with_a_stuck_stream_stays_with_all_later_ones() -> None:
    """L27: notes of the first lie in the second, so it has to outlive it."""
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM, NEIGHBOUR), (STREAM,))
    await publish_all(harness)
    await writer.release()

    assert await Vacuum(harness.context).make_pass() == 0
    assert await writer.objects() == [0, 1]

    await publish_all(harness, NEIGHBOUR)
    await writer.release()
    assert await Vacuum(harness.context).make_pass() == 2
    assert await writer.objects() == []


async def test_a_dead_writer_goes_whole() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,))
    await writer.put(STREAM)
    await writer.lapse()
    vacuum = Vacuum(harness.context)

    # The first is needed yet; the second was never committed, and cannot be any more.
    assert await vacuum.make_pass() == 0
    record = writer.record()
    assert record is not None
    assert record.settled == record.reserved == 1_024
    await vacuum.make_pass()
    assert harness.context.counts.wal == (1, 1, 0)

    await publish_all(harness)
    await writer.release()
    assert await vacuum.make_pass() == 2

    assert (writer.record(), await writer.objects()) == (None, [])
    # Most of what it had reserved was never put, and nobody asks the store for it.
    assert [call for call, _ in harness.drive.calls].count("delete") == 2


async def test_a_writer_that_wakes_commits_nothing() -> None:
    """L26: its object may be gone."""
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness)
    packed = await writer.put(STREAM)
    await writer.lapse()
    await Vacuum(harness.context).make_pass()
    assert await writer.objects() == []

    with pytest.raises(AssertionError) as raised:
        await writer.commit(packed)
    assert raised.value.args[0] in (Loss.GONE, Loss.SETTLED)
    assert await entries(harness) == []


async def test_an_instance_that_was_noted_under_its_lease_goes_later() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness)
    record = writer.record()
    assert record is not None
    ended = replace(record, settled=1_024, deleted=1_024)
    key = wal.instance_key(writer.instance)
    harness.coordination.write(Changes({key: encode_instance(ended)}))
    vacuum = Vacuum(harness.context)

    await vacuum.make_pass()
    assert writer.record() == ended

    await writer.lapse()
    await vacuum.make_pass()
    assert writer.record() is None


async def test_what_is_kept_for_an_operator_stays_until_then() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,))
    await publish_all(harness)
    await writer.release()
    record = writer.record()
    assert record is not None
    kept = replace(record, keep_until=harness.clock.now + 1_000)
    harness.coordination.write(Changes({wal.instance_key(writer.instance): encode_instance(kept)}))
    vacuum = Vacuum(harness.context)

    harness.clock.now += 999
    assert await vacuum.make_pass() == 0
    assert harness.context.counts.wal == (1, 0, 1)
    harness.clock.now += 1
    assert await vacuum.make_pass() == 1


async def test_one_that_cannot_be_read_keeps_its_objects_and_the_others_go() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,))
    other = WalWriter(harness, OTHER_INSTANCE)
    await other.begin()
    await other.flush(STREAM)
    await publish_all(harness)
    await writer.release()
    await other.release()
    harness.coordination.write(Changes({wal.instance_key(writer.instance): b"damaged"}))

    assert await Vacuum(harness.context).make_pass() == 1
    assert (await writer.objects(), await other.objects()) == ([0], [])


async def test_an_object_that_does_not_go_keeps_all_later_ones() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,), (STREAM,), (STREAM,))
    await publish_all(harness)
    await writer.release()
    harness.drive.stubborn = {wal_key(writer.instance, 1)}
    vacuum = Vacuum(harness.context)

    await vacuum.make_pass()
    assert await writer.objects() == [1, 2]

    harness.drive.stubborn = set()
    await vacuum.make_pass()
    assert await writer.objects() == []


async def test_a_pass_deletes_a_bounded_number_of_one_instance() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, *[(STREAM,)] * 5)
    await publish_all(harness)
    await writer.release()
    vacuum = Vacuum(harness.context, page_count=2)

    assert [await vacuum.make_pass() for _ in range(4)] == [2, 2, 1, 0]
    record = writer.record()
    assert record is not None
    assert record.deleted == 5


async def test_it_gets_on_beside_a_writer_that_commits_all_the_time() -> None:
    """L28: no step of it needs a record that nobody changes meanwhile."""
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness)
    vacuum = Vacuum(harness.context)

    async def flush() -> None:
        await writer.flush(STREAM)

    for _ in range(20):
        await writer.flush(STREAM)
        await publish_all(harness)
        await writer.release()
        harness.coordination.before_transact = flush
        await vacuum.make_pass()
        await nothing_needed_is_gone(harness)
        assert len(await writer.objects()) <= 3


async def interrupted(
    harness: ManifestHarness, changes: int, work: Callable[[], Awaitable[object]]
) -> bool:
    """Do something in a process that dies after so many changes; whether it died."""
    harness.fuse.left = changes
    try:
        await work()
    except Crash:
        return True
    harness.fuse.left = None
    return False


@pytest.mark.parametrize("lives", [True, False])
async def test_wherever_it_dies_nothing_needed_goes_and_nothing_is_left_over(lives: bool) -> None:
    """L28: the next process finishes it."""
    for changes in itertools.count():
        harness = await a_leaderless_harness()
        writer = await a_writer_of(harness, (STREAM, NEIGHBOUR), (STREAM,), (NEIGHBOUR,))
        await publish_all(harness)
        await publish_all(harness, NEIGHBOUR)
        await writer.flush(STREAM)
        await writer.release()
        if not lives:
            await writer.lapse()
        died = await interrupted(harness, changes, Vacuum(harness.context).make_pass)
        await nothing_needed_is_gone(harness)

        await Vacuum(harness.context).make_pass()

        await nothing_needed_is_gone(harness)
        # Of a writer that is dead what it owed is noted.
        assert await writer.objects() == ([3] if lives else [3, RESERVED_COUNT - 1])
        await publish_all(harness)
        await writer.release()
        await Vacuum(harness.context).make_pass()
        assert await writer.objects() == []
        assert (writer.record() is None) is not lives
        if not died:
            assert changes >= 8
            break


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_APPLIED, Fault.LOST_LATE])
@pytest.mark.parametrize("place", range(2))
async def test_a_reply_that_is_lost_costs_a_pass(fault: Fault, place: int) -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,))
    await publish_all(harness)
    await writer.release()
    harness.coordination.faults = [*[Fault.NONE] * place, fault]

    await Vacuum(harness.context).make_pass()
    await Vacuum(harness.context).make_pass()
    harness.coordination.arrive()

    record = writer.record()
    assert record is not None
    assert (await writer.objects(), record.deleted) == ([], 1)


async def test_of_a_store_that_went_back_nothing_is_deleted() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,))
    await publish_all(harness)
    await writer.release()
    harness.coordination.lose()

    assert await Vacuum(harness.context).make_pass() == 0
    assert await writer.objects() == [0]


async def test_one_process_at_a_time_does_it() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,))
    await publish_all(harness)
    await writer.release()
    await harness.coordination.hold(LEASE_KEY, b"another", 3_600_000)

    harness.context.counts.wal = WalCounts(1, 1, 1)
    assert not await LeaderlessUpkeep(harness.context).make_pass()
    assert await writer.objects() == [0]
    assert harness.context.counts.wal == (0, 0, 0), "another process tells of them"

    await harness.coordination.release(LEASE_KEY, b"another")
    assert await LeaderlessUpkeep(harness.context).make_pass()
    assert await writer.objects() == []


async def test_after_the_lease_was_lost_the_next_pass_comes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "LEASE_MS_MIN", 300)
    harness = await a_leaderless_harness(manifest_wal_vacuum_ms=10)
    writer = await a_writer_of(harness, (STREAM,))
    await publish_all(harness)
    await writer.release()
    deletes = asyncio.Event()

    async def hang() -> None:
        deletes.set()
        await asyncio.Event().wait()

    harness.drive.before_delete_of, harness.drive.before_delete = "wal", hang
    running = asyncio.create_task(LeaderlessUpkeep(harness.context).run())
    await deletes.wait()
    # The store lost it, and another process does not want it.
    harness.coordination.write(Changes({LEASE_KEY: None}))

    await eventually(lambda: not harness.drive.has(wal_key(writer.instance, 0)))
    assert not running.done()
    await end_tasks(running)


async def test_one_instance_keeps_no_other_waiting() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,))
    other = WalWriter(harness, OTHER_INSTANCE)
    await other.begin()
    await other.flush(STREAM)
    await publish_all(harness)
    await writer.release()
    await other.release()
    hangs, goes_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        hangs.set()
        await goes_on.wait()

    harness.drive.before_delete_of, harness.drive.before_delete = INSTANCE, hang
    working = asyncio.create_task(Vacuum(harness.context).make_pass())
    await hangs.wait()

    await eventually(lambda: not harness.drive.has(wal_key(OTHER_INSTANCE, 0)))
    assert await writer.objects() == [0]
    goes_on.set()
    assert await working == 2


async def test_what_nobody_expects_of_one_instance_keeps_no_other() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,))
    other = WalWriter(harness, OTHER_INSTANCE)
    await other.begin()
    await other.flush(STREAM)
    await publish_all(harness)
    await writer.release()
    await other.release()

    async def fail() -> None:
        raise ValueError("nobody expects it")

    harness.drive.before_delete_of, harness.drive.before_delete = INSTANCE, fail
    with pytest.raises(ValueError, match="nobody expects it"):
        await Vacuum(harness.context).make_pass()
    assert await writer.objects() == [0]
    assert await other.objects() == []
    assert await Vacuum(harness.context).make_pass() == 1
    assert await writer.objects() == await other.objects() == []


async def test_before_the_generation_is_known_nothing_is_done() -> None:
    harness = await a_leaderless_harness()
    writer = await a_writer_of(harness, (STREAM,))
    await publish_all(harness)
    await writer.release()
    harness.streams.generation = None

    assert await Vacuum(harness.context).make_pass() == 0
    assert await writer.objects() == [0]


async def test_a_service_that_serves_such_streams_does_it() -> None:
    harness = await a_leaderless_harness(manifest_wal_vacuum_ms=10)
    writer = await a_writer_of(harness, (STREAM,))
    await publish_all(harness)
    await writer.release()

    async with running(harness):
        await eventually(lambda: not harness.drive.has(wal_key(writer.instance, 0)))
