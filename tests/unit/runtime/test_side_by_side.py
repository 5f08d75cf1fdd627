"""The same is done for many at once, and for never more of them than was said."""

import asyncio

import pytest

from bottomless_server.runtime.base.side_by_side import side_by_side


class Work:
    """Something that takes a few turns, and knows how many do it at once."""

    def __init__(self, *fails: int) -> None:
        self._fails = fails
        self.running = self.most = 0
        self.ended: list[int] = []

    async def __call__(self, key: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            # The first ones last the longest.
            for _ in range(20 - key):
                await asyncio.sleep(0)
            if key in self._fails:
                raise ValueError(key)
            return key * key
        finally:
            self.running -= 1
            self.ended.append(key)


@pytest.mark.parametrize(("count", "at_once", "most"), [(0, 3, 0), (1, 3, 1), (2, 3, 2), (9, 3, 3)])
async def test_as_many_as_were_said_are_under_way_and_all_come_in_their_order(
    count: int, at_once: int, most: int
) -> None:
    work = Work()
    came_of = await side_by_side(range(count), work, at_once)
    assert [*came_of.items()] == [(key, key * key) for key in range(count)]
    assert work.most == most
    assert sorted(work.ended) == [*range(count)]


async def test_one_that_fails_ends_none_of_the_others() -> None:
    came_of = await side_by_side(range(6), Work(0, 4), 2)
    assert [key for key, one in came_of.items() if isinstance(one, ValueError)] == [0, 4]
    assert [one for one in came_of.values() if not isinstance(one, Exception)] == [1, 4, 9, 25]


async def test_who_is_cancelled_leaves_nothing_under_way() -> None:
    work = Work()
    whole = asyncio.ensure_future(side_by_side(range(9), work, 3))
    for _ in range(5):
        await asyncio.sleep(0)
    assert work.running == 3
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert work.running == 0
    assert work.ended == [0, 1, 2]
