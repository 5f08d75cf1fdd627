"""How uploaders share the shards of streams that they compact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compaction import a_world, begun, stream

from bottomless_server.coordination.base import CoordinationUnavailable, Hold
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.leaderless.tail import SHARD_COUNT
from bottomless_server.uploader.compaction.core.sharing import share_of
from bottomless_server.uploader.compaction.shards import SEAT_COUNT, Shards, seat_key, shard_key

LEASE_MS = 15_000


@given(st.sets(st.integers(0, SEAT_COUNT - 1), min_size=1))
def test_shares_are_all_shards_together_each_once_and_as_equal_as_can_be(seats: set[int]) -> None:
    shares = [share_of(seat, seats) for seat in seats]

    assert sorted(shard for share in shares for shard in share) == list(range(SHARD_COUNT))
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1
    assert all(share_of(seat, seats - {seat}) == share_of(seat, seats) for seat in seats)


class Store(MemoryCoordination):
    """Coordination with a clock that a test sets, and which can be away."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now = 0
        self.is_away = False

    async def get_many(self, redis_keys: object) -> list[bytes | None]:
        if self.is_away:
            raise CoordinationUnavailable("nobody answers")
        return await super().get_many(redis_keys)  # type: ignore[arg-type]

    def uploaders(self, count: int) -> list[Shards]:
        return [Shards(self, LEASE_MS) for _ in range(count)]


async def settled(*uploaders: Shards) -> list[int]:
    """How many shards each of them holds, after all have renewed three times: to take a seat, to see
    all seats and give up what has become another's, and to take what others have given up."""
    for _ in range(3):
        for one in uploaders:
            await one.renew()
    held = [shard for one in uploaders for shard in one.held]
    assert len(held) == len(set(held)), "two uploaders hold the same shard"
    return [len(one.held) for one in uploaders]


async def test_each_uploader_that_comes_gets_its_share() -> None:
    one, two, three = Store().uploaders(3)
    assert await settled(one) == [16]
    assert await settled(one, two) == [8, 8]
    assert await settled(one, two, three) == [6, 5, 5]


async def test_whoever_stops_leaves_its_share_to_the_others_at_once() -> None:
    one, two, three = Store().uploaders(3)
    await settled(one, two, three)
    await one.give_up()
    assert one.held == frozenset()
    assert await settled(two, three) == [8, 8]


async def test_the_share_of_who_dies_is_taken_when_its_leases_have_run_out() -> None:
    store = Store()
    dead, living = store.uploaders(2)
    await settled(dead, living)
    store.now += LEASE_MS - 1
    assert await settled(living) == [8]
    store.now += 1
    assert await settled(living) == [16]


async def test_who_wakes_after_its_leases_have_run_out_gets_a_share_again() -> None:
    store = Store()
    paused, other = store.uploaders(2)
    await settled(paused, other)
    version = paused.version
    store.now += LEASE_MS
    await settled(other)
    assert await settled(other, paused) == [8, 8]
    assert paused.version > version, "it would not read again what others have compacted meanwhile"


async def test_a_seat_that_somebody_else_has_taken_is_left_to_it() -> None:
    store = Store()
    (late,) = store.uploaders(1)
    await settled(late)
    await store.release(seat_key(0), store.peek(seat_key(0)) or b"")
    assert await store.hold(seat_key(0), b"somebody else", LEASE_MS) is Hold.TAKEN
    assert await settled(late) == [8]
    assert store.peek(seat_key(1)) is not None


async def test_more_uploaders_than_shards_stand_by() -> None:
    store = Store()
    uploaders = store.uploaders(SEAT_COUNT + 1)
    assert await settled(*uploaders) == [1] * SEAT_COUNT + [0]
    await uploaders[3].give_up()
    assert sum(await settled(*uploaders[:3], *uploaders[4:])) == SHARD_COUNT
    assert len(uploaders[-1].held) == 1


async def test_shards_of_a_release_that_knows_no_seats_are_left_to_it() -> None:
    store = Store()
    for shard in range(0, SHARD_COUNT, 4):
        await store.hold(shard_key(shard), b"the release before", LEASE_MS)
    assert await settled(*store.uploaders(2)) == [4, 8]


async def test_while_nobody_answers_what_is_held_stays_as_it_was() -> None:
    store = Store()
    (one,) = store.uploaders(1)
    await one.renew()
    store.is_away = True
    with pytest.raises(CoordinationUnavailable):
        await one.renew()
    assert len(one.held) == SHARD_COUNT


async def test_two_uploaders_compact_the_streams_of_their_shards_and_release_the_objects() -> None:
    async with a_world() as world:
        streams = [stream(number, shard=number) for number in range(SHARD_COUNT)]
        writer = await begun(world, *streams)
        first, second = world.compactor(), world.compactor()
        assert await settled(first.shards, second.shards) == [8, 8]
        await writer.flush(*streams)

        assert await first.compact_now() == (1, 8)
        assert await second.compact_now() == (1, 8)

        for one in streams:
            assert await world.published_next(one) == 2
        while world.held(writer):
            world.now += 1_000
            await first.look()
            await second.look()
