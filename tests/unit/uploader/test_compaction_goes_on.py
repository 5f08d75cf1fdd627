"""Rounds go on whatever fails beside them, and what is stuck is told, costs little, and goes in the end."""

import pytest
from support.compaction import MINUTE, a_world, begun, holding, piece_of, stream
from support.leaderless import OTHER_INSTANCE, WalWriter

from bottomless_server.coordination.base import CoordinationUnavailable
from bottomless_server.stores.wal import held_key

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
