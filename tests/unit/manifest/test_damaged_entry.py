"""A damaged entry of a tail, of which an operator accepts the loss: a gap up to its end, and no further."""

from typing import Any

import pytest
from support.leaderless import WalWriter, a_leaderless_harness, a_leaderless_stream, tail_of
from support.manifest import STREAM, GapRange, ManifestHarness
from unit.manifest.test_manifest_api import Service, running

from bottomless.errors import Fenced, WrongOffset
from bottomless.formats.keys import wal_key
from bottomless_server.leaderless.tail import first_epoch
from bottomless_server.manifest.leaderless.damaged_entry import damaged_next
from bottomless_server.manifest.mutators.accept_gap import accept_gap
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.stores.tail_keys import entries_from

PATH = "/v1/admin/streams/orders/gap"


async def three_flushes() -> tuple[ManifestHarness, WalWriter]:
    """Three times ten records; the first ten are in a fragment, whose intent is left."""
    harness = await a_leaderless_harness()
    await a_leaderless_stream(harness)
    writer = WalWriter(harness)
    await writer.begin()
    for _ in range(3):
        await writer.flush(STREAM, count=5)
    committer = await Committer.open(harness.context, STREAM)
    await begin(harness.context, committer, "s1")
    (uid,) = await intend(harness.context, committer, "s1", [0])
    await harness.put_fragment(uid, 0, epoch=first_epoch(0))
    return harness, writer


async def publish(harness: ManifestHarness) -> None:
    committer = await Committer.open(harness.context, STREAM)
    await begin(harness.context, committer, "s2")


async def accepted(service: Service, next_offset: int) -> Any:
    body = {"accept_loss": True, "next_offset": next_offset}
    return await service.public.post(PATH, json=body)


async def test_it_becomes_a_gap_and_the_stream_goes_on_after_it() -> None:
    harness, writer = await three_flushes()
    harness.drive.flip(wal_key(writer.instance, 1), 300)
    await publish(harness)
    committer = await Committer.open(harness.context, STREAM)

    told = await accept_gap(harness.context, committer, 20)

    assert told == {"gap": {"first_offset": 10, "next_offset": 20, "reason": "damaged"}}
    _, gap = await harness.entries()
    assert gap == GapRange(10, 20)
    assert (await tail_of(harness)).pruned_next == 20
    (left,) = await entries_from(harness.coordination, STREAM, 0)
    assert left.first_offset == 20
    # Once more, as after a crash.
    assert await accept_gap(harness.context, committer, 20) == told


async def test_what_is_durable_before_it_is_kept() -> None:
    harness, writer = await three_flushes()
    await harness.drive.delete([wal_key(writer.instance, 0)])
    committer = await Committer.open(harness.context, STREAM)

    await accept_gap(harness.context, committer, 10)

    (leaf,) = await harness.leaves()
    assert (leaf.first_offset, leaf.next_offset) == (0, 10)
    assert len(await harness.entries()) == 1


@pytest.mark.parametrize("next_offset", [10, 19, 20, 30])
async def test_what_can_be_read_is_not_given_up(next_offset: int) -> None:
    harness, _ = await three_flushes()
    await publish(harness)
    committer = await Committer.open(harness.context, STREAM)

    if next_offset > 10:
        with pytest.raises(WrongOffset):
            await accept_gap(harness.context, committer, next_offset)
    assert len(await harness.entries()) == 1
    assert await damaged_next(harness.context, await harness.record()) is None


async def test_no_uploader_of_before_registers_anything_of_it() -> None:
    harness, writer = await three_flushes()
    harness.drive.flip(wal_key(writer.instance, 1), 300)
    await publish(harness)
    committer = await Committer.open(harness.context, STREAM)

    await accept_gap(harness.context, committer, 20)

    with pytest.raises(Fenced):
        await intend(harness.context, committer, "s2", [10])


async def test_it_is_asked_for_over_http() -> None:
    harness, writer = await three_flushes()
    await publish(harness)
    async with running(harness) as service:
        refused = await accepted(service, 20)
        harness.drive.flip(wal_key(writer.instance, 1), 300)
        begun = await accepted(service, 20)

    assert (refused.status_code, refused.json()["code"]) == (412, "offset-mismatch")
    assert refused.json()["damaged_next"] is None
    assert begun.status_code == 202
