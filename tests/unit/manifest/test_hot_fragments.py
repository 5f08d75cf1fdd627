"""What readers fetch often goes one tier up and stays there, and what they tell too late does nothing."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.asgi import client_of
from support.drives import register
from support.guards import remove
from support.manifest import STREAM
from support.moving import COLD, HOT, Moving, a_moving_stream
from unit.manifest.test_tiering import WARM, Stream, streams

from bottomless.model.config import parse_stored_config
from bottomless.model.limits import MOVE_COUNT_MAX, PROMOTION_COUNT_MAX
from bottomless.model.names import uid_from_bytes
from bottomless.model.stream import StreamRecord
from bottomless.model.tiers import Promotion
from bottomless_server.manifest.app import ManifestService
from bottomless_server.manifest.tree.core.hot_ranges import Fetched, HotRange, find_hot_ranges
from bottomless_server.protocol.fetched import FETCHED, FragmentFetched, encode_fetched

READS = 3
"""Times its size that a fragment on the cold drive is fetched before it is promoted."""


def find(
    stream: Stream, fetched: Sequence[Fetched], reads: Mapping[int, int], group_count_max: int = 64
) -> tuple[list[HotRange], int]:
    """The ranges, and how many groups were asked for."""
    descent, asked = find_hot_ranges(stream.root, fetched, reads, group_count_max), 0
    try:
        entry = next(descent)
        while True:
            asked += 1
            entry = descent.send(stream.groups[uid_from_bytes(entry["uid"].tobytes())])
    except StopIteration as found:
        return found.value, asked


@settings(deadline=None, max_examples=60)
@given(streams(), st.data())
def test_hot_is_what_was_fetched_often_from_where_it_lies(
    stream: Stream, data: st.DataObject
) -> None:
    reads = {WARM: 2, COLD: 3}
    told, hot = [], set()
    for one in stream.fragments:
        if not data.draw(st.booleans()):
            continue
        lies = stream.drives[one.first_offset]
        drive = data.draw(st.sampled_from([lies, HOT, COLD]))
        size = data.draw(st.sampled_from([one.size, 2 * one.size, 3 * one.size]))
        told.append(Fetched(one.first_offset, drive, size))
        live = one.next_offset > stream.root.first_offset
        if live and drive == lies and size >= reads.get(lies, 99) * one.size:
            hot.add((one.first_offset, one.next_offset, lies))

    found, _ = find(stream, told, reads)

    split = {
        (one.first_offset, one.next_offset, found_range.drive)
        for found_range in found
        for one in stream.fragments
        if found_range.first_offset <= one.first_offset
        and one.next_offset <= found_range.next_offset
    }
    assert split == hot
    assert all(a.next_offset < b.first_offset or a.drive != b.drive for a, b in pairwise(found))


def test_no_more_groups_are_opened_than_may_be_and_none_of_a_drive_that_promotes_nothing() -> None:
    stream = Stream([1] * 300, 4, [COLD])
    told = [Fetched(one.first_offset, COLD, 9 * one.size) for one in stream.fragments]

    assert find(stream, told, {COLD: 3})[1] > 5
    assert find(stream, told, {COLD: 3}, group_count_max=5)[1] == 5
    assert find(stream, told, {WARM: 3}) == ([], 0)


class Scene:
    """A stream of six fragments of which four lie on the cold drive, whose tier promotes."""

    def __init__(
        self, moving: Moving, internal: httpx.AsyncClient, service: ManifestService
    ) -> None:
        self.moving = moving
        self.service = service
        self._internal = internal

    async def tell(self, *offsets: int, times: int = READS, drive: int = COLD) -> StreamRecord:
        """Tell that so many times the sizes of fragments were fetched; the record after that."""
        sizes = {info.first_offset: info.size for info in await self.moving.leaves()}
        told = [FragmentFetched(STREAM, at, drive, times * sizes[at]) for at in offsets]
        answer = await self._internal.post(FETCHED, json=encode_fetched(told))
        assert answer.status_code == 200, answer.text
        await self.moving.reopen()
        return await self.moving.harness.record()

    async def carry_out(self) -> list[int]:
        """End all moves; the drives of all fragments after that."""
        for move in (await self.moving.harness.record()).moves:
            await self.moving.copy(move.copy)
            await self.moving.finish(move.copy)
        return [info.drive for info in await self.moving.leaves()]

    async def evaluate(self) -> None:
        async with client_of(self.service.public) as client:
            answer = await client.post("/v1/streams/orders/tiers/evaluate", json={})
        assert answer.status_code == 202, answer.text
        await self.moving.reopen()

    async def change(self, **changes: Any) -> None:
        await self.moving.committer.change(lambda record: replace(record, **changes))


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    moving = await a_moving_stream(6)
    await register(moving.harness.drive, COLD)
    size = sum(info.size for info in (await moving.leaves())[4:])
    tiers = [
        {"drive": "default", "max_bytes": size},
        {"drive": f"d{COLD}", "promote_after_reads": READS},
    ]
    config = parse_stored_config({"tiers": tiers})
    await moving.committer.change(lambda record: replace(record, config=config))
    await moving.move(0, 40)
    service = ManifestService(moving.harness.context)
    async with client_of(service.internal) as internal:
        yield Scene(moving, internal, service)
    await service.stop()


async def test_what_is_fetched_often_goes_one_tier_up_and_neighbours_take_one_place(
    scene: Scene,
) -> None:
    record = await scene.tell(10, 20)

    moves = sorted(move[1:5] for move in record.moves)
    assert (moves[0][0], moves[-1][1]) == (10, 30)
    assert {move[2:] for move in moves} == {(COLD, HOT)}
    keep = scene.moving.harness.context.settings.manifest_promote_keep_ms
    assert record.promoted == (Promotion(10, 30, scene.moving.harness.clock() + keep),)
    assert await scene.carry_out() == [COLD, HOT, HOT, COLD, HOT, HOT]
    assert scene.moving.harness.context.counts.read_promotions == len(moves)


async def test_a_clock_that_is_set_ahead_promotes_nothing_for_longer_and_ends_nothing(
    scene: Scene,
) -> None:
    harness = scene.moving.harness
    keep = harness.context.settings.manifest_promote_keep_ms
    before = Promotion(30, 40, harness.clock() + keep)
    await scene.change(promoted=(before,))
    await harness.context.time.look()
    harness.clock.skew_ms = 365 * 86_400_000

    record = await scene.tell(10)

    assert record.promoted == (before, Promotion(10, 20, harness.clock.true() + keep))


async def test_what_is_fetched_less_often_stays(scene: Scene) -> None:
    assert (await scene.tell(0, 10, times=READS - 1)).moves == ()


async def test_what_is_told_late_or_twice_promotes_nothing_again(scene: Scene) -> None:
    await scene.tell(10)
    assert len((await scene.tell(10)).moves) == 1
    await scene.carry_out()

    assert (await scene.tell(10)).moves == ()
    assert (await scene.tell(10, 40, drive=HOT)).moves == ()


async def test_a_stream_whose_tiers_promote_nothing_is_left_alone(scene: Scene) -> None:
    tiers = [{"drive": "default", "max_bytes": 1}, {"drive": f"d{COLD}"}]
    await scene.change(config=parse_stored_config({"tiers": tiers}))

    assert (await scene.tell(0, 10, times=1_000)).moves == ()


async def test_what_there_is_no_room_for_waits_until_it_is_told_again(scene: Scene) -> None:
    until = scene.moving.harness.clock() + 1
    full = tuple(Promotion(100 + at, 101 + at, until + at) for at in range(PROMOTION_COUNT_MAX))
    await scene.change(promoted=full)
    assert (await scene.tell(10)).moves == ()

    await scene.change(promoted=())
    for first in (0, 20, 40, 50):
        target = HOT if first < 40 else COLD
        await scene.moving.enter(first, first + 10, COLD - target, target)
    assert len((await scene.tell(10)).moves) == MOVE_COUNT_MAX
    await scene.carry_out()
    assert [move[1:3] for move in (await scene.tell(10)).moves] == [(10, 20)]


async def test_one_stream_whose_drives_are_not_known_stops_no_telling(scene: Scene) -> None:
    tiers = [{"drive": "default", "max_bytes": 1}, {"drive": "gone", "promote_after_reads": 1}]
    await scene.change(config=parse_stored_config({"tiers": tiers}))

    assert (await scene.tell(10)).moves == ()


async def test_the_policy_leaves_alone_what_was_promoted_until_its_time_has_passed(
    scene: Scene,
) -> None:
    await scene.tell(10)
    await scene.carry_out()
    await scene.evaluate()
    assert await scene.carry_out() == [COLD, HOT, COLD, COLD, HOT, HOT]

    harness = scene.moving.harness
    harness.clock.now += harness.context.settings.manifest_promote_keep_ms
    await scene.evaluate()
    assert await scene.carry_out() == [COLD, COLD, COLD, COLD, HOT, HOT]


async def test_without_promoted_ranges_the_policy_takes_back_what_was_promoted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "promoted ranges", lambda _record, _now: [])
    await scene.tell(10)
    await scene.carry_out()
    await scene.evaluate()

    assert await scene.carry_out() == [COLD, COLD, COLD, COLD, HOT, HOT]
