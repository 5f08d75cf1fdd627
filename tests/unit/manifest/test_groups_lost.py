"""Consumer groups when coordination is lost, comes back older, or their stream is deleted."""

import pytest
from support.manifest import STREAM, ManifestHarness, a_record
from support.rebuilding import a_step, agree, put_registry, rebuild

from bottomless.errors import Code, NotFound, Unavailable, WrongOffset
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference
from bottomless_server.coordination.base import Changes
from bottomless_server.core.consumer_group import ConsumerGroup, MemberId
from bottomless_server.manifest.consumers.group_changes import GroupChanges, Joining
from bottomless_server.stores.consumers import ConsumerOffsets
from bottomless_server.stores.forgetting import FOR_GOOD, unless_restored
from bottomless_server.stores.groups import Claim, ConsumerGroups, groups_index
from bottomless_server.stores.streams import GENERATION_KEY

BILLING = Reference("billing")


async def a_harness() -> ManifestHarness:
    harness = ManifestHarness()
    await agree(harness, 0)
    idle = {"home": None, "dirty": False, "epoch": 0, "epochs": (), "owner_url": None}
    record = a_record(**idle, reserved_next=0)
    await harness.streams.create(record)
    await put_registry(harness, record)
    return harness


async def joined(harness: ManifestHarness, name: str) -> tuple[MemberId, ConsumerGroup]:
    asked = Joining(Reference(name), 30_000, None)
    return await GroupChanges(harness.context).join(await harness.record(), BILLING, asked)


async def committed(harness: ManifestHarness, claim: Claim) -> StoredOffset | None:
    offsets = ConsumerOffsets(harness.coordination)
    return await offsets.change(
        STREAM, BILLING, lambda _: StoredOffset(BILLING, 3, 0, 1), 0, claim=claim
    )


async def test_after_a_rebuild_members_join_again_and_no_generation_comes_twice() -> None:
    """G8."""
    harness = await a_harness()
    old_id, before = await joined(harness, "pod-a")
    old = before.partitions[0].generation
    harness.coordination.lose()
    await rebuild(harness)
    changes = GroupChanges(harness.context)

    with pytest.raises(NotFound) as refused:
        await changes.beat(STREAM, BILLING, old_id, {0: old}, {})
    assert refused.value.code is Code.MEMBER_EXPIRED

    new_id, after = await joined(harness, "pod-a")
    new = after.partitions[0].generation
    assert new > old + 2**39
    with pytest.raises(WrongOffset) as fenced:
        await committed(harness, Claim(old_id, old))
    assert fenced.value.code is Code.CONSUMER_FENCED
    assert await committed(harness, Claim(new_id, new)) is not None


async def test_who_holds_what_was_never_given_hears_that_coordination_went_back() -> None:
    harness = await a_harness()
    member_id, group = await joined(harness, "pod-a")

    beyond = group.counter + 1
    with pytest.raises(Unavailable) as refused:
        await GroupChanges(harness.context).beat(STREAM, BILLING, member_id, {0: beyond}, {})

    assert refused.value.code is Code.COORDINATION_REGRESSED


async def test_groups_of_an_older_generation_are_discarded_by_a_rebuild() -> None:
    harness = await a_harness()
    await joined(harness, "pod-a")
    harness.coordination.write(Changes({GENERATION_KEY: None}))
    groups = ConsumerGroups(harness.coordination)

    await groups.forget(STREAM, unless_restored(STREAM, await a_step(harness.coordination, 1)))

    assert await groups.find(STREAM, BILLING) is None
    assert await groups.holder(STREAM, BILLING, 0) is None
    assert harness.coordination.peek_members(groups_index(STREAM)) == []


async def test_nothing_of_a_group_is_left_of_a_deleted_stream() -> None:
    harness = await a_harness()
    await joined(harness, "pod-a")
    groups = ConsumerGroups(harness.coordination)

    await groups.forget(STREAM, FOR_GOOD)

    assert await groups.find(STREAM, BILLING) is None
    assert await groups.holder(STREAM, BILLING, 0) is None
    assert (await groups.listed(STREAM)).names == []
