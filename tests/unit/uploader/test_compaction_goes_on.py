"""Rounds go on whatever fails beside them, and what is stuck is told, costs little, and goes in the end."""

from collections.abc import Sequence

import pytest
from support.compaction import MINUTE, a_world, begun, holding, piece_of, stream
from support.leaderless import OTHER_INSTANCE, WalWriter

from bottomless.errors import Code
from bottomless.formats.keys import wal_key
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Changes, CoordinationUnavailable
from bottomless_server.leaderless.tail import first_epoch
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.stores.tail_keys import tail_key
from bottomless_server.stores.wal import held_key
from bottomless_server.uploader.compaction import rounds

EPOCH = first_epoch(0)

ONE, TWO = stream(1), stream(2)


async def test_what_a_reading_found_that_failed_halfway_is_found_again() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE), await holding(world)
        other = WalWriter(world.harness, OTHER_INSTANCE)
        await other.begin()
        await world.append(writer, piece_of(ONE, b"a", b"b"))
        await world.append(other, piece_of(ONE, b"c", b"d"))
        members, failures = world.coordination.members, [held_key(OTHER_INSTANCE)]

        async def failing(redis_key: str, after: bytes, limit: int) -> list[bytes]:
            if redis_key in failures:
                failures.remove(redis_key)
                raise CoordinationUnavailable("away for a moment")
            return await members(redis_key, after, limit)

        world.coordination.members = failing  # type: ignore[method-assign]
        world.now += 10 * MINUTE
        with pytest.raises(CoordinationUnavailable):
            await compactor.look()
        assert not failures
        await compactor.look()

        assert await world.published_next(ONE) == 4
        await world.until_released(compactor, writer)
        assert not world.held(other)


async def test_a_missing_object_stops_its_streams_alone_with_an_alarm_and_costs_little() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE, TWO), await holding(world)
        await writer.flush(ONE)
        for _ in range(5):
            await writer.flush(ONE, TWO)
        await world.drive.delete([wal_key(writer.instance, 0)])

        world.now += 10 * MINUTE
        for _ in range(60):
            world.now += 1_000
            await compactor.look()

        assert await world.published_next(TWO) == 10
        assert await world.published_next(ONE) == 0
        assert world.held(writer) == {0, 1, 2, 3, 4, 5}
        failures = compactor.report()["failures"]
        assert failures[ONE]["compaction"]["code"] is Code.DATA_MISSING
        # The missing one is asked for again as often as its stream is tried; the others are not.
        assert world.gets.pop(wal_key(writer.instance, 0)) < 10
        assert set(world.gets.values()) == {1}


@pytest.mark.parametrize("damage", ["missing", "piece", "directory and piece"])
async def test_an_object_goes_once_its_loss_was_accepted(damage: str) -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE), await holding(world)
        packed = await writer.put(ONE)
        await writer.commit(packed)
        await writer.flush(ONE)
        key = wal_key(writer.instance, 0)
        if damage == "missing":
            await world.drive.delete([key])
        if "directory" in damage:
            world.drive.flip(key, 140)
        if "piece" in damage:
            world.drive.flip(key, packed.lines[0].position + 140)
        await compactor.compact_now()
        assert await world.published_next(ONE) == 0
        assert compactor.report()["failures"]

        mutators = Mutators(world.harness.context)
        await mutators.of(ONE).accept_gap(2)
        await mutators.aclose()
        world.now += 10 * MINUTE
        await world.until_released(compactor, writer)

        assert await world.published_next(ONE) == 4
        assert not compactor.report()["failures"]


async def test_the_tails_tell_who_needs_an_object_with_a_damaged_directory() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE, TWO), await holding(world)
        await writer.flush(ONE, TWO)
        await writer.flush(TWO)
        placed = {one: await world.placed(world.entries(one), EPOCH) for one in (ONE, TWO)}
        world.drive.flip(wal_key(writer.instance, 0), 140)

        await compactor.compact_now()

        assert await world.chunks(ONE) == placed[ONE]
        assert await world.chunks(TWO) == placed[TWO]
        await world.until_released(compactor, writer)


async def test_a_tail_that_cannot_be_read_keeps_what_is_broken() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE, TWO), await holding(world)
        await writer.flush(ONE, TWO)
        world.drive.flip(wal_key(writer.instance, 0), 140)
        world.coordination.write(Changes({tail_key(TWO): b"no tail"}))

        await compactor.compact_now()

        assert await world.published_next(ONE) == 2
        assert world.held(writer) == {0}


async def test_a_stream_of_which_looking_fails_as_nobody_expects_ends_no_round() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE, TWO), await holding(world)
        await writer.flush(ONE, TWO)
        get_many = world.coordination.get_many

        async def failing(redis_keys: Sequence[str]) -> list[bytes | None]:
            if tail_key(ONE) in redis_keys:
                raise ValueError("nobody expects it")
            return await get_many(redis_keys)

        world.coordination.get_many = failing  # type: ignore[method-assign]
        await compactor.compact_now()

        assert await world.published_next(TWO) == 2
        assert world.held(writer) == {0}


async def test_what_keeps_a_release_waiting_is_pruned_once_however_many_objects_it_keeps() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE), await holding(world)
        for _ in range(5):
            await writer.flush(ONE)
        before = world.tail_as_it_is(writer, ONE)
        await compactor.compact_now()
        await world.until_released(compactor, writer)
        # As if nothing was pruned, and whoever published it had died.
        world.coordination.write(before)
        await compactor.shards.give_up()

        second = await holding(world)
        await world.until_released(second, writer)

        assert 1 <= second.counts.prunes < 5


async def test_a_stream_whose_times_are_ahead_is_cut_by_what_passed_since_it_was_heard_of() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE), await holding(world)
        world.now += 60 * MINUTE
        await writer.flush(ONE)
        world.now -= 60 * MINUTE

        await compactor.look()
        world.now += 10 * MINUTE
        assert await compactor.look() == (1, 1)


async def test_ages_are_told_by_the_clock_of_the_coordination_store() -> None:
    async with a_world() as world:
        writer, compactor = await begun(world, ONE), await holding(world)

        async def clock() -> int:
            return world.now + 60 * MINUTE

        # That of rounds is this machine's, and that of the writer is compared with the store's.
        world.coordination.clock = clock  # type: ignore[method-assign]
        world.now += 60 * MINUTE
        await writer.flush(ONE)
        world.now -= 60 * MINUTE

        assert await compactor.look() == (0, 0)
        world.now += 10 * MINUTE - 1
        assert await compactor.look() == (0, 0)
        world.now += 1
        assert await compactor.look() == (1, 1)


async def test_streams_that_failed_come_last_and_in_turn_and_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "STREAMS_AT_ONCE", 1)
    streams = [stream(number) for number in range(1, 7)]
    well = streams[-1]
    async with a_world() as world:
        writer, compactor = await begun(world, *streams), await holding(world)
        world.refused = set(streams[:-1])
        asked: list[StreamId] = []

        async def put(stream_id: StreamId) -> None:
            asked.append(stream_id)
            if stream_id != well:
                world.now += rounds.AGAIN_MS // 2

        world.before_fragment = put
        tried: list[list[StreamId]] = []
        for _ in range(4):
            await writer.flush(*streams)
            await compactor.compact_now()
            tried.append(asked.copy())
            asked.clear()
            # Longer than any of them is set aside.
            world.now += MINUTE

        assert tried[0] == streams
        assert [one[0] for one in tried[1:]] == [well] * 3
        assert [one[1:] for one in tried[1:]] == [
            streams[:2],
            streams[2:4],
            [streams[4], streams[0]],
        ]
