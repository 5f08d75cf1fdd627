"""Rounds of compaction over real stores and a real manifest: L18 to L24 and L27, at unit level."""

import asyncio

import pytest
from support.asgi import client_of
from support.compaction import MINUTE, CompactionWorld, a_world, begun, holding, piece_of, stream
from support.guards import remove
from support.leaderless import OTHER_INSTANCE, WalWriter
from support.metrics import samples
from support.waiting import eventually

from bottomless.formats.keys import wal_key
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId
from bottomless_server.leaderless.tail import first_epoch
from bottomless_server.protocol.compaction import COMPACT, decode_compacted
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.http.app import wrap
from bottomless_server.stores import wal
from bottomless_server.uploader.compaction import stream_runs
from bottomless_server.uploader.compaction.compactor import Compactor

EPOCH = first_epoch(0)
ONE, TWO = stream(1), stream(2)
TARGET = MIB


async def test_what_waits_becomes_fragments_of_the_placed_chunks_and_is_released() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE, TWO), await holding(world)
        for _ in range(3):
            await writer.flush(ONE, TWO, count=2)
            world.now += 10
        placed = {one: await world.placed(world.entries(one), EPOCH) for one in (ONE, TWO)}
        world.gets.clear()

        assert await compactor.look() == (0, 0)
        world.now += 10 * MINUTE
        assert await compactor.look() == (3, 2)

        for stream_id in (ONE, TWO):
            assert await world.published_next(stream_id) == 12
            assert len(await world.fragments(stream_id)) == 1
            assert await world.chunks(stream_id) == placed[stream_id]
        await world.until_released(compactor, writer)
        assert world.entries(ONE) == world.entries(TWO) == []
        assert set(world.gets.values()) == {1}
        shown = samples(compactor.metrics())
        infos = [info for one in (ONE, TWO) for info in await world.fragments(one)]
        assert shown[("bottomless_compaction_fragments_total",)] == 2
        assert shown[("bottomless_compaction_fragment_bytes_total",)] == sum(
            info.size for info in infos
        )
        stages = "bottomless_compaction_stage_seconds_count"
        assert {shown[stages, ("stage", one)] for one in ("list", "fetch", "pack")} == {1}
        assert shown[stages, ("stage", "read")] == shown[stages, ("stage", "release")] > 1


async def test_fragments_end_with_whole_appends_at_the_size_that_the_stream_wants() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world), await holding(world)
        await world.create(ONE, target_bytes=TARGET)
        value = b"v" * (TARGET // 3)
        for _ in range(5):
            await world.append(writer, piece_of(ONE, value, b""))

        await compactor.compact_now()

        infos = await world.fragments(ONE)
        assert [(one.first_offset, one.next_offset) for one in infos] == [(0, 6), (6, 10)]


async def test_a_stream_of_ten_seconds_cuts_no_neighbour_of_half_an_hour() -> None:
    """L24: each is cut at its own age, and no object is fetched again for the sake of the quick one."""
    async with a_world() as world:
        writer, compactor = await begun(world), await holding(world)
        await world.create(ONE, max_age_ms=10_000)
        await world.create(TWO, max_age_ms=30 * MINUTE)
        for _ in range(96):
            await writer.flush(ONE, TWO)
            for _ in range(10):
                world.now += 1_000
                await compactor.look()

        assert len(await world.fragments(ONE)) == 96
        # Half of its age had passed when a round was there, which took it along.
        assert len(await world.fragments(TWO)) == 1
        assert max(world.gets.values()) == 2


async def test_a_full_cache_begins_a_round_that_cuts_all() -> None:
    async with a_world() as world:
        writer = await begun(world, ONE, TWO)
        compactor = await holding(world, uploader_wal_entries=6)
        for number in range(3):
            assert await compactor.look() == (0, 0), number
            await writer.flush(ONE, TWO)

        assert await compactor.look() == (3, 2)


async def test_a_round_takes_what_fits_into_its_cache_and_the_next_one_the_rest() -> None:
    async with a_world() as world:
        writer, compactor = (
            await begun(world, ONE),
            await holding(world, uploader_wal_cache_bytes=MIB),
        )
        for _ in range(5):
            await world.append(writer, piece_of(ONE, b"v" * (400 * 1024), b""))

        assert await compactor.look() == (2, 1)
        assert await compactor.look() == (2, 1)
        assert await compactor.look() == (0, 0)
        assert await compactor.compact_now() == (1, 1)
        assert await world.published_next(ONE) == 10
        assert set(world.gets.values()) == {1}


async def test_objects_of_a_writer_that_is_not_settled_wait() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE, TWO), await holding(world)
        await writer.flush(ONE, TWO)
        world.unsettle(writer)

        assert await compactor.compact_now() == (0, 0)
        await writer.lapse()
        await wal.settle(world.coordination, writer.instance, 0)
        assert await compactor.compact_now() == (1, 2)


async def test_without_its_guard_what_a_commit_in_the_meantime_holds_is_never_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Held members are read first here, and what is settled afterwards."""
    from bottomless_server.uploader.compaction import held

    async with a_world() as world:
        writer, compactor = await begun(world, ONE), await holding(world)

        async def held_first(*_: object) -> held.Found:
            await writer.flush(ONE)
            return held.Found([], 1)

        with monkeypatch.context() as patch:
            remove(patch, "what is settled, read before what rounds take", held_first)
            assert await compactor.compact_now() == (0, 0)
        assert await compactor.compact_now() == (0, 0)
        assert await (await replaced(world, compactor)).compact_now() == (1, 1)


async def replaced(world: CompactionWorld, dead: Compactor) -> Compactor:
    """Another uploader, which has the shards when the leases of one that is gone have run out."""
    del dead
    world.now += 15_001
    return await holding(world)


@pytest.mark.parametrize("step", ["before_fragment", "after_fragment"])
async def test_when_an_uploader_dies_the_next_one_finishes(step: str) -> None:
    """L18, L19: one copy of each record, and no offset that cannot be read meanwhile."""
    async with a_world() as world:
        writer, first = await begun(world, ONE, TWO), await holding(world)
        await writer.flush(ONE, TWO, count=2)
        placed = await world.placed(world.entries(ONE), EPOCH)
        reached: set[StreamId] = set()

        async def hang(stream_id: StreamId) -> None:
            reached.add(stream_id)
            await asyncio.Event().wait()

        setattr(world, step, hang)
        dying = asyncio.create_task(first.compact_now())
        await eventually(lambda: reached == {ONE, TWO})
        dying.cancel()
        await asyncio.wait({dying})
        world.before_fragment = world.after_fragment = None
        assert await world.published_next(ONE) == 0
        assert world.held(writer) == {0}

        second = await replaced(world, first)
        await second.compact_now()

        assert await world.chunks(ONE) == placed
        assert await world.published_next(TWO) == 4
        await world.until_released(second, writer)
        record = await world.harness.streams.load(ONE)
        assert record.intents == ()


async def test_when_an_uploader_dies_before_its_release_the_next_one_releases() -> None:
    """L20."""
    async with a_world() as world:
        writer, first = await begun(world, ONE), await holding(world)
        await writer.flush(ONE)

        async def published() -> None:
            while await world.published_next(ONE) == 0:
                await asyncio.sleep(0)

        dying = asyncio.create_task(first.compact_now())
        await published()
        dying.cancel()
        await asyncio.wait({dying})

        second = await replaced(world, first)
        await second.compact_now()
        await world.until_released(second, writer)
        assert len(await world.fragments(ONE)) == 1


async def test_what_was_published_and_never_pruned_is_pruned_for_the_release() -> None:
    """L21: the manifest died between the two, and nothing more comes to the stream."""
    async with a_world() as world:
        writer, compactor = await begun(world, ONE), await holding(world)
        await writer.flush(ONE)
        before = world.tail_as_it_is(writer, ONE)
        await compactor.compact_now()
        await world.until_released(compactor, writer)
        world.coordination.write(before)
        assert len(world.entries(ONE)) == 1

        second = await replaced(world, compactor)
        await world.until_released(second, writer)
        assert world.entries(ONE) == []
        assert second.counts.prunes > 0


async def test_an_uploader_that_was_paused_changes_nothing_when_it_wakes() -> None:
    """L23."""
    async with a_world() as world:
        writer, paused = await begun(world, ONE), await holding(world)
        await writer.flush(ONE, count=3)
        wake, reached = asyncio.Event(), asyncio.Event()

        async def pause(_: StreamId) -> None:
            reached.set()
            world.before_fragment = None
            await wake.wait()

        world.before_fragment = pause
        late = asyncio.create_task(paused.compact_now())
        await reached.wait()

        second = await replaced(world, paused)
        assert await second.compact_now() == (1, 1)
        before = await world.fragments(ONE)
        wake.set()
        await late

        assert await world.fragments(ONE) == before
        assert await world.published_next(ONE) == 6
        await world.until_released(second, writer)


async def test_a_damaged_piece_ends_the_run_of_its_stream_alone() -> None:
    """L27: what the stuck stream needs is kept, with all later objects that it is in."""
    async with a_world() as world:
        writer, compactor = await begun(world, ONE, TWO), await holding(world)
        await writer.flush(ONE, TWO)
        await writer.flush(ONE, TWO)
        await writer.flush(TWO)
        stuck = world.entries(ONE)[1]
        world.drive.flip(wal_key(writer.instance, 1), stuck.position + stuck.size - 1)

        await compactor.compact_now()

        assert await world.published_next(TWO) == 6
        # What lies before the damage is published.
        assert await world.published_next(ONE) == 2
        await world.until_released(compactor, writer, 1)
        assert list(compactor.streams.report()) == [ONE]
        assert wal_key(writer.instance, 1) in world.gets

        world.drive.flip(wal_key(writer.instance, 1), stuck.position + stuck.size - 1)
        world.now += MINUTE
        await world.until_released(compactor, writer)
        assert await world.published_next(ONE) == 4
        assert compactor.streams.report() == {}


async def test_damage_on_the_way_is_fetched_once_more() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE), await holding(world)
        await writer.flush(ONE)
        world.spoil_next_get = True

        assert await compactor.compact_now() == (1, 1)

        assert world.gets[wal_key(writer.instance, 0)] == 2
        assert compactor.streams.report() == {}


async def test_a_stream_that_cannot_be_uploaded_is_set_aside_and_takes_nothing_of_the_others() -> (
    None
):
    """L27: what only it needs neither fills the cache nor is fetched meanwhile."""
    async with a_world() as world:
        writer = await begun(world, ONE, TWO)
        compactor = await holding(world, uploader_wal_entries=4)

        world.refused = {ONE}
        for _ in range(4):
            await writer.flush(ONE)
        assert await compactor.look() == (4, 0)
        world.gets.clear()
        for _ in range(4):
            await writer.flush(TWO)
        world.now += 1_000
        assert await compactor.look() == (5, 1)

        assert await world.published_next(TWO) == 8
        # Its first object is looked at again, and no other before that one is done.
        assert set(world.gets) == {wal_key(writer.instance, one) for one in (0, 4, 5, 6, 7)}
        await world.until_released(compactor, writer, 0, 1, 2, 3)

        world.refused = set()
        world.now += 10 * MINUTE
        await world.until_released(compactor, writer)
        assert await world.published_next(ONE) == 8


async def test_an_older_entry_may_lie_in_an_object_that_looks_younger() -> None:
    """Clocks differ: the cache holds one object, and the one that looks older does not help."""
    async with a_world() as world:
        ahead, behind = await begun(world, ONE), WalWriter(world.harness, OTHER_INSTANCE)
        await behind.begin()
        compactor = await holding(world, uploader_wal_cache_bytes=MIB)
        large = b"v" * (800 * 1024)
        world.now += 5_000
        await world.append(ahead, piece_of(ONE, large, b""))
        world.now -= 5_000
        await world.append(behind, piece_of(ONE, large, b""))
        world.now += 5_000

        done = [await compactor.compact_now() for _ in range(3)]

        assert [one.stream_count for one in done] == [0, 1, 1]
        assert await world.published_next(ONE) == 4


async def test_a_stream_that_is_deleted_needs_nothing_any_more() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE, TWO), await holding(world)
        await writer.flush(ONE, TWO)
        await world.delete(ONE)

        assert await compactor.compact_now() == (1, 1)
        await world.until_released(compactor, writer)


async def test_without_its_guard_a_run_begins_with_what_a_fragment_has_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The manifest ends inside an entry, as after a gap: what it has is put once more, and refused."""
    for guarded_run in (True, False):
        async with a_world() as world:
            writer, compactor = await begun(world, ONE), await holding(world)
            await world.append(writer, piece_of(ONE, b"a", b"b", chunks=3))
            await world.publish(ONE, (await world.placed(world.entries(ONE), EPOCH))[0])
            with monkeypatch.context() as patch:
                if not guarded_run:
                    remove(
                        patch,
                        "the run of a stream begins where its manifest ends",
                        lambda chunks, _: chunks,
                    )
                await compactor.compact_now()
            assert await world.published_next(ONE) == (6 if guarded_run else 2)


@pytest.mark.parametrize(("object_count", "stream_count"), [(30, 100), (300, 1_000)])
async def test_many_objects_of_many_streams_are_read_once_and_placed_byte_by_byte(
    object_count: int, stream_count: int
) -> None:
    """L24; the larger one only where it is named."""
    async with a_world() as world:
        streams = [stream(number, number) for number in range(stream_count)]
        writer, compactor = await begun(world, *streams), await holding(world)
        for number in range(object_count):
            await writer.flush(*(streams[(number * 7 + one) % stream_count] for one in range(10)))
            world.now += 100
        placed = {one: await world.placed(world.entries(one), EPOCH) for one in streams}
        with_data = [one for one in streams if placed[one]]
        world.gets.clear()
        world.now += 10 * MINUTE

        assert await compactor.look() == (object_count, len(with_data))

        for stream_id in with_data:
            assert await world.chunks(stream_id) == placed[stream_id]
        await world.until_released(compactor, writer)
        assert len(world.gets) == object_count
        assert set(world.gets.values()) == {1}


async def test_an_operator_has_a_round_at_once() -> None:
    async with a_world() as world:
        writer = await begun(world, ONE, TWO)
        service = world.service()
        await writer.flush(ONE, TWO)
        async with client_of(wrap(service.internal)) as client:
            answer = await client.post(COMPACT)

        assert decode_compacted(answer.json()) == (1, 2)
        assert await world.published_next(TWO) == 2
        assert service.compactor is not None
        await world.until_released(service.compactor, writer)


async def test_where_nothing_is_compacted_an_operator_hears_it() -> None:
    async with a_world() as world:
        for wanted in ("off", "on"):
            service = world.service(with_coordination=False, uploader_wal=wanted)
            async with client_of(wrap(service.internal)) as client:
                assert (await client.post(COMPACT)).status_code == 503
        with pytest.raises(CannotStart, match="COORDINATION_URL"):
            world.service(with_coordination=False, uploader_wal="only")
        with pytest.raises(CannotStart, match="no streams are compacted"):
            world.service(served=frozenset(), uploader_wal="only")


async def test_a_process_that_only_compacts_follows_no_ingest_node() -> None:
    async with a_world() as world:
        writer = await begun(world, ONE)
        await writer.flush(ONE)
        service = world.service(uploader_wal="only", uploader_wal_entries=1)
        await service.start()
        while await world.published_next(ONE) == 0:
            await asyncio.sleep(0.002)
        report = await service.report()
        assert (report["status"], report["nodes"]) == ("running", 0)
        assert report["compaction"]["shards"] == 16
        names = {metric.name for metric in service.metrics()}
        assert "bottomless_compaction_rounds" in names
        await service.drain()
        assert service.compactor is not None
        assert service.compactor.shards.held == frozenset()


async def test_a_stream_that_takes_too_long_ends_its_part_of_the_round() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE), await holding(world)
        await writer.flush(ONE)

        async def hang(_: StreamId) -> None:
            await asyncio.Event().wait()

        world.before_fragment = hang
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream_runs, "STREAM_SECONDS", 0.1)
            assert await compactor.compact_now() == (1, 0)
        assert list(compactor.streams.report()) == [ONE]

        world.before_fragment = None
        world.now += 1_000
        assert await compactor.compact_now() == (1, 1)
        assert await world.published_next(ONE) == 2


async def test_an_instance_that_went_back_is_read_anew() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE), await holding(world)
        copy = world.coordination.copy()
        await writer.flush(ONE)
        await writer.flush(ONE)
        await compactor.compact_now()
        await world.until_released(compactor, writer)
        world.coordination.put_back(copy)
        other = WalWriter(world.harness, writer.instance)
        other.sequence = 2
        await other.flush(ONE)

        assert await compactor.look() == (0, 0)
        assert len(compactor.objects) == 1
